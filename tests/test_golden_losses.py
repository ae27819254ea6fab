"""Parity with open-unlearning: its own sums through our formulas, its own tensors and our own encoding through the model.

Variant A is the peer's batch as it comes (it hides every genuine ``<|im_end|>`` and labels two tokens more), B the same
with the true attention mask, C with one end token as well: what excise computes from the texts. The numbers to meet
are an independent recomputation in float64; where the peer's formula differs from the equation, the equation counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from excise.data.encode import Encoded, encode
from excise.data.example import Example
from excise.files import read_json, read_lines
from excise.loading import load
from excise.objectives import CEU, DPO, KL, NLL, NPO, RMU, UNDIAL, WGA, Ascent, HiddenMSE, SatImp, SimNPO
from excise.objectives.steering import control_vector
from excise.reference import Needs, Reference
from excise.stages.views import Request, Views
from excise.subject import Subject
from excise.tokens import Batch, Given, Scored, score
from excise.view import View

TABLE = Path(__file__).parent / "golden" / "ou_losses.json"
LAYER = 7
RELATIVE = 1e-4
FORGET_ROWS, RETAIN_ROWS = (0, 1, 8, 17), (0, 1000, 2000, 3000)


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    return cast(dict[str, Any], read_json(TABLE))


# Formulas, from the sums in the table ---------------------------------------------------------------------------------


def flat(losses: list[float], lengths: list[int]) -> Scored:
    """Answers of these lengths and summed losses: all that a formula on whole sequences sees."""
    row = torch.tensor([i for i, n in enumerate(lengths) for _ in range(n)])
    logp = torch.tensor([-losses[i] / lengths[i] for i in row.tolist()], dtype=torch.float64)
    return Scored(torch.zeros_like(row), row, len(lengths), Given(torch.zeros(len(row), 1)), known_logp=logp)


def by_token(logp: list[list[float]]) -> Scored:
    """Answers with these log-probabilities of their tokens."""
    row = torch.tensor([i for i, part in enumerate(logp) for _ in part])
    values = torch.tensor([value for part in logp for value in part], dtype=torch.float64)
    return Scored(torch.zeros_like(row), row, len(logp), Given(torch.zeros(len(row), 1)), known_logp=values)


@pytest.mark.parametrize("variant", ["A", "B", "C"])
def test_formulas_on_tokens_reproduce_the_table(variant: str, golden: dict[str, Any]) -> None:
    given = golden["variants"][variant]
    now, then, retain = (by_token(given[f"token_logprobs_{name}"]) for name in ("forget_cur", "forget_ref", "retain_cur"))
    assert now.length.tolist() == given["n_labelled"]
    view, kept = View(lambda: now, lambda: then), View(lambda: retain)
    ones = torch.ones(len(now.row), dtype=torch.float64)
    wanted = {
        "GradAscent": Ascent(),
        "NPO_forget_b0.1": NPO(0.1),
        "SimNPO_forget_b4.5": SimNPO(4.5),
        "SimNPO_forget_b2.5": SimNPO(2.5),
        "WGA_forget_b1": WGA(1.0),
        "WGA_forget_b5": WGA(5.0),
        "SatImp_forget_b5_1": SatImp(5.0, 1.0),
    }
    for name, objective in wanted.items():
        assert float(objective(view, ones)) == pytest.approx(given[name], rel=RELATIVE), name
    assert float(NLL()(kept, torch.ones(len(retain.row)))) == pytest.approx(given["retain_NLL"], rel=RELATIVE)


@pytest.mark.parametrize("variant", ["A", "B", "C"])
def test_formulas_on_sequences_reproduce_the_table(variant: str, golden: dict[str, Any]) -> None:
    given = golden["variants"][variant]
    now, then = (flat(given[f"seqNLL_{who}"], given["n_labelled"]) for who in ("cur", "ref"))
    other_now, other_then = (flat(given[f"seqNLL_idk_{who}"], [5, 6, 7, 8]) for who in ("cur", "ref"))
    view = View(lambda: now, lambda: then, get_alternative=lambda: View(lambda: other_now, lambda: other_then))
    ones = torch.ones(len(now.row), dtype=torch.float64)
    wanted = {
        "GradAscent": Ascent(),
        "NPO_forget_b0.1": NPO(0.1),
        "SimNPO_forget_b4.5": SimNPO(4.5),
        "SimNPO_forget_b2.5": SimNPO(2.5),
        "IdkDPO_forget_b0.1": DPO(0.1),
    }
    for name, objective in wanted.items():
        assert float(objective(view, ones)) == pytest.approx(given[name], rel=1e-9), name


def test_the_control_vector_is_the_recorded_one(golden: dict[str, Any]) -> None:
    assert control_vector(576, 2.0, 42)[:8].tolist() == pytest.approx(golden["control_vector_head"], rel=1e-6)


# End to end, on the model ---------------------------------------------------------------------------------------------


def noisy(subject: Subject, recipe: Mapping[str, Any]) -> Subject:
    """The reference model of the golden files: every matrix plus noise of a hundredth of its own spread."""
    torch.manual_seed(recipe["seed"])
    with torch.no_grad():
        for name, parameter in subject.model.named_parameters():
            if parameter.dim() == 2:
                if name in recipe["std"]:
                    assert float(parameter.std()) == pytest.approx(recipe["std"][name], rel=1e-5), "not the model of the golden files"
                parameter.add_(torch.randn(parameter.shape) * (recipe["scale"] * parameter.std()))
    return subject


def peers_batch(tensors: Mapping[str, list[list[int]]]) -> Batch:
    """The peer's own padded tensors."""
    ids, labels, mask = (torch.tensor(tensors[name]) for name in ("input_ids", "labels", "attention_mask"))
    width = ids.shape[1]
    row, column = (labels != -100).nonzero(as_tuple=True)
    here = row * width + column
    return Batch(ids, torch.arange(width).expand_as(ids).contiguous(), mask, here - 1, here, labels[row, column], row, len(ids))


@dataclass
class World:
    """Both models, and the views of the four variants."""

    now: Subject
    then: Subject
    shared: Path

    @cached_property
    def peer(self) -> dict[str, Any]:
        return cast(dict[str, Any], read_json(self.shared / "golden" / "ou" / "losses_peer.json"))

    def peers_views(self, variant: str) -> tuple[View, View]:
        key = next(k for k in self.peer["variants"] if ("as_is" in k) == (variant == "A"))
        given = self.peer["variants"][key]
        other = self._direct(given["idk"]["alternate"])
        forget, retain = self._direct(given["batch"]["forget"]), self._direct(given["batch"]["retain"])
        return View(forget.get_model, forget.get_reference, get_alternative=lambda: other), retain

    def _direct(self, tensors: Mapping[str, list[list[int]]]) -> View:
        batch = peers_batch(tensors)

        def reference() -> Scored:
            with torch.no_grad():
                scored = score(self.then, batch, layers=(LAYER,))
                _ = scored.logits
                return scored

        return View(lambda: score(self.now, batch, layers=(LAYER,)), reference)

    def texts(self) -> tuple[list[Encoded], list[Encoded], list[Encoded]]:
        forget, retain = (read_lines(self.shared / "data" / "tofu" / f"{name}.json") for name in ("forget01", "retain90"))
        idk = self.peer["variants"][next(iter(self.peer["variants"]))]["idk"]["texts"]

        def encoded(row: Mapping[str, Any], name: str, answer: str | None = None) -> Encoded:
            return encode(self.now.tokenizer, self.now.template, Example(name, row["question"], row["answer"]), answer=answer)

        return (
            [encoded(forget[i], f"f{i}") for i in FORGET_ROWS],
            [encoded(retain[i], f"r{i}") for i in RETAIN_ROWS],
            [encoded(forget[i], f"f{i}", text) for i, text in zip(FORGET_ROWS, idk, strict=True)],
        )

    def own_views(self) -> tuple[View, View]:
        forget, retain, idk = self.texts()
        reference = Reference(self.then, Needs(logp=True, logits=True, layers=(LAYER,)), "float32")
        reference.remember([*forget, *retain, *idk])
        views = Views(self.now, "float32", reference)
        first, second = views.together([Request(forget, idk, layers=(LAYER,)), Request(retain, layers=(LAYER,))])
        return first, second


@pytest.fixture(scope="module")
def world(smollm2_folder: Path, shared: Path, golden: dict[str, Any]) -> World:
    if not (shared / "golden" / "ou" / "losses_peer.json").exists():
        pytest.skip("the golden files of open-unlearning are not there")
    now, then = (load(smollm2_folder, dtype="float32", system="You are a helpful assistant.") for _ in range(2))
    for parameter in now.model.parameters():
        parameter.requires_grad_(True)
    return World(now, noisy(then, golden["noise"]), shared)


def measured(forget: View, retain: View) -> dict[str, Tensor]:
    """Every loss of the table, by its name there."""
    f, r = (torch.ones(len(v.model.row)) for v in (forget, retain))
    nll = NLL()(retain, r)
    parts = {
        "retain_NLL": nll,
        "GradAscent": Ascent()(forget, f),
        "KL_labelled_positions(corrected)": KL()(retain, r),
        "NPO_forget_b0.1": NPO(0.1)(forget, f),
        "SimNPO_forget_b4.5": SimNPO(4.5)(forget, f),
        "SimNPO_forget_b2.5": SimNPO(2.5)(forget, f),
        "WGA_forget_b1": WGA(1.0)(forget, f),
        "WGA_forget_b5": WGA(5.0)(forget, f),
        "SatImp_forget_b5_1": SatImp(5.0, 1.0)(forget, f),
        "CEU_skip1": CEU(1)(forget, f),
        "UNDIAL_b10_labelled(corrected)": UNDIAL(10.0)(forget, f),
        "RMU_forget(corrected)": RMU(LAYER, 2.0)(forget, f),
        "RMU_retain(corrected)": HiddenMSE(LAYER)(retain, r),
        "IdkDPO_forget_b0.1": DPO(0.1)(forget, f),
    }
    return parts | {
        "GradDiff_NLL": parts["GradAscent"] + nll,
        "GradDiff_KL_labelled_positions(corrected)": parts["GradAscent"] + parts["KL_labelled_positions(corrected)"],
        "NPO_b0.1": parts["NPO_forget_b0.1"] + nll,
        "SimNPO_b4.5_g0.125": 0.125 * parts["SimNPO_forget_b4.5"] + nll,
        "SimNPO_b2.5_g0.1375": 0.1375 * parts["SimNPO_forget_b2.5"] + nll,
        "WGA_b1": parts["WGA_forget_b1"] + nll,
        "WGA_b5": parts["WGA_forget_b5"] + nll,
        "SatImp_b5_1_g0.1_a1": 0.1 * parts["SatImp_forget_b5_1"] + nll,
        "RMU_total(corrected)": parts["RMU_forget(corrected)"] + parts["RMU_retain(corrected)"],
        "IdkDPO_b0.1": parts["IdkDPO_forget_b0.1"] + nll,
    }


def compare(name: str, got: Mapping[str, Tensor], wanted: Mapping[str, float]) -> None:
    """Prints the table (``pytest -s``), then fails on the first row that is off."""
    off: list[str] = []
    for key, value in got.items():
        difference = abs(float(value.detach()) / wanted[key] - 1)
        print(f"{name}  {key:44s} {float(value.detach()):14.7f} {wanted[key]:14.7f}  {difference:.1e}")
        if difference > RELATIVE:
            off.append(f"{key}: {float(value.detach())}, wanted {wanted[key]}")
    assert not off, "; ".join(off)


@pytest.mark.slow
def test_the_texts_become_the_tokens_of_variant_c(world: World, golden: dict[str, Any]) -> None:
    forget, retain, idk = world.texts()
    assert [t.scored for t in forget] == golden["variants"]["C"]["n_labelled"]
    key = next(k for k in world.peer["variants"] if "as_is" not in k)
    given = world.peer["variants"][key]
    for texts, tensors in ((forget, given["batch"]["forget"]), (retain, given["batch"]["retain"]), (idk, given["idk"]["alternate"])):
        for text, ids, labels in zip(texts, tensors["input_ids"], tensors["labels"], strict=True):
            assert list(text.ids) == ids[: len(text.ids)]  # cut after the first end token
            assert text.start == next(i for i, label in enumerate(labels) if label != -100)
            assert labels[len(text.ids) : len(text.ids) + 3] == [198, 2, -100] or labels[len(text.ids) :] == [198, 2]


@pytest.mark.slow
def test_every_loss_of_the_models_own_encoding_is_the_tables_variant_c(world: World, golden: dict[str, Any]) -> None:
    with torch.no_grad():
        compare("C", measured(*world.own_views()), golden["variants"]["C"])


@pytest.mark.slow
def test_every_loss_of_the_peers_tensors_with_the_true_mask(world: World, golden: dict[str, Any]) -> None:
    with torch.no_grad():
        compare("B", measured(*world.peers_views("B")), golden["variants"]["B"])


@pytest.mark.slow
def test_losses_and_gradient_norms_of_the_peers_own_tensors(world: World, golden: dict[str, Any]) -> None:
    got = measured(*world.peers_views("A"))
    compare("A", got, golden["variants"]["A"])
    chosen = ("GradAscent", "GradDiff_NLL", "NPO_b0.1", "WGA_b1", "CEU_skip1", "IdkDPO_b0.1")
    for name in chosen:
        world.now.model.zero_grad()
        got[name].backward(retain_graph=True)
        norm = float(torch.stack([p.grad.norm() for p in world.now.model.parameters() if p.grad is not None]).norm())
        peer = golden["peer"][name]
        print(f"A  |gradient| {name:33s} {norm:14.6f} {peer['gradient_norm']:14.6f}  {abs(norm / peer['gradient_norm'] - 1):.1e}")
        assert norm == pytest.approx(peer["gradient_norm"], rel=1e-3), name
        assert float(got[name].detach()) == pytest.approx(peer["loss"], abs=3e-4), name
    world.now.model.zero_grad()
