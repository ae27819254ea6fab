"""A first result in minutes: teach a small real model invented people, make it forget some of them, and look."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from excise.embedded import pull
from excise.environment import version
from excise.files import cache_folder
from excise.recipe import Recipe
from excise.run import unlearn
from excise.stages.state import Narrator
from excise.teach import Lesson, teach

MODEL = "smollm2"
METHOD = "t_npo"
"""The preset that a demo runs unless another is named."""

TRAINING: dict[str, Any] = {"epochs": 8, "batch": 8, "lr": 2e-4, "warmup": 0.1, "schedule": "cosine", "checkpoint_every": 0}
"""How target and twin are taught."""

SETTINGS: dict[str, dict[str, Any]] = {}
"""Method -> settings that suit the embedded model, where its defaults do not."""


@dataclass(frozen=True)
class Size:
    """How much the demo does."""

    people: Mapping[str, int]


FULL = Size({"forget_people": 4, "retain_people": 16, "holdout_people": 4})
QUICK = Size({"forget_people": 2, "retain_people": 6, "holdout_people": 2})


def taught(size: Size, narrator: Narrator, seed: int = 0) -> Path:
    """The folder with target and twin; taught once and kept in the cache."""
    lesson = Lesson.parse({"model": f"embedded:{MODEL}", "data": {"name": "strangers", **size.people}, "training": TRAINING, "seed": seed})
    parts = [lesson.to_yaml(), version("torch"), version("transformers"), lesson.loader()().fingerprint]
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]
    folder = cache_folder() / "taught" / key
    if (folder / "teach.json").exists():
        narrator.say("The target and its twin have been taught before; they are taken from the cache.")
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    leftover = folder.parent / f".{folder.name}.unfinished"
    return teach(lesson, folder, resume=leftover.exists(), narrator=narrator)


def demo(method: str, out: Path, narrator: Narrator, quick: bool = False, seed: int = 0) -> dict[str, Any]:
    """Runs the demo and returns its result; the run folder is ``out``."""
    size = QUICK if quick else FULL
    pull(MODEL, echo=narrator.say)
    models = taught(size, narrator, seed)
    recipe = Recipe.parse(
        {
            "model": str(models / "target"),
            "data": {"name": "strangers", **size.people},
            "method": {"name": method, "checkpoint_every": 0, **SETTINGS.get(method, {})},
            "evaluation": {"retrained": str(models / "twin")},
            "seed": seed,
        }
    )
    narrator.say(f"Unlearning the forget people with {method}.")
    return unlearn(recipe, out, narrator=narrator)


def next_folder(method: str, root: Path = Path("runs")) -> Path:
    """runs/demo-<method>-<n>, the first that does not exist."""
    number = 1
    while (root / f"demo-{method}-{number}").exists():
        number += 1
    return root / f"demo-{method}-{number}"
