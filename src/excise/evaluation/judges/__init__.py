"""Judges: what a generation says about the truth, decided by a rule, by sentence embeddings, by a model or by a server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

from excise.evaluation.records import Verdict


@dataclass(frozen=True)
class Item:
    """One thing to decide."""

    aspect: str
    """truth, related or fluent (see :class:`excise.evaluation.records.Verdict`)."""
    prompt: str
    """The question, or the opening of a text that was to be continued."""
    answer: str
    """What the model said."""
    truth: str = ""
    """The true answer; needed for the aspect ``truth``."""
    label: str = ""
    """who, what, when, where, why: a judge may hold long answers to another standard."""


@runtime_checkable
class Judge(Protocol):
    """A frozen dataclass whose fields are its settings. ``Verdict.judge`` is its name in :data:`JUDGES`."""

    aspects: ClassVar[tuple[str, ...]]
    """What it can decide."""

    def __call__(self, items: Sequence[Item]) -> list[Verdict]:
        """One verdict for each item, in order; undecided ones have no score."""
        ...


JUDGES: dict[str, str] = {}
"""Name -> module and class."""
