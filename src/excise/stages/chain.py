"""What follows from the order of the stages of a run."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from excise.errors import InputError
from excise.stages.adapters import AddAdapter
from excise.stages.features import SuppressFeatures
from excise.stages.state import Stage
from excise.stages.train import Train

if TYPE_CHECKING:
    from excise.subject import Subject


def in_chain(stages: Sequence[Stage]) -> list[Stage]:
    """The same stages, with the reference of each training stage that leaves it to its place in the chain.

    After an edit of the weights the edited model is what a training stage starts from and refers to; otherwise it refers to the model
    before the run.
    """
    settled: list[Stage] = []
    edited = False
    for stage in stages:
        stage = _settled(stage, "stage" if edited else "run")
        edited = edited or is_edit(stage)
        settled.append(stage)
    return settled


def _settled(stage: Stage, reference: Literal["run", "stage"]) -> Stage:
    if isinstance(stage, Train) and stage.reference == "auto":
        return replace(stage, reference=reference)
    if isinstance(stage, SuppressFeatures) and stage.train.reference == "auto":
        return replace(stage, train=replace(stage.train, reference=reference))
    return stage


def is_edit(stage: Stage) -> bool:
    """Whether a stage edits the weights of the model itself without training (its class says ``edits = True``)."""
    return bool(getattr(stage, "edits", False))


def changed_by(stage: Stage, subject: Subject) -> Collection[str] | None:
    """Names of the parameters that a stage may have changed; None where it does not say (no method ``changes``)."""
    if isinstance(stage, Train):
        return stage.scope.names(subject)
    changes = getattr(stage, "changes", None)
    return None if changes is None else changes(subject)


def require_savable(stages: Sequence[Stage], *, merge: bool) -> None:
    """Refuses, before anything is computed, a chain whose result could not be saved."""
    if not merge and any(map(is_edit, stages)) and any(isinstance(stage, AddAdapter) for stage in stages):
        raise InputError(
            "the chain edits the model's own weights and trains an adapter, and an adapter alone cannot hold both: set merge = true, "
            "or leave out method.lora"
        )
