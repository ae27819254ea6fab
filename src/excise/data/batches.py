"""Which examples each optimiser step sees: a pure function of the seed and the step, so that a resumed run needs no state."""

from __future__ import annotations

import math
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
            return Draw((), order[within * size : (within + 1) * size])
        chosen = _shuffled(forget, seed, 0, epoch)[within * self.size : (within + 1) * self.size]
        kept: list[int] = []
        for position in range(step * size, (step + 1) * size) if retain else ():
            walk, index = divmod(position, retain)
            kept.append(_shuffled(retain, seed, 1, walk)[index])
        return Draw(chosen, tuple(kept))


@lru_cache(maxsize=64)
def _shuffled(count: int, seed: int, stream: int, walk: int) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed((seed * 1_000_003 + stream) * 1_000_003 + walk)
    return tuple(torch.randperm(count, generator=generator).tolist())
