"""The optimiser and its learning-rate schedule."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import nn

from excise.errors import InputError
from excise.objectives.check import at_least, positive, within
from excise.parallel import ranks
from excise.scope import Role

Kind = Literal["adamw", "adamw_8bit", "sgd"]


@dataclass(frozen=True)
class Optimiser:
    """AdamW with warm-up and decay of the learning rate.

    Paper: Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization" (arXiv 1711.05101).
    """

    lr: float | None = None
    """Highest learning rate; None takes :func:`default_rate`."""
    weight_decay: float = 0.0
    """Decoupled weight decay."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay of the running moments."""
    epsilon: float = 1e-8
    """Added to the root of the second moment."""
    clip: float | None = 1.0
    """Highest norm of the whole gradient; None does not clip."""
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    """How the rate goes down to ``floor`` after warm-up."""
    warmup: float = 0.2
    """Share of all steps in which the rate goes up."""
    floor: float = 0.0
    """Learning rate that the schedule comes down to."""
    factors: Mapping[Role, float] = field(default_factory=dict)
    """Factor on the learning rate of the modules with a role, 1 where none is given."""
    moments: Literal["kept", "fresh"] = "kept"
    """fresh: the running moments are forgotten whenever a new round begins (an epoch; with ``PerSample`` a sample)."""
    kind: Kind = "adamw"
    """adamw_8bit: moments in 8 bits (bitsandbytes), a quarter of their memory; sgd: no moments at all."""

    def __post_init__(self) -> None:
        if self.lr is not None:
            positive("lr", self.lr)
        at_least("weight_decay", self.weight_decay, 0.0)
        within("warmup", self.warmup, 0.0, 1.0)
        if self.clip is not None:
            positive("clip", self.clip)
        at_least("the learning rate's floor", self.floor, 0.0)
        for role, factor in self.factors.items():
            at_least(f"the learning-rate factor of {role}", factor, 0.0)

    def resolved(self, parameters: int, adapter: bool) -> Optimiser:
        """The same with the learning rate filled in for a model of so many parameters."""
        settled = replace(self, lr=default_rate(parameters, adapter)) if self.lr is None else self
        if settled.lr is not None and settled.floor > settled.lr:
            raise InputError(f"the learning rate {settled.lr:g} lies below its floor {settled.floor:g}: give a higher one or lower the floor")
        return settled

    def groups(self, parameters: Mapping[str, nn.Parameter], roles: Mapping[str, Role | None]) -> Sequence[Any]:
        """The parameters as torch's optimisers take them: in one group for each factor of the learning rate."""
        if not self.factors:
            return list(parameters.values())
        by_factor: dict[float, list[nn.Parameter]] = {}
        for name, parameter in parameters.items():
            role = roles[name]
            by_factor.setdefault(1.0 if role is None else self.factors.get(role, 1.0), []).append(parameter)
        return [{"params": group, "factor": factor} for factor, group in by_factor.items()]

    def build(self, parameters: Sequence[Any]) -> torch.optim.Optimizer:
        """An optimiser over these parameters or groups of them; one fused pass over each where the device has it.

        Raises:
            InputError: 8 bits are asked for where they cannot be had.
        """
        if self.kind == "sgd":
            return torch.optim.SGD(parameters, lr=self.lr or 0.0, weight_decay=self.weight_decay)
        if self.kind == "adamw_8bit":
            return self._in_8_bits(parameters)
        return torch.optim.AdamW(parameters, lr=self.lr or 0.0, betas=self.betas, eps=self.epsilon, weight_decay=self.weight_decay, fused=True)

    def _in_8_bits(self, parameters: Sequence[Any]) -> torch.optim.Optimizer:
        each = [p for entry in parameters for p in (entry["params"] if isinstance(entry, dict) else [entry])]
        if any(ranks.is_spread(parameter) for parameter in each):
            raise InputError("method.optimiser: adamw_8bit does not work on weights that are spread over processes: use adamw, or parallel: copies")
        try:
            from bitsandbytes.optim import AdamW8bit  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise InputError('method.optimiser: adamw_8bit needs bitsandbytes: pip install "excise[bits]"') from None
        return AdamW8bit(parameters, lr=self.lr or 0.0, betas=self.betas, eps=self.epsilon, weight_decay=self.weight_decay)

    def rate(self, step: int, steps: int) -> float:
        """Learning rate of a step (0-based) among ``steps``."""
        assert self.lr is not None, "resolve the learning rate first"
        warm = math.floor(self.warmup * steps)
        if step < warm:
            return self.lr * (step + 1) / (warm + 1)
        if self.schedule == "constant":
            return self.lr
        progress = (step - warm) / max(1, steps - warm)
        if self.schedule == "linear":
            return self.floor + (self.lr - self.floor) * (1 - progress)
        return self.floor + (self.lr - self.floor) * 0.5 * (1 + math.cos(math.pi * progress))


def default_rate(parameters: int, adapter: bool) -> float:
    """A learning rate by size: 1e-5 from 3 billion parameters, 2e-5 from 1 billion (as on TOFU), 5e-5 below; x 10 for an adapter."""
    rate = 1e-5 if parameters >= 3e9 else 2e-5 if parameters >= 1e9 else 5e-5
    return 10 * rate if adapter else rate


@contextmanager
def float32_masters(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Trains bf16 and fp16 parameters as float32, so that small updates are not rounded away, and rounds once at the end."""
    half = [(p, p.dtype) for p in parameters if p.dtype in (torch.bfloat16, torch.float16)]
    for parameter, _ in half:
        parameter.data = parameter.data.float()
    try:
        yield
    finally:
        for parameter, dtype in half:
            parameter.data = parameter.data.to(dtype)
