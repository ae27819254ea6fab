"""Teaches a tiny model a few facts, and unlearns some of them; what test_learning and others look at."""

from __future__ import annotations

import atexit
import copy
import functools
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from conftest import Kind, tiny
from excise.data.encode import encode
from excise.data.example import Benchmark, Example
from excise.objectives import NLL
from excise.recipe import build_methods
from excise.run import run_stages
from excise.saving import save
from excise.stages.guard import Guard
from excise.stages.optimise import Optimiser
from excise.stages.state import State
from excise.stages.train import Term, Train
from excise.subject import Subject, load
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


@functools.cache
def _taught(kind: Kind, tied: bool | None) -> Subject:
    subject = tiny(kind, tied=tied)
    data = benchmark()
    state = State(subject, data, {"forget": (), "retain": (*data.forget, *data.retain)})
    train = Train((Term(NLL(), "retain"),), optimiser=Optimiser(lr=1e-2), steps=60, guard=Guard(every=0))
    train.prepare(state)
    train(state)
    folder = Path(tempfile.mkdtemp(prefix="excise-taught-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return load(save(subject, folder / "model", provenance={}))


def taught(kind: Kind = "llama", tied: bool | None = None) -> Subject:
    """A tiny model that knows all eight facts by heart, yours to change; it also lies in its ``source`` folder."""
    kept = _taught(kind, tied)
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
    settings["lr"] = {"full": 1e-3, "lora": 5e-3}[form]
    if form == "lora":
        settings["lora"] = {"r": 4, "alpha": 8}
    if method == "crisp":
        from saes import sae_for

        settings |= {"sae": sae_for(taught(), 0), "ratio": 0.1}
    if method[:2] in ("t_", "s_"):
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
