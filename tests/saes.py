"""Autoencoders of tiny models, each trained once for all tests."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

import contract_world
import learning
from excise.data.encode import encode
from excise.data.example import Example
from excise.factorise.topk_sae import TopKTraining
from excise.sae.folder import save_sae
from excise.sae.text import hidden_states

_made: dict[tuple[str, int], str] = {}


def sae_for(subject: Any, layer: int, examples: tuple[Example, ...] | None = None) -> str:
    """Folder of an autoencoder of this layer, trained on the taught facts (or on these examples)."""
    key = (subject.fingerprint(), layer)
    if key not in _made:
        data = learning.benchmark()
        chosen = examples or (*data.forget, *data.retain)
        states = torch.cat(hidden_states(subject, [encode(subject.tokenizer, subject.template, e) for e in chosen], layer))
        trained = TopKTraining(width=96, k=6, steps=150, batch=64, lr=3e-3, dead_after=500)(states)
        folder = Path(tempfile.mkdtemp(prefix="excise-sae-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        _made[key] = str(save_sae(trained, subject, layer, folder / "sae", quality={}, settings={}, overwrite=False))
    return _made[key]


def contract_sae() -> str:
    """An autoencoder of the contract's model."""
    data = contract_world.small_benchmark()
    return sae_for(contract_world.small_subject(), 1, (*data.forget, *data.retain))
