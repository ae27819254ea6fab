"""A model's hidden states on text, and its loss with something else put in their place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from excise.data.encode import Encoded
from excise.hidden import replaced
from excise.layout import layout_of
from excise.precision import autocast, evaluating
from excise.tokens import at_least_float32, buckets, collate, score

if TYPE_CHECKING:
    from excise.subject import Subject

Precision = Literal["float32", "bfloat16"]


@torch.no_grad()
def hidden_states(
    subject: Subject,
    texts: Sequence[Encoded],
    layer: int,
    precision: Precision = "float32",
    max_tokens: int = 2048,
    advance: Callable[[int], None] = lambda _: None,
) -> list[Float[Tensor, "_ width"]]:
    """Output of a decoder layer at the scored tokens of each text, float32, in the order of ``texts``.

    Of plain text every token is scored but the first, whose hidden state is of another size than all others.
    """
    found: dict[int, Tensor] = {}
    with evaluating(subject.model):
        layout = layout_of(subject)
        for group in buckets([len(text) for text in texts], max_tokens):
            with autocast(precision, subject.device):
                states = score(subject, collate([texts[i] for i in group], layout), layers=(layer,), logits=False).hidden[layer]
            parts = torch.split(at_least_float32(states), [texts[i].scored for i in group])
            found |= {i: part.clone() for i, part in zip(group, parts, strict=True)}
            advance(len(group))
    return [found[i] for i in range(len(texts))]


@torch.no_grad()
def loss_with(
    subject: Subject,
    texts: Sequence[Encoded],
    layer: int,
    change: Callable[[Float[Tensor, "n width"]], Float[Tensor, "n width"]] | None,
    precision: Precision = "float32",
    max_tokens: int = 2048,
) -> float:
    """Cross-entropy in nats per scored token while ``change`` is applied to the layer's output; the first token of a text stays."""
    total, count = 0.0, 0
    with evaluating(subject.model):
        layout = layout_of(subject)
        for group in buckets([len(text) for text in texts], max_tokens):
            batch = collate([texts[i] for i in group], layout).to(subject.device)
            later = batch.positions.flatten() > 0

            def put(states: Tensor, later: Tensor = later) -> Tensor:
                assert change is not None
                flat = states.flatten(0, 1)
                new = change(at_least_float32(flat[later])).to(flat)
                return flat.index_put((torch.nonzero(later).flatten(),), new).view_as(states)

            with autocast(precision, subject.device), replaced(subject.layers, layer, None if change is None else put):
                logp = score(subject, batch).token_logp
            total -= float(logp.double().sum())
            count += len(logp)
    return total / max(count, 1)
