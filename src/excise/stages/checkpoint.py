"""Checkpoints of a training stage: safetensors and JSON, written whole or not at all, continued bit-equal."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from excise.errors import InputError
from excise.files import explained, folder_beside, read_json, write_json
from excise.parallel import ranks
from excise.parallel.sharding import assign, full, like


@dataclass
class Checkpoints:
    """The checkpoints of one run, in one folder; the newest complete one counts, older ones are removed."""

    folder: Path

    def write(
        self,
        stage: int,
        step: int,
        parameters: Mapping[str, nn.Parameter],
        optimiser: torch.optim.Optimizer | None = None,
        tensors: Mapping[str, Tensor] | None = None,
        notes: Mapping[str, Any] | None = None,
    ) -> None:
        """Saves everything that the next step depends on, including the state of the random number generator.

        Of several processes the first one writes, and all of them call this: spread tensors are gathered.
        """
        weights = {name: whole(p) for name, p in parameters.items()}
        moments = _flatten(optimiser) if optimiser is not None else {}
        if ranks.is_main():
            self._write(stage, step, weights, moments, tensors, notes)
        ranks.wait()

    def _write(
        self,
        stage: int,
        step: int,
        weights: Mapping[str, Tensor],
        moments: Mapping[str, Tensor],
        tensors: Mapping[str, Tensor] | None,
        notes: Mapping[str, Any] | None,
    ) -> None:
        final = self.folder / _name(stage, step)
        with folder_beside(final, overwrite=True) as part:
            save_file({name: value.contiguous() for name, value in weights.items()}, part / "weights.safetensors")
            extra = {"rng": torch.get_rng_state(), **{f"kept.{k}": v for k, v in (tensors or {}).items()}, **moments}
            save_file({name: tensor.contiguous() for name, tensor in extra.items()}, part / "training.safetensors")
            write_json(part / "state.json", {"stage": stage, "step": step, "notes": dict(notes or {})})
        boundary = self.folder / _name(stage, 0)
        for other in self._all():
            if other not in (final, boundary):
                shutil.rmtree(other, ignore_errors=True)

    def newest(self) -> Loaded | None:
        """The newest complete checkpoint, or None."""
        folders = self._all()
        return Loaded.read(folders[-1]) if folders else None

    def boundary(self, stage: int) -> Loaded | None:
        """The state between two stages, from which ``stage`` started."""
        folder = self.folder / _name(stage, 0)
        return Loaded.read(folder) if folder in self._all() else None

    def _all(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("[0-9]*-[0-9]*") if (path / "state.json").exists())

    def clear(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def _name(stage: int, step: int) -> str:
    return f"{stage:03d}-{step:07d}"


@dataclass
class Loaded:
    """A checkpoint in memory."""

    stage: int
    step: int
    weights: dict[str, Tensor]
    training: dict[str, Tensor]
    notes: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def read(folder: Path) -> Loaded:
        state = read_json(folder / "state.json")
        return Loaded(
            stage=int(state["stage"]),
            step=int(state["step"]),
            weights=load_file(folder / "weights.safetensors"),
            training=load_file(folder / "training.safetensors"),
            notes=state["notes"],
        )

    @torch.no_grad()
    def restore_weights(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Puts the saved values into the model.

        Raises:
            InputError: the checkpoint belongs to another model or scope.
        """
        restore(parameters, self.weights)

    def restore_training(self, optimiser: torch.optim.Optimizer) -> None:
        """Puts back the optimiser's moments and the random number generator."""
        _unflatten(optimiser, self.training)
        torch.set_rng_state(self.training["rng"])

    def kept(self) -> dict[str, Tensor]:
        """The further tensors that were saved."""
        return {name.removeprefix("kept."): t for name, t in self.training.items() if name.startswith("kept.")}


@torch.no_grad()
def restore(parameters: Mapping[str, nn.Parameter], values: Mapping[str, Tensor]) -> None:
    """Copies saved values into parameters of the same names and shapes."""
    if missing := sorted(set(values) - set(parameters)):
        raise InputError(f"the checkpoint has {missing[0]!r}, which this model has not: it belongs to another run, start without --resume")
    for name, value in values.items():
        if value.shape != parameters[name].shape:
            raise InputError(f"the checkpoint's {name!r} has another shape than the model's: it belongs to another run, start without --resume")
        assign(parameters[name], value)


def whole(value: Tensor) -> Tensor:
    """A tensor as it is written: gathered where it is spread over processes."""
    return full(value.detach())


@dataclass
class Snapshot:
    """One earlier state of the trained parameters, on disk where there is a folder, else in memory."""

    folder: Path | None
    name: str
    _memory: dict[str, Tensor] | None = None

    def keep(self, parameters: Mapping[str, nn.Parameter]) -> None:
        if self.folder is None:
            self._memory = {name: p.detach().clone() for name, p in parameters.items()}
            return
        if ranks.is_main():
            self.folder.mkdir(parents=True, exist_ok=True)
            part = self.folder / f".{self.name}.part"
            with explained(part):
                save_file({name: p.detach().contiguous() for name, p in parameters.items()}, part)
                part.replace(self._file)
        ranks.wait()

    @property
    def exists(self) -> bool:
        return self._memory is not None or (self.folder is not None and self._file.exists())

    def restore(self, parameters: Mapping[str, nn.Parameter]) -> None:
        restore(parameters, self._memory if self._memory is not None else load_file(self._file))

    @property
    def _file(self) -> Path:
        assert self.folder is not None
        return self.folder / f"{self.name}.safetensors"


def _flatten(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    flat: dict[str, Tensor] = {}
    for index, values in optimiser.state_dict()["state"].items():
        for name, value in values.items():
            flat[f"optimiser.{index}.{name}"] = whole(value) if isinstance(value, Tensor) else torch.tensor(value)
    return flat


def _unflatten(optimiser: torch.optim.Optimizer, flat: Mapping[str, Tensor]) -> None:
    state = optimiser.state_dict()
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    moments: dict[int, dict[str, Tensor]] = {}
    for name, value in flat.items():
        if name.startswith("optimiser."):
            _, index, key = name.split(".", 2)
            moments.setdefault(int(index), {})[key] = _moment(parameters[int(index)], value)
    state["state"] = moments
    optimiser.load_state_dict(state)


def _moment(parameter: nn.Parameter, value: Tensor) -> Any:
    """A moment as its optimiser holds it: spread like the parameter; a step that was a plain number is one again."""
    if value.dim() == 0 and value.dtype == torch.int64:
        return int(value)
    return like(parameter, value) if value.shape == parameter.shape else value


def truncate_log(path: Path, stage: int, step: int) -> None:
    """Removes the lines of train.jsonl that a resumed run is going to write again (and a line cut short by the kill)."""
    if not path.exists():
        return
    kept: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            break
        if (row.get("stage_index", 0), row.get("step", 0)) < (stage, step):
            kept.append(line + "\n")
    path.write_text("".join(kept), encoding="utf-8")
