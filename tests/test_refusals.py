"""What a method or a training stage refuses, as early as it can be known, in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conftest import adapted, tiny
from excise.data.example import Benchmark, Example
from excise.errors import InputError
from excise.objectives import DPO, KL, RMU
from excise.recipe import build_methods
from excise.run import run_stages
from excise.scope import Scope
from excise.stages.optimise import Optimiser
from excise.stages.state import State
from excise.stages.train import Term, Train
from excise.subject import Subject
from excise.weights import Attribution
from test_train import QUIET, TERMS, eight, train


@pytest.mark.parametrize("form", ["full", "lora"])
def test_a_scope_behind_the_layer_that_is_looked_at_is_an_error(form: str) -> None:
    subject = tiny("llama", tied=False)
    scope = Scope(None, ("head",))
    if form == "lora":
        subject, scope = adapted(subject), Scope((1,))
    before = subject.fingerprint()
    with pytest.raises(InputError, match="no parameter in scope got a gradient"):
        train(subject, terms=(Term(RMU(0, 4.0), "forget"),), scope=scope)
    assert subject.fingerprint() == before
    assert not any(p.requires_grad for p in subject.model.parameters())


def test_forget_examples_without_an_alternative_are_named_for_dpo(tiny_llama: Subject) -> None:
    data = eight()
    rows = (*data.forget[:6], *(Example(e.id, e.prompt, e.answer) for e in data.forget[6:]))
    with pytest.raises(InputError, match=r"2 of 8 forget examples have no alternative answer \(the first is 'forget6'\)"):
        train(tiny_llama, terms=(Term(DPO(), "forget"),), data=Benchmark("b", {"forget": rows, "retain": data.retain}))


@pytest.mark.parametrize("settings", [{"layer": 2}, {"layer": 99}, {"layer": -1}, {"layers": [0, 5]}])
def test_a_layer_that_the_model_lacks_is_refused_before_anything_runs(settings: dict[str, Any], tiny_llama: Subject, tmp_path: Path) -> None:
    wrong = settings.get("layer", 5)
    stages = [s for _, ss in build_methods("rmu", {"steps": 1, **settings}) for s in ss]
    with pytest.raises(InputError, match=f"layer {wrong} does not exist: the model has 2 layers, 0 to 1"):
        run_stages(State(tiny_llama, eight(), folder=tmp_path), stages)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("r", [0, 0.0, 1.5, -1])
def test_an_impossible_share_of_tokens_is_refused(r: float) -> None:
    with pytest.raises(InputError, match=rf"attribution\.r = {float(r)} is not allowed: it must be above 0 and at most 1"):
        build_methods("t_npo", {"attribution": {"r": r}})


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"lr": 0.0}, "lr = 0.0"), ({"lr": -1e-5}, "lr = "), ({"batch": 0}, "batch = 0"), ({"retain_batch": 0}, "retain_batch = 0"),
        ({"accumulate": 0}, "accumulate = 0"),
        ({"epochs": -1}, "epochs = -1"), ({"warmup": 1.5}, "warmup = 1.5"), ({"clip": 0.0}, "clip = 0.0"), ({"weight_decay": -0.1}, "weight_decay"),
        ({"retain_scale": -1.0}, "retain_scale = -1.0"), ({"guard": {"rise": 0.0}}, "guard.rise"), ({"lora": {"r": 0}}, "lora.r = 0"),
        ({"beta": 0.0}, "npo.beta = 0.0"),
        ({"keep_best": "x"}, "keep_best needs evaluate_every"),
    ],
)  # fmt: skip
def test_impossible_training_settings_are_refused_in_one_line(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint) as caught:
        build_methods("npo", settings)
    assert "\n" not in str(caught.value)


def test_a_stage_needs_terms_and_all_positions_need_uniform_weights() -> None:
    with pytest.raises(InputError, match="at least one term"):
        Train(())
    with pytest.raises(InputError, match="positions = all cannot be combined with token weights"):
        Train((Term(KL(positions="all"), "retain", weight=Attribution()),))


def test_a_model_with_an_adapter_refuses_a_second_one(tiny_llama: Subject) -> None:
    stages = [s for _, ss in build_methods("npo", {"lora": {"r": 2}}) for s in ss]
    with pytest.raises(InputError, match="the model is an adapter already"):
        stages[0].prepare(State(adapted(tiny_llama), eight()))


def test_a_chain_with_two_different_adapters_is_refused_before_training(tiny_llama: Subject, tmp_path: Path) -> None:
    stages = [s for r in (2, 4) for _, ss in build_methods("npo", {"lora": {"r": r}, "steps": 1}) for s in ss]
    with pytest.raises(InputError, match="ask for two different ones"):
        run_stages(State(tiny_llama, eight(), folder=tmp_path), stages)


def test_a_rate_too_small_for_the_number_format_is_noticed(tiny_llama: Subject) -> None:
    with pytest.raises(InputError, match="no value moved in the first step"):
        train(tiny_llama, scope=Scope((1,)), optimiser=Optimiser(lr=1e-30, warmup=0.0))


def test_keep_best_needs_a_score_that_exists(tiny_llama: Subject) -> None:
    with pytest.raises(InputError, match="keep_best needs evaluate_every"):
        Train(TERMS, keep_best="x")
    stage = Train(TERMS, steps=2, evaluate_every=1, keep_best="nothing", guard=QUIET, optimiser=Optimiser(lr=1e-3))
    state = State(tiny_llama, eight(), evaluate=lambda s: {})
    stage.prepare(state)
    with pytest.raises(InputError, match="no score 'nothing'"):
        stage(state)
