"""Which parameters a stage may change."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from conftest import KINDS, Kind, adapted, tiny
from excise.errors import InputError
from excise.scope import Role, Scope, Window, module_names
from excise.subject import Subject

ROLE_OF: dict[Kind, dict[Role, str]] = {
    "llama": {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "o_proj", "gate": "gate_proj", "up": "up_proj", "down": "down_proj"},
    "phi": {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "dense", "up": "fc1", "down": "fc2"},
}
ROLE_OF |= {"gemma3": ROLE_OF["llama"], "qwen3": ROLE_OF["llama"]}


def names(subject: Subject, **settings: Any) -> list[str]:
    return Scope(**settings).names(subject)


def test_by_default_every_parameter_is_in_scope(tiny_subject: Subject) -> None:
    assert names(tiny_subject) == [name for name, _ in tiny_subject.model.named_parameters()]


@pytest.mark.parametrize("kind", KINDS)
def test_roles_mean_the_same_in_every_architecture(kind: Kind) -> None:
    subject = tiny(kind)
    linear = [name for name, _ in subject.model.named_parameters() if any(f".{m}." in name for m in ROLE_OF[kind].values())]
    found: list[str] = []
    for role, module in ROLE_OF[kind].items():
        chosen = names(subject, modules=(role,))
        assert chosen == [name for name in linear if f".{module}." in name]
        assert len(chosen) == 2 * (2 if kind == "phi" else 1)  # two layers; Phi's have biases
        assert module_names(subject, (role,)) == [module]
        found += chosen
    assert sorted(found) == sorted(linear)


@pytest.mark.parametrize("kind", KINDS)
def test_layers_leave_out_what_stands_outside_them(kind: Kind) -> None:
    subject = tiny(kind, layers=3)
    chosen = names(subject, layers=(1,))
    assert chosen == [name for name, _ in subject.model.named_parameters() if ".layers.1." in name]
    assert len(chosen) > 5
    assert names(subject, layers=(0, 2)) == [n for n, _ in subject.model.named_parameters() if ".layers.0." in n or ".layers.2." in n]


def test_a_window_ends_at_its_layer() -> None:
    subject = tiny("llama", layers=9)
    assert Scope(Window(5)).layers_of(9) == (3, 4, 5)
    assert Scope(Window(1)).layers_of(9) == (0, 1)
    assert Scope(Window(None)).layers_of(32) == (5, 6, 7)
    assert Scope(Window(4, width=1)).layers_of(9) == (4,)
    chosen = names(subject, layers=Window(5), modules=("down",))
    assert chosen == [f"model.layers.{i}.mlp.down_proj.weight" for i in (3, 4, 5)]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_embedding_and_head_are_found_by_what_they_are(kind: Kind, tied: bool) -> None:
    subject = tiny(kind, tied=tied)
    embedding, head = names(subject, modules=("embedding",)), names(subject, modules=("head",)) if not tied or kind == "phi" else []
    assert [n for n in embedding if "embed_tokens" in n] == ["model.embed_tokens.weight"]
    if not tied:
        assert "lm_head.weight" in head
        assert not set(head) & set(embedding)
    norms = names(subject, modules=("norm",))
    assert norms
    assert all("norm" in n for n in norms)


@pytest.mark.parametrize("layer", [2, 9, -1])
def test_a_layer_that_the_model_lacks_is_named(layer: int, tiny_llama: Subject) -> None:
    for layers in ((0, layer), (layer,)):
        with pytest.raises(InputError, match=f"layer {layer} does not exist: the model has 2 layers, 0 to 1"):
            names(tiny_llama, layers=layers)
    if layer > 0:
        with pytest.raises(InputError, match=f"layer {layer} does not exist"):
            names(tiny_llama, layers=Window(layer))


def test_a_scope_without_parameters_is_an_error() -> None:
    with pytest.raises(InputError, match=r"selects no parameter of PhiForCausalLM"):
        names(tiny("phi"), modules=("gate",))
    with pytest.raises(InputError, match="selects no parameter"):
        names(tiny("llama"), layers=(0,), modules=("embedding",))


def test_a_model_with_an_adapter_trains_the_adapter_only(tiny_subject: Subject) -> None:
    subject = adapted(tiny_subject)
    chosen = names(subject)
    assert chosen
    assert all("lora_" in n for n in chosen)
    assert names(subject, adapter="only") == chosen
    own = names(subject, adapter="no")
    assert own
    assert not set(own) & set(chosen)
    assert set(own) | set(chosen) == {n for n, _ in subject.model.named_parameters()}
    one = names(subject, layers=(1,), modules=("down",))
    assert len(one) == 2
    assert all(".layers.1." in n and "lora_" in n for n in one)


def test_an_adapter_that_is_not_there_is_asked_for(tiny_llama: Subject) -> None:
    with pytest.raises(InputError, match=r"add method\.lora"):
        names(tiny_llama, adapter="only")


def test_only_what_is_in_scope_asks_for_gradients_and_only_inside(tiny_subject: Subject) -> None:
    every = dict(tiny_subject.model.named_parameters())
    stale = next(iter(every.values()))
    stale.grad = torch.ones_like(stale)
    scope = Scope((1,), ("down",))
    with scope.trainable(tiny_subject) as chosen:
        assert list(chosen) == scope.names(tiny_subject)
        assert {n for n, p in every.items() if p.requires_grad} == set(chosen)
        assert all(p.grad is None for p in every.values())
        next(iter(chosen.values())).grad = torch.zeros_like(next(iter(chosen.values())))
    assert not any(p.requires_grad or p.grad is not None for p in every.values())
    with pytest.raises(ZeroDivisionError), scope.trainable(tiny_subject):
        raise ZeroDivisionError
    assert not any(p.requires_grad for p in every.values())


def test_adapter_modules_are_those_the_model_has() -> None:
    assert module_names(tiny("phi"), ("q", "gate", "down")) == ["fc2", "q_proj"]
    with pytest.raises(InputError, match=r"no linear layer for gate: .*allowed: down, k, o, q, up, v"):
        module_names(tiny("phi"), ("gate",))
