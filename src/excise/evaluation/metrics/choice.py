"""Multiple-choice questions, answered by likelihood."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from excise.evaluation.metrics.memory import Interval, without_end
from excise.evaluation.records import Record
from excise.evaluation.score import Direction

NEEDS = "scored options and the index of the right one"
NEEDS_LETTERS = "scored letters and the index of the right one"


def _likelihoods(record: Record, end: bool) -> tuple[float, list[float]] | None:
    """Length-normalised log-likelihood of the right option, and those of the others."""
    return _parted([option.mean_logp if end else _mean(without_end(option)[0]) for option in record.options], record.gold)


def _letters(record: Record) -> tuple[float, list[float]] | None:
    """Log-likelihood of the right letter, and those of the others; a letter is one token for nearly every tokenizer."""
    return _parted([sum(letter.logp) for letter in record.letters], record.gold)


def _parted(values: list[float], gold: int | None) -> tuple[float, list[float]] | None:
    if not values or gold is None:
        return None
    return values[gold], values[:gold] + values[gold + 1 :]


def _right(found: tuple[float, list[float]] | None) -> float | None:
    return None if found is None else float(all(found[0] > other for other in found[1]))


def _margin(found: tuple[float, list[float]] | None) -> float | None:
    return None if found is None or not found[1] else found[0] - sum(found[1]) / len(found[1])


def _share(found: tuple[float, list[float]] | None) -> float | None:
    if found is None:
        return None
    top = max(found[0], *found[1])
    right = math.exp(found[0] - top)
    return right / (right + sum(math.exp(other - top) for other in found[1]))


def _mean(values: tuple[float, ...]) -> float:
    return sum(values) / len(values)


@dataclass(frozen=True)
class ChoiceAccuracy:
    """Share of questions where the right option has the highest length-normalised log-likelihood; a tie is not right.

    Lower is better on what is to be forgotten, higher elsewhere; 1/options is chance.

    Paper: length normalisation as in lm-evaluation-harness (Gao et al. 2021), by tokens instead of bytes.
    """

    end: bool = False
    """Whether the end of the turn counts as a token of the option."""

    better: ClassVar[Direction] = "knowledge"
    interval: ClassVar[Interval] = "wilson"
    needs: ClassVar[str] = NEEDS

    def per_example(self, record: Record) -> float | None:
        return _right(_likelihoods(record, self.end))


@dataclass(frozen=True)
class ChoiceMargin:
    """Length-normalised log-likelihood of the right option minus the mean of the others', in nats per token.

    Moves long before the accuracy does. Lower is better on what is to be forgotten, higher elsewhere.

    Paper: ours.
    """

    end: bool = False
    """Whether the end of the turn counts as a token of the option."""

    better: ClassVar[Direction] = "knowledge"
    interval: ClassVar[Interval] = "bootstrap"
    needs: ClassVar[str] = NEEDS

    def per_example(self, record: Record) -> float | None:
        return _margin(_likelihoods(record, self.end))


@dataclass(frozen=True)
class ChoiceProbability:
    """Share of the right option in the options' probabilities: p / sum of p, p = exp of the mean log-probability per token.

    Lower is better on what is to be forgotten, higher elsewhere; 1/options is chance.

    Paper: the normalised probability of TOFU (Maini et al. 2024, arXiv 2401.06121), section 2.2, over a question's options.
    """

    end: bool = False
    """Whether the end of the turn counts as a token of the option."""

    better: ClassVar[Direction] = "knowledge"
    interval: ClassVar[Interval] = "bootstrap"
    needs: ClassVar[str] = NEEDS

    def per_example(self, record: Record) -> float | None:
        return _share(_likelihoods(record, self.end))


@dataclass(frozen=True)
class LetterAccuracy:
    """Share of questions where the right option's letter is the likeliest after "question / A. ... / Answer:"; a tie is not right.

    Lower is better on what is to be forgotten, higher elsewhere; 1/options is chance. Models under about a billion
    parameters are at chance here, whatever they know: read ``choice_accuracy`` then.

    Paper: lm-evaluation-harness (Gao et al. 2021), its tasks mmlu and wmdp; Hendrycks et al. 2021 (arXiv 2009.03300).
    """

    better: ClassVar[Direction] = "knowledge"
    interval: ClassVar[Interval] = "wilson"
    needs: ClassVar[str] = NEEDS_LETTERS

    def per_example(self, record: Record) -> float | None:
        return _right(_letters(record))


@dataclass(frozen=True)
class LetterMargin:
    """Log-likelihood of the right option's letter minus the mean of the other letters', in nats.

    Lower is better on what is to be forgotten, higher elsewhere.

    Paper: ours.
    """

    better: ClassVar[Direction] = "knowledge"
    interval: ClassVar[Interval] = "bootstrap"
    needs: ClassVar[str] = NEEDS_LETTERS

    def per_example(self, record: Record) -> float | None:
        return _margin(_letters(record))


@dataclass(frozen=True)
class LetterProbability:
    """Share of the right option's letter in the probability of all the letters.

    Lower is better on what is to be forgotten, higher elsewhere; 1/options is chance.

    Paper: Hendrycks et al. 2021, MMLU (arXiv 2009.03300): the probabilities that its calibration is measured on.
    """

    better: ClassVar[Direction] = "knowledge"
    interval: ClassVar[Interval] = "bootstrap"
    needs: ClassVar[str] = NEEDS_LETTERS

    def per_example(self, record: Record) -> float | None:
        return _share(_letters(record))
