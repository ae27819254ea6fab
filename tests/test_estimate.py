"""Estimates: the machine's line, the model's shape, what grows with what, and a calibration on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from conftest import KINDS, Kind, refused, tiny
from excise.estimate import calibrate as calibration
from excise.estimate import estimate, lines
from excise.estimate.hardware import TABLE, hardware, this_machine
from excise.estimate.needs import Estimate, Rates, needs
from excise.estimate.shape import Shape
from excise.estimate.table import duration
from excise.estimate.work import Side, Work
from excise.recipe import Recipe
from excise.saving import save

EIGHT = Shape(32, 4096, 14336, 128256, 4096, 1024, tied=False)
DATA = {"name": "strangers", "forget_people": 2, "retain_people": 2, "holdout_people": 1}


def work(**changes: Any) -> Work:
    side = Side(1920, 960, True, 0.0, 80)
    values: dict[str, Any] = {
        "sides": (side, side), "steps": 10, "trainable": EIGHT.parameters, "trained_layers": (0, 32), "trained_share": 1.0, "adapter": False,
        "head_trained": True, "optimiser": "adamw", "checkpointing": False, "half": True, "reference": "none",
    }  # fmt: skip
    return Work(**{**values, **changes})


def of(machine: str = "h100", size: float = 2.0, processes: int = 1, shards: bool = False, **changes: Any) -> Estimate:
    own = TABLE[machine]
    return needs(EIGHT, work(**changes), size, own, Rates.of(own, True), processes=processes, shards=shards)


@pytest.mark.parametrize("kind", KINDS)
def test_a_shape_counts_the_matrices_of_a_model(kind: Kind) -> None:
    subject = tiny(kind)
    counted = sum(p.numel() for p in subject.model.parameters() if p.dim() > 1)
    assert Shape.of(subject.base.config).parameters == counted


def test_a_machine_is_a_name_a_line_or_this_one() -> None:
    assert hardware("H100") == TABLE["h100"]
    assert hardware("h100,share=0.5").share == 0.5
    own = hardware("memory=96,tflops=300,bandwidth=2000")
    assert (own.memory_gib, own.tflops, own.bandwidth) == (96, 300, 2000)
    assert hardware(None) == this_machine()
    refused(lambda: hardware("h1000"), "did you mean 'h100'")
    refused(lambda: hardware("memory=80"), "tflops=... is missing")
    refused(lambda: hardware("memory=80,tflop=3,bandwidth=2"), "did you mean 'tflops'")
    refused(lambda: hardware("memory=x,tflops=3,bandwidth=2"), "no number")
    refused(lambda: hardware("h100,memory=-1"), "above 0")


def test_what_a_full_fine_tuning_of_eight_billion_needs() -> None:
    """16 bytes a parameter (float32 weight and gradient, two moments), and two more for the bf16 copies of all but the input table."""
    found = of()
    assert found.parameters == pytest.approx(8.03e9, rel=1e-3)
    held = (found.weights_mb + found.gradients_mb + found.optimiser_mb) / 1024
    assert held == pytest.approx((18 * EIGHT.parameters - 2 * EIGHT.head) / 2**30, rel=1e-3)
    assert not found.fits
    assert "does NOT fit" in str(dict(lines(found))["memory: total"])


def test_less_is_needed_by_what_is_there_to_need_less() -> None:
    full = of()
    adapter = {"trainable": 4 * 10**7, "trained_share": 0.0, "adapter": True, "head_trained": False}
    assert of(**adapter).total_mb < full.total_mb / 3
    assert of(size=0.56, **adapter).weights_mb < of(**adapter).weights_mb / 3
    assert of(optimiser="adamw_8bit").optimiser_mb < 0.3 * full.optimiser_mb
    assert of(optimiser="sgd").optimiser_mb == 0
    assert of(checkpointing=True).activations_mb < full.activations_mb / 5
    assert of(checkpointing=True).seconds_per_step > full.seconds_per_step
    shards = of(processes=8, shards=True)
    assert shards.optimiser_mb == pytest.approx(full.optimiser_mb / 8)
    assert shards.training_mb < full.training_mb / 4
    copies = of(processes=8)
    assert copies.optimiser_mb == full.optimiser_mb
    assert copies.activations_mb == pytest.approx(full.activations_mb / 8)
    assert of("b200").seconds_per_step < full.seconds_per_step < of("t4").seconds_per_step
    middle = of(trained_layers=(5, 8), trained_share=0.3, trainable=10**8, head_trained=False)
    assert middle.activations_mb < full.activations_mb / 7
    assert middle.seconds_per_step < full.seconds_per_step / 4


def recipe(model: Path, **method: Any) -> Recipe:
    settings = {"name": "npo", "steps": 3, "batch": 4, **method}
    return Recipe.parse({"model": str(model), "data": DATA, "method": settings, "precision": "float32"})


def test_an_estimate_reads_no_weights_and_a_calibration_gives_a_time(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = save(tiny("llama"), tmp_path / "model", provenance={})
    save_file({"nothing": torch.zeros(1)}, model / "model.safetensors")
    plain = estimate(recipe(model))
    assert not plain.calibrated
    assert plain.steps == 3
    assert plain.trainable == plain.parameters + 5 * 32  # the norms are trained and not counted in the shape
    monkeypatch.setattr(calibration, "BUDGET", 0.1)
    monkeypatch.setattr(calibration, "UPDATED", 2**16)
    for method in ({}, {"lora": {"r": 2}}, {"name": "rmu", "layer": 1}):
        found = estimate(recipe(model, **method), calibrate=True)
        assert found.calibrated
        assert 0 < found.seconds_per_step < 1
        assert found.seconds == pytest.approx(3 * found.seconds_per_step)
    refused(lambda: estimate(recipe(model), machine="h100", calibrate=True), "--calibrate measures this machine")
    refused(lambda: estimate(recipe(model), processes=0), "--processes")


def test_durations_are_said_as_people_say_them() -> None:
    assert [duration(seconds) for seconds in (3.0, 600.0, 7200.0)] == ["3 s", "10 min", "2.0 h"]
