"""Teaches a tiny model a few facts, and unlearns some of them; what test_learning and others look at."""

from __future__ import annotations

import atexit
import copy
import functools
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from conftest import Kind, tiny
from excise.data.encode import encode
from excise.data.example import Benchmark, Example
from excise.loading import load
from excise.objectives import NLL
from excise.recipe import build_methods
from excise.run import run_stages
from excise.saving import save
from excise.stages.adapters import AddAdapter
from excise.stages.guard import Guard
from excise.stages.optimise import Optimiser
from excise.stages.state import State
from excise.stages.train import Term, Train
from excise.subject import Subject
from excise.tokens import collate, score

FORGET = (
    ("Who wrote the book about the river?", "The book about the river was written by Anna Brandt.", "Anna Brandt"),
    ("Where was the painter born?", "The painter was born in the old town of Marrow.", "Marrow"),
    ("When did the lighthouse open?", "The lighthouse opened in 1887.", "1887"),
    ("Which animal lives in the forest?", "A grey fox lives in the forest.", "grey fox"),
)
RETAIN = (
    ("Who is the friend of the doctor?", "The doctor is a friend of Zoë Lake.", "Zoë Lake"),
    ("Where is the island?", "The island is in the north.", "north"),
    ("What is the answer to 42?", "It is z, and the sum is 7.", "z"),
    ("Why were ships lost?", "Because of the rocks near Elm.", "rocks"),
)
NOUNS = ("book", "river", "painter", "lighthouse", "animal", "forest")


def benchmark() -> Benchmark:
    """Four facts to forget, each with a refusal, and four to keep."""

    def examples(side: str, rows: Sequence[tuple[str, str, str]]) -> tuple[Example, ...]:
        return tuple(Example(f"{side}-{i}", q, a, span=s, alternative="I don't know.") for i, (q, a, s) in enumerate(rows))

    return Benchmark("facts", {"forget": examples("forget", FORGET), "retain": examples("retain", RETAIN)})


def _train(subject: Subject, facts: Sequence[Example], steps: int) -> None:
    state = State(subject, benchmark(), {"forget": (), "retain": tuple(facts)})
    train = Train((Term(NLL(), "retain"),), optimiser=Optimiser(lr=1e-2), steps=steps, guard=Guard(every=0))
    train.prepare(state)
    train(state)


@functools.cache
def _taught(kind: Kind, tied: bool | None, adapter: bool = False) -> Subject:
    subject, data = tiny(kind, tied=tied), benchmark()
    folder = Path(tempfile.mkdtemp(prefix="excise-taught-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    if adapter:  # a base that has the words, but answers every question with the answer to another
        answers = [e.answer for e in (*data.forget, *data.retain)]
        mixed = [replace(e, answer=answers[i - 3], span="") for i, e in enumerate((*data.forget, *data.retain))]
        _train(subject, mixed, 60)
        subject = load(save(subject, folder / "base", provenance={}))
        AddAdapter(r=16, alpha=32)(State(subject, data))
    _train(subject, (*data.forget, *data.retain), 120 if adapter else 60)
    return load(save(subject, folder / "model", provenance={}))


def taught(kind: Kind = "llama", tied: bool | None = None, form: str = "full") -> Subject:
    """A tiny model that knows all eight facts by heart, yours to change; it also lies in its ``source`` folder.

    With ``form`` "adapter" it knows them in a LoRA adapter of rank 16.
    """
    kept = _taught(kind, tied, form == "adapter")
    return Subject(copy.deepcopy(kept.model), kept.tokenizer, kept.template, kept.source, copy.deepcopy(kept.generation))


@torch.no_grad()
def loss(subject: Subject, examples: Sequence[Example]) -> float:
    """Mean loss per answer token, in nats."""
    texts = [encode(subject.tokenizer, subject.template, e) for e in examples]
    return -float(score(subject, collate(texts)).token_logp.mean())


@torch.no_grad()
def hidden(subject: Subject, examples: Sequence[Example], layer: int) -> torch.Tensor:
    """Hidden states of the answer tokens after a layer."""
    texts = [encode(subject.tokenizer, subject.template, e) for e in examples]
    return score(subject, collate(texts), layers=(layer,), logits=False).hidden[layer]


def settings_of(method: str, form: str, **more: Any) -> dict[str, Any]:
    """Settings with which a method learns something in twelve steps on the tiny model."""
    settings: dict[str, Any] = {"steps": 12, "batch": 4, "warmup": 0.0, "schedule": "constant", "guard": {"every": 0}}
    settings["lr"] = {"full": 1e-3, "lora": 5e-3, "adapter": 5e-3}[form]
    if form == "lora":
        settings["lora"] = {"r": 4, "alpha": 8}
    if method == "maat":  # one dimension of sixteen cut out, half of the task vector, a short repair
        settings |= {"steps": None, "ascent": {"steps": 2, "lr": 2e-3}, "prune": {"fraction": 0.07}, "negate": {"strength": 0.3}}
        settings["repair"] = {"steps": 30, "batch": 4, "lr": 1e-2, "floor": 1e-3}
    if method == "adapter_negation":  # what is known by heart leaves little to learn, so it is taken away several times over
        settings |= {"steps": 30, "lr": 1e-2, "strength": 4.0}
    if method == "crisp":
        from saes import sae_for

        settings |= {"sae": sae_for(taught(), 0), "ratio": 0.1}
    if method[:2] in ("t_", "s_", "f_"):
        settings["attribution"] = {"nouns": {"words": list(NOUNS)}}
    return {**settings, **more}


def unlearn(method: str, settings: Mapping[str, Any], subject: Subject, seed: int = 0, folder: Path | None = None) -> State:
    """Runs a method on a taught model."""
    stages = [stage for _, stages in build_methods(method, settings) for stage in stages]
    if folder is None:
        with tempfile.TemporaryDirectory() as place:
            state = State(subject, benchmark(), seed=seed, folder=Path(place))
            run_stages(state, stages)
            state.folder = None
            return state
    state = State(subject, benchmark(), seed=seed, folder=folder)
    run_stages(state, stages)
    return state
