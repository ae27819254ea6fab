"""What stages that edit weights directly have in common: what they refuse, their strength, and what they leave behind."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from excise.errors import InputError
from excise.features.choose import Chosen
from excise.files import write_json
from excise.memory import peak_memory_mb
from excise.stages.state import State
from excise.stages.strength import Apply, Search, search_strength
from excise.stages.undo import FOLDER, Slice, write_undo
from excise.subject import require_trainable_in_full

if TYPE_CHECKING:
    from excise.subject import Subject


def require_editable(subject: Subject) -> None:
    """Refuses models whose own weights cannot be edited and saved."""
    if subject.is_adapter:
        raise InputError(
            f"{subject.source} is an adapter, and an edit changes the weights of the model itself: merge the adapter into its base first"
        )
    require_trainable_in_full(subject)


def concept_name(given: str, state: State) -> str:
    """The name of the concept: the one given, else the group that all forget examples share; empty where they share none."""
    groups = {example.group for example in state.side("forget")}
    return given or (groups.pop() if len(groups) == 1 else "")


def settle_strength(given: float | Literal["search"], search: Search, state: State, apply: Apply) -> tuple[float, dict[str, Any] | None]:
    """The strength to edit with, and the account of the search where there was one."""
    if given != "search":
        return float(given), None
    found = search_strength(search, state, apply)
    if found.warning:
        state.narrator.say(f"Warning: {found.warning}.")
        state.plan.append(f"strength: {found.warning}")
    return found.strength, found.to_json()


def keep_edit(state: State, name: str, slices: list[Slice], was_tied: bool, detail: dict[str, Any]) -> list[str]:
    """Writes what the edit did and how to take it back into the work folder; returns the files' places in it.

    Where texts must not be kept neither is written: the one names words, the other holds what was removed.
    """
    if state.folder is None or state.redact:
        return []
    stem = Path(FOLDER) / f"{state.stage_index:03d}-{name}"
    write_json(state.folder / f"{stem}.json", detail)
    write_undo(state.folder / f"{stem}.safetensors", slices, was_tied)
    return [f"{stem}.json", f"{stem}.safetensors"]


def feature_rows(chosen: Chosen, redact: bool) -> list[dict[str, Any]]:
    """The chosen features as a result shows them; without their words where none may be written."""
    rows = [{"index": f.index, "ratio": f.ratio, "score": chosen.scores.get(f.index), "words": f.words} for f in chosen.features]
    return [{name: value for name, value in row.items() if name != "words"} for row in rows] if redact else rows


def record_of(name: str, begun: float, state: State, changed: int, account: dict[str, Any]) -> dict[str, Any]:
    """The entry of a finished edit in result.json."""
    return {
        "name": name,
        "seconds": round(time.perf_counter() - begun, 3),
        "steps": 0,
        "tokens": 0,
        "peak_memory_mb": peak_memory_mb(state.subject.device),
        "changed_parameters": changed,
        "stopped": "",
        "edit": account,
    }
