"""Reading ``result.json`` (schema 1) into typed values, with one clear line where it cannot be read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from excise.errors import InputError
from excise.files import read_json

SCHEMA = 1
PHASES = ("before", "after", "retrained")
ATTACK = "attack:"
TWIN = "@retrained"
ALONG = ("step", "layer", "trial")

Better = Literal["higher", "lower", "none"]


@dataclass(frozen=True)
class Score:
    """One measured number, or the reason why there is none."""

    value: float | None
    better: Better
    n: int | None
    interval: tuple[float, float] | None
    """The 95 % confidence interval."""
    unavailable: str

    def apart_from(self, other: Score) -> bool | None:
        """Whether the two 95 % intervals do not touch; None where one is not known."""
        if self.interval is None or other.interval is None:
            return None
        return self.interval[1] < other.interval[0] or other.interval[1] < self.interval[0]


@dataclass(frozen=True)
class Evaluation:
    """All scores of one phase, by suite, and the curve of an attack that has steps."""

    suites: Mapping[str, Mapping[str, Score]]
    curve: tuple[Mapping[str, float | None], ...] = ()

    @property
    def along(self) -> str:
        """What the curve runs along: ``step``, ``layer`` or ``trial``."""
        return next((key for point in self.curve for key in ALONG if key in point), ALONG[0])


@dataclass(frozen=True)
class StageCost:
    """What one stage took. None: the run did not say."""

    name: str
    seconds: float | None
    steps: float | None
    tokens: float | None
    peak_memory_mb: float | None
    changed_parameters: float | None

    @property
    def tokens_per_second(self) -> float | None:
        return self.tokens / self.seconds if self.tokens is not None and self.seconds else None


@dataclass(frozen=True)
class Result:
    """What one run says about itself."""

    folder: Path
    excise: str
    recipe: Mapping[str, Any]
    environment: Mapping[str, Any]
    stages: tuple[StageCost, ...]
    evaluations: Mapping[str, Evaluation]
    edits: tuple[Mapping[str, Any], ...] = ()
    """The records of stages that say what they edited, as they stand in the file."""
    verdict: tuple[str, ...] = ()
    """Plain-language lines that the run wrote itself; empty: the report computes them."""

    @property
    def name(self) -> str:
        return self.folder.resolve().name or str(self.folder)

    @property
    def redacted(self) -> bool:
        """Whether the run promised to keep no prompt, answer or generation."""
        return self.recipe.get("privacy") == "redact"

    @property
    def attacks(self) -> tuple[str, ...]:
        """The phases that are attacks on the unlearned model, without those on the twin."""
        return tuple(p for p in self.evaluations if p.startswith(ATTACK) and not p.endswith(TWIN))

    def score(self, phase: str, suite: str, name: str) -> Score | None:
        evaluation = self.evaluations.get(phase)
        return evaluation.suites.get(suite, {}).get(name) if evaluation else None


def load_result(folder: Path) -> Result:
    """The result of a finished run folder."""
    path = Path(folder) / "result.json"
    if not Path(folder).is_dir():
        raise InputError(f"{folder} is not a folder: give the folder that `excise run` or `excise demo` wrote")
    if not path.is_file():
        raise InputError(f"{folder} is not a finished run: it holds no result.json")
    raw = mapping(read_json(path), str(path))
    schema = raw.get("schema")
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1:
        raise InputError(f"{path}: 'schema' is {schema!r}, and a whole number from 1 was expected")
    if schema > SCHEMA:
        raise InputError(f"{path} has schema {schema} and this excise reads up to {SCHEMA}: upgrade with `pip install -U excise`")
    verdict = sequence(raw.get("verdict", []), f"{path}: verdict")
    stages = [mapping(row, f"{path}: stages") for row in sequence(raw.get("stages", []), f"{path}: stages")]
    return Result(
        folder=Path(folder),
        excise=str(raw.get("excise", "")),
        recipe=mapping(raw.get("recipe", {}), f"{path}: recipe"),
        environment=mapping(raw.get("environment", {}), f"{path}: environment"),
        stages=tuple(_stage(row, f"{path}: stages") for row in stages),
        edits=tuple(row for row in stages if "edit" in row or "ranks" in row),
        evaluations={
            phase: _evaluation(value, f"{path}: evaluations.{phase}")
            for phase, value in mapping(raw.get("evaluations", {}), f"{path}: evaluations").items()
        },
        verdict=tuple(map(str, verdict)),
    )


def mapping(value: object, where: str) -> dict[str, Any]:
    """An object of a JSON file, or an error that says where it should have been."""
    if not isinstance(value, dict):
        raise InputError(f"{where}: expected an object, got {type(value).__name__}")
    return cast("dict[str, Any]", value)


def sequence(value: object, where: str) -> list[Any]:
    """A list of a JSON file, or an error that says where it should have been."""
    if not isinstance(value, list):
        raise InputError(f"{where}: expected a list, got {type(value).__name__}")
    return cast("list[Any]", value)


def number(value: object, where: str) -> float | None:
    """A number of a JSON file. ``null`` stays None; NaN and infinity, which Python's reader lets through, are errors."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InputError(f"{where}: expected a number or null, got {value!r}")
    return float(value)


def _evaluation(value: object, where: str) -> Evaluation:
    phase = mapping(value, where)
    suites = {
        suite: {name: _score(row, f"{where}.{suite}.{name}") for name, row in mapping(scores, f"{where}.{suite}").items()}
        for suite, scores in phase.items()
        if suite != "curve"
    }
    points = (mapping(row, f"{where}.curve") for row in sequence(phase.get("curve", []), f"{where}.curve"))
    return Evaluation(suites, tuple({name: number(v, f"{where}.curve.{name}") for name, v in point.items()} for point in points))


def _score(value: object, where: str) -> Score:
    row = mapping(value, where)
    better = row.get("better", "none")
    if better not in ("higher", "lower", "none"):
        raise InputError(f"{where}: 'better' is {better!r}; allowed: higher, lower, none")
    count = number(row.get("n"), f"{where}.n")
    return Score(
        value=number(row.get("value"), f"{where}.value"),
        better=better,
        n=None if count is None else int(count),
        interval=_interval(row.get("ci95"), f"{where}.ci95"),
        unavailable=str(row.get("unavailable") or ""),
    )


def _interval(value: object, where: str) -> tuple[float, float] | None:
    if value is None:
        return None
    ends = [number(end, where) for end in sequence(value, where)]
    if len(ends) != 2 or ends[0] is None or ends[1] is None:
        raise InputError(f"{where}: expected two numbers, got {value!r}")
    return min(ends[0], ends[1]), max(ends[0], ends[1])


def _stage(row: Mapping[str, Any], where: str) -> StageCost:
    fields = ("seconds", "steps", "tokens", "peak_memory_mb", "changed_parameters")
    return StageCost(str(row.get("name", "")), *(number(row.get(field), f"{where}.{field}") for field in fields))
