"""Judges: what a generation says about the truth, decided by a rule, by sentence embeddings, by a model or by a server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

from excise.errors import InputError, did_you_mean
from excise.evaluation.metrics.fluency import is_degenerate
from excise.evaluation.records import Verdict

ASPECTS = ("truth", "related", "fluent", "distinctive")
"""truth: does the answer contain the true one; related: does it keep to its subject; fluent: is it language; distinctive: is the answer,
a list of words, about its subject in particular."""


@dataclass(frozen=True)
class Item:
    """One thing to decide."""

    aspect: str
    """One of :data:`ASPECTS`."""
    prompt: str
    """The question, or the opening of a text that was to be continued."""
    answer: str
    """What the model said."""
    truth: str = ""
    """The true answer; needed for the aspect ``truth``."""
    label: str = ""
    """who, what, when, where, why: a judge may hold long answers to another standard."""
    subject: str = ""
    """What the answer ought to be about, for ``related`` (empty: the prompt says it) and ``distinctive``: a name, or texts, one a line."""

    def __post_init__(self) -> None:
        if self.aspect not in ASPECTS:
            raise InputError(f"unknown aspect {self.aspect!r}: {did_you_mean(self.aspect, ASPECTS)}")
        if self.aspect == "truth" and not self.truth.strip():
            raise InputError(f"nothing to compare with: the true answer to {self.prompt!r} is empty")


@runtime_checkable
class Judge(Protocol):
    """A frozen dataclass whose fields are its settings."""

    name: ClassVar[str]
    """Its name in :data:`JUDGES`, which its verdicts carry."""
    aspects: ClassVar[tuple[str, ...]]
    """What it can decide."""

    def identity(self) -> Mapping[str, Any]:
        """Everything that its verdicts depend on, as JSON holds it: what is remembered counts for the same identity only."""
        ...

    def __call__(self, items: Sequence[Item]) -> Iterable[Verdict]:
        """One verdict for each item, in order, each handed over as soon as it is there; undecided ones have no score."""
        ...


def refuse_others(judge: Judge, items: Iterable[Item]) -> None:
    """An error for the first item of an aspect that the judge does not decide."""
    for item in items:
        if item.aspect not in judge.aspects:
            raise InputError(f"the judge {judge.name!r} does not decide {item.aspect!r}, only: {', '.join(judge.aspects)}")


def settled(judge: Judge, item: Item) -> Verdict | None:
    """The verdict on an answer that is no language: no. None: the judge has to think. A list of words need not be language.

    Judging models call empty answers right surprisingly often (179 of 406 in the published verdicts of MAAT, arXiv
    2605.30514), so none of ours is asked about them.
    """
    return Verdict(judge.name, item.aspect, 0.0, "the answer is degenerate") if item.aspect != "distinctive" and is_degenerate(item.answer) else None


JUDGES: dict[str, str] = {
    "contains": "excise.evaluation.judges.contains:Contains",
    "similarity": "excise.evaluation.judges.similarity:Similarity",
    "model": "excise.evaluation.judges.model:ModelJudge",
    "endpoint": "excise.evaluation.judges.endpoint:Endpoint",
}
"""Name -> module and class."""
