"""What the pages of the docs tell people to type: commands that exist with the options they are given, recipes that parse, code that runs."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from conftest import REPOSITORY, tiny
from excise import registry
from excise.cli import app
from excise.objectives import NPO
from excise.recipe import Recipe
from excise.saving import save
from excise.sweep.space import Space
from excise.teach import Lesson

PAGES = sorted([*(REPOSITORY / "docs").glob("*.md"), REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md"])
BLOCKS = [
    (page.name, number, language, text)
    for page in PAGES
    for number, (language, text) in enumerate(re.findall(r"^```(\w+)\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.S | re.M))
]
"""Page, number on the page, language and text of every block of code."""
SHELL = [(page, line.strip()) for page, _, language, text in BLOCKS if language in ("sh", "bash") for line in text.splitlines() if line.strip()]
OTHER_COMMANDS = (".ci/run", "make", "hf", "export", "pip", "git", "accelerate", "torchrun", "python")
BASE: dict[str, Any] = {"model": "embedded:smollm2", "data": {"name": "strangers"}, "method": {"name": "npo"}}
RECIPE, LESSON = set(Recipe.__dataclass_fields__), set(Lesson.__dataclass_fields__)


def test_there_is_something_to_check() -> None:
    assert len(SHELL) > 25
    assert len([1 for _, _, language, _ in BLOCKS if language == "yaml"]) > 15
    assert {language for _, _, language, _ in BLOCKS} <= {"sh", "bash", "python", "yaml", "json", "toml", "text"}


@pytest.mark.parametrize(("page", "line"), SHELL)
def test_every_command_takes_what_it_is_given(page: str, line: str) -> None:
    words = shlex.split(line, comments=True)
    if words[0] in OTHER_COMMANDS and "excise" not in words:
        return
    words = words[words.index("excise") + 1 :]
    group: Any = typer.main.get_command(app)
    context = group.make_context("excise", list(words), resilient_parsing=True)
    while hasattr(group, "resolve_command"):
        name, group, words = group.resolve_command(context, words)
        assert group is not None, f"{page}: there is no command {name}"
        context = group.make_context(name, list(words), parent=context, resilient_parsing=hasattr(group, "resolve_command"))


@pytest.mark.parametrize(("page", "number", "text"), [(page, n, text) for page, n, language, text in BLOCKS if language == "yaml"])
def test_every_recipe_parses(page: str, number: int, text: str) -> None:
    found = yaml.safe_load(text)
    if page == "add-your-own.md":  # the page's own plug-in, which test_registry installs
        registry.register("objectives", "hinge", NPO)
        found["method"]["terms"][0]["objective"] = "hinge"
    try:
        _parse(page, number, found)
    finally:
        if page == "add-your-own.md":
            registry.unregister("objectives", "hinge")


def _parse(page: str, number: int, found: Any) -> None:
    if isinstance(found, dict) and found.keys() <= RECIPE:
        Recipe.parse({**BASE, **found})
    elif isinstance(found, dict) and found.keys() <= LESSON:
        Lesson.parse({**{key: BASE[key] for key in ("model", "data")}, **found})
    elif isinstance(found, dict) and page == "sweeps.md":
        Space.parse(found)
    else:
        pytest.fail(f"{page}, block {number}: this is no recipe, no lesson and no search space: {found}")


RUN: dict[str, str] = {
    "strangers.md": "",
    "export.md": "",
    "judges.md": "from excise.evaluation.records import Record\n"
    "records = {'forget': [Record('a', 'Who?', 'Anna Brandt.', span='Anna', generation='Anna')]}\n",
}
"""Page -> what has to stand before its block of Python. The others need a finished run, or are parts of a plug-in that test_registry installs."""


@pytest.mark.parametrize("page", RUN)
def test_the_python_runs(page: str, tmp_path: Path) -> None:
    save(tiny("llama"), tmp_path / "runs" / "first" / "model", provenance={})
    code = "\n".join(text for name, _, language, text in BLOCKS if name == page and language == "python")
    assert code
    ran = subprocess.run([sys.executable, "-c", RUN[page] + code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(("page", "number", "text"), [(page, n, text) for page, n, language, text in BLOCKS if language == "python"])
def test_all_python_compiles_and_imports_what_there_is(page: str, number: int, text: str) -> None:
    compile(text, f"{page}:{number}", "exec")
    for statement in re.findall(r"^from excise[\w.]* import .*$|^import excise.*$", text, flags=re.M):
        exec(statement, {})
