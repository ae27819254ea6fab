"""Multiple-choice questions, answered by likelihood."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from excise.evaluation.metrics.memory import Interval, without_end
from excise.evaluation.records import Record
from excise.evaluation.score import Direction

NEEDS = "scored options and the index of the right one"


def _likelihoods(record: Record, end: bool) -> tuple[float, list[float]] | None:
    """Length-normalised log-likelihood of the right option, and those of the others."""
    if not record.options or record.gold is None:
        return None
    means = [option.mean_logp if end else _mean(without_end(option)[0]) for option in record.options]
    return means[record.gold], means[: record.gold] + means[record.gold + 1 :]


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
        found = _likelihoods(record, self.end)
        return None if found is None else float(all(found[0] > other for other in found[1]))


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
        found = _likelihoods(record, self.end)
        if found is None or not found[1]:
            return None
        return found[0] - sum(found[1]) / len(found[1])
