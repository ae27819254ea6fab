"""Several attacks on one model, one after the other, and what a run keeps of them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from excise import registry
from excise.attacks import outcomes
from excise.attacks.relearn import steps_to_half
from excise.attacks.scene import Attack, Outcome, Scene
from excise.errors import InputError
from excise.evaluation.score import Score
from excise.evaluation.store import answering, write_records
from excise.evaluation.suites import per_example
from excise.settings import build, plain

PHASE = "attack:"
TWIN = "@retrained"
SPLIT = "forget"


@dataclass(frozen=True)
class Named:
    """An attack and what its phase is called."""

    label: str
    attack: Attack


def build_attacks(entries: Iterable[Any]) -> tuple[Named, ...]:
    """Attacks from a recipe's ``attacks``: names, or mappings with ``name``, settings and perhaps a ``label``.

    Raises:
        InputError: an unknown attack or setting; two of the same label.
    """
    found: list[Named] = []
    for number, entry in enumerate(entries):
        settings = {"name": entry} if isinstance(entry, str) else entry
        if not isinstance(settings, Mapping) or "name" not in settings:
            raise InputError(f"attacks.{number}: expected a name or a mapping with 'name'")
        name, label = str(settings["name"]), str(settings.get("label") or settings["name"])
        if any(label == other.label for other in found):
            raise InputError(f"attacks.{number}: there are two attacks called {label!r}: give one of them a 'label'")
        if "@" in label or "/" in label or ":" in label:
            raise InputError(f"attacks.{number}: the label {label!r} may not contain @, / or :")
        values = {key: value for key, value in settings.items() if key not in ("name", "label")}
        found.append(Named(label, build(registry.find("attacks", name), values, f"attacks.{label}")))
    return tuple(found)


def expanded(attacks: Sequence[Named]) -> list[dict[str, Any]]:
    """The attacks with every default, as a recipe writes them."""
    rows = []
    for named in attacks:
        name = registry.name_of("attacks", type(named.attack))
        rows.append({"name": name, **({"label": named.label} if named.label != name else {}), **plain(named.attack)})
    return rows


def run_attacks(
    attacks: Sequence[Named], scene: Scene, whose: str, folder: Path, *, redact: bool, costs: dict[str, dict[str, float]] | None = None
) -> dict[str, dict[str, Any]]:
    """Runs every attack on the scene's model and writes the records of each beside the others.

    Args:
        whose: added to the phases' names (empty, or :data:`TWIN`).
        costs: is filled with what each attack took: phase -> ``seconds``, on this machine, evaluation included (when it was run,
            where its outcome is taken from the cache).

    Returns:
        phase -> what stands under it in result.json.
    """
    phases: dict[str, dict[str, Any]] = {}
    model = answering(scene.subject) if attacks and scene.cache is not None else ""
    for named in attacks:
        who = "the twin" if whose else "the model"
        scene.narrator.say(f"Attack on {who}: {named.label}.")
        begun, place = time.perf_counter(), outcomes.place(named.attack, scene, model)
        known = outcomes.read(place)
        if known is not None:
            outcome, seconds = known
            scene.narrator.say("  It was run before; what came of it is taken from the cache.")
        else:
            outcome = named.attack(dataclasses.replace(scene, folder=None if scene.folder is None else scene.folder / f"{named.label}{whose}"))
            seconds = round(time.perf_counter() - begun, 1)
            outcomes.write(place, outcome, seconds)
        phase = f"{PHASE}{named.label}{whose}"
        if outcome.records:
            write_records(folder, phase, outcome.records, redact=redact, scores=per_example(outcome.records, scene.suite))
        phases[phase] = as_json(outcome, scene.suite.name)
        if costs is not None:
            costs[phase] = {"seconds": seconds}
    return phases


def as_json(outcome: Outcome, suite: str) -> dict[str, Any]:
    """An outcome as result.json holds it."""
    found: dict[str, Any] = {suite: {name: score.to_json() for name, score in outcome.scores.items()}}
    return {**found, "curve": [dict(point) for point in outcome.curve]} if outcome.curve else found


def add_steps_to_half(evaluations: dict[str, dict[str, Any]], suite: str) -> None:
    """Adds ``<score>.steps_to_half`` to every relearning that has a curve, once it is known what was lost."""
    for phase, found in evaluations.items():
        curve = found.get("curve", [])
        if not phase.startswith(PHASE) or not any("step" in point for point in curve):
            continue
        name = next((key for key in curve[0] if key.startswith(f"{SPLIT}.") and "@" not in key), None)
        levels = [_value(evaluations, place, suite, name) for place in ("before", "after")]
        if name is None or None in levels or suite not in found:
            continue
        before, after = cast(list[float], levels)
        found[suite]["steps_to_half"] = steps_to_half(tuple(curve), name, before, after).to_json()


def _value(evaluations: Mapping[str, Mapping[str, Any]], phase: str, suite: str, name: str | None) -> float | None:
    row = evaluations.get(phase, {}).get(suite, {}).get(name) if name else None
    return None if row is None else Score.from_json(row).value
