"""Packed attention: the same answers as one text at a time, its gradient too, and nothing else of the model changed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from conftest import KINDS, Kind, tiny
from excise import attention
from excise.attention import Packing, _Gather, _Spread, packed_attention

LENGTHS = (11, 3, 1, 13, 30, 2)


def test_laying_texts_side_by_side_and_back_is_the_identity_with_its_gradient() -> None:
    packing = Packing(LENGTHS)
    rows = torch.randn(sum(LENGTHS), 5, dtype=torch.float64, requires_grad=True)
    assert sorted(group.width for group in packing.groups) == [1, 2, 3, 13, 30]
    assert torch.equal(_Gather.apply(packing, *_Spread.apply(rows, packing)), rows)
    assert torch.autograd.gradcheck(lambda x: _Gather.apply(packing, *(y * y for y in _Spread.apply(x, packing))), rows)


def alone(query: Tensor, key: Tensor, value: Tensor, window: int | None) -> Tensor:
    """Attention by the formula, text by text, in loops."""
    out = torch.zeros(1, query.shape[2], query.shape[1], value.shape[-1], dtype=query.dtype)
    shared = query.shape[1] // key.shape[1]
    start = 0
    for length in LENGTHS:
        for h in range(query.shape[1]):
            for i in range(length):
                first = 0 if window is None else max(0, i - window + 1)
                seen = range(start + first, start + i + 1)
                scores = torch.stack([query[0, h, start + i] @ key[0, h // shared, j] for j in seen]) / query.shape[-1] ** 0.5
                out[0, start + i, h] = torch.softmax(scores, 0) @ torch.stack([value[0, h // shared, j] for j in seen])
        start += length
    return out


@pytest.mark.parametrize("window", [None, 4, 20])
@pytest.mark.parametrize("key_heads", [4, 2, 1])
def test_it_is_the_formula_text_by_text(key_heads: int, window: int | None) -> None:
    draw = torch.Generator().manual_seed(0)
    query = torch.randn(1, 4, sum(LENGTHS), 8, dtype=torch.float64, generator=draw)
    key, value = (torch.randn(1, key_heads, sum(LENGTHS), 8, dtype=torch.float64, generator=draw) for _ in range(2))
    found, weights = packed_attention(torch.nn.Module(), query, key, value, None, packing=Packing(LENGTHS), sliding_window=window)
    assert weights is None
    torch.testing.assert_close(found, alone(query, key, value, window))


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_answers_as_before_and_a_packed_row_as_its_texts_alone(kind: Kind) -> None:
    base = tiny(kind).base
    rows = [torch.randint(0, 200, (n,), generator=torch.Generator().manual_seed(n)) for n in LENGTHS]
    positions = torch.cat([torch.arange(n) for n in LENGTHS])[None]

    def each() -> Tensor:
        return torch.cat([base(input_ids=ids[None], use_cache=False).logits[0] for ids in rows])

    with torch.no_grad():
        before = each()
        attention.install(base)
        assert base.config._attn_implementation == attention.NAME
        assert torch.equal(each(), before)
        mask = torch.zeros(1, 1, 1, 1)
        packed = base(input_ids=torch.cat(rows)[None], position_ids=positions, attention_mask=mask, use_cache=False, packing=Packing(LENGTHS))
        torch.testing.assert_close(packed.logits[0], before, rtol=1e-5, atol=1e-5)
        rows[1] = (rows[1] + 1) % 200  # another text does not see it
        other = base(input_ids=torch.cat(rows)[None], position_ids=positions, attention_mask=mask, use_cache=False, packing=Packing(LENGTHS))
        changed = (other.logits[0] != packed.logits[0]).any(-1)
        assert changed.nonzero()[:, 0].tolist() == [11, 12, 13]
        attention.remove(base)
        assert base.config._attn_implementation == "sdpa"


def test_a_model_with_another_attention_keeps_it() -> None:
    base = tiny("llama").base
    base.set_attn_implementation("eager")
    attention.install(base)
    assert base.config._attn_implementation == "eager"
