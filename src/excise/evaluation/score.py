"""A score: one number with its direction, its sample size and its 95 % interval, or the reason why there is none."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from excise.errors import InputError
from excise.evaluation.records import Record, Records

Better = Literal["higher", "lower", "none"]
Direction = Literal["knowledge", "higher", "lower", "none"]
"""``knowledge``: lower is better on what is to be forgotten, higher everywhere else."""

Array = NDArray[np.float64]
RESAMPLES = 2000
Z95 = 1.959963984540054


class Unavailable(Exception):
    """A score cannot be computed; the message says why and what to do about it. It becomes ``Score.unavailable``."""


@dataclass(frozen=True)
class Score:
    """One number of an evaluation."""

    value: float | None
    """None where it cannot be computed; then ``unavailable`` says why."""
    better: Better
    n: int
    """Examples that the value rests on."""
    ci95: tuple[float, float] | None = None
    """95 % interval; None where there is none (fewer than two examples, a p-value)."""
    unavailable: str = ""
    left_out: int = 0
    """Examples that lack what the metric needs."""

    def __post_init__(self) -> None:
        numbers = [] if self.value is None else [self.value, *(self.ci95 or ())]
        if not all(math.isfinite(x) for x in numbers):
            raise ValueError(f"a score must be a finite number, got {self.value} {self.ci95}")
        if (self.value is None) == (not self.unavailable):
            raise ValueError("a score has either a value or the reason why it has none")

    @staticmethod
    def missing(reason: str, better: Better = "none", left_out: int = 0) -> Score:
        """A score that could not be computed."""
        return Score(None, better, 0, None, reason, left_out)

    def to_json(self) -> dict[str, Any]:
        interval = None if self.ci95 is None else list(self.ci95)
        row = {"value": self.value, "better": self.better, "n": self.n, "ci95": interval, "unavailable": self.unavailable}
        return {**row, "left_out": self.left_out} if self.left_out else row

    @staticmethod
    def from_json(row: Mapping[str, Any]) -> Score:
        """The inverse of ``to_json``; extra keys (a curve) are ignored, a missing one is an error that names it."""
        try:
            value, interval = row["value"], row["ci95"]
            return Score(
                None if value is None else float(value),
                row["better"],
                int(row["n"]),
                None if interval is None else (float(interval[0]), float(interval[1])),
                str(row["unavailable"]),
                int(row.get("left_out", 0)),
            )
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise InputError(f"a score is broken ({type(error).__name__}: {error})") from None


# --- what a metric is -------------------------------------------------------------------------------------------------


@runtime_checkable
class ExampleMetric(Protocol):
    """A metric that is the mean of one number per example."""

    better: ClassVar[Direction]
    interval: ClassVar[Literal["bootstrap", "wilson"]]
    needs: ClassVar[str]
    """What a record must have, in words: "no example has <needs>"."""

    def per_example(self, record: Record) -> float | None:
        """The number, or None where the record lacks what it needs (left out, and counted)."""
        ...


@dataclass(frozen=True)
class Others:
    """Records of other models on the same data, for the metrics that compare."""

    retrained: Records | None = None
    """A model that never saw the forget split."""
    baseline: Records | None = None
    """The model before unlearning."""


ALONE = Others()
"""No other model was asked."""

NEEDS_RETRAINED = "give --retrained DIR (a model that never saw the forget split; `excise teach` makes one)"
NEEDS_BASELINE = "give --baseline MODEL (the model before unlearning); `excise run` takes its own unless evaluation.before is false"


@runtime_checkable
class SetMetric(Protocol):
    """A metric of whole splits, possibly relative to other models."""

    better: ClassVar[Direction]

    def __call__(self, records: Records, others: Others) -> Score:
        """The score; raises :class:`Unavailable` where it cannot be computed."""
        ...


def example_score(metric: ExampleMetric, records: Sequence[Record], better: Better) -> Score:
    """The mean of an example metric with its interval."""
    try:
        values = [metric.per_example(record) for record in records]
    except Unavailable as error:
        return Score.missing(str(error), better)
    return mean_score(values, better, metric.interval, f"no example has {metric.needs}")


def mean_score(values: Sequence[float | None], better: Better, interval: Literal["bootstrap", "wilson"], empty: str) -> Score:
    """The mean of the values that are there; ``empty`` is the reason given where none is."""
    known = np.array([v for v in values if v is not None], dtype=np.float64)
    left_out = len(values) - len(known)
    if not len(known):
        return Score.missing(empty, better, left_out)
    n = len(known)
    ci95 = wilson(int(known.sum()), n) if interval == "wilson" else bootstrap(lambda counts: counts @ known / n, [n])
    return Score(float(known.mean()), better, n, ci95, left_out=left_out)


def required(records: Records, split: str) -> Sequence[Record]:
    """The records of a split, or :class:`Unavailable`."""
    if not records.get(split):
        raise Unavailable(f"there are no records of the split {split!r}")
    return records[split]


def matching(records: Records, others: Others, which: Literal["retrained", "baseline"], split: str) -> list[Record]:
    """The other model's records of the very examples of a split; :class:`Unavailable` where some are lacking."""
    theirs = getattr(others, which)
    if theirs is None:
        raise Unavailable(NEEDS_RETRAINED if which == "retrained" else NEEDS_BASELINE)
    found = {record.id: record for record in required(theirs, split)}
    mine = required(records, split)
    lacking = [record.id for record in mine if record.id not in found]
    if lacking:
        raise Unavailable(
            f"the {which} model's records lack {len(lacking)} of {len(mine)} {split} examples (the first: {lacking[0]!r}): "
            "evaluate it on the same data"
        )
    return [found[record.id] for record in mine]


# --- intervals --------------------------------------------------------------------------------------------------------


def wilson(successes: int, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share: (p + z^2/2n +- z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n)."""
    p, z2 = successes / n, Z95 * Z95
    centre, scale = p + z2 / (2 * n), 1 + z2 / n
    half = Z95 * math.sqrt(max(p * (1 - p), 0.0) / n + z2 / (4 * n * n))
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)


def bootstrap(statistic: Callable[..., Array], sizes: Sequence[int], seed: int = 0, resamples: int = RESAMPLES) -> tuple[float, float] | None:
    """The 95 % percentile interval of a statistic over resampled examples.

    Args:
        statistic: from how often each example was drawn, one array [b, n] per group, to b values.
        sizes: examples of each group; groups are resampled independently.

    Returns:
        (2.5 %, 97.5 %), or None with fewer than two examples in a group.
    """
    if min(sizes, default=0) < 2:
        return None
    values = np.concatenate([np.asarray(statistic(*counts), dtype=np.float64) for counts in _draws(sizes, seed, resamples)])
    values = values[np.isfinite(values)]
    if not len(values):
        return None
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


def _draws(sizes: Sequence[int], seed: int, resamples: int) -> Iterator[list[Array]]:
    """Blocks of draw counts that stay small in memory."""
    generators = [np.random.default_rng([seed, group]) for group in range(len(sizes))]
    block = max(1, 2_000_000 // max(sizes))
    for start in range(0, resamples, block):
        b = min(block, resamples - start)
        yield [_counts(generator, n, b) for generator, n in zip(generators, sizes, strict=True)]


def _counts(generator: np.random.Generator, n: int, b: int) -> Array:
    drawn = generator.integers(0, n, size=(b, n)) + np.arange(b)[:, None] * n
    return cast(Array, np.bincount(drawn.ravel(), minlength=b * n).reshape(b, n).astype(np.float64))


def harmonic_mean(parts: Sequence[Array]) -> Array:
    """Elementwise harmonic mean of non-negative arrays; 0 where any part is not above 0."""
    table = np.stack(parts)
    positive = (table > 0).all(axis=0)
    safe = np.where(table > 0, table, 1.0)
    return np.where(positive, len(parts) / (1.0 / safe).sum(axis=0), 0.0)


def harmonic_mean_score(parts: Sequence[tuple[str, Sequence[float | None]]], better: Better) -> Score:
    """The harmonic mean of several means, resampled by example.

    Args:
        parts: (split, one value per example of that split). Parts of one split are resampled together, so that
            what one example contributes to several of them stays together.
    """
    columns: list[tuple[str, Array, Array]] = []
    for split, values in parts:
        known = np.array([v is not None for v in values], dtype=np.float64)
        if not known.any():
            raise Unavailable(f"the split {split!r} has no example with what one of the parts needs")
        columns.append((split, np.array([0.0 if v is None else v for v in values]), known))
    splits = list(dict.fromkeys(split for split, _, _ in columns))
    sizes = {split: len(values) for split, values, _ in columns}

    def statistic(*counts: Array) -> Array:
        drawn = dict(zip(splits, counts, strict=True))
        means = [(drawn[s] @ values) / np.maximum(drawn[s] @ known, 1.0) for s, values, known in columns]
        return harmonic_mean(means)

    value = statistic(*(np.ones((1, sizes[s])) for s in splits))[0]
    left_out = max(int(len(known) - known.sum()) for _, _, known in columns)
    return Score(float(value), better, sum(sizes.values()), bootstrap(statistic, [sizes[s] for s in splits]), left_out=left_out)
