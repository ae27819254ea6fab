"""SNMF's factorisation of MLP activations: A ~ F G^T with G >= 0 and few neurons for each feature."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import embedding_bag

from excise.errors import InputError
from excise.factorise.ridge import kept_entries, largest, require_finite, require_sound, ridge_inverse
from excise.factorise.sparse_mf import MARGIN, TINY, Watch, drawn


@dataclass(frozen=True)
class SemiFactors:
    """A ~ F G^T; of each column of F only the kept entries, the others are zero; the columns of G have length 1."""

    neurons: Int[Tensor, "k kept"]
    """Rows of F that are not zero, by feature, ascending."""
    values: Float[Tensor, "k kept"]
    g: Float[Tensor, "n k"]
    """Not negative."""
    width: int
    loss: float
    """Squared Frobenius norm of A - F G^T."""
    best: int
    """The iteration (from 1) that these factors come from."""
    losses: tuple[float, ...]

    @property
    def iterations(self) -> int:
        return len(self.losses)

    @property
    def f(self) -> Float[Tensor, "d k"]:
        """F as a dense matrix."""
        return torch.zeros(len(self.values), self.width, dtype=self.values.dtype, device=self.values.device).scatter_(1, self.neurons, self.values).T


@dataclass(frozen=True)
class SemiNMF:
    """Alternating updates for A (d x n) ~ F (d x K) G^T with G >= 0 and winner-takes-all on the columns of F.

    F <- A G (G^T G + ridge I)^-1, of each column the max(1, ceil(keep d)) entries of largest size stay;
    G <- G * sqrt(([A^T F]+ + G [F^T F]-) / ([A^T F]- + G [F^T F]+)), where [x]+ = max(x, 0) and [x]- = max(-x, 0).
    One product with the whole of A per iteration. Memory: A and a few K x n buffers.

    Paper: Shafran et al. 2025, SNMF of MLP activations (arXiv 2506.10920); the multiplicative update: Ding et al. 2010, eq. 10
        ("Convex and Semi-Nonnegative Matrix Factorizations").
    """

    rank: int = 100
    """Number of features K."""
    keep: float = 0.01
    """Share of the neurons that each feature keeps."""
    ridge: float = 1e-4
    iterations: int = 200
    """At most."""
    patience: int = 10
    """Stop after so many iterations without improvement."""
    tolerance: float = 1e-5
    """Smallest decrease of the loss that counts as improvement, as a share of ||A||^2."""
    restarts: int = 1
    """Independent starts, with seeds ``seed``, ``seed + 1``, ...; the lowest loss wins."""
    seed: int = 42

    def __post_init__(self) -> None:
        counts = {"rank": self.rank, "iterations": self.iterations, "patience": self.patience, "restarts": self.restarts}
        require_sound(self.keep, self.ridge, self.tolerance, **counts)

    def __call__(self, a: Float[Tensor, "d n"], g0: Float[Tensor, "n k"] | None = None, watch: Watch = lambda _number, _loss: None) -> SemiFactors:
        """Factorises A, in its own precision and on its own device.

        Args:
            a: float32 or float64.
            g0: where G starts, not negative; None draws standard normal numbers and takes their sizes.
        """
        require_finite(a)
        if g0 is not None and bool((g0 < 0).any()):
            raise InputError("the start of G has negative entries: the factorisation needs G >= 0")
        starts = [g0] if g0 is not None else [drawn(a.shape[1], self.rank, self.seed + r).abs() for r in range(self.restarts)]
        found = [_Descent(self, a.contiguous(), start.to(a)).run(watch) for start in starts]
        return min(found, key=lambda factors: factors.loss)


@dataclass
class _Descent:
    """One run. ``g`` is held as K x n; ``products`` is (A G)^T and ``gram`` is G^T G, for the G of the moment."""

    settings: SemiNMF
    a: Tensor
    start: Tensor
    losses: list[float] = field(default_factory=list)

    def run(self, watch: Watch) -> SemiFactors:
        settings, keep = self.settings, kept_entries(self.a.shape[0], self.settings.keep)
        norm = float(sum(part.double().square().sum() for part in self.a.split(4096)))
        g = self.start.T.contiguous()
        products, gram = g @ self.a.T, g @ g.T
        guess: Tensor | None = None
        best: tuple[float, int, Tensor, Tensor, Tensor] | None = None
        for number in range(1, settings.iterations + 1):
            f = (ridge_inverse(gram, settings.ridge) @ products.double()).to(self.a.dtype)
            index, values = largest(f, keep, guess)
            guess = MARGIN * values.abs().amin(dim=1)
            f = torch.zeros_like(f).scatter_(1, index, values)
            f_gram = f.double() @ f.double().T
            g = _multiplied(g, embedding_bag(index, self.a, per_sample_weights=values, mode="sum"), f_gram.to(g.dtype))
            products, gram = g @ self.a.T, g @ g.T
            loss = norm - 2 * float((f.double() * products.double()).sum()) + float((f_gram * gram.double()).sum())
            self.losses.append(loss)
            watch(number, loss)
            if best is None or loss < best[0] - settings.tolerance * norm:
                best = (loss, number, index, values, g)
            elif number - best[1] >= settings.patience:
                break
        assert best is not None
        return self._factors(*best)

    def _factors(self, loss: float, number: int, index: Tensor, values: Tensor, g: Tensor) -> SemiFactors:
        """The same product with the columns of G at length 1."""
        lengths = g.norm(dim=1)
        index, order = index.sort(dim=1)
        values = values.gather(1, order) * lengths[:, None]
        return SemiFactors(index, values, (g / lengths.clamp_min(TINY)[:, None]).T, self.a.shape[0], loss, number, tuple(self.losses))


def _multiplied(g: Float[Tensor, "k n"], projected: Float[Tensor, "k n"], gram: Float[Tensor, "k k"]) -> Float[Tensor, "k n"]:
    """The multiplicative update; an entry that is zero stays zero."""
    above = projected.clamp_min(0) + (-gram).clamp_min(0) @ g
    below = (-projected).clamp_min(0) + gram.clamp_min(0) @ g
    return g * (above / below.clamp_min(TINY)).sqrt()
