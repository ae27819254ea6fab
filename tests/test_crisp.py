"""CRISP: the objective against loops, the promises of an objective, and the stage on a taught model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import contract
import learning
from conftest import refused, tiny
from contract_world import World
from excise.estimate import estimate
from excise.objectives.suppression import Salient, SuppressActivations
from excise.recipe import Recipe, build_methods
from excise.run import unlearn
from excise.sae.folder import load_sae
from excise.stages.features import SuppressFeatures
from excise.stages.state import State
from excise.view import View
from saes import sae_for
from test_autoencoder import random_autoencoder


def objective(width: int, layers: tuple[int, ...] = (0,), **more: Any) -> SuppressActivations:
    return SuppressActivations(tuple(Salient(layer, random_autoencoder(width, 12, seed=layer, **more), (1, 4, 7, 9), 0.7) for layer in layers), 0.5)


FORMS: list[dict[str, Any]] = [{"k": 6}, {}, {"threshold": torch.full((12,), 0.3)}]


@pytest.mark.parametrize("form", FORMS, ids=["topk", "relu", "jumprelu"])
def test_the_objective_keeps_its_promises(form: dict[str, Any]) -> None:
    for layers in ((0,), (1, 0)):
        contract.check_layouts(objective(16, layers, **form))
        contract.check_padding(objective(16, layers, **form))
        contract.check_gradient(objective(3, layers, **form))
        contract.check_weighting(objective(3, layers, **form))
    contract.check_documented(SuppressActivations)


@pytest.mark.parametrize("form", FORMS, ids=["topk", "relu", "jumprelu"])
def test_the_objective_is_that_of_the_loops(form: dict[str, Any]) -> None:
    wanted = objective(16, (0, 1), **form)
    view = World((0, 1)).view(range(6), "packed")
    n = len(view.model.row)
    weight = torch.linspace(0.5, 1.5, n, dtype=torch.float64)
    per_layer = []
    for part in wanted.parts:
        a = part.autoencoder
        sums: dict[int, list[float]] = {}
        for i in range(n):
            now, then = (h[part.layer][i].detach().double().numpy() for h in (view.model.hidden, view.reference.hidden))
            loss = 0.0
            pre = (now - a.decoder_bias.numpy()) @ a.encoder.double().numpy() + a.encoder_bias.numpy()
            was, act = (a.to(view.model.hidden[0]).encode(torch.tensor(h)[None])[0].numpy() for h in (then, now))
            for f in part.features:
                pushed = pre[f] + wanted.margin * abs(pre.mean())
                limit = 0.0 if a.threshold is None else float(a.threshold[f])
                loss += (max(pushed, 0.0) if pushed > limit else 0.0) if was[f] > 0 else act[f]
            sums.setdefault(int(view.model.row[i]), []).append(float(weight[i]) * loss / part.density)
        per_layer.append(np.mean([np.mean(values) for values in sums.values()]))
    torch.testing.assert_close(wanted(view, weight), torch.tensor(np.mean(per_layer)), rtol=1e-5, atol=1e-7)


def test_before_training_the_loss_is_the_mean_of_the_active_features() -> None:
    """With one text, margin 0 and the model as it was."""
    a = random_autoencoder(16, 12, k=6)
    view = World((0,)).view([2], "padded")
    hidden = view.model.hidden[0].detach()
    active = a.to(hidden).encode(hidden)[:, [1, 4, 7, 9]]
    density = float((active > 0).sum()) / len(active)
    part = Salient(0, a, (1, 4, 7, 9), density)
    same = View(lambda: view.model, lambda: view.model)
    loss = SuppressActivations((part,), 0.0)(same, torch.ones(len(active), dtype=torch.float64))
    torch.testing.assert_close(loss.detach(), active[active > 0].mean())


# The stage ------------------------------------------------------------------------------------------------------------


def activity(subject: Any, sae: str, features: tuple[int, ...], examples: Any) -> Tensor:
    loaded = load_sae(sae)
    return loaded.autoencoder.encode(learning.hidden(subject, examples, loaded.layer or 0))[:, list(features)]


def chosen(state: State) -> tuple[int, ...]:
    line = next(line for line in state.plan if line.startswith("crisp:"))
    return tuple(int(part.split(" ")[0]) for part in line.split("salient: ")[1].split("; "))


@pytest.mark.parametrize("full", [False, True])
def test_salient_features_are_silent_afterwards(full: bool) -> None:
    subject, data = learning.taught(), learning.benchmark()
    sae = sae_for(subject, 0)
    settings = {**learning.settings_of("crisp", "full"), "sae": sae, "full": full, "steps": 30 if full else 120}
    state = learning.unlearn("crisp", settings, subject)
    features = chosen(state)
    assert 0 < len(features) <= 10
    before, after = (activity(s, sae, features, data.forget) for s in (learning.taught(), subject))
    assert float(before.sum()) > 0
    assert float(after.sum()) < 0.2 * float(before.sum())
    kept = [learning.hidden(s, data.retain, 0) for s in (learning.taught(), subject)]
    assert float((kept[0] - kept[1]).norm() / kept[0].norm()) < 0.5
    assert subject.is_adapter != full


def test_a_plan_can_be_made_without_the_autoencoder(tmp_path: Path) -> None:
    data = {"name": "concepts", "concept": "Solar System"}
    settings = {"model": tiny("llama").source, "data": data, "method": {"name": "crisp", "sae": "nowhere", "steps": 7}}
    made = estimate(Recipe.parse(settings))
    assert made.steps == 7
    assert 0 < made.trainable < 0.5 * made.parameters


def test_several_layers_at_once() -> None:
    subject = learning.taught()
    saes = tuple(sae_for(subject, layer) for layer in (0, 1))
    state = learning.unlearn("crisp", {**learning.settings_of("crisp", "full"), "sae": saes, "steps": 2}, subject)
    assert [line.split(",")[0] for line in state.plan if line.startswith("crisp:")] == ["crisp: layer 0", "crisp: layer 1"]


def test_what_does_not_fit_is_refused_before_anything_is_done(tmp_path: Path) -> None:
    subject = learning.taught()
    sae = sae_for(subject, 0)

    def run(model: Any = None, **more: Any) -> Any:
        settings = {**learning.settings_of("crisp", "full", steps=1), "sae": sae, **more}
        return lambda: learning.unlearn("crisp", settings, model or learning.taught())

    refused(run(tiny("llama", width=64)), "reads 32 values", "hidden states of 64")
    refused(run(sae_layer=1), "reads after layer 0, not 1")
    refused(run(sae=str(tmp_path)), "there is no file", "cfg.json")
    refused(run(sae=(sae, sae)), "two SAEs read after layer 0")
    refused(run(ratio=1e9), "no feature", "salient", "method.ratio")
    refused(lambda: build_methods("crisp", {}), "method.sae", "field required")
    refused(lambda: build_methods("crisp", {"sae": sae, "beta": 2.0}), "beta = 2.0")
    refused(lambda: build_methods("crisp", {"sae": sae, "full": True, "lora": {"r": 2}}), "method.full", "method.lora")


def test_an_autoencoder_of_something_else_is_noticed_by_what_it_explains(tmp_path: Path) -> None:
    subject = learning.taught()
    other = Path(shutil.copytree(sae_for(subject, 0), tmp_path / "other"))
    (file,) = other.glob("*.safetensors")
    save_file({name: -value if name == "W_dec" else value for name, value in load_file(file).items()}, file)
    settings = {**learning.settings_of("crisp", "full", steps=1), "sae": str(other)}
    refused(lambda: learning.unlearn("crisp", settings, subject), "explains nothing of layer 0")


def test_coherence_texts_are_seen_one_a_step_and_may_be_left_out() -> None:
    subject = learning.taught()
    sae = sae_for(subject, 0)
    ((_, (_, stage)),) = build_methods(
        "crisp", {**learning.settings_of("crisp", "full", steps=5), "sae": sae, "coherence": ["One two three.", "Four five."]}
    )
    assert isinstance(stage, SuppressFeatures)
    state = State(subject, learning.benchmark())
    stage.prepare(state)
    session: Any = state.prepared[id(stage)]
    assert [session.draw(step).coherence for step in range(3)] == [(0,), (1,), (0,)]
    assert [(t.name, round(t.scale, 4)) for t in session.terms] == [
        ("forget.suppressactivations", 0.01),
        ("retain.hiddenmse", 0.99),
        ("coherence.hiddenmse", 0.0099),
    ]
    ((_, (_, without)),) = build_methods("crisp", {**learning.settings_of("crisp", "full"), "sae": sae, "coherence": []})
    state.prepared.clear()
    without.prepare(state)
    assert [t.data for t in state.prepared[id(without)].terms] == ["forget", "retain"]  # type: ignore[attr-defined]


def test_a_run_from_a_recipe_saves_its_plan_and_no_text_where_that_is_asked(tmp_path: Path) -> None:
    subject = learning.taught()
    data = {"name": "jsonl", "forget": str(tmp_path / "f.jsonl"), "retain": str(tmp_path / "r.jsonl")}
    for side, rows in (("f", learning.FORGET), ("r", learning.RETAIN)):
        (tmp_path / f"{side}.jsonl").write_text("".join(json.dumps({"question": q, "answer": a}) + "\n" for q, a, _ in rows))
    method = {"name": "crisp", "sae": sae_for(subject, 0), **learning.settings_of("crisp", "full", steps=3)}
    recipe = Recipe.parse(
        {"model": subject.source, "data": data, "method": method, "evaluation": {"suite": "qa", "max_new_tokens": 2}, "privacy": "redact"}
    )
    result = unlearn(recipe, tmp_path / "run")
    assert any("salient" in line for line in result["plan"])
    assert (tmp_path / "run" / "model" / "adapter_model.safetensors").is_file()
    written = "".join(
        file.read_text(errors="replace") for file in (tmp_path / "run").rglob("*") if file.suffix in (".json", ".jsonl", ".html", ".yaml")
    )
    assert "lighthouse" not in written
