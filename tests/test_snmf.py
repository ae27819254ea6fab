"""EditMlp: the activations it reads, the projection it makes, what it leaves alone, and how it is taken back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from concept_world import CONCEPT, NEUTRAL, SNMF, benchmark, state_of
from conftest import KINDS, Kind, adapted, logits, refused, tiny
from excise.features.activations import Mlp, Places, activations
from excise.loading import load
from excise.recipe import build_methods
from excise.saving import save
from excise.stages.mlp import EditMlp, carrying
from excise.stages.state import State
from excise.stages.undo import undo
from excise.subject import Subject


def stage(**settings: Any) -> EditMlp:
    ((_, (made,)),) = build_methods("snmf", {**SNMF, **settings})
    return made


def run(subject: Subject, folder: Path | None = None, **settings: Any) -> State:
    state = state_of(subject, folder=folder)
    stage(**settings)(state)
    return state


@pytest.mark.parametrize("kind", KINDS)
def test_activations_are_what_enters_the_down_projection(kind: Kind) -> None:
    subject = tiny(kind)
    places = Places.of(subject, CONCEPT, NEUTRAL, None)
    found = activations(state_of(subject, max_tokens=40), places, 1)
    seen: list[torch.Tensor] = []
    handle = Mlp.of(subject, 1).down.register_forward_pre_hook(lambda _m, args: seen.append(args[0]))
    with torch.no_grad():
        for text in places.texts:
            subject.model(input_ids=torch.tensor([text.ids]), use_cache=False)
    handle.remove()
    expected = torch.cat([rows[0, 1:] for rows in seen])
    torch.testing.assert_close(found.T, expected, rtol=1e-4, atol=1e-5)
    assert int(places.mine.sum()) == sum(len(text) - 1 for text in places.texts[:3])


def test_places_are_spread_and_shown_in_their_context() -> None:
    subject = tiny("llama")
    whole, some = Places.of(subject, CONCEPT, NEUTRAL, None), Places.of(subject, CONCEPT, NEUTRAL, 5)
    assert len(some.row) == 10
    assert int(some.mine.sum()) == 5
    known = {(r, t) for r, t in zip(whole.row.tolist(), whole.token.tolist(), strict=True)}
    assert {(r, t) for r, t in zip(some.row.tolist(), some.token.tolist(), strict=True)} <= known
    assert whole.shown(4).endswith(str(subject.tokenizer.decode([whole.id(4)])))
    found = activations(state_of(subject), some, 0)
    everything = activations(state_of(subject), whole, 0)
    where = [
        list(zip(whole.row.tolist(), whole.token.tolist(), strict=True)).index(p) for p in zip(some.row.tolist(), some.token.tolist(), strict=True)
    ]
    torch.testing.assert_close(found, everything[:, where])


@pytest.mark.parametrize("kind", KINDS)
def test_a_strength_of_one_is_the_projection_and_nothing_else_changes(kind: Kind) -> None:
    subject = tiny(kind)
    before = {name: p.detach().clone() for name, p in subject.model.named_parameters()}
    state = run(subject, mlp_features=[2])
    mlp = Mlp.of(subject, 0)
    touched = {name for name, p in subject.model.named_parameters() if not torch.equal(p, before[name])}
    assert touched == {name for name, p in subject.model.named_parameters() if p is mlp.up.weight or p is mlp.down.weight}
    down, up = (next(before[n] for n, p in subject.model.named_parameters() if p is m.weight) for m in (mlp.down, mlp.up))
    moved = (mlp.down.weight != down).any(dim=0).nonzero()[:, 0]
    assert len(moved) == state.records[-1]["edit"]["layers"][0]["neurons"]
    change = (down - mlp.down.weight.detach())[:, moved]
    direction = change[:, 0] / change[:, 0].norm()
    assert torch.linalg.matrix_rank(change, rtol=1e-3) == 1
    torch.testing.assert_close(direction @ mlp.down.weight.detach()[:, moved], torch.zeros(len(moved)), rtol=0, atol=1e-5)
    rows = (up - mlp.up.weight.detach())[moved]
    reads = rows[0] / rows[0].norm()
    torch.testing.assert_close(mlp.up.weight.detach()[moved] @ reads, torch.zeros(len(moved)), rtol=0, atol=1e-5)


def test_twice_the_strength_moves_twice_as_far() -> None:
    def moved(strength: float) -> torch.Tensor:
        subject = tiny("llama")
        weight = Mlp.of(subject, 0).down.weight
        before = weight.detach().clone()
        run(subject, mlp_features=[1], mlp_strength=strength)
        return weight.detach() - before

    torch.testing.assert_close(moved(4.0), 2 * moved(2.0), rtol=1e-4, atol=1e-6)


def test_the_fewest_neurons_that_carry_the_mass_are_edited() -> None:
    values = torch.tensor([1.0, -6.0, 0.5, 2.5, 0.0])
    assert carrying(values, 0.95).tolist() == [0, 1, 3]
    assert carrying(values, 0.6).tolist() == [1]
    assert carrying(values, 1.0).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_edit_of_mlps_can_be_switched_off_and_undone(dtype: torch.dtype, tmp_path: Path) -> None:
    subject = tiny("qwen3")
    subject.model.to(dtype)  # type: ignore[arg-type]
    before = subject.fingerprint()
    run(subject, mlp_strength=0)
    assert subject.fingerprint() == before
    state = run(subject, tmp_path, mlp_layers=[0, 1])
    assert subject.fingerprint() != before
    assert state.records[-1]["changed_parameters"] > 0
    assert [layer["layer"] for layer in json.loads((tmp_path / "edits" / "000-mlp.json").read_text())["layers"]] == [0, 1]
    undo(subject, tmp_path / "edits" / "000-mlp.safetensors")
    assert subject.fingerprint() == before


@pytest.mark.parametrize("kind", KINDS)
def test_an_edited_model_saves_and_loads(kind: Kind, tmp_path: Path) -> None:
    subject = tiny(kind)
    original = logits(subject)
    run(subject)
    assert not torch.equal(logits(subject), original)
    again = load(save(subject, tmp_path / "model", provenance={}))
    assert torch.equal(logits(again), logits(subject))
    assert again.tied == (kind != "phi")


def test_the_lower_third_is_the_default_and_fused_matrices_are_understood() -> None:
    assert EditMlp().chosen_layers(30) == tuple(range(10))
    assert EditMlp().chosen_layers(2) == (0,)
    subject = tiny("llama")
    mlp: Any = subject.layers[0].mlp
    fused = nn.Linear(32, 128, bias=False)
    fused.weight.data = torch.cat([mlp.gate_proj.weight.detach(), mlp.up_proj.weight.detach()])
    del mlp.up_proj, mlp.gate_proj
    mlp.gate_up_proj = fused
    found = Mlp.of(subject, 0)
    assert (found.offset, found.width) == (64, 64)
    del mlp.down_proj
    refused(lambda: Mlp.of(subject, 0), "1 up and 0 down projections")


def test_what_cannot_work_is_refused_in_one_line() -> None:
    refused(lambda: stage(mlp_layers=[5]).check(state_of(tiny("llama"))), "layer 5 does not exist")
    refused(lambda: stage().check(state_of(adapted(tiny("llama")))), "is an adapter")
    refused(lambda: stage(mlp_strength="search").check(state_of(tiny("llama"))), "needs choice questions")
    refused(lambda: stage(mlp_features=[1], mlp_layers=[0, 1]), "belong to one layer")
    refused(lambda: stage(mass=0), "mass")
    refused(lambda: stage(places=0), "places")
    refused(lambda: run(tiny("llama"), mlp_ratio=1e9), "layer 0: no feature has a mass ratio")
    assert benchmark().forget
