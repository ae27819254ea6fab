"""`excise sae train`: from a person's own text to an autoencoder of one layer, with figures that say how good it is."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from excise.data.benchmarks.text import passages, read_documents
from excise.data.encode import Encoded, encode
from excise.data.example import Example
from excise.errors import InputError
from excise.factorise.autoencoder import Autoencoder, reconstruction
from excise.factorise.topk_sae import TopKTraining
from excise.hidden import require_layer
from excise.sae.folder import save_sae
from excise.sae.text import hidden_states, loss_with
from excise.stages.state import Narrator, Silent
from excise.subject import Subject

HELD_OUT = 10
"""One of so many passages is kept back to measure by."""


@dataclass(frozen=True)
class Quality:
    """What an autoencoder keeps of a layer's hidden states; all but ``dead`` on passages that it was not trained on."""

    explained_variance: float
    """1: perfect; 0: no better than the mean."""
    loss: float
    """Cross-entropy of the model as it is, in nats per token."""
    loss_reconstructed: float
    """The same with the reconstruction in place of the hidden states."""
    loss_zero: float
    """The same with zeros in their place."""
    active: float
    """Features that are active for a token."""
    dead: float
    """Share of features that are active for no token of the whole text."""
    train_tokens: int
    held_out_tokens: int

    @property
    def loss_recovered(self) -> float:
        """(loss_zero - loss_reconstructed) / (loss_zero - loss): 1 changes nothing, 0 is as bad as zeros."""
        return (self.loss_zero - self.loss_reconstructed) / (self.loss_zero - self.loss) if self.loss_zero != self.loss else math.nan

    def to_json(self) -> dict[str, Any]:
        recovered = self.loss_recovered
        return {**asdict(self), "loss_recovered": recovered if math.isfinite(recovered) else None}

    def lines(self) -> list[tuple[str, str]]:
        """Labels and values for a table."""
        return [
            ("explained variance", f"{self.explained_variance:.3f}"),
            ("loss of the model", f"{self.loss:.3f} nats per token"),
            ("  with the reconstruction", f"{self.loss_reconstructed:.3f} ({self.loss_reconstructed - self.loss:+.3f})"),
            ("  with zeros", f"{self.loss_zero:.3f}"),
            ("loss recovered", f"{self.loss_recovered:.1%}"),
            ("active features per token", f"{self.active:.1f}"),
            ("dead features", f"{self.dead:.1%}"),
            ("tokens", f"{self.train_tokens:,} to train on, {self.held_out_tokens:,} held out"),
        ]


def train_sae(
    subject: Subject,
    sources: Sequence[str],
    layer: int,
    out: Path,
    training: TopKTraining,
    *,
    passage: int = 100,
    column: str = "text",
    limit: int | None = None,
    precision: Literal["float32", "bfloat16"] = "float32",
    overwrite: bool = False,
    narrator: Narrator | None = None,
) -> Quality:
    """Trains an autoencoder on the hidden states of a layer and writes it with its figures to the folder ``out``.

    Args:
        sources: text files, folders of them, or tables with a text column.
        passage: longest passage in words.
        limit: only the first so many passages of all.

    Raises:
        InputError: no such layer, too little text, an ``out`` that exists.
    """
    require_layer(layer, subject.depth)
    if out.exists() and (not out.is_dir() or any(out.iterdir())) and not overwrite:
        raise InputError(f"{out} exists: choose another place or pass --overwrite")
    narrator = narrator or Silent()
    texts = _texts(subject, sources, passage, column, limit)
    begun = time.perf_counter()
    task = f"hidden states of {len(texts)} passages after layer {layer}"
    narrator.begin(task, len(texts))
    states = hidden_states(subject, texts, layer, precision, advance=lambda n: narrator.advance(task, n))
    narrator.end(task)
    train, held = (torch.cat([part for i, part in enumerate(states) if (i % HELD_OUT == HELD_OUT - 1) == aside]) for aside in (False, True))
    autoencoder = _trained(training, train, narrator)
    quality = measure(subject, autoencoder, texts[HELD_OUT - 1 :: HELD_OUT], layer, train, held, precision)
    settings = {**asdict(training), "passage": passage, "passages": len(texts), "seconds": round(time.perf_counter() - begun, 1)}
    save_sae(autoencoder, subject, layer, out, quality=quality.to_json(), settings=settings, overwrite=overwrite)
    return quality


def measure(
    subject: Subject,
    autoencoder: Autoencoder,
    held: Sequence[Encoded],
    layer: int,
    train: Tensor,
    states: Tensor,
    precision: Literal["float32", "bfloat16"] = "float32",
) -> Quality:
    """The figures of an autoencoder: ``held`` are texts that it was not trained on, ``states`` their hidden states."""
    kept, whole = reconstruction(autoencoder, states), reconstruction(autoencoder, train)
    return Quality(
        explained_variance=kept.explained_variance,
        loss=loss_with(subject, held, layer, None, precision),
        loss_reconstructed=loss_with(subject, held, layer, autoencoder, precision),
        loss_zero=loss_with(subject, held, layer, torch.zeros_like, precision),
        active=kept.active,
        dead=1.0 - float((kept.fired | whole.fired).double().mean()),
        train_tokens=len(train),
        held_out_tokens=len(states),
    )


def _trained(training: TopKTraining, states: Tensor, narrator: Narrator) -> Autoencoder:
    task = f"training {training.width} features on {len(states):,} tokens"
    narrator.begin(task, training.steps)
    autoencoder = training(states, lambda unexplained: narrator.advance(task, 1, note=f"unexplained {unexplained:.3f}"))
    narrator.end(task)
    return autoencoder


def _texts(subject: Subject, sources: Sequence[str], passage: int, column: str, limit: int | None) -> list[Encoded]:
    if passage < 8:
        raise InputError(f"--passage {passage} is too short: give at least 8 words")
    found: list[Encoded] = []
    for source in sources:
        for name, document in read_documents(source, column):
            for piece in passages(document, passage):
                if limit is not None and len(found) >= limit:
                    break
                example = Example(f"{name}-{len(found)}", "", piece)
                if len(subject.tokenizer(piece)["input_ids"]) > 1:
                    found.append(encode(subject.tokenizer, subject.template, example))
    if len(found) < HELD_OUT:
        raise InputError(
            f"{', '.join(sources)}: {len(found)} passage(s) of text, and at least {HELD_OUT} are needed: give more text, or a smaller --passage"
        )
    return found
