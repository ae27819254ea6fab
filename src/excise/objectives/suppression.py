"""The objective that switches features of sparse autoencoders off."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from excise.factorise.autoencoder import Autoencoder
from excise.objectives.distance import mean_over_sequences
from excise.tokens import at_least_float32
from excise.view import View


@dataclass(frozen=True)
class Salient:
    """Features of one layer that are to be switched off."""

    layer: int
    """Decoder layer after which the autoencoder reads, 0-based."""
    autoencoder: Autoencoder
    features: tuple[int, ...]
    density: float
    """How many of them are active for a token of the target text before training, on average."""


@dataclass(frozen=True)
class SuppressActivations:
    """Lowers the positive activations a_f of salient features on target text, below zero by a margin where they were active.

    mean over layers, over sequences, over tokens of w_i sum_f a_f(pre_f + [a_f^ref > 0] margin |mean_f' pre_f'|) / density, where the
    margin counts as a constant, and density makes it the mean of the active ones before training.

    Paper: CRISP, L_unlearn (arXiv 2508.13650); the margin stands in the authors' code only.

    Differs: the authors divide by the number of positive activations of each batch, so a big batch and accumulated small ones
        differ; and they let the margin's mean pass a gradient. With a TopK autoencoder a feature that was active counts whether or not
        it is still among the k largest.
    """

    parts: tuple[Salient, ...]
    """The layers."""
    margin: float = 5.0
    """How far below zero, in units of the mean size of a token's pre-activations (the authors' alpha)."""
    needs_logits = False

    @property
    def reads_reference(self) -> tuple[str, ...]:
        """What was active before."""
        return ("hidden",)

    @property
    def layers(self) -> tuple[int, ...]:
        """Which hidden states this objective looks at."""
        return tuple(part.layer for part in self.parts)

    def __call__(self, view: View, weight: Float[Tensor, " n"]) -> Float[Tensor, ""]:
        losses = [mean_over_sequences(view.model, self._per_token(part, view) * weight) for part in self.parts]
        return torch.stack(losses).mean()

    def _per_token(self, part: Salient, view: View) -> Float[Tensor, " n"]:
        now = at_least_float32(view.model.hidden[part.layer])
        autoencoder = part.autoencoder.to(now)
        chosen = torch.tensor(part.features, device=now.device)
        with torch.no_grad():
            was_active = autoencoder.encode(view.reference.hidden[part.layer].to(now))[:, chosen] > 0
        pre = autoencoder.pre(now)
        margin = self.margin * pre.detach().mean(-1, keepdim=True).abs()
        pushed = autoencoder.gate(pre[:, chosen] + margin, chosen)
        active = torch.where(was_active, pushed, autoencoder.act(pre)[:, chosen])
        return active.sum(-1) / part.density
