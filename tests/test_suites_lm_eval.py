"""The lm-evaluation-harness on a tiny model and a task of two lines, offline."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import adapted
from excise.data.example import Benchmark
from excise.errors import InputError
from excise.evaluation.harness import Harness, scores_of
from excise.evaluation.score import Score
from excise.evaluation.suites import evaluate
from excise.evaluation.suites.choice import choice
from excise.evaluation.suites.lm_eval import lm_eval
from excise.subject import Subject

ROWS = [{"question": f"Which fruit is number {i}?", "choices": ["fig", "plum", "leek", "oat"], "answer": i % 4} for i in range(6)]
TASK = """
task: tiny_fruit
dataset_path: json
dataset_kwargs:
  data_files:
    test: {file}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}\\nA. {{{{choices[0]}}}}\\nB. {{{{choices[1]}}}}\\nC. {{{{choices[2]}}}}\\nD. {{{{choices[3]}}}}\\nAnswer:"
doc_to_choice: ["A", "B", "C", "D"]
doc_to_target: answer
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
metadata:
  version: 1.0
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the task; the datasets package keeps its files here too."""
    pytest.importorskip("lm_eval", reason="the lm-evaluation-harness is not installed (an extra)")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    rows = tmp_path / "fruit.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    (tasks / "fruit.yaml").write_text(TASK.format(file=rows))
    return tasks


def refused(call: Any, *parts: str) -> None:
    with pytest.raises(InputError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message, (part, message)


def test_the_harness_agrees_with_our_letters(tiny_llama: Subject, folder: Path, tmp_path: Path) -> None:
    from excise.data.benchmarks.choice import Choice

    suite = lm_eval(tasks=("tiny_fruit",), folder=str(folder))
    records, scores = evaluate(tiny_llama, Benchmark("lm_eval", {}), suite)
    assert records == {}
    (score,) = [one for name, one in scores.items() if name == "tiny_fruit.acc"]
    assert (score.better, score.n) == ("higher", 6)
    assert score.ci95 is not None
    ours = evaluate(tiny_llama, Choice(path=str(tmp_path / "fruit.jsonl"))(), choice(), precision="float32")[1]
    assert score.value == ours["questions.letter_accuracy"].value
    _, scores = evaluate(tiny_llama, Benchmark("lm_eval", {}), suite, limit=2)
    assert scores["tiny_fruit.acc"].n == 2


def test_an_adapter_is_asked_as_it_is(tiny_llama: Subject, folder: Path) -> None:
    assert Harness(("tiny_fruit",), str(folder))(adapted(tiny_llama), 2)["tiny_fruit.acc"].n == 2


def test_unknown_tasks_and_folders_are_refused(tiny_llama: Subject, folder: Path) -> None:
    refused(lambda: Harness(("tiny_fruits",), str(folder))(tiny_llama, 1), "no task 'tiny_fruits'", "did you mean 'tiny_fruit'?")
    refused(lambda: Harness(("qqqqqqqq",))(tiny_llama, 1), "no task 'qqqqqqqq'", "lm_eval --tasks list", "suite.folder=DIR")
    refused(lambda: Harness(()), "has no tasks", "suite.tasks=[")
    refused(lambda: lm_eval(folder="/no/such/folder"), "suite.folder", "/no/such/folder")


def test_without_the_extra_the_error_says_what_to_install(tiny_llama: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "lm_eval"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    refused(lambda: Harness(("arc_easy",))(tiny_llama, 1), 'pip install "excise[lm-eval]"')


def test_results_become_scores() -> None:
    results = {
        "results": {
            "a": {"alias": "a", "acc,none": 0.5, "acc_stderr,none": 0.1, "exact_match,strict": 0.25, "exact_match_stderr,strict": "N/A"},
            "b": {"perplexity,none": 12.0, "perplexity_stderr,none": "N/A", "odd,none": float("nan")},
        },
        "groups": {"g": {"acc,none": 0.4, "acc_stderr,none": 0.05}},
        "group_subtasks": {"g": ["a", "b"]},
        "higher_is_better": {"a": {"acc": True, "exact_match": True}, "b": {"perplexity": False}, "g": {"acc": True}},
        "n-samples": {"a": {"original": 9, "effective": 4}, "b": {"original": 9, "effective": 5}},
    }
    scores = scores_of(results)
    z = 1.959963984540054
    assert scores["a.acc"] == Score(0.5, "higher", 4, (0.5 - z * 0.1, 0.5 + z * 0.1))
    assert scores["a.exact_match.strict"] == Score(0.25, "higher", 4)
    assert scores["b.perplexity"] == Score(12.0, "lower", 5)
    assert (scores["b.odd"].value, scores["b.odd"].better, scores["b.odd"].unavailable) == (None, "none", "the harness gives nan")
    assert (scores["g.acc"].n, scores["g.acc"].better) == (9, "higher")
