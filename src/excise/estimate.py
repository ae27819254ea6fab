"""What a run will need, from the model's configuration alone: no weights are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from excise.data.encode import Template, encode
from excise.stages.adapters import AddAdapter
from excise.stages.features import SuppressFeatures
from excise.stages.state import State
from excise.stages.train import Train
from excise.subject import Subject, outline

if TYPE_CHECKING:
    from excise.recipe import Recipe


@dataclass(frozen=True)
class Estimate:
    """Memory of the heaviest training stage, in MiB, and what it is made of."""

    parameters: int
    trainable: int
    steps: int
    tokens_per_step: int
    weights_mb: float
    gradients_mb: float
    optimiser_mb: float
    activations_mb: float
    logits_mb: float
    reference_mb: float

    @property
    def total_mb(self) -> float:
        return self.weights_mb + self.gradients_mb + self.optimiser_mb + self.activations_mb + self.logits_mb + self.reference_mb


PROCESS_MB = 600.0
"""Python, torch and transformers themselves."""


def estimate(recipe: Recipe) -> Estimate:
    """The heaviest training stage of a recipe.

    Raises:
        InputError: the model, the data or the scope do not fit together; found without reading weights.
    """
    subject = outline(recipe.model_spec())
    benchmark = recipe.benchmark_loader()()
    benchmark.require("forget", "retain")
    state = State(subject, benchmark, seed=recipe.seed)
    found: list[Estimate] = []
    for _, stages in recipe.methods():
        for stage in stages:
            if isinstance(stage, AddAdapter):
                stage.prepare(state)
                stage.structure(state)
            elif isinstance(stage, Train):
                found.append(_of_stage(stage, state))
            elif isinstance(stage, SuppressFeatures):
                found.append(_of_stage(stage.train, state))
    if not found:
        found.append(_sizes(subject, 0, 0, 0, 0, 0, False))
    return max(found, key=lambda e: e.total_mb)


def _of_stage(stage: Train, state: State) -> Estimate:
    subject = state.subject
    names = set(stage.scope.names(subject))
    trainable = sum(p.numel() for name, p in subject.model.named_parameters() if name in names)
    sides = {term.data for term in stage.terms}
    rows = {side: state.side(side) if side in sides else () for side in ("forget", "retain")}
    per_epoch = stage.batches.steps_per_epoch(len(rows["forget"]), len(rows["retain"]))
    steps = stage.steps if stage.steps is not None else round(stage.epochs * per_epoch)
    template = Template(subject.template.style, subject.template.system)
    draw = stage.batches.draw(0, len(rows["forget"]), len(rows["retain"]), state.seed)
    lengths: dict[str, tuple[int, int]] = {}
    for side, indices in (("forget", draw.forget), ("retain", draw.retain)):
        texts = [encode(subject.tokenizer, template, rows[side][i], max_length=stage.max_length) for i in indices]
        lengths[side] = (sum(len(t) for t in texts), sum(t.scored for t in texts))
    tokens = max(n for n, _ in lengths.values()) // stage.accumulate
    scored = max(n for _, n in lengths.values()) // stage.accumulate
    kept = any("logits" in term.reads_reference for term in stage.terms)
    return _sizes(subject, trainable, steps, sum(n for n, _ in lengths.values()), tokens, scored, kept)


def _sizes(subject: Subject, trainable: int, steps: int, tokens_per_step: int, tokens: int, scored: int, reference: bool) -> Estimate:
    config = subject.base.config.get_text_config()
    total = sum(p.numel() for p in subject.model.parameters())
    width, depth = config.hidden_size, config.num_hidden_layers
    wide = getattr(config, "intermediate_size", 4 * width)
    per_token = depth * (2 * (8 * width + 4 * wide) + 4 * (4 * width + 3 * wide))
    mib = 2**20
    return Estimate(
        parameters=total,
        trainable=trainable,
        steps=steps,
        tokens_per_step=tokens_per_step,
        weights_mb=PROCESS_MB + sum(p.numel() * p.element_size() for p in subject.model.parameters()) / mib,
        gradients_mb=4 * trainable / mib,
        optimiser_mb=8 * trainable / mib,
        activations_mb=tokens * per_token / mib,
        logits_mb=scored * subject.vocabulary * 4 * 4 / mib,
        reference_mb=2 * subject.vocabulary * width / mib if reference else 0.0,
    )


def lines(value: Estimate) -> list[tuple[str, Any]]:
    """Labels and values for a table."""
    return [
        ("parameters", f"{value.parameters:,}"),
        ("trained", f"{value.trainable:,} ({100 * value.trainable / max(1, value.parameters):.2f} %)"),
        ("optimiser steps", value.steps),
        ("tokens per step", value.tokens_per_step),
        ("memory: weights and process", f"{value.weights_mb:,.0f} MiB"),
        ("memory: gradients", f"{value.gradients_mb:,.0f} MiB"),
        ("memory: optimiser", f"{value.optimiser_mb:,.0f} MiB"),
        ("memory: activations", f"{value.activations_mb:,.0f} MiB"),
        ("memory: logits", f"{value.logits_mb:,.0f} MiB"),
        ("memory: reference", f"{value.reference_mb:,.0f} MiB"),
        ("memory: total", f"about {value.total_mb:,.0f} MiB"),
        ("torch threads", torch.get_num_threads()),
    ]
