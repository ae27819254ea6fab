"""`excise evaluate` with the suites for other people's benchmarks: folders, baselines, settings, and one clear line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import REPOSITORY, tiny
from excise.errors import InputError
from excise.evaluate_model import evaluate_model
from excise.recipe import Recipe
from excise.run import unlearn
from excise.saving import save
from test_benchmarks_concepts import mmlu, write

SMALL = ["precision=float32", "max_new_tokens=2"]


@pytest.fixture
def model(tmp_path: Path, cache: Path) -> str:
    return str(save(tiny("llama"), tmp_path / "model", provenance={}))


def questions(folder: Path, **wrong: Any) -> str:
    rows = [{"question": f"Which is number {i}?", "choices": ["fig", "plum", "leek"], "answer": i % 3, "subject": "ab"[i % 2]} for i in range(6)]
    path = folder / "questions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows[:-1], {**rows[-1], **wrong}]))
    return str(path)


def test_choice_questions_leave_a_result_and_a_report(model: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = evaluate_model(model, "choice", out, data=questions(tmp_path), limit=4, settings=["precision=float32", "suite.forget=true"])
    scores = result["evaluations"]["before"]["choice"]
    assert (scores["questions.letter_accuracy"]["n"], scores["questions.letter_accuracy"]["better"]) == (4, "lower")
    assert scores["questions.choice_accuracy@a"]["n"] == 2
    assert {path.name for path in out.iterdir()} == {"records", "environment.json", "result.json", "report.html"}
    first = json.loads((out / "records" / "before" / "questions.jsonl").read_text().splitlines()[0])
    assert [letter["text"] for letter in first["letters"]] == ["A", "B", "C"]
    assert set(first["scores"]) >= {"choice_accuracy", "letter_accuracy"}


def test_an_answer_out_of_range_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "excise", "evaluate", "no-model", "--suite", "choice", "--data", questions(tmp_path, answer=3), "--out", "o"]
    run = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(REPOSITORY / "src")}, check=False
    )
    assert (run.returncode, run.stdout) == (2, "")
    line = run.stderr.strip().splitlines()[-1]
    assert line.startswith("excise: ")
    assert "questions.jsonl, row 6, column 'answer': 3 is none of the 3 options: give 0 to 2, A to C" in line
    assert not (tmp_path / "o").exists()


def test_a_baseline_is_a_model_or_an_earlier_evaluation(model: str, tmp_path: Path) -> None:
    (tmp_path / "concept").mkdir()
    settings = ["data.concept=Bread", f"data.mmlu={mmlu(tmp_path)}", *SMALL]
    data = write(tmp_path / "concept")
    other = str(save(tiny("llama", seed=1), tmp_path / "edited", provenance={}))
    alone = evaluate_model(model, "concepts", tmp_path / "first", data=data, settings=settings)
    assert list(alone["evaluations"]) == ["before"]
    assert "--baseline" in alone["evaluations"]["before"]["concepts"]["efficacy"]["unavailable"]
    compared = [
        evaluate_model(other, "concepts", tmp_path / name, data=data, settings=settings, baseline=baseline)["evaluations"]
        for name, baseline in (("second", model), ("third", str(tmp_path / "first")))
    ]
    assert list(compared[0]) == ["before", "after"]
    assert compared[0] == compared[1]
    for name in ("efficacy", "coherence", "overall_open"):
        assert "--baseline" not in compared[0]["after"]["concepts"][name]["unavailable"]
    assert compared[0]["before"]["concepts"]["concept.choice_margin"] == alone["evaluations"]["before"]["concepts"]["concept.choice_margin"]
    assert compared[0]["after"]["concepts"]["concept.choice_margin"] != compared[0]["before"]["concepts"]["concept.choice_margin"]


def test_a_run_compares_with_its_own_before(model: str, tmp_path: Path) -> None:
    data = {"name": "strangers", "forget_people": 1, "retain_people": 2, "holdout_people": 1}
    evaluation = {"suite": {"name": "concepts", "letters": True}, "limit": 2, "max_new_tokens": 2}
    recipe = Recipe.parse({"model": model, "data": data, "method": {"name": "npo", "steps": 1, "batch": 2}, "evaluation": evaluation})
    result = unlearn(recipe, tmp_path / "run")
    for phase in ("before", "after"):
        score = result["evaluations"][phase]["concepts"]["efficacy"]
        assert "--baseline" not in score["unavailable"]
    before = result["evaluations"]["before"]["concepts"]
    assert before["efficacy"]["value"] in (0.0, None)
    assert "concept.letter_accuracy" in before


def test_a_suite_can_be_taken_to_another_benchmark(model: str, tmp_path: Path) -> None:
    data = ["data.name=strangers", "data.forget_people=1", "data.retain_people=1", "data.holdout_people=0", "data.questions=4"]
    result = evaluate_model(model, "choice", tmp_path / "out", settings=[*data, "precision=float32"])
    assert result["evaluations"]["before"]["choice"]["questions.choice_accuracy"]["n"] == 4
    assert result["recipe"]["data"]["name"] == "strangers"


@pytest.mark.parametrize(
    ("suite", "options", "parts"),
    [
        ("choice", {}, ["the benchmark 'choice' needs data.path"]),
        ("choice", {"settings": ["suite.leters=true"]}, ["suite.leters", "did you mean 'letters'?"]),
        ("choice", {"settings": ["max_new_tokens=4"]}, ["max_new_tokens"]),
        ("concepts", {}, ["data.concept", "several concepts"]),
        ("concepts", {"data": "/no/such", "settings": ["data.concept=x"]}, ["there is no folder /no/such"]),
        ("fivew", {"settings": ["suite.judge=contain"]}, ["unknown judge 'contain'"]),
        ("muse", {"data": "/no/such/folder"}, ["there is no folder /no/such/folder"]),
        ("lm_eval", {"data": "x.jsonl"}, ["'lm_eval' brings its own data"]),
        ("chioce", {}, ["unknown suite 'chioce'", "did you mean 'choice'?"]),
    ],
)
def test_what_does_not_fit_is_refused_before_a_model_is_loaded(tmp_path: Path, suite: str, options: Any, parts: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        evaluate_model("no-model", suite, tmp_path / "out", **options)
    assert "\n" not in str(caught.value)
    for part in parts:
        assert part in str(caught.value), caught.value


def test_a_recipe_that_trains_needs_a_forget_split(model: str, tmp_path: Path) -> None:
    data = {"name": "choice", "path": questions(tmp_path)}
    recipe = Recipe.parse({"model": model, "data": data, "method": {"name": "npo"}, "evaluation": {"suite": "choice"}})
    with pytest.raises(InputError, match="'choice' has no forget split, so it can be measured but nothing can be unlearned"):
        unlearn(recipe, tmp_path / "run")


def test_settings_of_a_suite_are_checked_in_a_recipe(model: str) -> None:
    base = {"model": model, "data": {"name": "strangers"}, "method": {"name": "npo"}}
    suite = Recipe.parse({**base, "evaluation": {"suite": {"name": "fivew", "judge": "contains", "max_new_tokens": 7}}}).suite()
    assert suite.plans["forget"].max_new_tokens == 7
    with pytest.raises(InputError, match=r"evaluation\.suite\.judgee.*did you mean 'judge'"):
        Recipe.parse({**base, "evaluation": {"suite": {"name": "fivew", "judgee": "contains"}}})
    assert Recipe.parse(Recipe.parse({**base, "evaluation": {"suite": {"name": "fivew"}}}).expanded()).suite().name == "fivew"
