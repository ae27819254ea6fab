"""What stages keep: tensors for a later stage, and what an edit replaced, so that it can be undone to the bit.

In a run they lie in ``edits/`` of its folder as safetensors, else in memory. The files of an edit hold the knowledge that it
took away: whoever has them and the model can put it back.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from excise.errors import InputError
from excise.files import explained
from excise.stages.state import State
from excise.stages.undo import FOLDER
from excise.subject import Subject

BEFORE = "before-"
"""Start of the names under which an edit keeps what it replaced."""


def keep(state: State, name: str, tensors: Mapping[str, Tensor]) -> None:
    """Keeps copies of tensors under a name, replacing what stood there."""
    copies = {key: tensor.detach().clone().contiguous() for key, tensor in tensors.items()}
    if state.folder is None:
        state.kept[name] = copies
        return
    folder = state.folder / FOLDER
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f".{name}.part"
        save_file(copies, part)
        part.replace(folder / f"{name}.safetensors")
    state.kept.pop(name, None)


def recall(state: State, name: str) -> dict[str, Tensor]:
    """The tensors that a stage of this run kept under a name, on the model's device.

    Raises:
        InputError: no stage before this one has kept them.
    """
    if name not in state.kept:
        file = None if state.folder is None else state.folder / FOLDER / f"{name}.safetensors"
        if file is None or not file.is_file():
            raise InputError(f"nothing was kept under {name!r}: a stage that makes it has to come first")
        state.kept[name] = load_file(file, device=str(state.subject.device))
    return state.kept[name]


def keep_before(state: State, stage: str, tensors: Mapping[str, Tensor]) -> None:
    """Keeps what an edit is about to replace; the stage's place in the run is part of the name, so that the order is known."""
    keep(state, f"{BEFORE}{state.stage_index:03d}-{stage}", tensors)


def undo_edits(subject: Subject, edits: Path | Mapping[str, Mapping[str, Tensor]], stage: int = 0) -> list[str]:
    """Puts back what the edits of a run replaced, the last one first, to the bit; returns their names.

    Args:
        edits: the run's folder (or its ``edits`` folder), or ``State.kept`` of a run in memory.
        stage: go back to the state before this stage of the run (counted from 0); what came earlier stays.

    Raises:
        InputError: nothing was kept there, or it belongs to another adapter.
    """
    found = edits if isinstance(edits, Mapping) else _read(edits)
    chosen = sorted((name for name in found if name.startswith(BEFORE) and int(name.removeprefix(BEFORE)[:3]) >= stage), reverse=True)
    if not chosen:
        raise InputError(f"{'the run' if isinstance(edits, Mapping) else edits}: no edit was kept that could be undone")
    parameters = dict(subject.model.named_parameters())
    for name in chosen:
        for key, value in found[name].items():
            if key not in parameters or parameters[key].shape != value.shape:
                raise InputError(f"{name} changed {key!r}, which this model does not have in this shape: it belongs to another adapter")
    with torch.no_grad():
        for name in chosen:
            for key, value in found[name].items():
                parameters[key].copy_(value)
    return [name.removeprefix(BEFORE) for name in chosen]


def _read(folder: Path) -> dict[str, dict[str, Tensor]]:
    inside = folder / FOLDER if (folder / FOLDER).is_dir() else folder
    try:
        return {file.stem: load_file(file) for file in sorted(inside.glob(f"{BEFORE}*.safetensors"))}
    except SafetensorError as error:
        raise InputError(f"{inside}: a file is corrupt or truncated ({error}): what it held cannot be put back") from None
