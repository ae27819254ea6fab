"""bf16 products on a processor that has no instructions for them."""

from __future__ import annotations

import copy
import time
from contextlib import nullcontext
from typing import cast

import pytest
import torch
from torch import Tensor, nn

from excise import precision
from excise.precision import autocast, quick_products, resolve_precision

CPU = torch.device("cpu")


@pytest.fixture
def emulating(monkeypatch):
    monkeypatch.setattr(precision, "is_emulated", lambda kind: kind == "cpu")


class Block(nn.Module):
    """Linear layers with and without bias, attention, a batched product."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(32, 48), nn.Linear(16, 32, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.first(x).chunk(3, -1)
        attended = nn.functional.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], is_causal=True)[:, 0]
        found = self.second(attended)
        scores = torch.bmm(found, found.transpose(1, 2))
        assert scores.dtype == found.dtype == attended.dtype == (x.dtype if x.dtype == torch.float64 else torch.bfloat16)
        return scores.float().square().mean() + found.float().square().mean()


def gradients(model: nn.Module, x: Tensor, context) -> tuple[Tensor, ...]:
    model = copy.deepcopy(model)
    with context:
        loss = model(x)
        loss.backward()
    return (loss.detach(), *(cast(Tensor, p.grad) for p in model.parameters()))


def test_the_same_numbers_but_for_the_order_of_sums(emulating):
    model, x = Block(), torch.randn(3, 20, 32, generator=torch.Generator().manual_seed(1))
    slow = gradients(model, x, torch.autocast("cpu", torch.bfloat16))
    quick = gradients(model, x, autocast("bfloat16", CPU))
    exact = gradients(model.double(), x.double(), nullcontext())
    for a, b, true in zip(slow, quick, exact, strict=True):
        assert a.dtype == b.dtype == torch.float32
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2 * float(a.abs().max()))
        assert (b - true).norm() < 1.5 * (a - true).norm() + 1e-6


@pytest.mark.parametrize("name", ["mm", "addmm", "bmm", "baddbmm", "addmm_", "baddbmm_"])
def test_each_product_rounds_once(emulating, name):
    torch.manual_seed(3)
    batch = (2,) if "b" in name[:3] else ()
    c, a, b = (torch.randn(*batch, *shape).bfloat16() for shape in ((8, 12), (8, 40), (40, 12)))
    added = "add" in name
    with quick_products("bfloat16", CPU):
        found = getattr(c.clone(), name)(a, b, beta=0.5, alpha=2.0) if added else getattr(a, name)(b)
    true = (a.double() @ b.double()) * (2.0 if added else 1.0) + (0.5 * c.double() if added else 0.0)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, true.bfloat16())


def test_nothing_changes_where_nothing_is_emulated(monkeypatch):
    monkeypatch.setattr(precision, "is_emulated", lambda kind: False)
    with quick_products("bfloat16", CPU) as mode:
        assert mode is None
    assert resolve_precision("auto", CPU) == "bfloat16"
    monkeypatch.setattr(precision, "is_emulated", lambda kind: True)
    with quick_products("float32", CPU) as mode:
        assert mode is None
    assert resolve_precision("auto", CPU) == "float32"


@pytest.mark.skipif(not precision.is_emulated("cpu"), reason="this processor has instructions for bf16")
def test_a_product_takes_no_longer_than_in_float32():
    a, b = torch.randn(256, 512).bfloat16(), torch.randn(512, 2048).bfloat16()

    def best(context) -> float:
        found = []
        for _ in range(5):
            begun = time.perf_counter()
            with context:
                _ = a @ b
            found.append(time.perf_counter() - begun)
        return min(found)

    assert best(quick_products("bfloat16", CPU)) < 0.7 * best(nullcontext())
