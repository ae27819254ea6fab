"""What an edit keeps so that it can be taken back: the values that stood where it wrote."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from excise.errors import InputError
from excise.files import file_beside
from excise.subject import tie

if TYPE_CHECKING:
    from excise.subject import Subject

FOLDER = "edits"
"""Where a run keeps the files of its edits."""


@dataclass(frozen=True)
class Slice:
    """Some rows (``dim`` 0) or columns (``dim`` 1) of one parameter, as they are now."""

    parameter: str
    """Its name in the base model."""
    dim: int
    index: Tensor
    values: Tensor

    @staticmethod
    def of(subject: Subject, parameter: Tensor, dim: int, index: Tensor) -> Slice:
        """Copies these rows or columns."""
        return Slice(name_of(subject, parameter), dim, index, parameter.detach().index_select(dim, index.to(parameter.device)).clone())

    def fits(self, parameter: Tensor | None) -> bool:
        """Whether the values can stand in that parameter."""
        if parameter is None or parameter.dim() != self.values.dim():
            return False
        other = [(a, b) for d, (a, b) in enumerate(zip(parameter.shape, self.values.shape, strict=True)) if d != self.dim]
        return all(a == b for a, b in other) and int(self.index.max()) < parameter.shape[self.dim]

    @torch.no_grad()
    def put_back(self, parameters: Mapping[str, Tensor]) -> None:
        """Writes the values to where they stood."""
        target = parameters[self.parameter]
        target.index_copy_(self.dim, self.index.to(target.device), self.values.to(target))


def name_of(subject: Subject, parameter: Tensor) -> str:
    """The name of a parameter in the base model."""
    return next(name for name, other in subject.base.named_parameters() if other is parameter)


def write_undo(file: Path, slices: list[Slice], was_tied: bool) -> None:
    """Saves what :func:`undo` needs."""
    tensors: dict[str, Tensor] = {}
    for number, part in enumerate(slices):
        tensors[f"{number}.index"] = part.index.cpu().contiguous()
        tensors[f"{number}.values"] = part.values.cpu().contiguous()
    parts = [{"parameter": part.parameter, "dim": part.dim} for part in slices]
    with file_beside(file, overwrite=True) as place:
        save_file(tensors, place, metadata={"excise": json.dumps({"parts": parts, "was_tied": was_tied})})


def undo(subject: Subject, file: str | Path) -> None:
    """Takes an edit back: the values that stood there before return, and a head that was tied to the embedding is tied again.

    What other stages changed since stays as it is; undo several edits in reverse order.

    Raises:
        InputError: the file is none of an edit, or belongs to another model.
    """
    slices, was_tied = _read(Path(file))
    parameters = dict(subject.base.named_parameters())
    for part in slices:
        if not part.fits(parameters.get(part.parameter)):
            raise InputError(f"{file} belongs to another model: {part.parameter!r} is not there, or has another shape")
    for part in reversed(slices):
        part.put_back(parameters)
    if was_tied and not subject.tied and torch.equal(cast(Tensor, subject.head.weight), cast(Tensor, subject.embedding.weight)):
        tie(subject)


def _read(file: Path) -> tuple[list[Slice], bool]:
    try:
        with safe_open(file, framework="pt") as opened:
            notes = json.loads((opened.metadata() or {})["excise"])
            slices = [
                Slice(str(part["parameter"]), int(part["dim"]), opened.get_tensor(f"{n}.index"), opened.get_tensor(f"{n}.values"))
                for n, part in enumerate(notes["parts"])
            ]
            return slices, bool(notes["was_tied"])
    except FileNotFoundError:
        raise InputError(f"there is no file {file}") from None
    except (SafetensorError, KeyError, ValueError) as error:
        raise InputError(f"{file} is not what an edit of excise saves ({type(error).__name__})") from None
