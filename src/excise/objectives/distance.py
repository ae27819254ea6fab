"""Objectives that keep the model where it was: on its predictions, or on its hidden states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import cosine_similarity

from excise.hidden import default_layer
from excise.objectives.check import positive, within
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
    per: Literal["token", "sequence"] = "token"
    """sequence: the sum over the tokens of each text, mean over texts, as in MAAT's code."""
    reads_reference = ("logits",)

    def __post_init__(self) -> None:
        positive("kl.temperature", self.temperature)

    def __call__(self, view: View, weight: Float[Tensor, " n"]) -> Float[Tensor, ""]:
        reference = view.reference
        divergence = view.model.over_logits(lambda logits, part: kl_divergence(reference.logits_of(part), logits, self.temperature))
        if self.per == "token":
            return view.model.mean(divergence, weight)
        return view.model.mean_rows(view.model.per_row(divergence * weight))


def kl_divergence(reference: Float[Tensor, "n vocab"], model: Float[Tensor, "n vocab"], temperature: float = 1.0) -> Float[Tensor, " n"]:
    """KL(softmax(reference / T) || softmax(model / T)) for each row, in nats, float32 or better."""
    return cast(Tensor, _Divergence.apply(model, reference, temperature))


class _Divergence(torch.autograd.Function):
    """The divergence, with the gradient (softmax(model / T) - softmax(reference / T)) / T for the model's logits only."""

    @staticmethod
    def forward(ctx: Any, model: Tensor, reference: Tensor, temperature: float) -> Tensor:
        known, predicted = (_log_shares(logits, temperature) for logits in (reference, model))
        share = known.exp()
        ctx.save_for_backward(predicted, share)
        ctx.temperature, ctx.dtype = temperature, model.dtype
        return known.sub_(predicted).mul_(share).sum(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        predicted, share = ctx.saved_tensors
        outer = gradients[0] / ctx.temperature
        return predicted.exp().sub_(share).mul_(outer[:, None]).to(ctx.dtype), None, None


def _log_shares(logits: Tensor, temperature: float) -> Tensor:
    logits = at_least_float32(logits)
    return torch.log_softmax(logits if temperature == 1 else logits / temperature, dim=-1)


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


@dataclass(frozen=True)
class HiddenCosine:
    """How far the mean hidden state of a text has turned at one layer: mean over sequences of 1 - cos(mean_i w_i h_i, mean_i w_i h_i^ref).

    Prompt and answer count alike; the text's first token does not, whose hidden state is a hundred times longer than the others.

    Paper: the hidden-state term of MAAT's repair phase (arXiv 2605.30514, section 3.3).

    Differs: the authors' mean includes the first token, which then is nearly all of it (``first_token``).
    """

    layer: int | None = None
    """Decoder layer, 0-based; None takes the one at ``depth``."""
    depth: float = 0.7
    """Share of the model's layers that lie before and at the layer."""
    first_token: bool = False
    """Whether the first token counts."""
    needs_logits = False
    reads_reference = ("hidden",)

    def __post_init__(self) -> None:
        within("hidden_cosine.depth", self.depth, 0.0, 1.0, open_low=True)

    @property
    def positions(self) -> Literal["all", "every"]:
        """Which tokens are looked at."""
        return "every" if self.first_token else "all"

    @property
    def layers(self) -> tuple[int, ...]:
        """Which hidden states this objective looks at."""
        return () if self.layer is None else (self.layer,)

    def resolved(self, depth: int, median_norm: Callable[[int], float]) -> HiddenCosine:
        """The same with the layer filled in for a model of ``depth`` layers."""
        return replace(self, layer=max(0, int(self.depth * depth) - 1)) if self.layer is None else self

    def __call__(self, view: View, weight: Float[Tensor, " n"]) -> Float[Tensor, ""]:
        assert self.layer is not None, "resolve the layer first"
        now, then = (at_least_float32(part.hidden[self.layer]) * weight[:, None] for part in (view.model, view.reference))
        pooled = [part.new_zeros(view.model.rows, part.shape[1]).index_add(0, view.model.row, part) for part in (now, then)]
        return view.model.mean_rows(1 - cosine_similarity(pooled[0], pooled[1], dim=-1))


def mean_over_sequences(scored: Scored, per_token: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    """Mean over the tokens of each sequence, then over the sequences of the global batch."""
    return scored.mean_rows(scored.per_row(per_token) / scored.length)
