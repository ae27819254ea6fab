"""A sparse autoencoder as tensors: what it says of activations, and how it puts them together again."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Autoencoder:
    """x ~ decode(act(pre(x))) with pre(x) = (x - decoder_bias) W_enc + encoder_bias.

    act is ReLU; with ``k`` the ReLU of the k largest of a token; with ``threshold`` the values above it (JumpReLU).

    Paper: Gao et al. 2024, "Scaling and evaluating sparse autoencoders", eq. 1-3 (arXiv 2406.04093); Rajamanoharan et al. 2024,
        "Jumping Ahead", eq. 2 (arXiv 2407.14435).
    """

    encoder: Float[Tensor, "width features"]
    encoder_bias: Float[Tensor, " features"]
    decoder: Float[Tensor, "features width"]
    decoder_bias: Float[Tensor, " width"]
    k: int | None = None
    threshold: Float[Tensor, " features"] | None = None
    centred: bool = True
    """Whether the decoder's bias is subtracted before encoding."""

    @property
    def width(self) -> int:
        """Size of the activations."""
        return self.encoder.shape[0]

    @property
    def features(self) -> int:
        return self.encoder.shape[1]

    def to(self, like: Tensor) -> Autoencoder:
        """The same on the device and in the precision of a tensor."""
        if self.encoder.device == like.device and self.encoder.dtype == like.dtype:
            return self
        moved = {name: value.to(like) for name, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **moved)

    def pre(self, x: Float[Tensor, "n width"]) -> Float[Tensor, "n features"]:
        """What the features read, before the non-linearity."""
        centred = x - self.decoder_bias if self.centred else x
        return torch.addmm(self.encoder_bias, centred, self.encoder)

    def act(self, pre: Float[Tensor, "n features"]) -> Float[Tensor, "n features"]:
        """Activations, zero or positive."""
        if self.k is None:
            return self.gate(pre, None)
        values, indices = pre.topk(min(self.k, self.features), dim=-1)
        return torch.zeros_like(pre).scatter(-1, indices, values.clamp(min=0.0))

    def gate(self, pre: Float[Tensor, "n some"], chosen: Int[Tensor, " some"] | None) -> Float[Tensor, "n some"]:
        """The non-linearity of single features, without the competition of top k."""
        if self.threshold is None:
            return pre.clamp(min=0.0)
        limit = self.threshold if chosen is None else self.threshold[chosen]
        return torch.where(pre > limit, pre.clamp(min=0.0), 0.0)

    def encode(self, x: Float[Tensor, "n width"]) -> Float[Tensor, "n features"]:
        return self.act(self.pre(x))

    def decode(self, activations: Float[Tensor, "n features"]) -> Float[Tensor, "n width"]:
        return torch.addmm(self.decoder_bias, activations, self.decoder)

    def __call__(self, x: Float[Tensor, "n width"]) -> Float[Tensor, "n width"]:
        """The reconstruction."""
        return self.decode(self.encode(x))


@dataclass(frozen=True)
class Reconstruction:
    """How well an autoencoder puts activations together again."""

    explained_variance: float
    """1 - |x - x^|^2 / |x - mean|^2 over all values; below 0 it is worse than saying the mean."""
    active: float
    """Features that are active for a token, on average."""
    fired: Bool[Tensor, " features"]
    """Which features were active for any token."""

    @property
    def dead(self) -> float:
        """Share of features that were never active."""
        return 1.0 - float(self.fired.double().mean())


@torch.no_grad()
def reconstruction(autoencoder: Autoencoder, x: Float[Tensor, "n width"], rows: int = 2048) -> Reconstruction:
    """Reconstructs activations part by part and sums up in float64."""
    mean = x.double().mean(0)
    error, total, active = 0.0, 0.0, 0.0
    fired = torch.zeros(autoencoder.features, dtype=torch.bool, device=x.device)
    for part in x.split(rows):
        activations = autoencoder.encode(part)
        error += float((part.double() - autoencoder.decode(activations).double()).square().sum())
        total += float((part.double() - mean).square().sum())
        active += float((activations > 0).sum())
        fired |= (activations > 0).any(0)
    return Reconstruction(1.0 - error / max(total, 1e-30), active / max(len(x), 1), fired)
