"""EMBER's factorisation against a plain implementation of the same iteration, and its memory on a large embedding.

    python -m benchmarks.factorise [--rows 4828] [--width 576] [--rank 100] [--iterations 40] [--repeats 3] [--model FOLDER]
                                   [--json FILE]
    python -m benchmarks.factorise --large [--iterations 3]

Without a model the matrix is random, of the size of SmolLM2's embedding on the 4,828 tokens of EMBER's Harry Potter texts; with one, the
first rows of its input embedding are taken. Both sides run in turn in this process from the same start, their losses must agree, and the
best time of each counts. ``--large`` factorises 8,000 rows of a random embedding of 128,000 x 4,096 into 200 features and prints the
highest memory use of the process.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from excise.factorise.sparse_mf import SparseMF, drawn
from excise.memory import peak_memory_mb

RIDGE, KEEP = 1e-4, 0.01


def plain(a: Tensor, g: Tensor, iterations: int) -> list[float]:
    """The iteration as its definition reads: solves, a dense G, a sort of every column, and the loss from the residual."""
    kept = max(1, math.ceil(KEEP * a.shape[1]))
    eye = RIDGE * torch.eye(g.shape[1], dtype=a.dtype)
    losses: list[float] = []
    for _ in range(iterations):
        f = torch.linalg.solve(g.T @ g + eye, (a @ g).T).T
        lengths = g.norm(dim=0).clamp_min(1e-12)
        g, f = g / lengths, f * lengths
        g = torch.linalg.solve(f.T @ f + eye, (a.T @ f).T).T
        order = g.abs().sort(dim=0, descending=True).indices
        g = g * torch.zeros_like(g).scatter_(0, order[:kept], 1.0)
        losses.append(float((a - f @ g.T).double().square().sum()))
    return losses


def ours(a: Tensor, g: Tensor, iterations: int) -> list[float]:
    """The same number of iterations of excise."""
    return list(SparseMF(rank=g.shape[1], keep=KEEP, ridge=RIDGE, iterations=iterations, patience=iterations + 1)(a, g).losses)


def matrix(model: str | None, rows: int, width: int) -> Tensor:
    """The matrix to factorise, width x rows."""
    if model is None:
        return torch.randn(rows, width, generator=torch.Generator().manual_seed(0)).mul_(0.1).T.contiguous()
    from excise.loading import load

    return load(model).embedding.weight.detach()[:rows].float().T.contiguous()  # type: ignore[union-attr, index]


def compare(a: Tensor, rank: int, iterations: int, repeats: int) -> dict[str, Any]:
    """Times both sides in turn and prints a table."""
    start = drawn(a.shape[1], rank, 42)
    sides = {"plain": plain, "excise": ours}
    seconds = dict.fromkeys(sides, float("inf"))
    losses: dict[str, list[float]] = {}
    for _ in range(repeats):
        for name, run in sides.items():
            begun = time.perf_counter()
            losses[name] = run(a, start, iterations)
            seconds[name] = min(seconds[name], time.perf_counter() - begun)
    worst = max(abs(x - y) / y for x, y in zip(losses["excise"], losses["plain"], strict=True))
    print(f"{a.shape[1]} rows of {a.shape[0]}, rank {rank}, {iterations} iterations, {torch.get_num_threads()} thread(s), best of {repeats}")
    for name, took in seconds.items():
        print(f"{name:8s} {1000 * took / iterations:8.2f} ms per iteration")
    print(f"ratio    {seconds['plain'] / seconds['excise']:8.2f}   largest relative difference of the loss {worst:.1e}")
    if worst > 1e-4:
        raise SystemExit("the two sides do not compute the same")
    each = {name: took / iterations for name, took in seconds.items()}
    return {"rows": a.shape[1], "width": a.shape[0], "rank": rank, "seconds_per_iteration": each, "loss_differs": worst}


def large(iterations: int) -> dict[str, Any]:
    """Memory on the embedding of a large model."""
    embedding = torch.empty(128_000, 4_096)
    embedding.normal_(generator=torch.Generator().manual_seed(0))
    rows = embedding[torch.randperm(128_000, generator=torch.Generator().manual_seed(1))[:8_000].sort().values]
    begun = time.perf_counter()
    found = SparseMF(rank=200, iterations=iterations, patience=iterations + 1)(rows.T)
    took = time.perf_counter() - begun
    peak = peak_memory_mb() / 2**10
    table = embedding.numel() * 4 / 2**30
    print(
        f"8,000 of 128,000 x 4,096, rank 200: {found.iterations} iterations in {took:.1f} s; peak {peak:.2f} GiB, {table:.2f} of them the embedding"
    )
    return {"rows": 8_000, "width": 4_096, "rank": 200, "seconds_per_iteration": {"excise": took / found.iterations}, "peak_gib": peak}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4828)
    parser.add_argument("--width", type=int, default=576)
    parser.add_argument("--rank", type=int, default=100)
    parser.add_argument("--iterations", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--model", default=None)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    if chosen.large:
        found = large(chosen.iterations)
    else:
        found = compare(matrix(chosen.model, chosen.rows, chosen.width), chosen.rank, chosen.iterations, chosen.repeats)
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
