"""EMBER's efficacy, specificity and coherence: what is left of a concept, and of everything else, relative to the model before."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from excise.evaluation.metrics.choice import ChoiceAccuracy
from excise.evaluation.metrics.facts import STOP_WORDS, words
from excise.evaluation.metrics.fluency import is_degenerate
from excise.evaluation.metrics.judged import Fluency
from excise.evaluation.metrics.memory import Interval
from excise.evaluation.records import Record, Records
from excise.evaluation.score import (
    Array,
    Better,
    Direction,
    ExampleMetric,
    Others,
    Score,
    Unavailable,
    bootstrap,
    harmonic_mean,
    matching,
    required,
)

REMEDY: Mapping[str, str] = {"mmlu": "give the benchmark a table of MMLU questions (data.mmlu=FILE)"}
"""What to do about a split that is often missing."""


@dataclass(frozen=True)
class Kept:
    """How much of what the model could do before it can still do: frac = (mean - chance) / (mean before - chance)."""

    split: str
    metric: ExampleMetric
    chance: Literal["options", "none"] = "options"
    """options: guessing is right once in as many times as there are options, which the fraction takes off (EMBER: .25). none: nothing is."""


@dataclass(frozen=True)
class _Column:
    """One part, measured on both models."""

    split: str
    mine: Array
    before: Array
    chance: float
    left_out: int

    def fraction(self, drawn: Array, clip: bool) -> Array:
        """The fraction for each row of draw counts [b, n]; NaN where the model before is at chance."""
        n = drawn.sum(axis=1)
        mine, before = (drawn @ self.mine) / n - self.chance, (drawn @ self.before) / n - self.chance
        found = np.divide(mine, before, out=np.full_like(mine, np.nan), where=before > 1e-12)
        return np.clip(found, 0.0, 1.0) if clip else found


def _column(part: Kept, records: Records, others: Others) -> _Column:
    if not records.get(part.split) and part.split in REMEDY:
        raise Unavailable(f"there are no records of the split {part.split!r}: {REMEDY[part.split]}")
    mine = required(records, part.split)
    pairs = [
        (a, b, part.metric.per_example(a), part.metric.per_example(b))
        for a, b in zip(mine, matching(records, others, "baseline", part.split), strict=True)
    ]
    known = [(a, x, y) for a, _, x, y in pairs if x is not None and y is not None]
    if not known:
        raise Unavailable(f"no example of the split {part.split!r} has {part.metric.needs}")
    chances = [1 / len(record.options) for record, _, _ in known if record.options] if part.chance == "options" else []
    chance = sum(chances) / len(chances) if chances else 0.0
    column = _Column(part.split, np.array([x for _, x, _ in known]), np.array([y for _, _, y in known]), chance, len(pairs) - len(known))
    if column.before.mean() <= chance + 1e-12:
        raise Unavailable(
            f"on the split {part.split!r} the model before unlearning scores {column.before.mean():.3f}, no better than chance ({chance:.3f}): "
            "nothing is there to be lost or kept; look at the margin"
        )
    return column


def relative(parts: Sequence[Kept], combine: Callable[[list[Array]], Array], clip: bool, better: Better, records: Records, others: Others) -> Score:
    """A statistic of fractions, with its bootstrap interval: both models' answers to one example are drawn together.

    Args:
        combine: from the fraction of each part, arrays [b], to the statistic [b].
    """
    columns = [_column(part, records, others) for part in parts]
    sizes: dict[str, int] = {}
    for column in columns:
        if sizes.setdefault(column.split, len(column.mine)) != len(column.mine):
            raise Unavailable(f"the parts on the split {column.split!r} were measured on different examples")

    def statistic(*counts: Array) -> Array:
        drawn = dict(zip(sizes, counts, strict=True))
        return combine([column.fraction(drawn[column.split], clip) for column in columns])

    value = float(statistic(*(np.ones((1, n)) for n in sizes.values()))[0])
    left_out = max(column.left_out for column in columns)
    return Score(value, better, sum(sizes.values()), bootstrap(statistic, list(sizes.values())), left_out=left_out)


CONCEPT = Kept("concept", ChoiceAccuracy())
SIMILAR = Kept("similar", ChoiceAccuracy())
MMLU = Kept("mmlu", ChoiceAccuracy())


@dataclass(frozen=True)
class KeepsToSubject:
    """Share of continuations that repeat a content word of the text they continue. Higher is better.

    A degenerate continuation keeps to nothing. It reads no meaning: a judge of the aspect ``related`` does.

    Paper: ours, in the place of the judge of EMBER (arXiv 2606.03695).
    """

    better: ClassVar[Direction] = "higher"
    interval: ClassVar[Interval] = "wilson"
    needs: ClassVar[str] = "a generation"

    def per_example(self, record: Record) -> float | None:
        if record.generation is None:
            return None
        subject = {word for word in words(record.prompt) if word not in STOP_WORDS and not word.isdigit()}
        return float(not is_degenerate(record.generation) and bool(subject & set(words(record.generation))))


@dataclass(frozen=True)
class Related:
    """Mean score of a judge for how well a generation keeps to its subject, from 0 to 1. Higher is better.

    Paper: the relatedness of EMBER (arXiv 2606.03695).
    """

    judge: str = "similarity"
    """Whose verdicts are read (`excise list judges`)."""

    better: ClassVar[Direction] = "higher"
    interval: ClassVar[Interval] = "bootstrap"
    needs: ClassVar[str] = "a judge's verdict on its relatedness (excise.evaluation.judges.judging.judged)"

    def per_example(self, record: Record) -> float | None:
        verdict = record.verdict(self.judge, "related")
        return None if verdict is None else verdict.score


COHERENCE = (Kept("coherence", KeepsToSubject(), "none"), Kept("coherence", Fluency(), "none"))


@dataclass(frozen=True)
class Efficacy:
    """1 - frac(concept): how much of what the model could answer about the concept it cannot answer any more. Higher is better.

    frac = (accuracy - chance) / (accuracy before - chance), clipped to [0, 1] unless ``clip`` is off; then a value above 1 says
    that the model is below chance, one below 0 that it knows more than before.

    Paper: EMBER (arXiv 2606.03695), evaluation; for open questions chance is 0.
    """

    concept: Kept = CONCEPT
    clip: bool = True

    better: ClassVar[Direction] = "higher"

    def __call__(self, records: Records, others: Others) -> Score:
        return relative([self.concept], lambda f: 1 - f[0], self.clip, "higher", records, others)


@dataclass(frozen=True)
class Specificity:
    """Harmonic mean of frac(MMLU) and frac(similar domain): how much of everything else is left. Higher is better.

    frac as in ``efficacy``. Clipped at 1 it cannot tell a model that is unchanged from one that got better.

    Paper: EMBER (arXiv 2606.03695), evaluation.
    """

    kept: tuple[Kept, ...] = (MMLU, SIMILAR)
    clip: bool = True

    better: ClassVar[Direction] = "higher"

    def __call__(self, records: Records, others: Others) -> Score:
        return relative(self.kept, _harmonic, self.clip, "higher", records, others)


@dataclass(frozen=True)
class Coherence:
    """Harmonic mean of the fractions of relatedness and of fluency that are left of the model before. Higher is better.

    frac = min(1, mean / mean before), without the bound where ``clip`` is off.

    Paper: EMBER (arXiv 2606.03695), evaluation: texts about the concept are continued.
    Differs: by default both parts are decided by rules and not by a judge.
    """

    kept: tuple[Kept, ...] = COHERENCE
    clip: bool = True

    better: ClassVar[Direction] = "higher"

    def __call__(self, records: Records, others: Others) -> Score:
        return relative(self.kept, _harmonic, self.clip, "higher", records, others)


@dataclass(frozen=True)
class Overall:
    """Harmonic mean of efficacy, specificity and coherence; 0 as soon as one of them is not above 0. Higher is better.

    Paper: EMBER (arXiv 2606.03695), evaluation.
    """

    concept: Kept = CONCEPT
    specificity: tuple[Kept, ...] = (MMLU, SIMILAR)
    coherence: tuple[Kept, ...] = COHERENCE
    clip: bool = True

    better: ClassVar[Direction] = "higher"

    def __call__(self, records: Records, others: Others) -> Score:
        n = len(self.specificity)

        def combine(f: list[Array]) -> Array:
            return _harmonic([1 - f[0], _harmonic(f[1 : 1 + n]), _harmonic(f[1 + n :])])

        return relative([self.concept, *self.specificity, *self.coherence], combine, self.clip, "higher", records, others)


def _harmonic(parts: list[Array]) -> Array:
    """The harmonic mean, 0 where a part is not above 0, NaN where one is NaN."""
    unknown = np.isnan(np.stack(parts)).any(axis=0)
    return np.where(unknown, np.nan, harmonic_mean([np.nan_to_num(part) for part in parts]))
