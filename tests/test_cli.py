"""The command line: what it prints, its exit codes, and one clear line for every kind of bad input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from conftest import REPOSITORY, tiny
from excise import cli, registry
from excise.saving import save

DATA = {"name": "strangers", "forget_people": 1, "retain_people": 2, "holdout_people": 1}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tiny("llama"), tmp_path_factory.mktemp("models") / "model", provenance={})


def excise(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs a command in a process of its own, which spends seconds on imports: for what only that can show."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src"), "COLUMNS": "200"}
    command = [sys.executable, "-m", "excise", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


Ran = subprocess.CompletedProcess[str]
Here = Callable[..., Ran]


@pytest.fixture
def here(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Here:
    """Runs a command in this process: exit code, what it printed, what it complained about."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str | Path) -> Ran:
        monkeypatch.setattr(sys, "argv", ["excise", *map(str, arguments)])
        capsys.readouterr()
        code = 0
        try:
            cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        printed = capsys.readouterr()
        return subprocess.CompletedProcess([], code, printed.out, printed.err)

    return run


def written(folder: Path, model: Path, **changes: Any) -> Path:
    settings: dict[str, Any] = {
        "model": str(model),
        "data": DATA,
        "method": {"name": "npo", "steps": 1, "batch": 2},
        "evaluation": {"limit": 2, "max_new_tokens": 2},
    }
    file = folder / "recipe.yaml"
    file.write_text(yaml.safe_dump({**settings, **changes}))
    return file


def refused(run: subprocess.CompletedProcess[str], *words: str, under_way: bool = False) -> None:
    """Exit code 2, one line on standard error that has all these words, nothing on standard output.

    ``under_way``: what the run said about its progress may stand before that line.
    """
    assert run.returncode == 2, run.stderr
    assert run.stdout == ""
    lines = run.stderr.strip().splitlines()
    assert len(lines) == 1 or under_way, run.stderr
    assert [line.startswith("excise: ") for line in lines] == [False] * (len(lines) - 1) + [True]
    for word in words:
        assert word in lines[-1], (word, lines[-1])


def test_help_answers_at_once() -> None:
    best = min(_seconds("--help") for _ in range(3))
    assert best < 0.5 * max(1.0, _load_factor()), best


def _seconds(*arguments: str) -> float:
    begun = time.perf_counter()
    assert excise(*arguments).returncode == 0
    return time.perf_counter() - begun


def _load_factor() -> float:
    """How much slower than usual this machine starts Python now (0.02 s when it is idle)."""
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-S", "-c", ""], check=True)
    return (time.perf_counter() - begun) / 0.02


def test_list_names_every_method_as_json(here: Here) -> None:
    rows = json.loads(here("list", "methods", "--json").stdout)
    names = [row["name"] for row in rows]
    for name in [
        "ga",
        "graddiff",
        "ga_kl",
        "wga",
        "npo",
        "simnpo",
        "dpo",
        "undial",
        "satimp",
        "ceu",
        "rmu",
        "t_ga",
        "t_wga",
        "t_npo",
        "t_rmu",
        "s_ga",
        "s_wga",
        "s_npo",
        "s_rmu",
        "f_ga",
        "f_wga",
        "f_npo",
        "f_rmu",
    ]:
        assert name in names
    assert all(row["summary"] for row in rows)
    assert all("arXiv" in row["paper"] for row in rows if row["name"] != "compose")


@pytest.mark.parametrize("kind", registry.KINDS)
def test_every_kind_can_be_listed_and_everything_in_it_shown(kind: str, here: Here) -> None:
    rows = json.loads(here("list", kind, "--json").stdout)
    assert [row["name"] for row in rows] == registry.names(kind)
    for row in rows:
        shown = here("show", row["name"]).stdout
        assert f"{row['name']} ({kind})" in shown
        assert row["summary"].split()[0] in shown


def test_run_and_report(tmp_path: Path, model: Path, here: Here) -> None:
    ran = excise("run", written(tmp_path, model), "--out", tmp_path / "a")
    assert ran.returncode == 0, ran.stderr
    assert "forget.fact_recall" in ran.stdout
    assert str(tmp_path / "a" / "report.html") in ran.stdout
    again = here("run", written(tmp_path, model), "--out", tmp_path / "b", "--set", "seed=1", "--set", "method.lr=1e-4")
    assert again.returncode == 0, again.stderr
    assert json.loads((tmp_path / "b" / "result.json").read_text())["recipe"]["method"]["lr"] == 1e-4
    both = here("report", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "both.html")
    assert both.returncode == 0, both.stderr
    assert (tmp_path / "both.html").exists()
    refused(here("run", written(tmp_path, model), "--out", tmp_path / "a"), "exists", "--overwrite")


def test_check_loads_no_weights_and_estimates_memory(tmp_path: Path, model: Path, here: Here) -> None:
    light = tmp_path / "light"
    light.mkdir()
    for file in model.iterdir():
        if file.suffix != ".safetensors":
            (light / file.name).write_bytes(file.read_bytes())
    (light / "model.safetensors").write_bytes((model / "model.safetensors").read_bytes())
    checked = here("check", written(tmp_path, light))
    assert checked.returncode == 0, checked.stderr
    assert "memory: total" in checked.stdout
    assert "name: npo" in checked.stdout


def test_attribute_prints_the_token_table_as_json(model: Path, here: Here) -> None:
    words = ["--set", "nouns.words=[Anna]", "--set", "r=0.5"]
    ran = here("attribute", model, "--question", "Who is Anna?", "--answer", "Anna is a painter.", "--json", *words)
    assert ran.returncode == 0, ran.stderr
    table = json.loads(ran.stdout)
    assert "".join(token["text"] for token in table["tokens"]).startswith("Anna is a painter.")
    assert set(table["tokens"][0]) == {"text", "logp", "logp_masked", "delta", "entropy", "phi", "selected", "weight"}
    hidden = "".join(token["text"] for token in table["prompt_tokens"] if token["masked"])
    assert "Anna" in hidden
    assert "Who" not in hidden
    chosen = [token for token in table["tokens"] if token["selected"]]
    assert len(chosen) == -(-len(table["tokens"]) // 2)
    assert all(token["weight"] > 0 for token in chosen)
    for token in table["tokens"]:
        assert token["delta"] == pytest.approx(abs(token["logp"] - token["logp_masked"]), abs=1e-4)


def test_evaluate_scores_a_model(tmp_path: Path, model: Path, here: Here) -> None:
    settings = [f"--set=data.{key}={value}" for key, value in DATA.items() if key != "name"]
    ran = here("evaluate", model, "--suite", "strangers", "--limit", "2", "--set", "max_new_tokens=2", *settings, "--out", tmp_path / "out")
    assert ran.returncode == 0, ran.stderr
    assert json.loads((tmp_path / "out" / "result.json").read_text())["evaluations"]["before"]["strangers"]["retain.probability"]["n"] == 2


class TestBadInput:
    """Acceptance 6: each one line and exit code 2, and nothing left behind."""

    def test_unknown_recipe_key(self, tmp_path: Path, model: Path, here: Here) -> None:
        refused(here("check", written(tmp_path, model, methud="npo")), "methud", "did you mean 'method'")
        refused(here("check", written(tmp_path, model, method={"name": "npo", "bata": 1})), "method.bata", "did you mean 'beta'")

    def test_unknown_method(self, tmp_path: Path, model: Path, here: Here) -> None:
        refused(here("run", written(tmp_path, model, method="nop"), "--out", tmp_path / "o"), "unknown method 'nop'", "did you mean 'npo'")

    def test_missing_column(self, tmp_path: Path, model: Path, here: Here) -> None:
        (tmp_path / "f.jsonl").write_text('{"question": "Who?", "reply": "Anna."}\n')
        data = {"name": "jsonl", "forget": str(tmp_path / "f.jsonl"), "retain": str(tmp_path / "f.jsonl")}
        recipe = written(tmp_path, model, data=data, evaluation={"suite": "strangers"})
        refused(here("run", recipe, "--out", tmp_path / "o"), "answer", "reply", "f.jsonl")

    def test_empty_forget_split(self, tmp_path: Path, model: Path, here: Here) -> None:
        (tmp_path / "f.jsonl").write_text("")
        (tmp_path / "r.jsonl").write_text('{"question": "Who?", "answer": "Anna."}\n')
        data = {"name": "jsonl", "forget": str(tmp_path / "f.jsonl"), "retain": str(tmp_path / "r.jsonl")}
        refused(here("run", written(tmp_path, model, data=data, evaluation={"suite": "strangers"}), "--out", tmp_path / "o"), "f.jsonl", "empty")

    def test_forget_and_retain_overlap(self, tmp_path: Path, model: Path, here: Here) -> None:
        for name in ("f", "r"):
            (tmp_path / f"{name}.jsonl").write_text('{"question": "Who?", "answer": "Anna."}\n')
        data = {"name": "jsonl", "forget": str(tmp_path / "f.jsonl"), "retain": str(tmp_path / "r.jsonl")}
        refused(here("run", written(tmp_path, model, data=data, evaluation={"suite": "strangers"}), "--out", tmp_path / "o"), "also stands in retain")

    def test_a_folder_that_is_no_model(self, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        refused(excise("run", written(tmp_path, tmp_path / "empty"), "--out", tmp_path / "o"), "not a model folder")

    def test_a_corrupt_gguf(self, tmp_path: Path, here: Here) -> None:
        (tmp_path / "bad.gguf").write_bytes(b"GGUF" + bytes(64))
        refused(here("run", written(tmp_path, tmp_path / "bad.gguf"), "--out", tmp_path / "o"), "bad.gguf")

    @pytest.mark.parametrize("r", [0, 1.5, -1])
    def test_r_out_of_range(self, tmp_path: Path, model: Path, r: float, here: Here) -> None:
        method = {"name": "t_npo", "attribution": {"r": r}}
        refused(here("check", written(tmp_path, model, method=method)), "attribution.r", "above 0 and at most 1")

    def test_a_layer_that_the_model_lacks(self, tmp_path: Path, model: Path, here: Here) -> None:
        recipe = written(tmp_path, model, method={"name": "rmu", "layer": 7})
        refused(here("run", recipe, "--out", tmp_path / "o"), "layer 7", "2 layers")
        recipe = written(tmp_path, model, method={"name": "npo", "layers": [0, 5]})
        refused(here("run", recipe, "--out", tmp_path / "o"), "layer 5", "2 layers")
        assert not (tmp_path / "o").exists()

    def test_out_exists(self, tmp_path: Path, model: Path, here: Here) -> None:
        (tmp_path / "o").mkdir()
        (tmp_path / "o" / "x").write_text("x")
        refused(here("run", written(tmp_path, model), "--out", tmp_path / "o"), "exists", "--overwrite")

    def test_out_below_a_file(self, tmp_path: Path, model: Path, here: Here) -> None:
        (tmp_path / "file").write_text("x")
        refused(here("run", written(tmp_path, model), "--out", tmp_path / "file" / "o"), "file")

    def test_no_such_recipe(self, tmp_path: Path, here: Here) -> None:
        refused(here("run", tmp_path / "none.yaml", "--out", tmp_path / "o"), "none.yaml")

    def test_wrong_usage(self, here: Here) -> None:
        refused(here("run"), "recipe")
        refused(here("fly"), "fly")

    def test_unknown_name_to_show(self, here: Here) -> None:
        refused(here("show", "t_nop"), "did you mean 't_npo'")

    @pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
    @pytest.mark.parametrize("kilobytes", [64, 300])
    def test_a_full_disk(self, tmp_path: Path, model: Path, kilobytes: int) -> None:
        small = tmp_path / "small"
        small.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", small], check=False, capture_output=True)
        if mounted.returncode:
            pytest.skip("mount is not permitted here")
        try:
            refused(excise("run", written(tmp_path, model), "--out", small / "o"), "disk is full", under_way=True)
            assert not (small / "o").exists()
        finally:
            subprocess.run(["umount", small], check=True)
