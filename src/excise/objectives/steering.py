"""Objectives that move hidden states to another place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from excise.hidden import default_layer
from excise.objectives.check import positive
from excise.objectives.distance import mean_over_sequences
from excise.tokens import at_least_float32
from excise.view import View


@dataclass(frozen=True)
class RMU:
    """Representation misdirection: pulls hidden states of forget tokens to one random vector c = coefficient u / ||u||.

    u ~ Uniform[0, 1)^d from ``seed``; mean over sequences of mean over tokens of w_i mean_d (h_l,i - c)^2.

    Paper: Li et al. 2024, "The WMDP Benchmark", eq. 2 (arXiv 2403.03218).

    Differs: hidden states of the scored tokens only, each sequence counting the same; open-unlearning multiplies (b,)
        with (b, 1) at this point, which averages over all pairs.
    """

    layer: int | None = None
    """Decoder layer, 0-based; None takes the layer at the same depth fraction as the paper's 7 of 32."""
    coefficient: float | None = None
    """Length of the control vector; None takes ``scale`` times the median norm of the forget tokens' hidden states."""
    scale: float = 1.0
    """Factor on the median norm where the coefficient is None."""
    seed: int = 42
    """Seed of the control vector."""
    needs_logits = False

    def __post_init__(self) -> None:
        if self.coefficient is not None:
            positive("rmu.coefficient", self.coefficient)
        positive("rmu.scale", self.scale)

    @property
    def layers(self) -> tuple[int, ...]:
        """Which hidden states this objective looks at."""
        return () if self.layer is None else (self.layer,)

    def resolved(self, depth: int, median_norm: Callable[[int], float]) -> RMU:
        """The same with layer and coefficient filled in for a model of ``depth`` layers."""
        layer = default_layer(depth) if self.layer is None else self.layer
        coefficient = self.scale * median_norm(layer) if self.coefficient is None else self.coefficient
        return replace(self, layer=layer, coefficient=coefficient)

    def __call__(self, view: View, weight: Float[Tensor, " n"]) -> Float[Tensor, ""]:
        assert self.layer is not None, "resolve the layer first"
        assert self.coefficient is not None, "resolve the coefficient first"
        hidden = at_least_float32(view.model.hidden[self.layer])
        control = control_vector(hidden.shape[-1], self.coefficient, self.seed).to(hidden)
        return mean_over_sequences(view.model, (hidden - control).square().mean(-1) * weight)


def control_vector(width: int, coefficient: float, seed: int) -> Float[Tensor, " width"]:
    """coefficient u / ||u|| with u ~ Uniform[0, 1)^width; the same on every machine for a seed."""
    direction = torch.rand(width, generator=torch.Generator().manual_seed(seed))
    return coefficient * direction / direction.norm()
