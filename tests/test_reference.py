"""The model as it was: what is remembered equals a frozen copy, whatever training does afterwards."""

from __future__ import annotations

import copy
from typing import Any, Literal

import pytest
import torch

from conftest import KINDS, Kind, adapted, tiny
from excise.reference import Needs, Reference, key_of
from excise.subject import Subject
from excise.tokens import Scored, collate, score
from test_tokens import text, texts

EVERYTHING = Needs(logp=True, logits=True, layers=(0, 1))


def frozen(subject: Subject) -> Subject:
    return Subject(copy.deepcopy(subject.model), subject.tokenizer, subject.template, subject.source, subject.generation)


def move(subject: Subject, only: str = "") -> None:
    """Changes every parameter (of that kind) by a tenth of its size or more."""
    draw = torch.Generator().manual_seed(3)
    touched = 0
    for name, parameter in subject.model.named_parameters():
        if only in name:
            parameter.data.add_(0.1 * (1 + parameter.abs().max()) * torch.randn(parameter.shape, generator=draw))
            touched += 1
    assert touched


@torch.no_grad()
def asked(subject: Subject, layers: tuple[int, ...] = (0, 1)) -> Scored:
    scored = score(subject, collate(texts()), layers=layers)
    _ = scored.logits
    return scored


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_the_reference_is_a_frozen_copy_after_full_training(kind: Kind, tied: bool) -> None:
    subject = tiny(kind, tied=tied)
    copied = frozen(subject)
    reference = Reference(subject, EVERYTHING, "float32")
    reference.remember(texts())
    move(subject)
    now, wanted = asked(subject), asked(copied)
    got = reference.scored(texts(), now)
    assert (now.logits - wanted.logits).abs().max() > 0.1
    torch.testing.assert_close(got.logits, wanted.logits, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got.token_logp, wanted.token_logp, rtol=1e-5, atol=1e-5)
    for layer in (0, 1):
        torch.testing.assert_close(got.hidden[layer], wanted.hidden[layer], rtol=1e-5, atol=1e-5)
    assert not got.logits.requires_grad
    assert not got.token_logp.requires_grad
    assert torch.equal(got.target, now.target)
    assert torch.equal(got.row, now.row)


def test_a_bias_of_the_output_head_is_remembered_too() -> None:
    subject = tiny("phi")
    assert subject.head.bias is not None
    copied = frozen(subject)
    reference = Reference(subject, Needs(logits=True), "float32")
    reference.remember(texts())
    move(subject, "lm_head.bias")
    torch.testing.assert_close(reference.scored(texts(), asked(subject)).logits, asked(copied).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_the_reference_of_an_adapter_is_the_adapter_as_it_was(kind: Kind) -> None:
    subject = adapted(tiny(kind))
    copied = frozen(subject)
    reference = Reference(subject, EVERYTHING, "float32")
    reference.remember(texts())
    move(subject, "lora_B")
    torch.testing.assert_close(reference.scored(texts(), asked(subject)).logits, asked(copied).logits, rtol=1e-5, atol=1e-5)


def test_the_reference_from_before_an_adapter_stays_the_base() -> None:
    subject = tiny("llama")
    copied = frozen(subject)
    reference = Reference(subject, EVERYTHING, "float32")
    reference.remember(texts())
    adapted(subject)
    torch.testing.assert_close(reference.scored(texts(), asked(subject)).logits, asked(copied).logits, rtol=1e-5, atol=1e-5)


def test_any_batch_of_remembered_texts_can_be_asked_for(tiny_subject: Subject) -> None:
    reference = Reference(tiny_subject, EVERYTHING, "float32", max_tokens=16)
    rows = texts()
    told: list[int] = []
    reference.remember(rows, told.append)
    assert sum(told) == len(rows)
    assert len(told) > 1
    chosen = [rows[3], rows[0], rows[4]]
    with torch.no_grad():
        now = score(tiny_subject, collate(chosen), layers=(0, 1))
        _ = now.logits
    got = reference.scored(chosen, now)
    torch.testing.assert_close(got.logits, now.logits, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got.hidden[1], now.hidden[1], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got.token_logp, now.token_logp, rtol=1e-5, atol=1e-5)


def test_only_what_is_needed_is_kept_and_nothing_is_asked_twice(tiny_llama: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[bool] = []
    import excise.reference as module

    def counting(*args: Any, **kwargs: Any) -> Scored:
        passes.append(kwargs["logits"])
        return score(*args, **kwargs)

    monkeypatch.setattr(module, "score", counting)
    rows = texts()
    nothing = Reference(tiny_llama, Needs(), "float32")
    nothing.remember(rows)
    assert passes == []
    hidden = Reference(tiny_llama, Needs(layers=(0,)), "float32")
    hidden.remember([*rows, *rows])
    assert passes == [False]  # one pass, and it stopped early
    assert hidden.head is None
    assert not hidden.logp
    assert not hidden.features
    hidden.remember(rows)
    assert len(passes) == 1
    hidden.remember([*rows, text(17)])
    assert len(passes) == 2
    logp = Reference(tiny_llama, Needs(logp=True), "float32")
    logp.remember(rows)
    assert set(logp.logp) == {key_of(t) for t in rows}
    assert logp.head is None
    with pytest.raises(AssertionError, match="not asked to keep logits"):
        _ = logp.scored(rows, asked(tiny_llama)).logits


def test_a_text_scored_from_another_place_is_another_text(tiny_llama: Subject) -> None:
    reference = Reference(tiny_llama, Needs(logp=True), "float32")
    reference.remember([text(9, start=4), text(9, start=1)])
    assert sorted(len(v) for v in reference.logp.values()) == [5, 8]


def test_remembering_leaves_training_mode_and_gradients_alone(tiny_llama: Subject) -> None:
    tiny_llama.model.train()
    Reference(tiny_llama, EVERYTHING, "float32").remember(texts())
    assert tiny_llama.model.training
    assert all(p.grad is None for p in tiny_llama.model.parameters())


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_in_bfloat16_memory_is_halved_and_the_divergence_from_itself_stays_nothing(
    precision: Literal["float32", "bfloat16"], tiny_llama: Subject
) -> None:
    from excise.objectives.distance import kl_divergence
    from excise.stages.views import Views

    reference = Reference(tiny_llama, Needs(logits=True), precision)
    reference.remember(texts())
    assert reference.head is not None
    assert reference.head.dtype == (torch.float32 if precision == "float32" else torch.bfloat16)
    view = Views(tiny_llama, precision, reference).of(texts())
    divergence = kl_divergence(view.reference.logits, view.model.logits.detach())
    assert divergence.abs().max() < (1e-5 if precision == "float32" else 1e-3)
