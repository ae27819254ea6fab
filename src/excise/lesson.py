"""Teaching: a target model that learned everything, and its twin that learned everything but the forget split."""

from __future__ import annotations

import dataclasses
import gc
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from excise import environment as surroundings
from excise import registry
from excise.data.example import Benchmark, Example
from excise.errors import InputError, did_you_mean
from excise.files import write_json
from excise.loading import ModelSpec, load
from excise.methods import Training
from excise.objectives import NLL
from excise.parallel import ranks
from excise.parallel.sharding import resolve
from excise.precision import resolve_precision
from excise.run import run_stages, shared_folder, work_folder
from excise.saving import save
from excise.settings import build, number_like, overridden, plain, read_yaml, refuse_unknown
from excise.stages.guard import Guard
from excise.stages.state import Narrator, Silent, State
from excise.stages.train import Term

Pupil = Literal["target", "twin"]


@dataclass(frozen=True)
class Lesson:
    """What is taught to which model, and how."""

    model: Any
    """The model that learns, as in a recipe."""
    data: Mapping[str, Any]
    """The benchmark: target learns forget and retain, the twin only retain."""
    training: Training = field(default_factory=lambda: Training(epochs=6, guard=Guard(every=0)))
    twin: bool = True
    """Teach the twin as well."""
    seed: int = 0
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    parallel: Literal["auto", "copies", "shards"] = "auto"
    """As in a recipe."""

    @staticmethod
    def load(path: str | Path, overrides: Sequence[str] = ()) -> Lesson:
        """Reads and checks a lesson file."""
        return Lesson.parse(read_yaml(Path(path)), overrides)

    @staticmethod
    def parse(settings: Mapping[str, Any], overrides: Sequence[str] = ()) -> Lesson:
        """Checks settings that are already in memory."""
        values = overridden(number_like(dict(settings)), overrides)
        refuse_unknown(values, [f.name for f in dataclasses.fields(Lesson)], "")
        for needed in ("model", "data"):
            if needed not in values:
                raise InputError(f"the lesson has no {needed!r}: it needs model and data")
        if isinstance(values["data"], str):
            values["data"] = {"name": values["data"]}
        if isinstance(values.get("training"), Mapping):
            values["training"] = {"epochs": 6, "guard": {"every": 0}, **values["training"]}
        lesson = build(Lesson, values, "")
        lesson.loader()
        lesson.spec()
        return lesson

    def loader(self) -> Any:
        """The benchmark's loader with its settings."""
        settings = dict(self.data)
        if "name" not in settings:
            raise InputError(f"data: no 'name'; {did_you_mean('', registry.names('benchmarks'))}")
        return build(registry.find("benchmarks", str(settings.pop("name"))), settings, "data")

    def spec(self) -> ModelSpec:
        """Which model to load."""
        return build(ModelSpec, {"path": self.model} if isinstance(self.model, str) else dict(self.model), "model")

    def to_yaml(self) -> str:
        """The lesson with every default."""
        values = {**plain(self), "model": plain(self.spec()), "data": {"name": self.data["name"], **plain(self.loader())}}
        return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def teach(lesson: Lesson, out: str | Path, *, resume: bool = False, overwrite: bool = False, narrator: Narrator | None = None) -> Path:
    """Leaves ``out/target`` and ``out/twin`` behind, both ordinary model (or adapter) folders, and ``out/teach.json``."""
    ranks.start()
    narrator = narrator if narrator is not None and ranks.is_main() else Silent()
    shared = shared_folder(Path(out))
    with work_folder(Path(out), lesson.to_yaml(), resume=resume, overwrite=overwrite) as work:
        benchmark: Benchmark = lesson.loader()()
        benchmark.require("forget", "retain")
        told: dict[str, Any] = {}
        pupils: tuple[Pupil, ...] = ("target", "twin") if lesson.twin else ("target",)
        for pupil in pupils:
            place = shared / pupil
            if not ranks.from_main(lambda place=place: (place / "excise.json").exists()):
                told[pupil] = _teach_one(lesson, benchmark, pupil, shared, resume, narrator)
        write_json(work / "teach.json", told)
    return Path(out)


def _teach_one(lesson: Lesson, benchmark: Benchmark, pupil: Pupil, work: Path, resume: bool, narrator: Narrator) -> dict[str, Any]:
    learned: tuple[Example, ...] = (*benchmark.forget, *benchmark.retain) if pupil == "target" else benchmark.retain
    narrator.say(
        f"Teaching the {pupil} {len(learned)} facts"
        + (
            ", those to be forgotten among them."
            if pupil == "target"
            else ": all but those to be forgotten. It shows what a model that never knew looks like."
        )
    )
    subject = load(lesson.spec())
    precision = resolve_precision(lesson.precision, subject.device)
    folder = work / f"{pupil}-training"
    state = State(
        subject, benchmark, {"forget": (), "retain": learned}, lesson.seed, precision, folder=folder, narrator=narrator, resume=resume,
        parallel=resolve(lesson.parallel, os.environ),
    )  # fmt: skip
    folder.mkdir(exist_ok=True)
    run_stages(state, list(lesson.training.stages(Term(NLL(), "retain"))))
    around = surroundings.environment(subject, benchmark, seed=lesson.seed, precision=precision)
    provenance = {
        "taught": {"pupil": pupil, "facts": len(learned), "training": plain(lesson.training)},
        "data_fingerprint": benchmark.fingerprint,
        "versions": around["versions"],
        "seed": lesson.seed,
    }
    if ranks.is_main():
        save(subject, work / pupil, provenance=provenance, overwrite=True)
    ranks.wait()
    record = {"stages": state.records, "plan": state.plan}
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    del subject, state
    gc.collect()
    return record
