"""bf16 working copies: the numbers of plain autocast to the bit, float32 weights for everybody else."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from conftest import KINDS, Kind, adapted, tiny
from excise.data.batches import Paired
from excise.evaluation.score import Score
from excise.objectives import KL, NLL, NPO
from excise.stages import loop
from excise.stages.guard import Guard
from excise.stages.optimise import Optimiser
from excise.stages.state import State
from excise.stages.train import Term, Train
from excise.stages.working import Working, working_copies
from excise.subject import Subject
from test_train import eight

TERMS = (Term(NPO(), "forget"), Term(KL(positions="all"), "retain", 0.5), Term(NLL(), "retain"))


def trained(subject: Subject, evaluate: Any = None, **settings: Any) -> dict[str, torch.Tensor]:
    rate = Optimiser(lr=1e-2, warmup=0.0, schedule="constant")
    stage = Train(**{"terms": TERMS, "optimiser": rate, "batches": Paired(4), "steps": 3, "guard": Guard(every=0), **settings})
    state = State(subject, eight(), precision="bfloat16", evaluate=evaluate)
    stage.prepare(state)
    stage(state)
    assert not state.records[-1]["stopped"]
    return {name: p.detach().clone() for name, p in subject.model.named_parameters()}


@contextmanager
def none(subject: Subject, trained: Mapping[str, nn.Parameter], wanted: bool) -> Any:
    yield Working(masters=dict(trained))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["full", "lora", "accumulated", "recomputed"])
def test_the_weights_are_those_of_plain_autocast_to_the_bit(kind: Kind, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[str, Any] = {"accumulated": {"accumulate": 2}, "recomputed": {"checkpointing": True}}.get(form, {})

    def subject() -> Subject:
        return adapted(tiny(kind)) if form == "lora" else tiny(kind)

    start = {name: p.detach().clone() for name, p in subject().model.named_parameters()}
    ours = trained(subject(), **settings)
    monkeypatch.setattr(loop, "working_copies", none)
    plain = trained(subject(), **settings)
    assert all(p.dtype == torch.float32 for p in ours.values())
    assert any(not torch.equal(ours[name], start[name]) for name in ours)
    if form == "accumulated":  # two gradients are added in float32 where autocast's were rounded first
        assert all(torch.allclose(ours[name], plain[name], rtol=0, atol=3e-2) for name in ours)
    else:
        assert [name for name in ours if not torch.equal(ours[name], plain[name])] == []


def test_linear_layers_hold_bf16_and_nothing_else_does(tiny_llama: Subject) -> None:
    model = tiny_llama.model
    with working_copies(tiny_llama, dict(model.named_parameters()), True) as working:
        kinds = {name: p.dtype for name, p in model.named_parameters()}
        assert {name for name, kind in kinds.items() if kind == torch.bfloat16} == {n for n in kinds if "proj" in n}
        assert all(p.dtype == torch.float32 for p in working.masters.values())
        with working.aside():
            assert all(p.dtype == torch.float32 for p in model.parameters())
        assert dict(model.named_parameters())["model.layers.0.mlp.up_proj.weight"].dtype == torch.bfloat16


def test_an_evaluation_on_the_way_sees_float32_weights() -> None:
    seen: list[set[torch.dtype]] = []

    def evaluate(subject: Subject) -> dict[str, Score]:
        seen.append({p.dtype for p in subject.model.parameters()})
        return {"x": Score(float(len(seen)), "higher", 1)}

    trained(tiny("llama"), evaluate, evaluate_every=1)
    assert seen == [{torch.float32}] * 3


def test_a_frozen_weight_comes_back_to_the_bit(tiny_llama: Subject) -> None:
    weight = dict(tiny_llama.model.named_parameters())["model.layers.0.mlp.up_proj.weight"]
    before = weight.detach().clone()
    weight.requires_grad_(False)
    with working_copies(tiny_llama, {}, True) as working:
        working.refresh()
    assert torch.equal(weight, before)


def test_the_weights_come_back_when_the_block_raises(tiny_llama: Subject) -> None:
    model = tiny_llama.model
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    with pytest.raises(KeyError), working_copies(tiny_llama, dict(model.named_parameters()), True):
        raise KeyError("x")
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
