"""Measures this machine for some ten seconds: layers and an output head of the model's shape on random weights, and an update."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM

from excise.data.encode import Encoded, Template, encode
from excise.errors import InputError
from excise.estimate.hardware import memory_of_machine
from excise.estimate.shape import Shape
from excise.estimate.work import Work, drawn
from excise.head import hand_over_gradient
from excise.layout import layout_of
from excise.precision import autocast
from excise.scope import Scope
from excise.stages.adapters import AddAdapter
from excise.stages.fused import fused_layers
from excise.stages.optimise import Optimiser
from excise.stages.state import State
from excise.stages.working import working_copies
from excise.subject import Subject, quiet
from excise.tokens import collate, row_length, score

if TYPE_CHECKING:
    from excise.estimate.needs import Rates
    from excise.stages.train import Train

BUDGET = 3.0
"""Seconds for each of the four measurements."""
VOCABULARIES = 512, 2**16
"""Of the small model: without a head worth mentioning, and with one that is at most as large as this."""
UPDATED = 2**23
"""Numbers of the update."""


def calibrate(state: State, stage: Train, work: Work) -> Rates:
    """What a step of this stage costs on this machine.

    Raises:
        InputError: two layers of the model do not fit into this machine.
    """
    from excise.estimate.needs import Rates

    shape = Shape.of(state.subject.base.config)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu" and 2 * shape.layer * 4.0 * (3.0 if not work.adapter else 1.5) > 0.6 * memory_of_machine():
        raise InputError(
            "--calibrate runs two layers of the model, which do not fit into this machine: leave it out, or name another with --hardware"
        )
    texts = _texts(state, stage)
    with torch.random.fork_rng(), quiet():
        torch.manual_seed(0)
        small, large = VOCABULARIES[0], min(VOCABULARIES[1], shape.vocab)
        cases = ((1, small), (2, small), (1, large if any(side.logits for side in work.sides) else small))
        one, two, headed = (_passes(state, stage, texts, count, vocab, device) for count, vocab in cases)
        update = _update(work, device)
    tokens, scored = row_length(texts), sum(text.scored for text in texts)
    layer = {name: max(0.0, two[name] - one[name]) / tokens for name in one}
    layer["head"] = max(0.0, headed["with"] - one["with"]) / scored * shape.vocab / large
    guess = Rates(1.0, 1.0, 0.0, update)
    return replace(guess, layer=layer)


def _texts(state: State, stage: Train) -> list[Encoded]:
    """The largest micro-batch of the first step, in the small model's vocabulary."""
    subject = state.subject
    template = Template(subject.template.style, subject.template.system)
    rows = max(drawn(stage, state).values(), key=len)
    rows = rows[: max(1, len(rows) // stage.accumulate)]
    texts = [encode(subject.tokenizer, template, row, max_length=stage.max_length) for row in rows]
    return [replace(text, ids=tuple(i % VOCABULARIES[0] for i in text.ids)) for text in texts]


def _passes(state: State, stage: Train, texts: list[Encoded], count: int, vocab: int, device: torch.device) -> dict[str, float]:
    """Seconds of a forward and backward pass through so many layers and a head of this size, and of a forward pass without gradients."""
    subject = _small(state, count, vocab, device)
    names = set(_trained(stage, subject))
    for name, parameter in subject.model.named_parameters():
        parameter.requires_grad_(name in names)
    precision = state.precision
    batch = collate(texts, layout_of(subject)).to(device)
    if not any("layers" in name for name in names):  # only what stands outside the layers is trained: gradients pass through them
        subject.embedding.weight.requires_grad_(True)

    parameters = {name: p for name, p in subject.model.named_parameters() if p.requires_grad}
    with working_copies(subject, parameters, precision == "bfloat16") as working, fused_layers(subject):

        def with_gradients() -> None:
            with autocast(precision, device):
                score(subject, batch).token_logp.sum().backward()
            hand_over_gradient(subject.head)
            for parameter in working.masters.values():
                parameter.grad = None

        @torch.no_grad()
        def without() -> None:
            with autocast(precision, device):
                _ = score(subject, batch).token_logp

        return {"with": seconds_of(with_gradients, device), "without": seconds_of(without, device)}


def _small(state: State, count: int, vocab: int, device: torch.device) -> Subject:
    config: Any = copy.deepcopy(state.subject.base.config.get_text_config())
    config.num_hidden_layers, config.vocab_size = count, vocab
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:count]
    config.bos_token_id = config.eos_token_id = config.pad_token_id = None
    network = AutoModelForCausalLM.from_config(config, dtype=torch.float32).to(device).eval()
    subject = Subject(network, state.subject.tokenizer, state.subject.template, "calibration")
    adapter = next((stage for stage in state.prepared.values() if isinstance(stage, AddAdapter)), None)
    if adapter is not None:
        replace(adapter, layers=None).structure(State(subject, state.benchmark, seed=state.seed))
    return subject


def _trained(stage: Train, subject: Subject) -> list[str]:
    try:
        return Scope(None, stage.scope.modules, stage.scope.adapter).names(subject)
    except InputError:
        return []


def _update(work: Work, device: torch.device) -> float:
    """Seconds per number of clipping and updating."""
    if not work.trainable:
        return 0.0
    parameter = nn.Parameter(torch.randn(UPDATED, device=device))
    optimiser = Optimiser(lr=1e-6, kind=work.optimiser).build([parameter])
    gradient = torch.randn_like(parameter)

    def run() -> None:
        parameter.grad = gradient.clone()  # stands for writing it
        torch.nn.utils.clip_grad_norm_([parameter], 1.0)
        optimiser.step()

    return seconds_of(run, device) / UPDATED


def seconds_of(run: Callable[[], None], device: torch.device) -> float:
    """The shortest time of several runs, after one that does not count."""
    budget = BUDGET / 2
    found: list[float] = []
    begun = time.perf_counter()
    run()
    while len(found) < 3 or (time.perf_counter() - begun < budget and len(found) < 50):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        start = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        found.append(time.perf_counter() - start)
        if time.perf_counter() - begun > 4 * budget:
            break
    return min(found)
