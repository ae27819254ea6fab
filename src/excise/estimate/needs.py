"""Memory and time of a run, from the shape of the model, the work of a step and the machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

import torch

from excise.errors import InputError
from excise.estimate.hardware import Hardware, hardware
from excise.estimate.shape import Shape
from excise.estimate.work import Side, Work, work_of
from excise.head import TOGETHER
from excise.loading import ModelSpec, outline
from excise.precision import resolve_precision
from excise.stages.adapters import AddAdapter
from excise.stages.combine import AddSecondAdapter
from excise.stages.features import SuppressFeatures
from excise.stages.state import State
from excise.stages.surgery import NegateTaskVector, PruneRanks, RequireAdapter
from excise.stages.train import Train
from excise.tokens import LOGITS_AT_ONCE

if TYPE_CHECKING:
    from excise.recipe import Recipe

MIB = 2**20
PROCESS = 620 * MIB
"""Python, torch, transformers and peft themselves, and what torch's allocator keeps beside what is used."""
STORED = {"none": None, "8bit": 1.05, "4bit": 0.56}
"""Bytes of a quantised weight, its scales included."""
MOMENTS = {"adamw": 8.0, "adamw_8bit": 2.1, "sgd": 0.0}
OPERATIONS = 110
"""Small operations of a layer in one forward and backward pass."""


@dataclass(frozen=True)
class Rates:
    """How fast a machine is at what a step is made of; by its data sheet, or measured."""

    matrix: float
    """Operations per second of matrix products."""
    bytes: float
    """Bytes per second."""
    launch: float
    """Seconds of one small operation."""
    update: float
    """Seconds of clipping and updating one trained number."""
    layer: Mapping[str, float] | None = None
    """Measured: seconds per token of one layer with and without gradients (``with``, ``without``), and per scored token of the output
    head (``head``)."""

    @staticmethod
    def of(machine: Hardware, half: bool) -> Rates:
        peak = machine.tflops if half else machine.tflops32
        return Rates(1e12 * peak * machine.share, 1e9 * machine.bandwidth * 0.7, machine.launch, 44 / (1e9 * machine.bandwidth * 0.7))


@dataclass(frozen=True)
class Estimate:
    """Memory in MiB and time in seconds of the heaviest training stage, and what they are made of. Of each process, where there are several."""

    parameters: int
    trainable: int
    steps: int
    tokens_per_step: int
    process_mb: float
    weights_mb: float
    gradients_mb: float
    optimiser_mb: float
    activations_mb: float
    logits_mb: float
    reference_mb: float
    load_mb: float
    """While the model is loaded, or saved and loaded again to be checked."""
    seconds_per_step: float
    calibrated: bool
    machine: str
    memory_gib: float

    @property
    def training_mb(self) -> float:
        """While the stage trains."""
        parts = (self.process_mb, self.weights_mb, self.gradients_mb, self.optimiser_mb, self.activations_mb, self.logits_mb, self.reference_mb)
        return sum(parts)

    @property
    def total_mb(self) -> float:
        """The highest of the whole run."""
        return max(self.training_mb, self.load_mb)

    @property
    def fits(self) -> bool:
        return self.total_mb <= 1024 * self.memory_gib

    @property
    def seconds(self) -> float:
        """Of all steps."""
        return self.steps * self.seconds_per_step

    def to_json(self) -> dict[str, Any]:
        more = {"training_mb": self.training_mb, "total_mb": self.total_mb, "seconds": self.seconds, "fits": self.fits}
        return {**asdict(self), **more}


def estimate(recipe: Recipe, *, machine: str | None = None, processes: int = 1, calibrate: bool = False) -> Estimate:
    """The heaviest training stage of a recipe; no weights are read.

    Args:
        machine: see :func:`excise.estimate.hardware.hardware`; None: this one.
        processes: of which each takes a part (``parallel`` in the recipe says of what).
        calibrate: measure this machine for some ten seconds with a layer of the model's shape.

    Raises:
        InputError: the model, the data or the scope do not fit together; a calibration of another machine than this one.
    """
    if calibrate and machine is not None:
        raise InputError("--calibrate measures this machine: leave --hardware out, or the calibration")
    if processes < 1:
        raise InputError(f"--processes {processes}: at least one is needed")
    spec = cast(ModelSpec, recipe.model_spec())
    own = hardware(machine)
    subject = outline(spec)
    benchmark = recipe.benchmark_loader()()
    benchmark.require("forget", "retain")
    device = torch.device("cpu" if own.cpu else "cuda")
    precision = "float32" if recipe.precision == "float32" else resolve_precision(recipe.precision, device) if own.cpu else "bfloat16"
    state = State(subject, benchmark, seed=recipe.seed, precision=precision)
    shape = Shape.of(subject.base.config)
    size = _weight_size(spec, subject.base.config, own)
    found: list[Estimate] = []
    for _, stages in recipe.methods():
        for listed in stages:
            stage = listed.train if isinstance(listed, SuppressFeatures) else listed
            if isinstance(stage, (AddAdapter, AddSecondAdapter)):
                stage.prepare(state)
                stage.structure(state)
            elif isinstance(stage, (RequireAdapter, PruneRanks, NegateTaskVector)):
                stage.check(state)
            elif isinstance(stage, Train):
                work = work_of(stage, state)
                rates = _measured(state, stage, work) if calibrate else Rates.of(own, work.half)
                found.append(needs(shape, work, size, own, rates, processes=processes, shards=recipe.parallel == "shards"))
    if not found:
        empty = Work((), 0, 0, (shape.depth, shape.depth), 0.0, False, False, "sgd", False, precision == "bfloat16", "none")
        found.append(needs(shape, empty, size, own, Rates.of(own, empty.half)))
    return max(found, key=lambda e: e.total_mb)


def _measured(state: State, stage: Train, work: Work) -> Rates:
    from excise.estimate.calibrate import calibrate

    return calibrate(state, stage, work)


def _weight_size(spec: ModelSpec, config: Any, machine: Hardware) -> float:
    """Bytes of one weight as the model is loaded."""
    stored = STORED[spec.quantise]
    if stored is not None:
        return stored
    if spec.dtype != "auto":
        return 4.0 if spec.dtype == "float32" else 2.0
    return 4.0 if machine.cpu or config.dtype in (None, torch.float32) else 2.0


def needs(shape: Shape, work: Work, size: float, machine: Hardware, rates: Rates, *, processes: int = 1, shards: bool = False) -> Estimate:
    """Memory and time of one stage.

    Args:
        size: bytes of one weight as the model is loaded.
        processes: each takes its part of the batch; with ``shards`` also of weights, gradients and moments.
    """
    sides = tuple(_part(side, processes) for side in work.sides)
    apart = processes if shards else 1
    masters = work.trainable * max(0.0, 4.0 - size)  # what is trained is held in float32
    wide = machine.cpu or not work.half
    copies = _copies(shape, work, size)
    first, last = work.trained_layers
    active = max(0, last - first)
    gathered = 2 * shape.layer * 4.0 if shards and processes > 1 else 0.0
    weights = (shape.parameters * size + masters) / apart + (copies if apart == 1 else 2.0 * 2 * shape.layer) + gathered
    activations = max((_activations(shape, work, side, active, wide) for side in sides), default=0.0)
    logits = max((_logits(shape, work, side) for side in sides), default=0.0)
    reference = (2.0 if work.half else 0.0 if work.adapter else 4.0) * shape.head if work.reference == "logits" else 0.0
    whole = shape.parameters * size
    load = whole * (2.0 if machine.cpu else 1.05) + (0 if work.trainable == 0 else whole)
    process = PROCESS if machine.cpu else 900 * MIB
    seconds = _seconds(shape, work, sides, rates, apart, wide)
    return Estimate(
        parameters=shape.parameters,
        trainable=work.trainable,
        steps=work.steps,
        tokens_per_step=work.tokens,
        process_mb=process / MIB,
        weights_mb=weights / MIB,
        gradients_mb=4.0 * work.trainable / apart / MIB,
        optimiser_mb=MOMENTS[work.optimiser] * work.trainable / apart / MIB,
        activations_mb=activations / MIB,
        logits_mb=logits / MIB,
        reference_mb=reference / MIB,
        load_mb=(process + load) / MIB,
        seconds_per_step=seconds,
        calibrated=rates.layer is not None,
        machine=machine.name,
        memory_gib=machine.memory_gib,
    )


def _part(side: Side, processes: int) -> Side:
    return side if processes == 1 else Side(-(-side.tokens // processes), -(-side.scored // processes), side.logits, side.whole, side.longest)


def _copies(shape: Shape, work: Work, size: float) -> float:
    """Bytes of the bf16 copies that matrix products read beside float32 weights; an adapter's reference shares that of the output head."""
    if not work.half or (work.adapter and size < 4):
        return 0.0
    shared = work.adapter and work.reference == "logits"
    return 2.0 * (shape.depth * shape.layer + (0 if shared else shape.head))


def _activations(shape: Shape, work: Work, side: Side, active: int, wide: bool) -> float:
    """Bytes that are kept for the backward pass, and the largest of what is not."""
    per_layer = side.tokens * shape.kept(work.half, wide)
    passing = side.tokens * (4 * shape.width + 3 * shape.inner) * 4.0
    if work.checkpointing:
        return active * side.tokens * shape.width * 4.0 + per_layer + passing
    return active * per_layer + passing


def _logits(shape: Shape, work: Work, side: Side) -> float:
    """Bytes of logits, their float32 form, probabilities and gradients, of which a piece exists at once, and those whose share of the head's
    gradient waits to be added."""
    if not side.logits:
        return 0.0
    tables = 3 + 2 * (side.whole > 0)
    waiting = (2.0 if work.half else 4.0) * min(side.scored, TOGETHER) * shape.vocab if work.head_trained else 0.0
    return 4.0 * tables * min(side.scored * shape.vocab, max(LOGITS_AT_ONCE, shape.vocab)) + waiting


def _seconds(shape: Shape, work: Work, sides: tuple[Side, ...], rates: Rates, apart: int, wide: bool) -> float:
    first, last = work.trained_layers
    active, passive = max(0, last - first), min(first, last)
    again = 1 if work.checkpointing else 0
    seconds = work.trainable / apart * rates.update
    for side in sides:
        if rates.layer is not None:
            per_token = active * (rates.layer["with"] + again * rates.layer["without"]) + passive * rates.layer["without"]
            seconds += side.tokens * per_token + (side.scored * rates.layer["head"] * (1 + side.whole) if side.logits else 0.0)
            continue
        passes = active * (2 + again + work.trained_share) + passive
        heads = (2.0 + work.head_trained) * (1 + side.whole / 3) if side.logits else 0.0
        operations = 2.0 * (shape.layer * passes * side.tokens + shape.head * heads * side.scored)
        attention = 4.0 * shape.query * side.longest / 2 * side.tokens * (active * (3 + again) + passive)
        moved = 3 * side.tokens * shape.kept(work.half, wide) * active + (6.0 * shape.parameters if work.half and not work.adapter else 0.0)
        moved += 4.0 * 8 * side.scored * shape.vocab if side.logits else 0.0
        seconds += (operations + attention) / rates.matrix + moved / rates.bytes + (active + passive) * OPERATIONS * rates.launch
    return seconds
