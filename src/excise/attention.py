"""Attention over texts that lie one behind the other in one row, each seeing only itself.

Transformers takes such a row by its positions, but then attends over the whole row under a mask: for n texts that is n times
the work. Here texts of similar length are laid side by side for the product of queries and keys, and put back afterwards;
everything else of the model stays packed. A beginning that all texts have in common (a chat template's system turn) stands in the row
once: what a token becomes depends on the tokens before it only, so each text sees the same one. A model takes this from :func:`install`;
whatever is not packed goes to Transformers' own sdpa as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "excise"
"""The name under which Transformers knows this attention."""


CPU = torch.device("cpu")


@dataclass(frozen=True)
class Group:
    """Texts of similar length, laid side by side."""

    texts: int
    width: int
    source: Int[Tensor, " cells"]
    """For each cell of [texts, width], the token of the row that it holds; what stands in padding does not matter: it comes last."""
    cells: Int[Tensor, " tokens"]
    """For each token of the group, its cell. The common beginning is of the first text of the first group."""

    @cached_property
    def padding(self) -> Int[Tensor, " padding"]:
        """The cells that hold no token, or another text's copy of the common beginning."""
        empty = torch.ones(len(self.source), dtype=torch.bool, device=self.source.device)
        empty[self.cells] = False
        return empty.nonzero()[:, 0]


@dataclass(frozen=True)
class Packing:
    """How the texts lie in the row: what is common to their beginnings, then the rest of each."""

    lengths: tuple[int, ...]
    """Tokens of each text, with the common beginning."""
    shared: int = 0
    """Tokens of the common beginning."""
    device: torch.device = CPU

    def to(self, device: torch.device) -> Packing:
        """The same for tensors on another device."""
        return Packing(self.lengths, self.shared, device)

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """Texts whose lengths lie within a factor of two share a group."""
        starts = [self.shared + sum(self.lengths[:i]) - i * self.shared for i in range(len(self.lengths))]
        kinds: dict[int, list[int]] = {}
        for index, length in enumerate(self.lengths):
            kinds.setdefault((length - 1).bit_length(), []).append(index)
        found: list[Group] = []
        for _, members in sorted(kinds.items()):
            spans = [(starts[i], self.lengths[i] - self.shared) for i in members]
            found.append(_group(spans, self.shared, not found, self.device))
        return tuple(found)

    @cached_property
    def order(self) -> Int[Tensor, " tokens"]:
        """For each token of the row, its place among the tokens of all groups, one group after the other."""
        taken = torch.cat([group.source[group.cells] for group in self.groups])
        order = torch.empty_like(taken)
        order[taken] = torch.arange(len(taken), device=self.device)
        return order


def _group(spans: Sequence[tuple[int, int]], shared: int, first: bool, device: torch.device) -> Group:
    """The texts whose own tokens lie in these spans (start and length), behind their common beginning."""
    width = shared + max(length for _, length in spans)
    beginning = torch.arange(shared)
    source = torch.cat([torch.cat([beginning, start + torch.arange(n), torch.zeros(width - shared - n, dtype=torch.long)]) for start, n in spans])
    cells = torch.cat([i * width + shared + torch.arange(n) for i, (_, n) in enumerate(spans)])
    return Group(len(spans), width, source.to(device), (torch.cat([beginning, cells]) if first else cells).to(device))


class _Spread(torch.autograd.Function):
    """Rows [tokens, width] to one [texts x width of the group, width] for each group; its gradient reads instead of adding."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, packing: Packing) -> tuple[Tensor, ...]:
        ctx.packing = packing
        return tuple(rows.index_select(0, group.source) for group in packing.groups)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        packing: Packing = ctx.packing
        rows = _gathered(packing, gradients)
        if packing.shared:  # every text of every group has read the common beginning
            laid = zip(gradients, packing.groups, strict=True)
            parts = [part.view(group.texts, group.width, -1)[:, : packing.shared].sum(0) for part, group in laid]
            rows[: packing.shared] = sum(parts[1:], parts[0])
        return rows, None


class _Gather(torch.autograd.Function):
    """The way back of :class:`_Spread`."""

    @staticmethod
    def forward(ctx: Any, packing: Packing, *laid: Tensor) -> Tensor:
        ctx.packing = packing
        return _gathered(packing, laid)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        packing: Packing = ctx.packing
        laid: list[Tensor] = []
        for group in packing.groups:
            rows = gradient.index_select(0, group.source)
            rows[group.padding] = 0
            laid.append(rows)
        return None, *laid


def _gathered(packing: Packing, laid: Sequence[Tensor]) -> Tensor:
    parts = [part.index_select(0, group.cells) for part, group in zip(laid, packing.groups, strict=True)]
    if len(parts) == 1:  # one group keeps the order of the row
        return parts[0]
    return torch.cat(parts).index_select(0, packing.order)


def packed_attention(
    module: torch.nn.Module,
    query: Float[Tensor, "lines heads tokens width"],
    key: Float[Tensor, "lines key_heads seen width"],
    value: Float[Tensor, "lines key_heads seen value_width"],
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    packing: Packing | None = None,
    **rest: Any,
) -> tuple[Tensor, None]:
    """Attention as Transformers' interface asks for it: [1, tokens, heads, width] and no weights.

    Args:
        packing: how the texts lie in the row; without it this is Transformers' sdpa.
    """
    if packing is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **rest)
    kind, cpu = value.dtype, value.device.type == "cpu"
    with torch.autocast("cpu", enabled=False) if cpu else nullcontext():
        # for short texts the backward pass of the CPU's bf16 kernel takes six times as long as in float32
        query, key, value = (part.float() if cpu and part.dtype == torch.bfloat16 else part for part in (query, key, value))
        laid = [_Spread.apply(_rows(part), packing) for part in (query, key, value)]
        answers: list[Tensor] = []
        for group, q, k, v in zip(packing.groups, *laid, strict=True):
            answers.append(_within(group, q, k, v, query.shape[1], key.shape[1], rest.get("sliding_window"), dropout, scaling))
        joined = _Gather.apply(packing, *answers)
    return joined.view(1, len(joined), query.shape[1], -1).to(kind), None


def _within(
    group: Group, q: Tensor, k: Tensor, v: Tensor, heads: int, key_heads: int, window: int | None, dropout: float, scaling: float | None
) -> Tensor:
    """Attention within each text of a group, [texts x width of the group, heads x width]."""
    answer = scaled_dot_product_attention(
        _side_by_side(q, group, heads),
        _side_by_side(k, group, key_heads),
        _side_by_side(v, group, key_heads),
        attn_mask=_band(group.width, window, q.device),
        dropout_p=dropout,
        is_causal=window is None or window >= group.width,
        scale=scaling,
        enable_gqa=heads != key_heads,
    )
    return answer.transpose(1, 2).reshape(group.texts * group.width, -1)


def _rows(states: Tensor) -> Tensor:
    """[1, heads, tokens, width] as [tokens, heads x width]."""
    return states[0].transpose(0, 1).reshape(states.shape[2], -1)


def _side_by_side(rows: Tensor, group: Group, heads: int) -> Tensor:
    """[texts x width of the group, heads x width] as [texts, heads, width of the group, width]."""
    return rows.view(group.texts, group.width, heads, -1).transpose(1, 2)


def _band(width: int, window: int | None, device: torch.device) -> Bool[Tensor, "width width"] | None:
    """Which token sees which under a sliding window; None where all that came before are seen."""
    if window is None or window >= width:
        return None
    order = torch.arange(width, device=device)
    distance = order[:, None] - order[None, :]
    return (distance >= 0) & (distance < window)


def install(model: PreTrainedModel) -> None:
    """Gives a model this attention where it used sdpa."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    if model.config._attn_implementation == "sdpa":
        AttentionInterface.register(NAME, packed_attention)
        AttentionMaskInterface.register(NAME, sdpa_mask)
        model.set_attn_implementation(NAME)


def remove(model: PreTrainedModel) -> None:
    """Takes it back."""
    if model.config._attn_implementation == NAME:
        model.set_attn_implementation("sdpa")
