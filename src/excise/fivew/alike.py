"""Texts that are nearly the same: exact Jaccard similarity of their shingles, without comparing all with all."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

WIDTH = 4
"""Letters of a shingle."""
ROWS_AT_ONCE = 512
PAIRS_AT_ONCE = 100_000


def shingles(text: str) -> frozenset[str]:
    """The runs of four characters of a normalised text, with a space at each end."""
    padded = f" {text} "
    return frozenset(padded[i : i + WIDTH] for i in range(max(1, len(padded) - WIDTH + 1)))


def jaccard(a: str, b: str) -> float:
    """Shared shingles divided by all shingles of two normalised texts."""
    first, second = shingles(a), shingles(b)
    return len(first & second) / len(first | second)


def similar_pairs(texts: Sequence[str], threshold: float) -> Iterator[tuple[int, int]]:
    """Every pair i < j of texts whose :func:`jaccard` is at least ``threshold``, in order.

    Exact: two sets that are as similar as that share one of their ``|s| - ceil(threshold |s|) + 1`` rarest shingles, so only
    pairs that do are compared.

    Paper: prefix filtering of Chaudhuri, Ganti and Kaushik 2006 and Bayardo, Ma and Srikant 2007.
    """
    sets = [shingles(text) for text in texts]
    often = Counter(shingle for found in sets for shingle in found)
    rank = {shingle: place for place, shingle in enumerate(sorted(often, key=lambda s: (often[s], s)))}
    ordered = [sorted(rank[shingle] for shingle in found) for found in sets]
    sizes = np.array([len(found) for found in ordered])
    whole = _matrix(ordered, len(rank))
    prefix = _matrix([ranks[: len(ranks) - math.ceil(threshold * len(ranks) - 1e-9) + 1] for ranks in ordered], len(rank))
    turned = prefix.T.tocsr()
    for start in range(0, len(texts), ROWS_AT_ONCE):
        shared = (prefix[start : start + ROWS_AT_ONCE] @ turned).tocoo()
        first, second = shared.row.astype(np.int64) + start, shared.col.astype(np.int64)
        keep = (first < second) & (np.minimum(sizes[first], sizes[second]) >= threshold * np.maximum(sizes[first], sizes[second]) - 1e-9)
        first, second = first[keep], second[keep]
        slices = [slice(i, i + PAIRS_AT_ONCE) for i in range(0, len(first), PAIRS_AT_ONCE)]
        common = np.concatenate([np.zeros(0), *(_common(whole, first[part], second[part]) for part in slices)])
        alike = common >= threshold * (sizes[first] + sizes[second] - common) - 1e-9
        yield from sorted(zip(first[alike].tolist(), second[alike].tolist(), strict=True))


def _common(whole: sparse.csr_matrix, first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.float64]:
    """How many shingles two rows share, for pairs of rows."""
    return np.asarray(whole[first].multiply(whole[second]).sum(axis=1), dtype=np.float64).ravel()


def _matrix(rows: Sequence[Sequence[int]], width: int) -> sparse.csr_matrix:
    indices = np.fromiter((i for row in rows for i in row), dtype=np.int64)
    starts = np.cumsum([0, *map(len, rows)])
    return sparse.csr_matrix((np.ones(len(indices), dtype=np.int32), indices, starts), shape=(len(rows), max(1, width)))
