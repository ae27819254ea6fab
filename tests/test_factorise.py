"""The factorisations against a plain float64 loop, against EMBER's own iterates, and on what they promise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from conftest import refused
from excise.factorise.ridge import largest, ridge_inverse
from excise.factorise.semi_nmf import SemiNMF
from excise.factorise.sparse_mf import SparseMF, drawn

GOLDEN = json.loads((Path(__file__).parent / "golden" / "ember.json").read_text(encoding="utf-8"))
Matrix = NDArray[np.float64]


def matrix(d: int = 16, n: int = 200, seed: int = 0) -> torch.Tensor:
    """The matrix of the golden file's tiny runs."""
    return torch.tensor(np.random.RandomState(seed).randn(d, n).astype(np.float32))


def kept(g: Matrix, m: int) -> Matrix:
    out = np.zeros_like(g)
    for k in range(g.shape[1]):
        chosen = np.argsort(-np.abs(g[:, k]), kind="stable")[:m]
        out[chosen, k] = g[chosen, k]
    return out


def naive_sparse(a: Matrix, g: Matrix, m: int, ridge: float, steps: int) -> tuple[Matrix, Matrix, list[float]]:
    """EMBER's iteration straight from its definition."""
    eye = np.eye(g.shape[1])
    f, losses = np.zeros((len(a), g.shape[1])), []
    for _ in range(steps):
        f = a @ g @ np.linalg.inv(g.T @ g + ridge * eye)
        f = f * np.linalg.norm(g, axis=0)
        g = kept(a.T @ f @ np.linalg.inv(f.T @ f + ridge * eye), m)
        losses.append(float(((a - f @ g.T) ** 2).sum()))
    return f, g, losses


def naive_semi(a: Matrix, g: Matrix, m: int, ridge: float, steps: int) -> tuple[Matrix, Matrix, list[float]]:
    losses: list[float] = []
    f = np.zeros((len(a), g.shape[1]))
    for _ in range(steps):
        f = kept(a @ g @ np.linalg.inv(g.T @ g + ridge * np.eye(g.shape[1])), m)
        cross, gram = a.T @ f, f.T @ f
        above = np.maximum(cross, 0) + g @ np.maximum(-gram, 0)
        below = np.maximum(-cross, 0) + g @ np.maximum(gram, 0)
        g = g * np.sqrt(above / np.maximum(below, 1e-12))
        losses.append(float(((a - f @ g.T) ** 2).sum()))
    return f, g, losses


# --- EMBER's ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("share", ["0.01", "0.05"])
def test_the_loss_follows_embers_own_iterates(share: str, dtype: torch.dtype) -> None:
    golden = GOLDEN["tiny"][share]
    found = SparseMF(rank=8, keep=float(share), iterations=50, patience=500)(matrix().to(dtype))
    np.testing.assert_allclose(found.losses, golden["loss"], rtol=1e-7 if dtype == torch.float32 else 1e-11)
    assert found.best == golden["best_iter"] + 1


def test_the_factors_of_every_iteration_are_those_of_the_plain_loop() -> None:
    a, start = matrix(12, 90, 3), drawn(90, 7, 42)
    for steps in (1, 2, 5, 20):
        found = SparseMF(rank=7, keep=0.08, iterations=steps, patience=500, tolerance=0.0)(a.double(), start.double())
        f, g, losses = naive_sparse(a.double().numpy(), start.double().numpy(), 8, 1e-4, found.best)
        np.testing.assert_allclose(found.f.numpy(), f, rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(found.g.numpy(), g, rtol=1e-8, atol=1e-10)
        assert found.loss == pytest.approx(losses[found.best - 1], rel=1e-10)


def test_float32_stays_within_1e_5_of_float64() -> None:
    a, start = matrix(24, 300, 1), drawn(300, 10, 42)
    for steps in (1, 10, 60):
        settings = SparseMF(rank=10, keep=0.05, iterations=steps, patience=500)
        half, exact = settings(a, start), settings(a.double(), start)
        for one, two in ((half.g, exact.g), (half.f, exact.f)):
            assert float((one - two).norm() / two.norm()) < 1e-5


def test_starts_are_drawn_as_torch_draws_after_its_seed() -> None:
    torch.manual_seed(42)
    assert torch.equal(drawn(40, 6, 42), torch.randn(40, 6))


def test_each_feature_keeps_its_share_of_tokens_and_the_loss_is_that_of_the_factors() -> None:
    a = matrix(10, 150, 2)
    found = SparseMF(rank=6, keep=0.031)(a)
    assert found.tokens.shape == (6, 5)
    assert ((found.g != 0).sum(dim=0) == 5).all()
    assert float((a - found.f @ found.g.T).square().sum()) == pytest.approx(found.loss, rel=1e-5)
    assert found.loss == pytest.approx(min(found.losses), abs=1e-4)


def test_it_stops_after_its_patience_and_reports_every_iteration() -> None:
    seen: list[tuple[int, float]] = []
    found = SparseMF(rank=5, keep=0.05, patience=7)(matrix(8, 60), watch=lambda number, loss: seen.append((number, loss)))
    assert found.iterations == found.best + 7
    assert seen == list(enumerate(found.losses, start=1))
    longer = SparseMF(rank=5, keep=0.05, patience=300)(matrix(8, 60))
    assert longer.loss <= found.loss


def test_the_best_of_several_starts_is_returned() -> None:
    a = matrix(8, 60)
    single = [SparseMF(rank=5, keep=0.05, seed=seed)(a).loss for seed in (3, 4, 5)]
    assert len(set(single)) > 1
    assert SparseMF(rank=5, keep=0.05, seed=3, restarts=3)(a).loss == min(single)


def test_more_features_than_dimensions_and_features_that_die_do_no_harm() -> None:
    a = torch.zeros(4, 50)
    a[:, :3] = torch.eye(4)[:, :3]
    found = SparseMF(rank=12, keep=0.02, iterations=30)(a)
    assert torch.isfinite(found.f).all()
    assert torch.isfinite(found.g).all()
    assert found.loss >= -1e-6


def test_a_ridge_that_is_too_small_is_raised_before_giving_up() -> None:
    singular = torch.ones(3, 3, dtype=torch.float64)
    singular[0, 0] -= 1e-9  # not positive definite, but nearly
    assert torch.isfinite(ridge_inverse(singular, 1e-10)).all()
    refused(lambda: ridge_inverse(-singular, 1e-4), "singular", "raise the ridge")
    refused(lambda: SparseMF(rank=2)(torch.full((3, 4), float("nan"))), "NaN")


def test_bad_settings_are_refused() -> None:
    refused(lambda: SparseMF(rank=0), "rank is 0")
    refused(lambda: SparseMF(keep=0.0), "keep is 0.0")
    refused(lambda: SparseMF(ridge=-1.0), "negative")
    refused(lambda: SemiNMF(restarts=0), "restarts is 0")
    refused(lambda: SemiNMF(keep=1.5), "keep is 1.5")
    refused(lambda: SemiNMF(tolerance=-1.0), "negative")
    refused(lambda: SemiNMF(rank=2)(torch.full((3, 4), float("inf"))), "infinity")


def test_the_largest_entries_are_found_with_any_guess() -> None:
    values = torch.randn(5, 40, generator=torch.Generator().manual_seed(0))
    expected = values.abs().topk(6, dim=1).indices.sort(dim=1).values
    guesses: list[Any] = [None, torch.zeros(5), torch.full((5,), 9.0), values.abs().topk(6, dim=1).values[:, -1] * 0.9]
    for guess in guesses:
        index, found = largest(values, 6, guess)
        assert torch.equal(index.sort(dim=1).values, expected)
        assert torch.equal(found, values.gather(1, index))


# --- SNMF's -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 3, 25])
def test_semi_nmf_is_the_plain_loop(steps: int) -> None:
    a, start = matrix(30, 80, 5).double(), drawn(80, 6, 42).abs().double()
    settings = SemiNMF(rank=6, keep=0.1, iterations=steps, patience=500, tolerance=0.0)
    found = settings(a, start)
    f, g, losses = naive_semi(a.numpy(), start.numpy(), 3, 1e-4, found.best)
    np.testing.assert_allclose(found.f.numpy() @ found.g.numpy().T, f @ g.T, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(found.losses[: found.best], losses, rtol=1e-10)
    lengths = np.linalg.norm(g, axis=0)
    np.testing.assert_allclose(found.g.numpy(), g / lengths, rtol=1e-8, atol=1e-12)


def test_semi_nmf_keeps_its_promises() -> None:
    a = matrix(40, 120, 6).relu() + 0.1 * matrix(40, 120, 7)
    found = SemiNMF(rank=5, keep=0.1)(a)
    assert (found.g >= 0).all()
    assert ((found.f != 0).sum(dim=0) <= 4).all()
    torch.testing.assert_close(found.g.norm(dim=0), torch.ones(5))
    assert float((a - found.f @ found.g.T).square().sum()) == pytest.approx(found.loss, rel=1e-4)
    assert found.loss < float(a.square().sum())
    torch.testing.assert_close(SemiNMF(rank=5, keep=0.1)(a.double()).f.float(), found.f, rtol=1e-3, atol=1e-4)
    refused(lambda: SemiNMF(rank=2)(a, -torch.ones(120, 2)), "negative entries")


def test_semi_nmf_takes_the_best_of_several_starts() -> None:
    a = matrix(20, 60, 8)
    single = [SemiNMF(rank=4, keep=0.2, seed=seed)(a).loss for seed in (1, 2)]
    assert SemiNMF(rank=4, keep=0.2, seed=1, restarts=2)(a).loss == min(single)
