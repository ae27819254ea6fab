"""Which examples each optimiser step sees: a pure function of the seed and the step, so that a resumed run needs no state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, runtime_checkable

import torch

from excise.objectives.check import at_least


@dataclass(frozen=True)
class Draw:
    """The examples of one optimiser step, as indices into forget, retain and the stage's coherence texts."""

    forget: tuple[int, ...]
    retain: tuple[int, ...]
    coherence: tuple[int, ...] = ()
    opens: bool = False
    """Whether a new round begins: the next epoch, or the next sample. An optimiser that does not carry over starts anew here."""


@runtime_checkable
class Batches(Protocol):
    """A way of drawing batches."""

    def steps_per_epoch(self, forget: int, retain: int) -> int:
        """Optimiser steps after which every forget example was seen once (every retain example where none is forgotten)."""
        ...

    def draw(self, step: int, forget: int, retain: int, seed: int) -> Draw:
        """The examples of a step, given the sizes of both sets."""
        ...


@dataclass(frozen=True)
class Paired:
    """``size`` forget examples and ``retain_size`` retain examples a step, each set walked through in shuffled order.

    The last batch of an epoch may be smaller; the retain set is walked through at its own pace. Without forget
    examples an epoch is one walk through the retain set.
    """

    size: int = 8
    """Forget examples of one optimiser step."""
    retain_size: int | None = None
    """Retain examples of one optimiser step; None: as many as ``size``."""

    def __post_init__(self) -> None:
        at_least("batch", self.size, 1)
        if self.retain_size is not None:
            at_least("retain_batch", self.retain_size, 1)

    def steps_per_epoch(self, forget: int, retain: int) -> int:
        if forget:
            return math.ceil(forget / self.size)
        return math.ceil(retain / (self.retain_size or self.size))

    def draw(self, step: int, forget: int, retain: int, seed: int) -> Draw:
        per_epoch = self.steps_per_epoch(forget, retain)
        epoch, within = divmod(step, per_epoch)
        size = self.retain_size or self.size
        if not forget:
            order = _shuffled(retain, seed, 1, epoch)
            return Draw((), order[within * size : (within + 1) * size], opens=within == 0)
        chosen = _shuffled(forget, seed, 0, epoch)[within * self.size : (within + 1) * self.size]
        return Draw(chosen, _walked(retain, step, size, seed), opens=within == 0)


@dataclass(frozen=True)
class PerSample:
    """One forget example at a time, several steps in a row on the same one, each with other retain examples.

    An epoch is one walk through the forget set in shuffled order. The questions' rephrasings follow each example as
    further forget texts where they are asked for.

    Paper: the inner loop of MAAT's phase 1 (arXiv 2605.30514, section 3.1).
    """

    steps: int = 12
    """Optimiser steps in a row on one example; the paper's 12 for 5WBENCH and 15 for TOFU."""
    retain_size: int = 1
    """Retain examples of one optimiser step."""
    rephrasings: int = 0
    """So many rephrased questions of each example (fewer where it has fewer) are forget texts too."""
    rephrased_steps: int = 8
    """Optimiser steps in a row on one rephrasing."""

    def __post_init__(self) -> None:
        at_least("steps per sample", self.steps, 1)
        at_least("retain_batch", self.retain_size, 1)
        at_least("rephrasings", self.rephrasings, 0)
        at_least("rephrased_steps", self.rephrased_steps, 1)

    def with_rephrasings(self, counts: Sequence[int]) -> Batches:
        """The same for a forget set that is followed by so many rephrasings of each of its examples, in order."""
        return _Rounds(self, tuple(counts))

    def steps_per_epoch(self, forget: int, retain: int) -> int:
        return self.with_rephrasings((0,) * forget).steps_per_epoch(forget, retain)

    def draw(self, step: int, forget: int, retain: int, seed: int) -> Draw:
        return self.with_rephrasings((0,) * forget).draw(step, forget, retain, seed)


@dataclass(frozen=True)
class _Rounds:
    """PerSample over ``len(counts)`` forget examples, then ``counts[i]`` rephrasings of each example i."""

    by_sample: PerSample
    counts: tuple[int, ...]

    def steps_per_epoch(self, forget: int, retain: int) -> int:
        return len(self.counts) * self.by_sample.steps + sum(self.counts) * self.by_sample.rephrased_steps

    def draw(self, step: int, forget: int, retain: int, seed: int) -> Draw:
        epoch, within = divmod(step, self.steps_per_epoch(forget, retain))
        kept = _walked(retain, step, self.by_sample.retain_size, seed)
        for text, length in _visits(self, epoch, seed):
            if within < length:
                return Draw((text,), kept, opens=within == 0)
            within -= length
        raise AssertionError("an epoch has no step beyond its last")


@lru_cache(maxsize=8)
def _visits(rounds: _Rounds, epoch: int, seed: int) -> tuple[tuple[int, int], ...]:
    """(text, steps on it) in the order of an epoch; each example's rephrasings come right after it."""
    first = [len(rounds.counts) + sum(rounds.counts[:i]) for i in range(len(rounds.counts))]
    visits: list[tuple[int, int]] = []
    for example in _shuffled(len(rounds.counts), seed, 0, epoch):
        visits.append((example, rounds.by_sample.steps))
        visits += [(first[example] + k, rounds.by_sample.rephrased_steps) for k in range(rounds.counts[example])]
    return tuple(visits)


def _walked(retain: int, step: int, size: int, seed: int) -> tuple[int, ...]:
    """The retain examples of a step: the set is walked through at its own pace, in a new order each time."""
    kept: list[int] = []
    for position in range(step * size, (step + 1) * size) if retain else ():
        walk, index = divmod(position, retain)
        kept.append(_shuffled(retain, seed, 1, walk)[index])
    return tuple(kept)


@lru_cache(maxsize=64)
def _shuffled(count: int, seed: int, stream: int, walk: int) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed((seed * 1_000_003 + stream) * 1_000_003 + walk)
    return tuple(torch.randperm(count, generator=generator).tolist())
