"""Run folders and what belongs to each: the model before, the model after, the twin, the questions."""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from excise.errors import InputError
from excise.report.result import load_result
from excise.report.verdict import verdict

if TYPE_CHECKING:
    from excise.data.example import Benchmark, Example
    from excise.loading import ModelSpec
    from excise.recipe import Recipe
    from excise.subject import Subject

ROLES = ("before", "after", "twin")
TITLES = {"before": "Before", "after": "After unlearning", "twin": "Twin, which never learned it"}
SHOWN = 200
"""Questions of a split that the page lists."""


@dataclass(frozen=True)
class Run:
    """A finished run."""

    folder: Path
    name: str

    @cached_property
    def recipe(self) -> Recipe:
        from excise.recipe import Recipe

        return Recipe.parse(dict(load_result(self.folder).recipe))

    @cached_property
    def benchmark(self) -> Benchmark | None:
        """The recipe's data; None where it cannot be read now."""
        try:
            return self.recipe.benchmark_loader()()
        except InputError:
            return None

    @cached_property
    def specs(self) -> Mapping[str, ModelSpec | str]:
        """Role -> the model to load, or why there is none."""
        from excise.loading import ModelSpec

        before: ModelSpec = self.recipe.model_spec()
        found: dict[str, ModelSpec | str] = {"before": _there(before)}
        after = self.folder / "model"
        found["after"] = ModelSpec(path=str(after)) if after.is_dir() else f"{self.folder} holds no model"
        retrained = self.recipe.evaluation.retrained
        if retrained is None:
            found["twin"] = "this run was made without a retrained twin"
        else:
            inner = Path(retrained) / "model"
            path = str(inner if inner.is_dir() else retrained)
            found["twin"] = _there(ModelSpec(path=path, template=before.template, system=before.system))
        return found

    def describe(self) -> dict[str, Any]:
        """What the page shows of it before anything is asked."""
        return {
            "name": self.name,
            "report": (self.folder / "report.html").is_file(),
            "verdict": list(verdict(load_result(self.folder))),
            "models": [{"role": role, "title": TITLES[role], "missing": spec if isinstance(spec, str) else ""} for role, spec in self.specs.items()],
        }

    def questions(self) -> dict[str, list[str]]:
        """Split -> its questions, for choosing one; empty where the data cannot be read."""
        splits = self.benchmark.splits if self.benchmark is not None else {}
        listed = {name: [e.prompt for e in rows if e.prompt and not e.bare and not e.history][:SHOWN] for name, rows in splits.items()}
        return {name: prompts for name, prompts in listed.items() if prompts}

    def example(self, prompt: str) -> Example | None:
        """The example that asks this, if the data has one."""
        splits = self.benchmark.splits.values() if self.benchmark is not None else ()
        return next((e for rows in splits for e in rows if e.prompt.strip() == prompt.strip() and not e.bare and not e.history), None)


def _there(spec: ModelSpec) -> ModelSpec | str:
    """The model, or a sentence that it is gone; a hub id is taken at its word."""
    for path in (spec.path, spec.adapter or ""):
        if path.startswith((".", "/", "~")) and not Path(path).expanduser().exists():
            return f"it is not where it was any more ({path})"
    return spec


def find_runs(folders: Sequence[Path]) -> dict[str, Run]:
    """Name -> run, for run folders and for folders of run folders.

    Raises:
        InputError: a folder is neither, or there is no run at all.
    """
    places: list[Path] = []
    for folder in folders:
        inside = [folder] if _is_run(folder) else sorted(path for path in folder.iterdir() if _is_run(path)) if folder.is_dir() else []
        if not inside:
            raise InputError(f"{folder} is neither the folder of a finished run nor a folder of such: make one with `excise demo` or `excise run`")
        places += inside
    found: dict[str, Run] = {}
    for place in dict.fromkeys(path.resolve() for path in places):
        name, number = place.name, 1
        while name in found:
            number += 1
            name = f"{place.name} ({number})"
        found[name] = Run(place, name)
    return found


def _is_run(folder: Path) -> bool:
    return (folder / "result.json").is_file() and (folder / "model").is_dir()


@dataclass
class Shelf:
    """Loaded models, at most ``room`` of them: the one that was used least recently goes first."""

    room: int = 3
    loaded: OrderedDict[ModelSpec, Subject] = field(default_factory=OrderedDict)

    def has(self, spec: ModelSpec) -> bool:
        return spec in self.loaded

    def take(self, spec: ModelSpec) -> Subject:
        """The model, loaded if it is not there."""
        from excise.loading import load

        if spec not in self.loaded:
            while len(self.loaded) >= self.room:
                self.loaded.popitem(last=False)
                gc.collect()
            self.loaded[spec] = load(spec)
        self.loaded.move_to_end(spec)
        return self.loaded[spec]
