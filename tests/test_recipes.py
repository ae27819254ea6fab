"""Every ready recipe loads, and every example in the docs that is code runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from conftest import REPOSITORY
from contract import check_objective
from excise.demo import ATTRIBUTION, BALANCE, CONCEPT_SETTINGS, SHARED, SYSTEM, TRAINING
from excise.lesson import Lesson
from excise.recipe import Recipe
from excise.stages.state import Silent

RECIPES = sorted((REPOSITORY / "recipes").glob("*.yaml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_ready_recipe_loads(path: Path) -> None:
    if path.stem.startswith("teach"):
        assert Lesson.load(path).twin
    else:
        recipe = Recipe.load(path)
        method = yaml.safe_load(recipe.to_yaml())["method"]
        assert "+".join(part["name"] for part in (method if isinstance(method, list) else [method])) == path.stem.split("-")[1]


def test_the_recipes_of_the_demo_are_what_the_demo_runs() -> None:
    lesson = Lesson.load(REPOSITORY / "recipes" / "teach-strangers.yaml")
    assert lesson.spec().system == SYSTEM
    for name, value in TRAINING.items():
        if name != "checkpoint_every":
            assert getattr(lesson.training, name) == value
    method: dict[str, Any] = dict(Recipe.load(REPOSITORY / "recipes" / "strangers-t_wga.yaml").method)
    expected = {"name": "t_wga", **{k: v for k, v in SHARED.items() if k != "checkpoint_every"}, **BALANCE["wga"], "attribution": ATTRIBUTION}
    assert method == expected


def test_the_objective_of_the_docs_passes_the_contract() -> None:
    text = (REPOSITORY / "docs" / "add-your-own.md").read_text(encoding="utf-8")
    code = re.findall(r"^```python\n(.*?)^```", text, flags=re.S | re.M)[0]
    space: dict[str, Any] = {}
    exec(code, space)
    check_objective(space["Hinge"]())


def test_the_demo_with_a_concept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from excise import demo as module

    asked: list[Recipe] = []
    monkeypatch.setattr(module, "pull", lambda name, echo: None)
    monkeypatch.setattr(module, "unlearn", lambda recipe, out, narrator: asked.append(recipe) or {"evaluations": {}})
    module.concept_demo("ancient egypt", "ember+rmu", tmp_path / "run", Silent())
    (recipe,) = asked
    assert [name for name, _ in recipe.methods()] == ["ember", "rmu"]
    assert recipe.benchmark_loader()().split("relearn")
    assert [named.label for named in recipe.attack_list()] == ["relearn", "quantise"]
    module.concept_demo("Golf", "ember", tmp_path / "run", Silent(), data=tmp_path, attacks=False)
    assert asked[1].data["path"] == str(tmp_path)
    refused_line = subprocess.run(
        [sys.executable, "-m", "excise", "demo", "--concepts", str(tmp_path)], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert refused_line.returncode == 2
    assert "--concept NAME" in refused_line.stderr


def test_the_recipe_of_the_chain_is_what_the_demo_with_a_concept_runs() -> None:
    method: dict[str, Any] = dict(yaml.safe_load((REPOSITORY / "recipes" / "concepts-ember+rmu.yaml").read_text())["method"])
    assert method == {"name": "ember+rmu", **CONCEPT_SETTINGS["ember"], **CONCEPT_SETTINGS["rmu"]}
