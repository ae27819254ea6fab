"""The encoding study: gradients as autograd gives them, numbers by hand, a page that opens offline, and bad input."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import adapted, refused, tiny
from excise.cli import building
from excise.data.benchmarks.strangers import Strangers
from excise.data.encode import encode
from excise.encoding import LINEAR, chosen_examples, concentration, energies, evenness, lines, overlap, shares, study, top_share
from excise.encoding_study import write_study
from excise.report.encoding import load_study
from excise.report.plots import heat_map
from excise.subject import Subject
from excise.tokens import collate, score

PEOPLE = Strangers(forget_people=2, retain_people=1, holdout_people=0)()


def test_energies_are_squared_gradient_norms(tiny_subject: Subject) -> None:
    """Against one backward pass through everything, on each architecture."""
    examples = PEOPLE.forget[:2]
    found = energies(tiny_subject, examples)
    assert not any(p.requires_grad for p in tiny_subject.model.parameters())
    for parameter in tiny_subject.model.parameters():
        parameter.requires_grad_(True)
    text = encode(tiny_subject.tokenizer, tiny_subject.template, examples[1])
    (-score(tiny_subject, collate([text], "padded")).token_logp.mean()).backward()
    for unit, value in zip(found.modules, found.by_module[1], strict=True):
        wanted = 0.0
        for name, parameter in tiny_subject.layers[unit.layer].named_parameters():
            owner = name.split(".")[-2]
            role = {"fc1": "up", "fc2": "down", "dense": "o"}.get(owner, owner.removesuffix("_proj"))
            if role == unit.module and parameter.grad is not None:
                wanted += float(parameter.grad.double().square().sum())
        assert value == pytest.approx(wanted, rel=1e-4, abs=1e-12)
    assert found.by_rank is None
    assert len(found.modules) == len(set(found.modules)) == found.by_module.shape[1]


def test_an_adapters_ranks_are_columns_of_b() -> None:
    subject = adapted(tiny("llama"))
    found = energies(subject, PEOPLE.forget[:2])
    assert found.by_rank is not None
    assert (len(found.modules), len(found.ranks)) == (2 * 7, 2 * 7 * 2)
    assert {unit.module for unit in found.modules} == set(LINEAR)
    subject.model.zero_grad()
    for name, parameter in subject.model.named_parameters():
        parameter.requires_grad_("lora_" in name)
    text = encode(subject.tokenizer, subject.template, PEOPLE.forget[0])
    (-score(subject, collate([text], "padded")).token_logp.mean()).backward()
    grads = {n: p.grad for n, p in subject.model.named_parameters() if "layers.1" in n and "down_proj" in n and p.grad is not None}
    b = next(g for n, g in grads.items() if "lora_B" in n)
    at = [i for i, unit in enumerate(found.ranks) if (unit.layer, unit.module) == (1, "down")]
    np.testing.assert_allclose(found.by_rank[0, at], b.double().square().sum(0).numpy(), rtol=1e-4)
    module = next(i for i, unit in enumerate(found.modules) if (unit.layer, unit.module) == (1, "down"))
    assert found.by_module[0, module] == pytest.approx(sum(float(g.double().square().sum()) for g in grads.values()), rel=1e-4)


def test_numbers_by_hand() -> None:
    half = np.array([True, False, True, False])
    one = np.zeros((4, 10))
    one[:, 3] = 5.0
    assert top_share(shares(one), np.ones(4), half) == 1.0
    assert evenness(shares(one), np.ones(4)) == 0.0
    even = np.ones((4, 10))
    assert top_share(shares(even), np.ones(4), half) == pytest.approx(0.1)
    assert evenness(shares(even), np.ones(4)) == pytest.approx(1.0)
    two = np.zeros((4, 4))
    two[:2, 0], two[2:, 1] = 9.0, 1.0  # a large and a small answer weigh the same
    assert evenness(shares(two), np.ones(4)) == pytest.approx(0.5)
    assert overlap(np.array([0.5, 0.5, 0.0]), np.array([0.0, 0.75, 0.25])) == 0.5


def test_noise_is_not_concentrated() -> None:
    """The same units chosen and measured on the same examples would find .25 here."""
    noise = np.random.default_rng(0).exponential(size=(8, 400))
    found = concentration(noise)["top_share"]
    assert found["value"] == pytest.approx(0.1, abs=0.02)
    assert found["ci95"][0] < found["value"] < found["ci95"][1]
    skewed = noise.copy()
    skewed[:, :40] *= 20
    assert concentration(skewed)["top_share"]["ci95"][0] > 0.5
    assert concentration(noise) == concentration(noise)
    few = concentration(noise[:3])
    assert few["top_share"] == {"value": None, "ci95": None}


def test_a_study_by_label() -> None:
    found = study(adapted(tiny("llama")), PEOPLE.forget)
    assert list(found["labels"]) == [*dict.fromkeys(e.label for e in PEOPLE.forget), "all"]
    assert found["labels"]["all"]["n"] == 10
    assert sum(found["labels"]["why"]["by_rank"]["map"]) == pytest.approx(1, abs=1e-5)
    assert found["overlap"]["why"]["why"] == pytest.approx(1, abs=1e-3)
    assert "too few" in lines(found)[1]
    assert found == study(adapted(tiny("llama")), PEOPLE.forget)


def test_heat_map_geometry() -> None:
    drawn = heat_map("why", ["0", "1"], [("q", 1), ("k", 1)], {(0, 0): 0.25, (0, 1): 1.0, (1, 0): 0.0}, 1.0, "share")
    assert [shade.opacity for shade in drawn.shades] == [0.5, 1.0]
    assert drawn.shades[1].path == "M194.00,6h160.00v14h-160.00Z"
    assert drawn.description == "why: share, strongest in layer 0, k: 1.00."
    assert ([tick.text for tick in drawn.columns], drawn.borders) == (["q", "k"], (194.0,))


@pytest.mark.parametrize("adapter", [False, True])
def test_the_command_writes_numbers_and_a_page(adapter: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from excise.saving import save

    subject = adapted(tiny("llama")) if adapter else tiny("llama")
    model = str(save(subject, tmp_path / "model", provenance={}))
    data = ["data.name=strangers", "data.forget_people=1", "data.retain_people=1", "data.holdout_people=0"]
    building.encoding(model, tmp_path / "out", data=None, split="forget", limit=1, set_=data, overwrite=False)
    assert "evenness" in capsys.readouterr().out
    found = json.loads((tmp_path / "out" / "encoding.json").read_text())
    assert found["adapter"] is adapter
    page = (tmp_path / "out" / "encoding.html").read_text()
    assert page.count('class="plot"') == 6 * (1 + adapter)
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "<script" not in page
    text = json.dumps(found) + page
    assert not [e for e in Strangers(forget_people=1, retain_people=1, holdout_people=0)().forget if e.prompt in text or e.answer in text]
    study_page = load_study(tmp_path / "out")
    assert study_page is not None
    assert len(study_page.maps) == 6
    refused(lambda: write_study(model, tmp_path / "out", settings=data), "not empty", "--overwrite")


def test_bad_input_is_one_clear_line(tmp_path: Path, tiny_llama: Subject) -> None:
    refused(lambda: write_study(tiny_llama.source, tmp_path / "o"), "needs data.path")
    refused(lambda: write_study(tiny_llama.source, tmp_path / "o", settings=["data.name=strangers"], data="x"), "takes no folder")
    refused(lambda: write_study(tiny_llama.source, tmp_path / "o", settings=["data.name=strangers"], split="forgot"), "no split 'forgot'")
    refused(lambda: write_study(tiny_llama.source, tmp_path / "o", settings=["dat.name=strangers"]), "dat", "did you mean 'data'")
    refused(lambda: chosen_examples([dataclasses.replace(PEOPLE.forget[0], prompt="")], None), "plain texts only")
    refused(lambda: chosen_examples(PEOPLE.forget, 0), "--limit is 0")
    with torch.no_grad():
        next(tiny_llama.layers.parameters()).fill_(float("nan"))
    refused(lambda: energies(tiny_llama, PEOPLE.forget[:1]), PEOPLE.forget[0].id, "not a number")
    assert not (tmp_path / "o").exists()
    (tmp_path / "encoding.json").write_text('{"schema": 1}')
    refused(lambda: load_study(tmp_path), "no encoding study", "KeyError")
    (tmp_path / "encoding.json").write_text('{"schema": 2}')
    refused(lambda: load_study(tmp_path), "schema 2")
