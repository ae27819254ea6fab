"""The output head in pieces: the values and gradients of the whole, with few passes over the vocabulary."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import Tensor

from conftest import KINDS, Kind, tiny, watched
from excise import head as module
from excise.data.encode import Encoded
from excise.head import IN_TRAINING, Head, hand_over_gradient
from excise.stages.fused import fused_layers
from excise.subject import Subject
from excise.tokens import LOGITS_AT_ONCE, collate, score

TEXTS = [Encoded(f"{i}", tuple(range(1 + i, 14 + i)), 3, ((0, 0),) * 13, "", (0, 0), (0, 0)) for i in range(3)]
VOCABULARY = 400


def outcome(subject: Subject, monkeypatch: pytest.MonkeyPatch, at_once: int | None, half: bool = False) -> dict[str, Tensor]:
    """Two looks at the logits, so many tokens at a time (None: all), and the gradients of everything."""
    monkeypatch.setattr("excise.tokens.LOGITS_AT_ONCE", LOGITS_AT_ONCE if at_once is None else at_once * VOCABULARY)
    for parameter in subject.model.parameters():
        parameter.grad = None
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        scored = score(subject, collate(TEXTS))
    (scored.token_logp.square().sum() + scored.entropy.sum()).backward()
    found = {name: cast(Tensor, p.grad).clone() for name, p in subject.model.named_parameters() if p.grad is not None}
    return {**found, "logp": scored.token_logp.detach(), "entropy": scored.entropy.detach()}


def tokens(_: Tensor, waiting: Any) -> int:
    """Of an addition to the head's gradient."""
    return sum(len(outer) for outer, _ in waiting)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("half", [False, True])
def test_pieces_have_the_values_and_gradients_of_the_whole(kind: Kind, half: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = tiny(kind)
    subject.model.requires_grad_(True)
    exact, whole = outcome(subject, monkeypatch, None), outcome(subject, monkeypatch, None, half)
    additions = watched(monkeypatch, module, "_add", tokens)
    monkeypatch.setattr(module, "TOGETHER", 12)
    monkeypatch.setattr(module, "BLOCK", 64)
    pieces = outcome(subject, monkeypatch, 7, half)
    assert additions == [14, 14, 2] * 2, "pieces of 7, 7, 7, 7 and 2 of 30 tokens, added when at least 12 wait"
    assert pieces.keys() == whole.keys()
    for name, value in exact.items():
        error, usual = (float((found[name] - value).norm() / value.norm()) for found in (pieces, whole))
        assert error < (1.1 * usual + 2e-3 if half else 1e-5), name
        assert pieces[name].dtype == whole[name].dtype


def test_a_frozen_head_costs_no_gradient_and_features_keep_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = tiny("llama")
    subject.model.requires_grad_(False)
    for block in subject.layers:
        block.requires_grad_(True)
    whole = outcome(subject, monkeypatch, None)
    additions = watched(monkeypatch, module, "_add", tokens)
    pieces = outcome(subject, monkeypatch, 4)
    assert additions == []
    assert "model.layers.0.mlp.up_proj.weight" in pieces
    for name, value in whole.items():
        torch.testing.assert_close(pieces[name], value, rtol=1e-3, atol=1e-4)


def test_a_hooked_head_is_called_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = tiny("llama")
    subject.model.requires_grad_(True)
    whole = outcome(subject, monkeypatch, None)
    calls: list[int] = []
    cast(Any, subject.head).register_forward_hook(lambda *_: calls.append(1))
    additions = watched(monkeypatch, module, "_add", tokens)
    pieces = outcome(subject, monkeypatch, 10)
    assert additions == []
    assert len(calls) == 12, "three pieces, two looks, and each again backwards"
    for name, value in whole.items():
        torch.testing.assert_close(pieces[name], value, rtol=1e-3, atol=1e-4)


def test_a_function_that_ignores_the_logits_pulls_nowhere() -> None:
    subject = tiny("llama")
    head = Head(subject.base, torch.randn(5, cast(Any, subject.head).in_features, requires_grad=True), None)
    values = head.in_pieces(lambda logits, part: torch.ones(len(logits)), 2)
    assert values is not None
    values.sum().backward()
    assert head.features.grad is not None
    assert not head.features.grad.any()


def test_while_a_stage_trains_the_gradient_is_collected_and_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two looks in two backward passes; what another use of the weight (a tied input table) adds stays."""
    subject = tiny("llama")
    subject.model.requires_grad_(True)
    head: Any = subject.head
    once = outcome(subject, monkeypatch, 7)["lm_head.weight" if subject.embedding.weight is not head.weight else "model.embed_tokens.weight"]
    head.weight.grad = None
    tables: list[Tensor | None] = []
    with fused_layers(subject):
        for _ in range(2):
            scored = score(subject, collate(TEXTS))
            (scored.token_logp.square().sum() + scored.entropy.sum()).backward()
            tables.append(IN_TRAINING[head].gradient)
            hand_over_gradient(head)
            assert IN_TRAINING[head].gradient is None
        assert tables[0] is tables[1] is head.weight.grad, "the second pass adds to what the first one found"
        torch.testing.assert_close(head.weight.grad, 2 * once, rtol=1e-3, atol=1e-4)
        hand_over_gradient(head)
        torch.testing.assert_close(head.weight.grad, 2 * once, rtol=1e-3, atol=1e-4)


def test_while_a_stage_trains_the_weight_is_converted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = tiny("llama")
    subject.model.requires_grad_(True)
    with fused_layers(subject):
        copy = IN_TRAINING[cast(Any, subject.head)]
        outcome(subject, monkeypatch, 7, half=True)
        first = copy.copy
        outcome(subject, monkeypatch, 7, half=True)
        assert first is not None
        assert copy.copy is first
    assert cast(Any, subject.head) not in IN_TRAINING
