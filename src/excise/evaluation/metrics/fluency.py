"""Does the model still speak? Repetition, degenerate answers, perplexity."""

from __future__ import annotations

import math
import re
import unicodedata
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from excise.evaluation.metrics.memory import Interval
from excise.evaluation.records import Record, Records
from excise.evaluation.score import ALONE, Array, Direction, Others, Score, Unavailable, bootstrap, required


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())


@dataclass(frozen=True)
class RepetitionRate:
    """1 - distinct/total over the word 3-grams of a generation; 0 with fewer than three words. Lower is better.

    An empty answer repeats nothing: read it beside ``degenerate_rate``.

    Paper: Welleck et al. 2020 (arXiv 1908.04319), seq-rep-n with n = 3.
    """

    better: ClassVar[Direction] = "lower"
    interval: ClassVar[Interval] = "bootstrap"
    needs: ClassVar[str] = "a generation"

    def per_example(self, record: Record) -> float | None:
        return None if record.generation is None else repetition(record.generation)


def repetition(text: str) -> float:
    """Share of the word 3-grams that stood there before."""
    said = _words(text)
    triples = list(zip(said, said[1:], said[2:], strict=False))
    return 1 - len(set(triples)) / len(triples) if triples else 0.0


@dataclass(frozen=True)
class DegenerateRate:
    """Share of generations that are no answer: empty, mostly signs, a loop, or with a word over 30 characters. Lower is better.

    Mostly signs: fewer than half of the characters are letters or digits (spaces not counted). A loop: one to twelve words
    four times in a row, or of at least 20 word 3-grams more than half stood there before.

    Paper: the rule that stands beside FSR in our re-evaluation of MAAT (arXiv 2605.30514); details ours.
    """

    better: ClassVar[Direction] = "lower"
    interval: ClassVar[Interval] = "wilson"
    needs: ClassVar[str] = "a generation"

    def per_example(self, record: Record) -> float | None:
        return None if record.generation is None else float(is_degenerate(record.generation))


def is_degenerate(text: str) -> bool:
    """Whether a text is empty, mostly signs, a loop, or holds a word over 30 characters."""
    characters = [c for c in text if not c.isspace()]
    meaningful = sum(unicodedata.category(c)[0] in "LNM" for c in characters)
    if not characters or meaningful < len(characters) / 2:
        return True
    said = _words(text)
    return any(_is_endless(word) for word in said) or _is_loop(said)


def _is_endless(word: str) -> bool:
    """Over 30 characters; scripts without capitals often write without spaces and do not count."""
    return len(word) > 30 and sum(c.isdigit() or c == "_" or c.lower() != c.upper() for c in word) > 30


def _is_loop(said: list[str]) -> bool:
    for size in range(1, 13):
        run = 0
        for i in range(size, len(said)):
            run = run + 1 if said[i] == said[i - size] else 0
            if run >= 3 * size:
                return True
    triples = list(zip(said, said[1:], said[2:], strict=False))
    return len(triples) >= 20 and len(set(triples)) < len(triples) / 2


@dataclass(frozen=True)
class Perplexity:
    """exp of the mean negative log-probability per token, over all scored tokens of a split. Lower is better.

    Paper: Jelinek et al. 1977; open text as in most unlearning studies.
    """

    split: str = "retain"

    better: ClassVar[Direction] = "lower"

    def __call__(self, records: Records, others: Others = ALONE) -> Score:
        scores = [record.true for record in required(records, self.split)]
        known = [score for score in scores if score is not None]
        if not known:
            raise Unavailable(f"no example of the split {self.split!r} has a scored text")
        loss = np.array([-sum(score.logp) for score in known])
        tokens = np.array([float(len(score.logp)) for score in known])
        mean = float(loss.sum() / tokens.sum())
        if mean > 700:
            raise Unavailable(f"the perplexity is beyond any number: the mean loss is {mean:.0f} nats per token")

        def statistic(counts: Array) -> Array:
            return np.exp(np.minimum((counts @ loss) / (counts @ tokens), 700.0))

        return Score(math.exp(mean), "lower", len(known), bootstrap(statistic, [len(known)]), left_out=len(scores) - len(known))
