"""Every method on a model that knows eight facts by heart: it forgets four, keeps four, repeats itself, and can be saved."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import learning
from conftest import Kind, logits, tiny
from excise import registry
from excise.loading import load
from excise.saving import save
from excise.stages.state import State
from excise.subject import Subject

EDITS = ("ember", "snmf")
"""They need texts, not questions: tests/test_ember.py and tests/test_snmf.py."""
METHODS = [name for name in registry.names("methods") if name not in ("compose", *EDITS)]
FORMS = ("full", "lora")
FAMILIES = ("wga", "npo", "rmu", "t_npo", "s_ga", "dpo")
OTHERS: tuple[tuple[Kind, bool | None], ...] = (("llama", False), ("gemma3", None), ("gemma3", False), ("qwen3", None), ("phi", None))
WITHOUT_RETAIN = ("ga", "undial", "ceu", "adapter_negation")
FORGETS_NOTHING = ("retain_only",)
ON_AN_ADAPTER = ("maat", "adapter_negation", "retain_only", "npo")
"""Methods that are tried on a model whose knowledge lies in an adapter; the first of them works on nothing else."""

everything = pytest.mark.parametrize("form", FORMS)
every_method = pytest.mark.parametrize(
    ("method", "form"),
    [*((m, form) for m in METHODS if m != "maat" for form in FORMS), *((m, "adapter") for m in ON_AN_ADAPTER)],
)


@dataclass(frozen=True)
class Outcome:
    """A model after a method, and what it was before."""

    state: State
    forget: tuple[float, float]
    retain: tuple[float, float]
    fingerprint: str
    distance: tuple[float, float]
    """From RMU's control vector, relative to its length; nothing for other methods."""


def stronger(method: str, form: str) -> dict[str, Any]:
    """RMU's and CRISP's push is weaker: hidden states are trained, and not the loss that is measured."""
    if method == "crisp":
        return {"steps": 40, "lr": 1e-2}
    return {"steps": 40, "lr": {"full": 3e-3, "lora": 1e-2}[form]} if method.endswith("rmu") else {}


def control_distance(subject: Subject, state: State) -> float:
    """Distance of forget tokens from the control vector that the run resolved."""
    from excise.objectives.steering import control_vector

    plan = next(line for line in state.plan if line.startswith("forget.rmu"))
    layer, coefficient = int(plan.split("layer=")[1].split(",")[0]), float(plan.split("coefficient=")[1].split(",")[0])
    states = learning.hidden(subject, learning.benchmark().forget, layer)
    return float((states - control_vector(states.shape[-1], coefficient, 42)).norm(dim=-1).mean()) / coefficient


def run(method: str, form: str, kind: Kind = "llama", tied: bool | None = None, seed: int = 0) -> Outcome:
    subject, data = learning.taught(kind, tied, form), learning.benchmark()
    before = learning.loss(subject, data.forget), learning.loss(subject, data.retain)
    original = learning.taught(kind, tied, form)
    state = learning.unlearn(method, learning.settings_of(method, form, **stronger(method, form)), subject, seed)
    distance = (control_distance(original, state), control_distance(subject, state)) if method.endswith("rmu") else (0.0, 0.0)
    after = learning.loss(subject, data.forget), learning.loss(subject, data.retain)
    return Outcome(state, (before[0], after[0]), (before[1], after[1]), subject.fingerprint(), distance)


@functools.cache
def outcome(method: str, form: str, kind: Kind = "llama", tied: bool | None = None) -> Outcome:
    return run(method, form, kind, tied)


def must_have_forgotten(method: str, result: Outcome) -> None:
    risen, lost = result.forget[1] - result.forget[0], result.retain[1] - result.retain[0]
    assert result.forget[0] < 0.1, "the model knew the facts"
    assert result.retain[0] < 0.1, "the model knew the others too"
    if method in FORGETS_NOTHING:
        assert lost < 0.05, f"retain loss {result.retain}"
        return
    assert risen > 0.05, f"forget loss {result.forget}, retain loss {result.retain}"
    if method.endswith("rmu"):
        assert result.distance[1] < 0.9 * result.distance[0], f"hidden states did not move to the control vector: {result.distance}"
    if method not in WITHOUT_RETAIN:  # the others have nothing that keeps the rest
        assert lost < 0.75 * risen, f"forget loss {result.forget}, retain loss {result.retain}"


def saves_and_loads(result: Outcome, folder: Path) -> None:
    subject = result.state.subject
    again = load(save(subject, folder / "model", provenance={}))
    assert torch.equal(logits(again), logits(subject))
    assert again.is_adapter == subject.is_adapter
    merged = load(save(subject, folder / "merged", provenance={}, merge=True))
    assert not merged.is_adapter
    torch.testing.assert_close(logits(merged), logits(subject), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(logits(again), logits(load(str(subject.base.name_or_path))), atol=1e-4), "what was saved is the unlearned model"


def test_the_tiny_model_knows_the_facts_by_heart() -> None:
    subject, data = learning.taught(), learning.benchmark()
    assert learning.loss(subject, [*data.forget, *data.retain]) < 0.1
    assert learning.loss(tiny("llama"), [*data.forget, *data.retain]) > 4
    assert learning.loss(learning.taught(form="adapter"), [*data.forget, *data.retain]) < 0.1


@every_method
def test_a_method_forgets_and_keeps(method: str, form: str) -> None:
    must_have_forgotten(method, outcome(method, form))


@every_method
def test_a_method_repeats_itself_to_the_bit(method: str, form: str) -> None:
    assert run(method, form).fingerprint == outcome(method, form).fingerprint


@every_method
def test_an_unlearned_model_survives_saving_and_loading(method: str, form: str, tmp_path: Path) -> None:
    saves_and_loads(outcome(method, form), tmp_path)


@pytest.mark.slow
@everything
@pytest.mark.parametrize("method", FAMILIES)
@pytest.mark.parametrize(("kind", "tied"), OTHERS)
def test_method_families_work_on_every_architecture(kind: Kind, tied: bool | None, method: str, form: str, tmp_path: Path) -> None:
    result = outcome(method, form, kind, tied)
    must_have_forgotten(method, result)
    saves_and_loads(result, tmp_path)
    assert result.state.subject.tied == (kind != "phi" if tied is None else tied)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "tied"), OTHERS)
def test_method_families_repeat_themselves_on_every_architecture(kind: Kind, tied: bool | None) -> None:
    for method in ("npo", "rmu"):
        assert run(method, "full", kind, tied).fingerprint == outcome(method, "full", kind, tied).fingerprint


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gemma3", "qwen3"])
def test_adapter_surgery_works_on_other_architectures(kind: Kind, tmp_path: Path) -> None:
    result = outcome("maat", "adapter", kind)
    must_have_forgotten("maat", result)
    saves_and_loads(result, tmp_path)


def test_another_seed_gives_another_model() -> None:
    settings = learning.settings_of("npo", "full", batch=2)
    first, second = learning.taught(), learning.taught()
    learning.unlearn("npo", settings, first, seed=0)
    learning.unlearn("npo", settings, second, seed=1)
    assert first.fingerprint() != second.fingerprint()


@everything
def test_terms_written_in_a_recipe_work_like_a_method(form: str) -> None:
    terms = [
        {"objective": {"name": "npo", "beta": 0.1}, "data": "forget", "weight": {"name": "attribution", "nouns": {"words": list(learning.NOUNS)}}},
        {"objective": "kl", "data": "retain"},
    ]
    composed, named = learning.taught(), learning.taught()
    learning.unlearn("compose", learning.settings_of("compose", form, terms=terms), composed)
    learning.unlearn("t_npo", learning.settings_of("t_npo", form), named)
    assert composed.fingerprint() == named.fingerprint()


@pytest.mark.parametrize("retain", ["kl", "nll", "hidden_mse", "none"])
def test_every_retain_term_goes_with_npo(retain: str) -> None:
    subject, data = learning.taught(), learning.benchmark()
    learning.unlearn("npo", learning.settings_of("npo", "full", retain=retain), subject)
    assert learning.loss(subject, data.forget) > 0.5
    if retain != "none":
        free = learning.taught()
        learning.unlearn("npo", learning.settings_of("npo", "full", retain="none"), free)
        assert learning.loss(subject, data.retain) < learning.loss(free, data.retain)


def test_the_spacy_pipeline_chooses_what_is_hidden() -> None:
    pytest.importorskip("spacy")
    subject, data = learning.taught(), learning.benchmark()
    settings = learning.settings_of("t_npo", "full")
    del settings["attribution"]
    state = learning.unlearn("t_npo", settings, subject)
    assert learning.loss(subject, data.forget) > 0.5
    assert any("token scores of 4 answers" in line for line in state.plan)


@pytest.mark.parametrize(
    "more", [{"refresh": "epoch"}, {"refresh": "step"}, {"copies": "drop", "hide": "mentions"}, {"mask": "token"}, {"norm": "rank"}]
)
def test_every_form_of_attribution_trains(more: dict[str, Any]) -> None:
    subject, data = learning.taught(), learning.benchmark()
    settings = learning.settings_of("s_npo", "full")
    settings["attribution"] = {**settings["attribution"], **more}
    learning.unlearn("s_npo", settings, subject)
    assert learning.loss(subject, data.forget) > 0.3


def test_a_contrast_model_is_loaded_and_freed() -> None:
    subject, data = learning.taught(), learning.benchmark()
    settings = learning.settings_of("t_npo", "full")
    settings["attribution"] = {**settings["attribution"], "contrast": tiny("llama").source}
    learning.unlearn("t_npo", settings, subject)
    assert learning.loss(subject, data.forget) > 0.3


def test_chains_run_one_method_after_the_other() -> None:
    subject = learning.taught()
    state = learning.unlearn("wga+rmu", {**learning.settings_of("wga", "full"), "steps": 4}, subject)
    assert [record["steps"] for record in state.records] == [4, 4]
    by_hand = learning.taught()
    learning.unlearn("wga", learning.settings_of("wga", "full", steps=4), by_hand)
    assert by_hand.fingerprint() != subject.fingerprint()


def test_a_chain_with_an_adapter_trains_one_adapter() -> None:
    subject = learning.taught()
    state = learning.unlearn("ga+npo", learning.settings_of("ga", "lora", steps=3), subject)
    names = [name for name, _ in subject.model.named_parameters() if "lora_" in name]
    assert names
    assert all(name.count("lora_") == 1 and name.count("base_layer") == 0 for name in names)
    assert "adapter: that of the method before goes on" in state.plan
