"""The studies' own arithmetic, and that their commands start."""

from __future__ import annotations

import random
import subprocess
import sys
from typing import Any, cast

import numpy as np
import pytest
import torch
from studies import adapters, attribution, erasure, faults, snr, unlearning

from conftest import REPOSITORY, tiny
from excise.data.encode import encode
from excise.data.example import Example
from excise.weights.masking import Masking


@pytest.mark.parametrize("name", ["attribution", "snr", "unlearning", "faults", "requests", "erasure", "adapters", "ledger"])
def test_every_study_says_what_it_takes(name: str) -> None:
    ran = subprocess.run([sys.executable, "-m", f"studies.{name}", "--help"], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "usage" in ran.stdout


def test_average_precision_and_precision_by_hand() -> None:
    right, scores = np.array([True, False, True, False]), np.array([0.9, 0.8, 0.7, 0.1])
    answer = attribution.Answer("who", True, right, np.array([True, False, False, False]), {})
    assert attribution.METRICS["average_precision"](answer, scores) == pytest.approx((1 / 1 + 2 / 3) / 2)
    assert attribution.METRICS["average_precision_words"](answer, -scores) == pytest.approx(1 / 3), "the third token counts neither way"
    assert attribution.precision_at(right, scores, r=0.5) == 0.5
    assert attribution.precision_at(right, scores, r=0.2) == 1.0


def test_right_tokens_are_those_of_the_fact() -> None:
    subject = tiny("llama")

    def found(example: Example) -> list[str]:
        text = encode(subject.tokenizer, subject.template, example)
        parts = attribution.right_tokens(text, example)
        assert all(len(part) == text.scored for part in parts)
        return ["".join(text.text[slice(*text.chars[text.start + i])] for i in np.flatnonzero(part)).replace(" ", "") for part in parts]

    assert found(Example("a", "Where is it?", "It is in the old town of Marrow.", span="the old town of Marrow")) == [
        "theoldtownofMarrow",
        "oldtownMarrow",
    ]
    pytest.importorskip("spacy")
    assert found(Example("a", "Where does Ida live?", "Ida lives in a town by the river Marrow.")) == ["townriverMarrow"] * 2


def test_the_gradient_of_a_token_is_that_of_its_probability() -> None:
    subject = tiny("llama")
    text = encode(subject.tokenizer, subject.template, Example("a", "Who wrote the book?", "Anna wrote it."))
    masking = Masking(attribution.Nouns(words=("book",)))
    found = attribution.gradient_scores(subject, text, masking)
    assert all(len(values) == text.scored and np.isfinite(values).all() and values.any() for values in found.values())
    # a small step along the embedding of the noun changes log p as its product with the gradient says
    rows = subject.embedding(torch.tensor([text.ids])).detach()

    def logp(scale: float) -> torch.Tensor:
        moved = rows.clone()
        moved[0, masking.hidden(text)] *= scale
        with torch.no_grad():
            predictions = torch.log_softmax(subject.model(inputs_embeds=moved, use_cache=False).logits[0].double(), -1)
        return torch.stack([predictions[i - 1, text.ids[i]] for i in range(text.start, len(text))])

    slope = (logp(1.001) - logp(0.999)) / 0.002
    assert slope.abs().tolist() == pytest.approx(found["gradient times input at the nouns"].tolist(), rel=0.05, abs=2e-3)


def test_the_signal_to_noise_ratio_by_hand_and_the_law_on_made_up_gradients() -> None:
    gradients, signal = torch.tensor([[3.0, 0.0], [0.0, 1.0]]), torch.tensor([1.0, 0.0])
    assert snr.ratio(gradients, torch.tensor([1.0, 1.0]), signal) == pytest.approx(9.0)
    assert snr.ratio(gradients, torch.tensor([1.0, 2.0]), signal) == pytest.approx(9.0 / 4.0)
    for _, wanted, gain in snr.synthetic(repeats=300):
        assert gain == pytest.approx(wanted, rel=0.2)


def test_a_sketched_gradient_is_the_products_with_the_gradient() -> None:
    subject = tiny("llama")
    text = encode(subject.tokenizer, subject.template, Example("a", "Who wrote the book?", "Anna wrote it."))
    places = snr.sketches(subject, [0])
    (weight, left, right) = places[0]
    rows = snr.token_gradients(subject, text, places, np.ones(text.scored, bool))
    assert rows.shape == (text.scored, snr.SKETCH**2)
    logits = subject.model(input_ids=torch.tensor([text.ids]), use_cache=False).logits[0]
    (gradient,) = torch.autograd.grad(torch.log_softmax(logits, -1)[text.start - 1, text.ids[text.start]], weight)
    torch.testing.assert_close(rows[0], (left @ gradient @ right).flatten(), rtol=1e-3, atol=1e-6)


def test_damage_mostly_changes_the_file() -> None:
    draw = random.Random(0)
    content = b'{"a": 1.5, "b": "text", "c": [1, 2]}\n' * 3
    different = sum(faults.damaged(content, draw) != content for _ in range(200))
    assert different > 150


def test_the_best_run_is_the_lowest_that_keeps_what_it_must() -> None:
    def row(forget: float, retain: float, rate: float) -> dict[str, Any]:
        values = {"forget.fact_recall": forget, "retain.fact_recall": retain, "neighbours.fact_recall": 0.9}
        return {"config": {"rate": rate}, "scores": {name: {"value": value} for name, value in values.items()}}

    before = {"retain.fact_recall": 0.95, "neighbours.fact_recall": 0.9}
    keep = tuple(before)
    rows = [row(0.1, 0.8, 4.0), row(0.3, 0.94, 1.0), row(0.2, 0.93, 2.0)]
    assert unlearning.best(rows, before, keep) == [rows[2]]
    assert unlearning.best(rows[:1], before, keep) == []
    second = {**rows[2], "scores": {**rows[2]["scores"], "retain.fact_recall": {"value": 0.0}}}
    assert unlearning.best([*rows, second], before, keep) == [rows[1]], "a rate counts by the mean of its seeds"
    value, low, high = unlearning.gain([[1.0, 0.5], [1.0, 0.5]], [[0.0, 0.5], [0.5, 0.5]])
    assert value == pytest.approx(0.375)
    assert (low, high) == pytest.approx((0.0, 0.75))
    name, values = unlearning.settings("ga", "names", "t", 0.3, "twin")
    assert name == "t_ga"
    assert values["attribution"] == {"hide": "mentions", "copies": "drop", "mask": "names", "unit": "word", "r": 0.3}
    assert unlearning.settings("ga", "uniform", "t", 0.3, "twin")[0] == "ga_kl"


def test_turned_rows_are_those_that_moved_and_keep_their_distance() -> None:
    subject = tiny("llama")
    weight = cast(torch.Tensor, subject.embedding.weight)
    original = weight.detach().clone()
    with torch.no_grad():
        weight[[3, 7]] += torch.tensor([[1.0], [2.0]])
    length = (weight - original).norm(dim=1)
    moved = weight.detach().clone()
    erasure.turn(subject, original, seed=0)
    assert torch.allclose((weight - original).norm(dim=1), length, atol=1e-5)
    assert [int(i) for i in ((weight - original) != 0).any(dim=1).nonzero()[:, 0]] == [3, 7]
    cosine = torch.nn.functional.cosine_similarity((weight - original)[[3, 7]], (moved - original)[[3, 7]])
    assert (cosine.abs() < 0.9).all()


def test_chains_carry_the_strength_that_was_found() -> None:
    name, values = erasure.settings("ember+rmu_half", 200, 1, 10.0, [4], "")
    assert name == "ember+rmu"
    assert (values["strength"], values["features"], values["factor_seed"]) == (10.0, [4], 43)
    assert values["steps"] == erasure.RMU["steps"] // 2
    from excise.recipe import build_methods

    for method in (*erasure.METHODS, *erasure.TOKEN_FORMS):
        if not method.startswith("random"):
            build_methods(*erasure.settings(method, 200, 0, 10.0, None, "sae"))


def test_every_searched_setting_builds_and_every_method_has_eight() -> None:
    from excise.recipe import build_methods

    for label, (name, space) in adapters.SPACES.items():
        assert len(space) == 8, label
        assert len({str(settings) for settings in space}) == 8, label
        for settings in space:
            build_methods(name, adapters.nested(settings))
    for changed in adapters.ABLATIONS.values():
        off = {key for key, setting in changed.items() if setting is None}
        merged = {**adapters.MAAT, **changed}
        build_methods("maat", adapters.nested({k: v for k, v in merged.items() if k in off or k.partition(".")[0] not in off}))


def test_the_table_marks_the_front(capsys: pytest.CaptureFixture[str]) -> None:
    def row(fsr: float, rsr: float) -> dict[str, Any]:
        names = ["fsr", "rsr", "fsr_rsr", "retain.repetition_rate", *(f"{k}@{w}" for k in ("fsr", "rsr") for w in adapters.LABELS)]
        scores = {name: {"value": 0.0, "ci95": None} for name in names}
        return {"seconds": 1.0, "peak_mb": 1.0, "scores": {**scores, "fsr": {"value": fsr, "ci95": [0, 100]}, "rsr": {"value": rsr, "ci95": None}}}

    adapters.table({"target": [row(0, 95)], "good": [row(80, 90), row(70, 90)], "bad": [row(70, 80)]})
    lines = {line.split("|")[1].strip(): line for line in capsys.readouterr().out.splitlines()[2:]}
    assert set(lines) == {"target *", "good *", "bad"}
    assert "| 75 [0, 100] | 90 |" in lines["good *"]
