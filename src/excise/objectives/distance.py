"""Objectives that keep the model where it was: on its predictions, or on its hidden states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from excise.hidden import default_layer
from excise.objectives.check import positive
from excise.tokens import Scored, at_least_float32
from excise.view import View


@dataclass(frozen=True)
class KL:
    """KL(reference || model) = sum_v p_ref (log p_ref - log p), mean over scored tokens.

    Paper: the retain term of GA+KL and of TokenUnlearn, eq. 10 (arXiv 2605.00364).

    Differs: open-unlearning averages over padding as well; here scored tokens, or all real ones by ``positions``.
    """

    temperature: float = 1.0
    """Both distributions are softened by it."""
    positions: Literal["scored", "all"] = "scored"
    """all: the prompt's tokens too."""
    reads_reference = ("logits",)

    def __post_init__(self) -> None:
        positive("kl.temperature", self.temperature)

    def __call__(self, view: View, weight: Float[Tensor, " n"]) -> Float[Tensor, ""]:
        reference = view.reference
        divergence = view.model.over_logits(lambda logits, part: kl_divergence(reference.logits_of(part), logits, self.temperature))
        return view.model.mean(divergence, weight)


def kl_divergence(reference: Float[Tensor, "n vocab"], model: Float[Tensor, "n vocab"], temperature: float = 1.0) -> Float[Tensor, " n"]:
    """KL(softmax(reference / T) || softmax(model / T)) for each row, in nats, float32 or better."""
    with torch.no_grad():
        known = torch.log_softmax(at_least_float32(reference) / temperature, dim=-1)
        share = known.exp()
        negative_entropy = (share * known).sum(-1)
    predicted = torch.log_softmax(at_least_float32(model) / temperature, dim=-1)
    return negative_entropy - (share * predicted).sum(-1)


@dataclass(frozen=True)
class HiddenMSE:
    """Squared distance of the hidden states from what they were, at one layer: RMU's retain term.

    mean over sequences of mean over tokens of w_i mean_d (h_l,i - h_l,i^ref)^2.

    Paper: Li et al. 2024, "The WMDP Benchmark", eq. 3 (arXiv 2403.03218).

    Differs: the original averages over prompt and padding too.
    """

    layer: int | None = None
    """Decoder layer, 0-based; None takes the layer at the depth fraction 7/32 (see :class:`RMU`)."""
    needs_logits = False
    reads_reference = ("hidden",)

    @property
    def layers(self) -> tuple[int, ...]:
        """Which hidden states this objective looks at."""
        return () if self.layer is None else (self.layer,)

    def resolved(self, depth: int, median_norm: Callable[[int], float]) -> HiddenMSE:
        """The same with the layer filled in for a model of ``depth`` layers."""
        return replace(self, layer=default_layer(depth)) if self.layer is None else self

    def __call__(self, view: View, weight: Float[Tensor, " n"]) -> Float[Tensor, ""]:
        assert self.layer is not None, "resolve the layer first"
        distance = at_least_float32(view.model.hidden[self.layer]) - at_least_float32(view.reference.hidden[self.layer])
        return mean_over_sequences(view.model, distance.square().mean(-1) * weight)


def mean_over_sequences(scored: Scored, per_token: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    """Mean over the tokens of each sequence, then over the sequences of the global batch."""
    return scored.mean_rows(scored.per_row(per_token) / scored.length)
