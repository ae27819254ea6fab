"""EMBER's factorisation of an embedding matrix: A ~ F G^T with few tokens for each feature."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import embedding_bag

from excise.factorise.ridge import kept_entries, largest, require_finite, require_sound, ridge_inverse

Watch = Callable[[int, float], None]
"""Called after every iteration with its number (from 1) and loss."""
MARGIN = 0.9
"""The next threshold is expected to be at least this much of the last one."""
TINY = 1e-12


@dataclass(frozen=True)
class SparseFactors:
    """A ~ F G^T; of each column of G only the kept entries, the others are zero."""

    f: Float[Tensor, "d k"]
    tokens: Int[Tensor, "k kept"]
    """Rows of G that are not zero, by feature, ascending."""
    values: Float[Tensor, "k kept"]
    n: int
    loss: float
    """Squared Frobenius norm of A - F G^T."""
    best: int
    """The iteration (from 1) that these factors come from."""
    losses: tuple[float, ...]
    """Loss of every iteration that was run."""

    @property
    def iterations(self) -> int:
        return len(self.losses)

    @property
    def g(self) -> Float[Tensor, "n k"]:
        """G as a dense matrix."""
        return torch.zeros(len(self.values), self.n, dtype=self.values.dtype, device=self.values.device).scatter_(1, self.tokens, self.values).T


@dataclass(frozen=True)
class SparseMF:
    """Alternating ridge least squares for A (d x n) ~ F (d x K) G^T with winner-takes-all on the columns of G; both factors signed.

    F <- A G (G^T G + ridge I)^-1; columns of G to length 1, their norms into F; G <- A^T F (F^T F + ridge I)^-1; then of each column
    of G the max(1, ceil(keep n)) entries of largest size stay. One product with the whole of A per iteration; A G and G^T G are sums over
    the kept entries, and the loss is ||A||^2 - 2 <F, A G> + <F^T F, G^T G>. Memory: A, G and a few K x n buffers.

    Paper: EMBER (arXiv 2606.03695), sparse matrix factorisation.
    Differs: stops 50 iterations after the last improvement instead of 500 (the same iterate in every run that was compared); the loss is
        summed in float64; float64 Gram matrices.
    """

    rank: int = 200
    """Number of features K."""
    keep: float = 0.01
    """Share of the tokens that each feature keeps."""
    ridge: float = 1e-4
    iterations: int = 20_000
    """At most."""
    patience: int = 50
    """Stop after so many iterations without improvement."""
    tolerance: float = 1e-4
    """Smallest decrease of the loss that counts as improvement."""
    restarts: int = 1
    """Independent starts, with seeds ``seed``, ``seed + 1``, ...; the lowest loss wins."""
    seed: int = 42

    def __post_init__(self) -> None:
        counts = {"rank": self.rank, "iterations": self.iterations, "patience": self.patience, "restarts": self.restarts}
        require_sound(self.keep, self.ridge, self.tolerance, **counts)

    def __call__(self, a: Float[Tensor, "d n"], g0: Float[Tensor, "n k"] | None = None, watch: Watch = lambda _number, _loss: None) -> SparseFactors:
        """Factorises A, in its own precision and on its own device.

        Args:
            a: float32 or float64.
            g0: where G starts; None draws it (and once more for each restart).
        """
        require_finite(a)
        starts = [g0] if g0 is not None else [drawn(a.shape[1], self.rank, self.seed + r) for r in range(self.restarts)]
        found = [_Descent(self, a, start.to(a)).run(watch) for start in starts]
        return min(found, key=lambda factors: factors.loss)


def drawn(n: int, rank: int, seed: int) -> Float[Tensor, "n k"]:
    """G's start: the first standard normal float32 numbers after ``torch.manual_seed(seed)`` on the CPU, as in EMBER."""
    return torch.randn(n, rank, generator=torch.Generator().manual_seed(seed))


@dataclass
class _Descent:
    """One run of the iteration. ``products`` is (A G)^T and ``gram`` is G^T G, for the G of the moment."""

    settings: SparseMF
    a: Tensor
    start: Tensor
    rows: Tensor = field(init=False)
    losses: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rows = self.a.T.contiguous()
        self.scratch = self.a.new_zeros((self.a.shape[1], self.start.shape[1]), dtype=torch.float64)

    def run(self, watch: Watch) -> SparseFactors:
        settings, keep = self.settings, kept_entries(self.a.shape[1], self.settings.keep)
        norm = float(sum(part.double().square().sum() for part in self.rows.split(4096)))
        products, gram = self.start.T @ self.rows, self.start.double().T @ self.start.double()
        guess: Tensor | None = None
        best: tuple[float, int, Tensor, Tensor, Tensor] | None = None
        for number in range(1, settings.iterations + 1):
            f = ridge_inverse(gram, settings.ridge) @ products.double()
            f = f * gram.diagonal().sqrt().clamp_min(TINY)[:, None]
            f_gram = f @ f.T
            solver = (ridge_inverse(f_gram, settings.ridge) @ f).to(self.a.dtype)
            index, values = largest(solver @ self.rows.T, keep, guess)
            guess = MARGIN * values.abs().amin(dim=1)
            products, gram = embedding_bag(index, self.rows, per_sample_weights=values, mode="sum"), self._gram(index, values)
            loss = norm - 2 * float((f * products).sum()) + float((f_gram * gram).sum())
            self.losses.append(loss)
            watch(number, loss)
            if best is None or loss < best[0] - settings.tolerance:
                best = (loss, number, f, index, values)
            elif number - best[1] >= settings.patience:
                break
        assert best is not None
        return self._factors(*best)

    def _gram(self, index: Tensor, values: Tensor) -> Tensor:
        """G^T G from the kept entries."""
        features = torch.arange(len(index), device=index.device)[:, None].expand_as(index)
        exact = values.double()
        self.scratch[index, features] = exact
        gram = embedding_bag(index, self.scratch, per_sample_weights=exact, mode="sum")
        self.scratch[index, features] = 0.0
        return gram

    def _factors(self, loss: float, number: int, f: Tensor, index: Tensor, values: Tensor) -> SparseFactors:
        index, order = index.sort(dim=1)
        return SparseFactors(f.T.to(self.a.dtype), index, values.gather(1, order), self.a.shape[1], loss, number, tuple(self.losses))
