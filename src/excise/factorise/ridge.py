"""What both factorisations are made of: ridge solutions from Gram matrices, and the largest entries of each row."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from excise.errors import InputError

TRIES = 4
"""How often the ridge is made ten times as large before a singular Gram matrix is given up."""


def exact_on(values: Tensor) -> Tensor:
    """The same on a device that has float64: where it lies, or the CPU (Apple's GPUs have none)."""
    return values.cpu() if values.device.type == "mps" else values


def ridge_inverse(gram: Float[Tensor, "k k"], ridge: float) -> Float[Tensor, "k k"]:
    """(gram + ridge I)^-1 in float64, by Cholesky; the ridge grows tenfold while the matrix is not positive definite.

    Raises:
        InputError: it is not even after that; the matrix to be factorised holds NaN, infinity or enormous numbers.
    """
    gram = gram.double()
    eye = torch.eye(gram.shape[0], dtype=gram.dtype, device=gram.device)
    for attempt in range(TRIES):
        lower, failed = torch.linalg.cholesky_ex(gram + ridge * 10**attempt * eye)
        if not bool(failed):
            return torch.cholesky_inverse(lower)
    raise InputError(
        f"the factorisation's Gram matrix is singular even with a ridge of {ridge * 10 ** (TRIES - 1):g}: raise the ridge or lower the rank"
    )


def require_sound(keep: float, ridge: float, tolerance: float, **counts: int) -> None:
    """An error in one line for settings that no factorisation can have; ``counts`` are those that must be at least 1."""
    for name, count in counts.items():
        if count < 1:
            raise InputError(f"factorisation: {name} is {count}; give at least 1")
    if not 0 < keep <= 1:
        raise InputError(f"factorisation: keep is {keep}; it is a share, above 0 and at most 1")
    if not ridge >= 0 or not tolerance >= 0:
        raise InputError("factorisation: ridge and tolerance must not be negative")


def require_finite(a: Tensor) -> None:
    """An error in one line for a matrix that holds NaN or infinity."""
    if not bool(torch.isfinite(a).all()):
        raise InputError("the matrix to be factorised holds NaN or infinity")


def kept_entries(length: int, share: float) -> int:
    """How many entries of each feature survive: the share of ``length``, rounded up, at least one."""
    return max(1, math.ceil(share * length))


def largest(
    values: Float[Tensor, "k n"], keep: int, guess: Float[Tensor, " k"] | None = None
) -> tuple[Int[Tensor, "k keep"], Float[Tensor, "k keep"]]:
    """Index and value of the ``keep`` entries of largest size in each row, in no particular order.

    Args:
        guess: a threshold for each row that at least ``keep`` sizes are expected to reach, such as a little less than the smallest
            size that was kept last time; the few entries above it are then all that is compared. A wrong guess costs time only.
    """
    if guess is not None:
        found = _above(values, keep, guess)
        if found is not None:
            return found
    index = values.abs().topk(keep, dim=1, sorted=False).indices
    return index, values.gather(1, index)


def _above(values: Tensor, keep: int, guess: Tensor) -> tuple[Tensor, Tensor] | None:
    """The same among the entries above the guess; None where a row has too few of them, or all rows many too many."""
    rows, columns = torch.nonzero(values.abs() >= guess[:, None], as_tuple=True)
    counts = torch.bincount(rows, minlength=values.shape[0])
    widest = int(counts.max())
    if int(counts.min()) < keep or widest > values.shape[1] // 2:
        return None
    starts = counts.cumsum(0) - counts
    place = torch.arange(len(rows), device=rows.device) - starts[rows]
    sizes = values.new_full((values.shape[0], widest), -1.0)
    candidates = torch.zeros((values.shape[0], widest), dtype=torch.long, device=values.device)
    sizes[rows, place] = values[rows, columns].abs()
    candidates[rows, place] = columns
    index = candidates.gather(1, sizes.topk(keep, dim=1, sorted=False).indices)
    return index, values.gather(1, index)
