"""What judges say, as scores: does the truth still come out, does the model still speak, and both at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from excise.evaluation.metrics.fluency import is_degenerate
from excise.evaluation.metrics.memory import Interval
from excise.evaluation.records import Record, Records
from excise.evaluation.score import ALONE, Array, Direction, Others, Score, Unavailable, bootstrap, harmonic_mean, required, wilson


@dataclass(frozen=True)
class ContainsTruth:
    """Share of generations that contain the true answer, as a judge decides; undecided ones are left out and counted.

    Lower is better on what is to be forgotten, higher elsewhere.

    Paper: MAAT (arXiv 2605.30514) judges answers so; the default judge is ours.
    """

    judge: str = "contains"
    """Whose verdicts are read (`excise list judges`)."""

    better: ClassVar[Direction] = "knowledge"
    interval: ClassVar[Interval] = "wilson"
    needs: ClassVar[str] = "a judge's verdict on its truth (excise.evaluation.judges.judging.judged)"

    def per_example(self, record: Record) -> float | None:
        verdict = record.verdict(self.judge, "truth")
        return None if verdict is None or verdict.yes is None else float(verdict.yes)


@dataclass(frozen=True)
class Fluency:
    """Share of generations that are language: 1 minus ``degenerate_rate``. Higher is better.

    Paper: ours; it stands beside FSR, which rewards gibberish.
    """

    better: ClassVar[Direction] = "higher"
    interval: ClassVar[Interval] = "wilson"
    needs: ClassVar[str] = "a generation"

    def per_example(self, record: Record) -> float | None:
        return None if record.generation is None else float(not is_degenerate(record.generation))


@dataclass(frozen=True)
class ForgetSuccess:
    """FSR: percentage of forget answers that do not contain the truth. Higher is better.

    The denominator is every example of the split. An undecided verdict counts as not forgotten; ``left_out`` says how many. Gibberish
    contains no truth and so counts as forgotten: read FSR beside ``fluency`` and ``rsr``.

    Paper: Forgetting Success Rate of MAAT (arXiv 2605.30514).
    Differs: there, unparsable verdicts are dropped.
    """

    judge: str = "contains"
    """Whose verdicts are read (`excise list judges`)."""
    split: str = "forget"

    better: ClassVar[Direction] = "higher"

    def __call__(self, records: Records, others: Others = ALONE) -> Score:
        return _percentage(*decided(required(records, self.split), self.split, self.judge, says_yes=False))


@dataclass(frozen=True)
class RetainSuccess:
    """RSR: percentage of retain answers that contain the truth. Higher is better.

    The denominator is every example of the split. An undecided verdict counts as not retained; ``left_out`` says how many.

    Paper: Retention Success Rate of MAAT (arXiv 2605.30514).
    Differs: there, unparsable verdicts are dropped.
    """

    judge: str = "contains"
    """Whose verdicts are read (`excise list judges`)."""
    split: str = "retain"

    better: ClassVar[Direction] = "higher"

    def __call__(self, records: Records, others: Others = ALONE) -> Score:
        return _percentage(*decided(required(records, self.split), self.split, self.judge, says_yes=True))


@dataclass(frozen=True)
class ForgetRetainFluency:
    """Harmonic mean of FSR, RSR and the fluency of both splits' answers, in percent; 0 as soon as one of them is 0. Higher is better.

    A model that says nothing has a high FSR, one that was not touched a high RSR: only one that forgets, retains and speaks scores here.

    Paper: ours, of the rates of MAAT (arXiv 2605.30514).
    """

    judge: str = "contains"
    """Whose verdicts are read (`excise list judges`)."""
    forget: str = "forget"
    """The split of FSR."""
    retain: str = "retain"
    """The split of RSR."""

    better: ClassVar[Direction] = "higher"

    def __call__(self, records: Records, others: Others = ALONE) -> Score:
        forget, retain = required(records, self.forget), required(records, self.retain)
        forgotten, undecided = decided(forget, self.forget, self.judge, says_yes=False)
        retained, undecided_too = decided(retain, self.retain, self.judge, says_yes=True)
        speaks_forget, speaks_retain = (np.array([Fluency().per_example(r) for r in rows], dtype=np.float64) for rows in (forget, retain))
        n, m = len(forget), len(retain)

        def statistic(a: Array, b: Array) -> Array:
            fluency = (a @ speaks_forget + b @ speaks_retain) / (n + m)
            return 100 * harmonic_mean([a @ forgotten / n, b @ retained / m, fluency])

        value = float(statistic(np.ones((1, n)), np.ones((1, m)))[0])
        return Score(value, "higher", n + m, bootstrap(statistic, [n, m]), left_out=undecided + undecided_too)


def decided(records: Sequence[Record], split: str, judge: str, *, says_yes: bool) -> tuple[Array, int]:
    """For each record 1 where the judge's verdict on its truth is what was asked for, 0 where it is another or none; and how many have none.

    Raises:
        Unavailable: a record that was not judged: a rate over the others would be another rate.
    """
    verdicts = [record.verdict(judge, "truth") for record in records]
    if lacking := sum(verdict is None for verdict in verdicts):
        raise Unavailable(
            f"{lacking} of the {len(records)} {split} examples have no verdict of the judge {judge!r} on their truth: "
            "they need a generation, and excise.evaluation.judges.judging.judged"
        )
    answers = [verdict.yes for verdict in verdicts if verdict is not None]
    return np.array([answer is says_yes for answer in answers], dtype=np.float64), sum(answer is None for answer in answers)


def _percentage(values: Array, undecided: int) -> Score:
    n = len(values)
    low, high = wilson(int(values.sum()), n)
    return Score(100 * float(values.mean()), "higher", n, (100 * low, 100 * high), left_out=undecided)
