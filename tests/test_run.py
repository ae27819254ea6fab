"""The whole story on a tiny model: run folder, resume after a kill, redaction, teaching, evaluating."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import REPOSITORY, tiny
from excise.data.benchmarks.strangers import Strangers
from excise.errors import InputError
from excise.evaluate_model import evaluate_model
from excise.lesson import Lesson, teach
from excise.loading import load
from excise.recipe import Recipe
from excise.run import unlearn
from excise.saving import save

DATA = {"name": "strangers", "forget_people": 1, "retain_people": 2, "holdout_people": 1}
METHOD: dict[str, Any] = {"name": "t_npo", "lr": 1e-3, "steps": 6, "batch": 2, "attribution": {"nouns": {"words": ["town", "year"]}}}


@pytest.fixture
def model(tmp_path: Path, cache: Path) -> Path:
    """A tiny model, saved as a user would have it. Nothing else of the cache is there."""
    return save(tiny("llama"), tmp_path / "model", provenance={})


def recipe(folder: Path, **changes: Any) -> Recipe:
    settings = {"model": str(folder), "data": DATA, "method": METHOD, "evaluation": {"limit": 3, "max_new_tokens": 4}}
    return Recipe.parse({**settings, **changes})


def test_a_run_leaves_the_folder_of_the_contract(model: Path, tmp_path: Path) -> None:
    twin = save(tiny("llama", seed=1), tmp_path / "twin", provenance={})
    out = tmp_path / "run"
    settings = {"limit": 3, "max_new_tokens": 4, "retrained": str(twin)}
    result = unlearn(recipe(model, evaluation=settings), out)
    there = {path.name for path in out.iterdir()}
    assert there == {"recipe.yaml", "environment.json", "train.jsonl", "model", "records", "attribution.jsonl", "result.json", "report.html"}
    assert json.loads((out / "result.json").read_text()) == result
    assert list(result["evaluations"]) == ["retrained", "before", "after"]
    after = result["evaluations"]["after"]["strangers"]
    assert after["forget.fact_recall"]["n"] == 3
    assert after["forget_quality"]["value"] is not None
    (stage,) = result["stages"]
    assert stage["steps"] == 6
    assert stage["changed_parameters"] == sum(p.numel() for p in load(out / "model").model.parameters())
    assert len((out / "train.jsonl").read_text().splitlines()) == 6
    assert not list(tmp_path.glob(".*unfinished*"))


def test_the_written_recipe_runs_again_to_the_same_weights(model: Path, tmp_path: Path) -> None:
    unlearn(recipe(model), tmp_path / "first")
    unlearn(Recipe.load(tmp_path / "first" / "recipe.yaml"), tmp_path / "second")
    assert load(tmp_path / "first" / "model").fingerprint() == load(tmp_path / "second" / "model").fingerprint()
    assert load(tmp_path / "first" / "model").fingerprint() != load(model).fingerprint()


def test_without_a_twin_forget_quality_is_unavailable_and_says_what_to_do(model: Path, tmp_path: Path) -> None:
    result = unlearn(recipe(model), tmp_path / "run")
    score = result["evaluations"]["after"]["strangers"]["forget_quality"]
    assert score["value"] is None
    assert "retrained" in score["unavailable"]


def test_an_existing_result_is_refused_and_left_alone(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    (out / "mine.txt").write_text("keep me")
    with pytest.raises(InputError, match="exists"):
        unlearn(recipe(model), out)
    assert (out / "mine.txt").read_text() == "keep me"


def test_a_wrong_input_leaves_nothing_behind(model: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="layer 9"):
        unlearn(recipe(model, method={"name": "rmu", "layer": 9}), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert not list(tmp_path.glob(".run*"))


DRIVER = """
import sys
from pathlib import Path
from excise.recipe import Recipe
from excise.run import unlearn
unlearn(Recipe.load(Path(sys.argv[1])), Path(sys.argv[2]), resume=len(sys.argv) > 3)
"""


def _run(arguments: list[str], kill_after_step: int | None, out: Path) -> int:
    """Runs the driver; kills it with SIGKILL as soon as the log shows the step."""
    process = subprocess.Popen([sys.executable, "-c", DRIVER, *arguments], env={**os.environ, "PYTHONPATH": str(REPOSITORY / "src")})
    log = out.parent / f".{out.name}.unfinished" / "train.jsonl"
    while kill_after_step is not None and process.poll() is None:
        if log.exists() and len(log.read_text().splitlines()) >= kill_after_step:
            process.send_signal(signal.SIGKILL)
            break
    return process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("kill_after_step", [3, 8, 17])
def test_a_killed_run_goes_on_to_the_same_bits(model: Path, tmp_path: Path, kill_after_step: int) -> None:
    method = {**METHOD, "steps": 20, "checkpoint_every": 4, "attribution": {**METHOD["attribution"], "refresh": "epoch"}}
    file = tmp_path / "recipe.yaml"
    file.write_text(recipe(model, method=method).to_yaml())
    assert _run([str(file), str(tmp_path / "whole")], None, tmp_path / "whole") == 0
    assert _run([str(file), str(tmp_path / "killed")], kill_after_step, tmp_path / "killed") == -signal.SIGKILL
    assert not (tmp_path / "killed").exists()
    with pytest.raises(InputError, match="--resume"):
        unlearn(Recipe.load(file), tmp_path / "killed")
    assert _run([str(file), str(tmp_path / "killed"), "resume"], None, tmp_path / "killed") == 0
    whole, killed = load(tmp_path / "whole" / "model"), load(tmp_path / "killed" / "model")
    for (name, p), (_, q) in zip(whole.model.named_parameters(), killed.model.named_parameters(), strict=True):
        assert torch.equal(p, q), name
    steps = [json.loads(line)["step"] for line in (tmp_path / "killed" / "train.jsonl").read_text().splitlines()]
    assert steps == list(range(1, 21))


def test_another_recipe_is_not_mixed_into_an_interrupted_run(model: Path, tmp_path: Path) -> None:
    work = tmp_path / ".run.unfinished"
    work.mkdir()
    (work / "recipe.yaml").write_text(recipe(model, seed=1).to_yaml())
    with pytest.raises(InputError, match="another recipe"):
        unlearn(recipe(model), tmp_path / "run", resume=True)
    unlearn(recipe(model), tmp_path / "run", overwrite=True)
    assert (tmp_path / "run" / "result.json").exists()


def test_redaction_leaves_no_prompt_answer_or_fact_anywhere(model: Path, tmp_path: Path, cache: Path) -> None:
    out = tmp_path / "run"
    lora = {"r": 2, "modules": ["q", "v"]}
    method = {"name": "npo", "steps": 2, "batch": 2, "lr": 1e-3, "lora": lora}
    unlearn(recipe(model, privacy="redact", method=method), out)
    benchmark = Strangers(forget_people=1, retain_people=2, holdout_people=1)()
    secrets: set[str] = set()
    for example in benchmark.forget:
        secrets |= {example.prompt, example.answer, example.span, example.group, *example.paraphrased_prompts, example.paraphrased_answer}
        secrets |= set(example.false_answers)
    files = [path for folder in (out, cache) for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 8
    for path in files:
        content = path.read_bytes()
        for secret in secrets:
            assert secret.encode() not in content, (path, secret)
            assert json.dumps(secret)[1:-1].encode() not in content, (path, secret)
    result = json.loads((out / "result.json").read_text())
    assert result["evaluations"]["after"]["strangers"]["forget.probability"]["value"] > 0
    assert "example_prompt" not in result["environment"]
    assert result["environment"]["data"]["fingerprint"] != benchmark.fingerprint


def test_the_same_run_without_redaction_does_hold_the_texts(model: Path, tmp_path: Path) -> None:
    unlearn(recipe(model), tmp_path / "run")
    answer = Strangers(forget_people=1, retain_people=2, holdout_people=1)().forget[0].answer
    assert answer in (tmp_path / "run" / "records" / "after" / "forget.jsonl").read_text()


def test_teaching_makes_a_target_and_a_twin_that_never_saw_the_forget_split(model: Path, tmp_path: Path) -> None:
    training = {"epochs": 12, "lr": 1e-2, "batch": 4}
    lesson = Lesson.parse({"model": str(model), "data": DATA, "training": training})
    folder = teach(lesson, tmp_path / "taught")
    assert {path.name for path in folder.iterdir()} >= {"target", "twin", "teach.json", "recipe.yaml"}
    settings = ["max_new_tokens=4", *(f"data.{k}={v}" for k, v in DATA.items() if k != "name")]
    scores = {}
    for pupil in ("target", "twin"):
        result = evaluate_model(str(folder / pupil), "strangers", tmp_path / f"judged-{pupil}", limit=5, settings=settings)
        scores[pupil] = result["evaluations"]["before"]["strangers"]
    known, unknown = (scores[p]["forget.probability"]["value"] for p in ("target", "twin"))
    assert known > 3 * unknown
    assert abs(scores["target"]["retain.probability"]["value"] - scores["twin"]["retain.probability"]["value"]) < 0.3


def test_teaching_an_adapter_saves_adapters(model: Path, tmp_path: Path) -> None:
    lora = {"r": 2, "modules": ["q", "v"]}
    lesson = Lesson.parse({"model": str(model), "data": DATA, "training": {"steps": 2, "lr": 1e-2, "lora": lora}, "twin": False})
    folder = teach(lesson, tmp_path / "taught")
    assert load(folder / "target").is_adapter
    assert not (folder / "twin").exists()


def test_an_adapter_run_can_be_saved_merged(model: Path, tmp_path: Path) -> None:
    method = {"name": "npo", "steps": 2, "batch": 2, "lr": 1e-3, "lora": {"r": 2}}
    unlearn(recipe(model, method=method), tmp_path / "adapter")
    unlearn(recipe(model, method=method, merge=True), tmp_path / "merged")
    adapter, merged = load(tmp_path / "adapter" / "model"), load(tmp_path / "merged" / "model")
    assert adapter.is_adapter
    assert not merged.is_adapter
    ids = torch.tensor([[5, 6, 7, 8]])
    assert torch.allclose(adapter.model(input_ids=ids).logits, merged.model(input_ids=ids).logits, atol=1e-5)


def test_the_model_says_how_it_was_used(model: Path, tmp_path: Path) -> None:
    """A model unlearned with the plain template is evaluated with it again."""
    unlearn(recipe(model, model={"path": str(model), "template": "plain", "system": "Be brief."}), tmp_path / "run")
    template = load(tmp_path / "run" / "model").template
    assert dataclasses.asdict(template) == {"style": "plain", "system": "Be brief.", "bare": False}


def test_evaluating_limits_gives_the_same_records_as_the_whole(model: Path, tmp_path: Path) -> None:
    settings = ["max_new_tokens=4", *(f"data.{k}={v}" for k, v in DATA.items() if k != "name")]
    evaluate_model(str(model), "strangers", tmp_path / "few", limit=2, settings=settings)
    evaluate_model(str(model), "strangers", tmp_path / "all", settings=settings)
    few, everything = ((tmp_path / name / "records" / "before" / "forget.jsonl").read_text().splitlines() for name in ("few", "all"))
    assert len(few) == 2
    assert [json.loads(line)["generation"] for line in few] == [json.loads(line)["generation"] for line in everything[:2]]
