"""What a certificate says, from a finished run folder."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from excise import registry
from excise.certificate.asked import asked
from excise.environment import version
from excise.errors import InputError
from excise.files import read_json
from excise.fingerprint import file_sha256
from excise.recipe import Recipe
from excise.report.result import ATTACK, PHASES, TWIN, Result, load_result
from excise.report.verdict import verdict

SCHEMA = 1
COVERED = ("result.json", "recipe.yaml", "environment.json", "train.jsonl", "attribution.jsonl", "records/*/*.jsonl")
"""Files of a run folder that a certificate covers, beside the model; the report can be written anew from them."""
CARD = "README.md"
"""The model card may be edited."""
LIMITS = (
    "This certificate says what was measured on this one model, with the questions of this one run. Nobody can measure that knowledge is gone: "
    "a low score says that the questions and attacks listed here did not find it.",
)
ALWAYS_UNTESTED = (
    "Attacks with more steps, more data or other settings than those listed.",
    "Questions in other words or languages than those of the data and of the attacks listed.",
    "Copies of the model before unlearning, its training data, and answers that were kept elsewhere.",
)


def body(folder: Path, *, include_text: bool = False) -> dict[str, Any]:
    """Everything that is signed, as plain data.

    Raises:
        InputError: the folder is no finished run, or holds no model; texts were asked for of a redacted run.
    """
    result = dataclasses.replace(load_result(folder), verdict=())  # what the run says of itself is not taken over
    raw = read_json(folder / "result.json")
    if not (folder / "model" / "excise.json").is_file():
        raise InputError(f"{folder} holds no saved model: only the folder of `excise run` or `excise demo` can be certified")
    if "after" not in result.evaluations:
        raise InputError(f"{folder}/result.json holds no evaluation after unlearning, so there is nothing to certify")
    recipe = Recipe.parse(raw["recipe"])
    data = dict(result.environment.get("data", {}))
    return {
        "certificate": SCHEMA,
        "issued": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "excise": version("excise"),
        "statement": [*LIMITS, *verdict(result)],
        "asked": {**asked(folder, recipe, str(data.get("fingerprint", "")), redacted=result.redacted, include_text=include_text), "data": data},
        "model": _model(folder, result),
        **derived(raw),
        "untested": untested(result),
        "files": run_files(folder),
    }


def derived(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The parts that stand in result.json as well: recipe, environment, stages, scores, attacks."""
    environment = {key: value for key, value in raw["environment"].items() if key not in ("example_prompt", "data", "model")}
    return {
        "recipe": raw["recipe"],
        "environment": environment,
        "stages": raw["stages"],
        "scores": raw["evaluations"],
        "attacks": _attacks(raw),
    }


def _model(folder: Path, result: Result) -> dict[str, Any]:
    record = read_json(folder / "model" / "excise.json")
    given = result.environment.get("model", {})
    return {
        "source": given.get("source", ""),
        "before": given.get("fingerprint", ""),
        "after": record["fingerprint"],
        "kind": record["kind"],
        "base": record["base"],
        "dtype": record["dtype"],
        "files": model_files(folder / "model"),
    }


def model_files(folder: Path) -> dict[str, dict[str, Any]]:
    """Name -> size and SHA-256 of every file of a model folder, without its card and hidden files."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    names = {path.relative_to(folder).as_posix(): path for path in found}
    return {name: file_entry(path) for name, path in names.items() if name != CARD and not any(part.startswith(".") for part in name.split("/"))}


def run_files(folder: Path) -> dict[str, dict[str, Any]]:
    """The same for the :data:`COVERED` files of a run folder."""
    found = sorted(path for pattern in COVERED for path in folder.glob(pattern) if path.is_file())
    return {path.relative_to(folder).as_posix(): file_entry(path) for path in found}


def file_entry(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": file_sha256(path)}


def _attacks(raw: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every attack with its settings and what it cost; null: the run did not say."""
    costs = raw.get("attack_costs", {})
    settings = {row.get("label", row.get("name")): row for row in raw["recipe"].get("attacks") or () if isinstance(row, Mapping)}
    rows = []
    for phase in raw["evaluations"]:
        if not phase.startswith(ATTACK) or phase.endswith(TWIN):
            continue
        label = phase.removeprefix(ATTACK)
        seconds = {name: costs.get(place, {}).get("seconds") for name, place in (("seconds", phase), ("seconds_on_the_twin", phase + TWIN))}
        rows.append({"label": label, "phase": phase, "settings": settings.get(label, {}), **seconds})
    return rows


def untested(result: Result) -> list[str]:
    """What this run did not try or could not measure, one sentence each."""
    lines = [_not_tried(name) for name in registry.names("attacks") if name not in _tried(result)]
    if "retrained" not in result.evaluations:
        lines.append("Whether the model now behaves like one that never learned this: no retrained twin was evaluated.")
    elif result.attacks and not any(phase.endswith(TWIN) for phase in result.evaluations):
        lines.append("The attacks were not tried on the retrained twin, so it is not known what they find in a model that never knew.")
    if "before" not in result.evaluations:
        lines.append("What the model knew before: it was not evaluated before unlearning.")
    evaluation = result.recipe.get("evaluation")
    limit = evaluation.get("limit") if isinstance(evaluation, Mapping) else None
    splits = result.environment.get("data", {}).get("splits", {})
    if limit is not None:
        lines += [
            f"{count - limit} of the {count} examples of the split {split!r}: only the first {limit} were asked."
            for split, count in splits.items()
            if count > limit
        ]
    lines += [f"{name}: {score.unavailable}" for phase in PHASES[1:2] for name, score in _scores(result, phase).items() if score.value is None]
    return [*lines, *ALWAYS_UNTESTED]


def _scores(result: Result, phase: str) -> dict[str, Any]:
    return {name: score for scores in result.evaluations[phase].suites.values() for name, score in scores.items() if "@" not in name}


def _tried(result: Result) -> set[str]:
    run = {phase.removeprefix(ATTACK) for phase in result.attacks}
    given = result.recipe.get("attacks") or ()
    return {str(row.get("name")) for row in given if isinstance(row, Mapping) and str(row.get("label", row.get("name"))) in run} | run


def _not_tried(name: str) -> str:
    summary = registry.summary(registry.find("attacks", name)).rstrip(".")
    return f"The attack {name} was not tried ({summary[:1].lower()}{summary[1:]})."
