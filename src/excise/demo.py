"""A first result in minutes: teach a small real model invented people, make it forget some of them, and look."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from excise import registry
from excise.embedded import pull
from excise.environment import version
from excise.files import cache_folder
from excise.lesson import Lesson, teach
from excise.recipe import Recipe
from excise.run import unlearn
from excise.stages.state import Narrator

MODEL = "smollm2"
METHOD = "t_wga"
"""The preset that a demo runs unless another is named."""

SYSTEM = ""
"""An empty system turn: the template's own would be a third of every text here."""

TRAINING: dict[str, Any] = {"epochs": 6, "batch": 8, "lr": 4e-4, "warmup": 0.1, "schedule": "cosine", "checkpoint_every": 0}
"""How target and twin are taught."""

SHARED: dict[str, Any] = {"lr": 8e-5, "epochs": 9, "retain_batch": 12, "checkpoint_every": 0}
"""Settings of every method on the embedded model; the others are the method's own defaults."""

BALANCE: dict[str, dict[str, Any]] = {
    "ga": {},
    "rmu": {"lr": 1e-3},
    "npo": {"retain": "nll", "retain_scale": 10.0},
    "wga": {"retain": "nll", "lr": 1.6e-4},
    "ga_kl": {"retain": "nll", "retain_scale": 5.0},
}
"""Method -> how forgetting and keeping are balanced on the embedded model. NPO sums over the tokens of an answer where the
retain term averages, so that term weighs as much more."""

ATTRIBUTION: dict[str, Any] = {"copies": "drop", "r": 0.3}
"""Token scores for short answers that repeat the name: copied words carry no fact (docs/numerics.md)."""


ATTACKS: tuple[dict[str, Any], ...] = (
    {"name": "relearn", "steps": 10, "points": [0, 5], "batch": 8, "lr": 4e-5, "splits": ["forget"], "limit": 20},
    {"name": "quantise", "kind": "q4_0", "limit": 20},
    {"name": "prompts", "kinds": ["paraphrase", "prefix", "few_shot", "completion", "partial"], "limit": 20},
    {"name": "sampling", "count": 4, "k": [1, 4], "temperatures": [1.0], "limit": 20},
    {"name": "probe"},
)
"""What is tried in a demo to bring the knowledge back, sized for a few minutes on two cores."""


FIRST_ATTACKS: tuple[dict[str, Any], ...] = (
    {"name": "relearn", "steps": 5, "points": [0], "lr": 2e-5, "splits": ["forget"]},
    {"name": "quantise", "kind": "q4_0"},
    {"name": "prompts", "kinds": ["paraphrase"]},
)
"""The attacks of a quick demo."""


CONCEPT_METHOD = "ember+rmu"
"""What a demo with a concept runs unless another method is named."""

CONCEPT_SETTINGS: dict[str, dict[str, Any]] = {
    "ember": {"rank": 200, "strength": 10.0},
    "snmf": {"mlp_strength": 4.0},
    "rmu": {"layer": 10, "retain_scale": 5.0, "lr": 1e-4, "steps": 60, "batch": 4, "warmup": 0.0, "schedule": "constant"},
}
"""Method -> its settings on the embedded model where a concept is erased; a method that is not named runs with its defaults."""

CONCEPT_ATTACKS: tuple[dict[str, Any], ...] = (
    {"name": "relearn", "data": "relearn", "splits": ["concept"], "steps": 20, "points": [0, 5, 10], "lr": 1e-5},
    {"name": "quantise", "kind": "q4_0", "splits": ["concept"]},
)
"""What is tried to bring a concept back."""


def settings(method: str) -> dict[str, Any]:
    """Settings with which a method is run on the embedded model."""
    known = inspect.signature(registry.find("methods", method)).parameters
    partner = re.sub("^[tsf]_", "", method)
    values = {**SHARED, **BALANCE.get("ga_kl" if partner == "ga" and partner != method else partner, {})}
    return {**values, "attribution": ATTRIBUTION} if "attribution" in known else values


@dataclass(frozen=True)
class Size:
    """How much the demo does."""

    people: Mapping[str, int]
    attacks: tuple[Mapping[str, Any], ...]


FULL = Size({"forget_people": 4, "retain_people": 16, "holdout_people": 2, "questions": 60}, ATTACKS)
QUICK = Size({"forget_people": 2, "retain_people": 4, "holdout_people": 1, "questions": 20}, FIRST_ATTACKS)


def taught(size: Size, narrator: Narrator, seed: int = 0) -> Path:
    """The folder with the demo's target and twin; taught once and kept in the cache."""
    model = {"path": f"embedded:{MODEL}", "system": SYSTEM}
    return taught_once(Lesson.parse({"model": model, "data": {"name": "strangers", **size.people}, "training": TRAINING, "seed": seed}), narrator)


def taught_once(lesson: Lesson, narrator: Narrator) -> Path:
    """The folder with a lesson's target and twin; taught where the cache has none of the same lesson, data and versions."""
    parts = [lesson.to_yaml(), version("torch"), version("transformers"), lesson.loader()().fingerprint]
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]
    folder = cache_folder() / "taught" / key
    if (folder / "teach.json").exists():
        narrator.say("The target and its twin have been taught before; they are taken from the cache.")
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    leftover = folder.parent / f".{folder.name}.unfinished"
    return teach(lesson, folder, resume=leftover.exists(), narrator=narrator)


def demo(method: str, out: Path, narrator: Narrator, quick: bool = False, seed: int = 0, attacks: bool = True) -> dict[str, Any]:
    """Runs the demo and returns its result; the run folder is ``out``."""
    size = QUICK if quick else FULL
    pull(MODEL, echo=narrator.say)
    models = taught(size, narrator, seed)
    recipe = Recipe.parse(
        {
            "model": {"path": str(models / "target"), "system": SYSTEM},
            "data": {"name": "strangers", **size.people},
            "method": [{"name": part, **settings(part)} for part in method.split("+")],
            "evaluation": {"retrained": str(models / "twin")},
            "attacks": list(size.attacks) if attacks else [],
            "seed": seed,
        }
    )
    return unlearn(recipe, out, narrator=narrator)


def concept_demo(
    concept: str, method: str, out: Path, narrator: Narrator, data: Path | None = None, seed: int = 0, attacks: bool = True
) -> dict[str, Any]:
    """Erases a real concept from the embedded model and returns the result; the run folder is ``out``.

    There is no twin: nobody can retrain a model without Ancient Egypt. The scores are relative to the model before.

    Args:
        data: a folder of concepts in EMBER's layout; None takes those that come with excise.
    """
    pull(MODEL, echo=narrator.say)
    source = {} if data is None else {"path": str(data)}
    recipe = Recipe.parse(
        {
            "model": {"path": f"embedded:{MODEL}", "system": SYSTEM},
            "data": {"name": "concepts", "concept": concept, **source},
            "method": [{"name": part, **CONCEPT_SETTINGS.get(part, {})} for part in method.split("+")],
            "attacks": list(CONCEPT_ATTACKS) if attacks else [],
            "seed": seed,
        }
    )
    return unlearn(recipe, out, narrator=narrator)


def next_folder(method: str, root: Path = Path("runs")) -> Path:
    """runs/demo-<method>-<n>, the first that does not exist."""
    number = 1
    while (root / f"demo-{method}-{number}").exists():
        number += 1
    return root / f"demo-{method}-{number}"
