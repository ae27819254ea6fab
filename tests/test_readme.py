"""Every command block of the README runs, in an empty HOME; what it promises is there afterwards."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from conftest import REPOSITORY, tiny
from excise import registry
from excise.recipe import Recipe
from excise.saving import save

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README, flags=re.S | re.M)
COMMANDS = [line.strip() for language, block in BLOCKS if language == "sh" for line in block.splitlines() if line.strip()]
DEMOS = [line for line in COMMANDS if line.startswith("make demo")]
RUNS = [line for line in COMMANDS if line.startswith("excise run")]
TESTED = {*DEMOS, *RUNS, "make test"}


def test_there_is_no_command_that_this_file_does_not_run() -> None:
    assert set(COMMANDS) == TESTED
    assert len(DEMOS) == 2
    assert len(RUNS) == 1
    assert {language for language, _ in BLOCKS} == {"sh", "yaml", "python"}


def test_the_table_names_every_command() -> None:
    documented = set(re.findall(r"`excise ([\w-]+)", README))
    shown = subprocess.run([sys.executable, "-m", "excise", "--help"], capture_output=True, text=True, check=True).stdout
    existing = set(re.findall(r"^  ([\w-]+)  ", shown.split("Commands:")[1], flags=re.M))
    assert documented == existing


def test_the_methods_named_are_the_methods_there_are() -> None:
    line = next(line for line in README.splitlines() if line.startswith("Methods: "))
    named = set(re.findall(r"`(\w+)`", line.split(", and TokenUnlearn")[0]))
    assert named == {name for name in registry.names("methods") if not name.startswith(("t_", "s_", "f_")) and name != "compose"}


def own_files(folder: Path) -> str:
    """The recipe block of the README with data as it describes, in a folder."""
    recipe = next(block for language, block in BLOCKS if language == "yaml")
    rows = [{"question": f"Who is number {i}?", "answer": f"Number {i} is Anna{i} Brandt."} for i in range(6)]
    (folder / "forget.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:3]))
    (folder / "retain.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[3:]))
    save(tiny("llama"), folder / "model", provenance={})
    save(tiny("llama", seed=1), folder / "path" / "to" / "twin", provenance={})
    return recipe


def environment(folder: Path) -> dict[str, str]:
    """An empty HOME. The project's virtual environment comes first on the path, as after `make`."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("XDG_", "EXCISE_", "PYTEST_"))}
    home = folder / "home"
    home.mkdir()
    return {**kept, "HOME": str(home), "PATH": f"{Path(sys.executable).parent}:{kept['PATH']}", "PYTHONPATH": str(REPOSITORY / "src")}


def test_the_recipe_and_the_run_command(tmp_path: Path) -> None:
    recipe = own_files(tmp_path)
    settings = yaml.safe_load(recipe)
    assert Recipe.parse(settings).methods()[0][0] == "t_npo"
    (tmp_path / "recipe.yaml").write_text(recipe)
    command = f"{sys.executable} -m {RUNS[0]} --set model=model --set method.epochs=1 --set evaluation.max_new_tokens=4"
    ran = subprocess.run(command, shell=True, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "runs" / "mine" / "report.html").exists()


def test_the_python_block(tmp_path: Path) -> None:
    recipe = own_files(tmp_path)
    settings = yaml.safe_load(recipe)
    settings["model"] = "model"
    settings["method"]["epochs"] = 1
    settings["evaluation"]["max_new_tokens"] = 4
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(settings))
    code = next(block for language, block in BLOCKS if language == "python")
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "runs" / "mine" / "result.json").exists()


@pytest.mark.slow
def test_the_demo_commands(tmp_path: Path, smollm2_folder: Path) -> None:
    """Both, one after the other, on taught models of their own, at the small size."""
    env = environment(tmp_path)
    cache = Path(env["HOME"]) / ".cache" / "excise" / "models"
    cache.mkdir(parents=True)
    shutil.copytree(smollm2_folder, cache / smollm2_folder.name)
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    for name in ("Makefile", "constraints.txt", "pyproject.toml"):
        shutil.copy(REPOSITORY / name, checkout / name)
    venv = checkout / ".venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "excise").write_text(f'#!/bin/sh\nexec {sys.executable} -m excise "$@"\n')
    (venv / "bin" / "excise").chmod(0o755)
    for stamp in ("torch", "ready-demo"):
        (venv / stamp).touch()
    for attacks, command in zip(("1", "0"), DEMOS, strict=True):
        settings = {**env, "EXCISE_DEMO_QUICK": "1", "EXCISE_DEMO_ATTACKS": attacks, "VENV": str(venv)}
        ran = subprocess.run(command, shell=True, cwd=checkout, env=settings, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
    made = sorted(path.name for path in (checkout / "runs").iterdir())
    assert len(made) == 2
    assert "demo-s_npo-1" in made
    for run in (checkout / "runs").iterdir():
        scores = json.loads((run / "result.json").read_text())["evaluations"]
        before, after = (scores[phase]["strangers"]["forget.fact_recall"]["value"] for phase in ("before", "after"))
        assert after < before - 0.3
        assert (run / "report.html").exists()
