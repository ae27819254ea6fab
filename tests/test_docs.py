"""What the pages of the docs tell people to type: commands that exist with the options they are given, recipes that parse, code that runs."""

from __future__ import annotations

import inspect
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import typer.main
import yaml

from concept_world import EMBER
from conftest import REPOSITORY, logits, tiny
from contract import check_objective
from excise import registry
from excise.cli import app
from excise.lesson import Lesson
from excise.loading import load
from excise.objectives import NPO
from excise.recipe import Recipe
from excise.run import unlearn
from excise.saving import save
from excise.sweep.space import Space
from test_features import concept_folder
from test_maat import small_recipe

PAGES = sorted([*(REPOSITORY / "docs").glob("*.md"), REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md"])
BLOCKS = [
    (page.name, number, language, text)
    for page in PAGES
    for number, (language, text) in enumerate(re.findall(r"^```(\w+)\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.S | re.M))
]
"""Page, number on the page, language and text of every block of code."""
SHELL = [
    (page, line.strip())
    for page, _, language, text in BLOCKS
    if language in ("sh", "bash")
    for line in text.replace("\\\n", " ").splitlines()
    if line.strip()
]
OTHER_COMMANDS = (".ci/run", "make", "hf", "export", "pip", "git", "accelerate", "torchrun", "python")
BASE: dict[str, Any] = {"model": "embedded:smollm2", "data": {"name": "strangers"}, "method": {"name": "npo"}}
RECIPE, LESSON = set(Recipe.__dataclass_fields__), set(Lesson.__dataclass_fields__)


def test_there_is_something_to_check() -> None:
    fences = [line for page in PAGES for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("```")]
    assert len(fences) == 2 * len(BLOCKS), "every block says what language it is in"
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
"""Page -> what has to stand before its block of Python. Those that need a finished run have tests of their own."""


def test_no_block_of_python_is_left_out() -> None:
    pages = {page for page, _, language, _ in BLOCKS if language == "python"}
    assert pages == {*RUN, "ember.md", "maat.md", "requests.md", "numerics.md", "add-your-own.md", "README.md"}  # README: test_readme


@pytest.mark.parametrize("page", RUN)
def test_the_python_runs(page: str, tmp_path: Path) -> None:
    save(tiny("llama"), tmp_path / "runs" / "first" / "model", provenance={})
    ran = subprocess.run([sys.executable, "-c", RUN[page] + python_of(page)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def python_of(page: str) -> str:
    """All blocks of Python of a page, one after the other."""
    code = "\n".join(text for name, _, language, text in BLOCKS if name == page and language == "python")
    assert code
    return code


def test_taking_embers_edit_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    original = tiny("llama")
    data = {"name": "concepts", "path": concept_folder(tmp_path / "data"), "concept": "Lighthouse"}
    evaluation = {"limit": 1, "max_new_tokens": 2, "suite": "text"}
    unlearn(Recipe.parse({"model": original.source, "data": data, "method": {"name": "ember", **EMBER}, "evaluation": evaluation}), "runs/rome")
    said: dict[str, Any] = {}
    exec(python_of("ember.md"), said)
    assert said["subject"].tied == original.tied
    assert torch.equal(logits(said["subject"]), logits(original))


def test_taking_maats_edits_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    unlearn(Recipe.parse(small_recipe(tmp_path)), "runs/maat")
    said: dict[str, Any] = {}
    exec(python_of("maat.md"), said)
    assert not torch.equal(logits(said["subject"]), logits(load("runs/maat/model")))


def test_the_request_in_python(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from excise.requests import forget as module

    original, asked = module.forget, []

    def pretended(*arguments: Any, **options: Any) -> dict[str, Any]:
        asked.append(inspect.signature(original).bind(*arguments, **options).arguments)
        return {"met": False, "why_not": ["it was not tried"]}

    monkeypatch.setattr(module, "forget", pretended)  # it takes minutes; test_requests does it in small
    exec(python_of("requests.md"), {})
    assert asked[0]["asked"].subject == "Ancient Rome"
    assert capsys.readouterr().out == "NOT MET: it was not tried.\n"


def test_the_contract_that_a_plug_in_is_held_to() -> None:
    said: dict[str, Any] = {"MyLoss": NPO}
    exec(python_of("numerics.md"), said)
    said["test_my_loss"]()
    exec(python_of("add-your-own.md"), said)
    check_objective(said["Hinge"](floor=-3.0))


@pytest.mark.parametrize(("page", "number", "text"), [(page, n, text) for page, n, language, text in BLOCKS if language == "python"])
def test_all_python_compiles_and_imports_what_there_is(page: str, number: int, text: str) -> None:
    compile(text, f"{page}:{number}", "exec")
    for statement in re.findall(r"^from excise[\w.]* import .*$|^import excise.*$", text, flags=re.M):
        exec(statement, {})
