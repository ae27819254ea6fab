"""A small TopK sparse autoencoder, trained on activations that are given."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from excise.errors import InputError
from excise.factorise.autoencoder import Autoencoder
from excise.objectives.check import at_least, positive, within


@dataclass(frozen=True)
class TopKTraining:
    """How a TopK autoencoder is trained: squared error relative to the variance, and dead features learn what is left over.

    Paper: Gao et al. 2024, "Scaling and evaluating sparse autoencoders", sections 2.3, A.2, A.3 (arXiv 2406.04093).

    Differs: activations are centred on their mean (not the geometric median) and scaled to variance 1 before training, and both are
        folded into the result; a feature counts as dead after ``dead_after`` tokens instead of ten million, for small texts.
    """

    width: int = 2048
    """Number of features."""
    k: int = 32
    """Features that may be active for a token."""
    steps: int = 2000
    """Optimiser steps."""
    batch: int = 512
    """Tokens of one step."""
    lr: float = 1e-3
    """Highest learning rate of Adam; it goes up over the first 5 % of the steps and down over the last 20 %."""
    seed: int = 0
    """Of the start and of the batches."""
    auxiliary: float = 1 / 32
    """Weight of the auxiliary loss; 0 leaves dead features dead."""
    dead_after: int = 20_000
    """A feature that was active for none of so many tokens counts as dead."""

    def __post_init__(self) -> None:
        for name, value in (("width", self.width), ("k", self.k), ("batch", self.batch), ("dead_after", self.dead_after)):
            at_least(name, value, 1)
        at_least("steps", self.steps, 0)
        positive("lr", self.lr)
        within("auxiliary", self.auxiliary, 0.0, 10.0)
        if self.k > self.width:
            raise InputError(f"k = {self.k} is not allowed: there are only {self.width} features (width)")

    def __call__(self, x: Float[Tensor, "n d"], advance: Callable[[float], None] = lambda _: None) -> Autoencoder:
        """Trains in float32; the same activations, settings and number of threads give the same bits.

        Args:
            advance: called after every step with the share of variance that the batch left unexplained.

        Raises:
            InputError: fewer than two activations, values that are not finite, or all the same.
        """
        x = x.float()
        mean, scale = _centre(x)
        draw = torch.Generator().manual_seed(self.seed)
        weights = _Weights.start(x.shape[1], self.width, draw, x.device)
        optimiser = torch.optim.Adam(weights.parameters(), lr=self.lr, betas=(0.9, 0.999), eps=1e-8, fused=True)
        quiet_for = torch.zeros(self.width, device=x.device)
        order, at = torch.randperm(len(x), generator=draw), 0
        for step in range(self.steps):
            if at + self.batch > len(order):
                order, at = torch.randperm(len(x), generator=draw), 0
            rows = order[at : at + self.batch].to(x.device)
            at += self.batch
            for group in optimiser.param_groups:
                group["lr"] = self.lr * _rate(step, self.steps)
            optimiser.zero_grad(set_to_none=True)
            loss, unexplained = self._loss((x[rows] - mean) / scale, weights, quiet_for)
            loss.backward()
            weights.project_gradient()
            nn.utils.clip_grad_norm_(weights.parameters(), 1.0)
            optimiser.step()
            weights.normalise()
            advance(unexplained)
        return weights.folded(mean, scale, self.k)

    def _loss(self, x: Float[Tensor, "n d"], weights: _Weights, quiet_for: Float[Tensor, " width"]) -> tuple[Tensor, float]:
        """Loss of a batch, and the unexplained share alone. ``quiet_for`` counts tokens since a feature was last active."""
        pre = torch.addmm(weights.encoder_bias, x - weights.decoder_bias, weights.encoder)
        values, indices = pre.topk(self.k, dim=-1)
        values = values.clamp(min=0.0)
        left = x - weights.decoder_bias - _sum_rows(weights.decoder, indices, values)
        power = x.square().sum().clamp(min=1e-12)
        unexplained = left.square().sum() / power
        quiet_for += len(x)
        quiet_for[indices[values > 0].unique()] = 0.0
        dead = torch.nonzero(quiet_for > self.dead_after).flatten()
        if not len(dead) or not self.auxiliary:
            return unexplained, float(unexplained.detach())
        target = left.detach()
        most = min(len(dead), max(self.k, x.shape[1] // 2))
        spare, which = pre[:, dead].topk(most, dim=-1)
        guess = _sum_rows(weights.decoder, dead[which], spare.clamp(min=0.0))
        extra = (target - guess).square().sum() / target.square().sum().clamp(min=1e-12)
        return unexplained + self.auxiliary * extra, float(unexplained.detach())


@dataclass
class _Weights:
    encoder: nn.Parameter
    encoder_bias: nn.Parameter
    decoder: nn.Parameter
    decoder_bias: nn.Parameter

    @staticmethod
    def start(d: int, width: int, draw: torch.Generator, device: torch.device) -> _Weights:
        """Random unit directions; the encoder starts as the decoder turned round."""
        directions = nn.functional.normalize(torch.randn(width, d, generator=draw), dim=-1).to(device)
        start = (directions.T.contiguous(), torch.zeros(width, device=device), directions.clone(), torch.zeros(d, device=device))
        return _Weights(*(nn.Parameter(value) for value in start))

    def parameters(self) -> list[nn.Parameter]:
        return [self.encoder, self.encoder_bias, self.decoder, self.decoder_bias]

    @torch.no_grad()
    def project_gradient(self) -> None:
        """Takes away the part of the decoder's gradient that would only change the length of its rows."""
        gradient = self.decoder.grad
        if gradient is not None:
            gradient -= (gradient * self.decoder).sum(-1, keepdim=True) * self.decoder

    @torch.no_grad()
    def normalise(self) -> None:
        self.decoder.copy_(nn.functional.normalize(self.decoder, dim=-1))

    def folded(self, mean: Tensor, scale: Tensor, k: int) -> Autoencoder:
        """The same function of activations as they come: positive factors pass through ReLU and top k."""
        return Autoencoder(
            encoder=self.encoder.detach().clone(),
            encoder_bias=scale * self.encoder_bias.detach(),
            decoder=self.decoder.detach().clone(),
            decoder_bias=mean + scale * self.decoder_bias.detach(),
            k=k,
        )


def _sum_rows(table: Float[Tensor, "rows d"], indices: Int[Tensor, "n k"], values: Float[Tensor, "n k"]) -> Float[Tensor, "n d"]:
    """sum_j values_j table[indices_j] for each n, without a dense matrix of activations."""
    return nn.functional.embedding_bag(indices, table, per_sample_weights=values, mode="sum")


def _centre(x: Float[Tensor, "n d"]) -> tuple[Tensor, Tensor]:
    """Mean, and the root mean square of what is left."""
    if len(x) < 2:
        raise InputError(f"{len(x)} activation(s) are too few to train an autoencoder on: give more text")
    if not torch.isfinite(x).all():
        raise InputError("the activations hold values that are not finite: the model is broken at this layer")
    mean = x.double().mean(0)
    scale = (x.double() - mean).square().mean().sqrt()
    if scale == 0:
        raise InputError("all activations are the same: there is nothing to learn from this text")
    return mean.float(), scale.float()


def _rate(step: int, steps: int) -> float:
    """The learning rate as a share of the highest."""
    up, down = math.ceil(0.05 * steps), math.ceil(0.2 * steps)
    return min(1.0, (step + 1) / max(1, up), (steps - step) / max(1, down))
