"""5WBENCH and EasyEdit rows: columns, labels, repetitions and what two splits have in common."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from conftest import refused
from excise.data.benchmarks.fivew import LABELS, FiveW
from excise.data.benchmarks.strangers import Strangers
from excise.evaluation.suites import evaluate
from excise.evaluation.suites.fivew import fivew
from excise.subject import Subject


def row(n: int, label: str = "who", **more: Any) -> dict[str, Any]:
    return {"question": f"{label} baked loaf {n}?", "answer": f"Ida {n}", "pred_answer": f"Otto {n}", "label": label, "rephrases": ["So?"], **more}


def write(folder: Path, forget: list[dict[str, Any]], retain: list[dict[str, Any]]) -> str:
    """As 5WBENCH hands them out: the final file's .json is JSON Lines, the splits' are lists."""
    (folder / "forget_set_fixed.json").write_text(json.dumps(forget))
    (folder / "retain_set_fixed.json").write_text("".join(json.dumps(r) + "\n" for r in retain))
    (folder / "final_dataset_validated.json").write_text("".join(json.dumps(r) + "\n" for r in forget + retain))
    return str(folder)


def test_both_formats_of_the_json_files_are_read(tmp_path: Path) -> None:
    made = FiveW(write(tmp_path, [row(1, "Who")], [row(2, "why"), row(3)]))()
    (example,) = made.forget
    assert (example.id, example.prompt, example.answer, example.label) == ("forget-1", "Who baked loaf 1?", "Ida 1", "who")
    assert (example.false_answers, example.alternative, example.paraphrased_prompts) == (("Otto 1",), "Otto 1", ("So?",))
    assert [e.id for e in made.retain] == ["retain-1", "retain-2"]
    assert made.notes == ()


def test_rows_of_easyedit_take_their_label_from_the_question(tmp_path: Path) -> None:
    easy = {"prompt": "In which year and why was it baked?", "ground_truth": ["1887"], "target_new": "1931", "rephrase_prompt": "When?"}
    made = FiveW(write(tmp_path, [easy], [row(2)]))()
    (example,) = made.forget
    assert (example.answer, example.alternative, example.paraphrased_prompts, example.label) == ("1887", "1931", ("When?",), "why")
    refused(FiveW(write(tmp_path, [{**easy, "prompt": "Name it."}], [row(2)])), "row 1", "no column 'label'", "who, what, when, where, why")


@pytest.mark.parametrize(
    ("bad", "parts"),
    [
        (row(2, label="which"), ["row 2", "column 'label'", "'which' is none of who, what, when, where, why"]),
        ({"question": "Who?", "label": "who"}, ["row 2", "no column 'answer' or 'ground_truth'"]),
        (row(2, answer=" "), ["row 2", "column 'answer'", "is empty"]),
        ({"answer": "Ida", "label": "who"}, ["row 2", "no column 'question' or 'prompt'"]),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, bad: dict[str, Any], parts: list[str]) -> None:
    refused(FiveW(write(tmp_path, [row(1), bad], [row(3)])), "forget_set_fixed.json", *parts)


def test_repeated_questions_are_left_out_and_counted(tmp_path: Path) -> None:
    made = FiveW(write(tmp_path, [row(1), row(2), row(1), row(1)], [row(3)]))()
    assert [e.id for e in made.forget] == ["forget-1", "forget-2"]
    assert made.notes == ("2 of 4 forget rows are left out because their question stood there before (most often, 3 times, that of forget-1).",)


def test_a_retain_question_that_forget_asks_too_is_left_out_or_refused(tmp_path: Path) -> None:
    path = write(tmp_path, [row(1)], [row(2), row(1, question="WHO baked loaf 1", answer="somebody else")])
    made = FiveW(path)()
    assert [e.id for e in made.retain] == ["retain-1"]
    assert made.notes == ("1 retain questions are left out because the forget split asks them too (the first: retain-2).",)
    refused(FiveW(path, overlap="refuse"), "1 retain questions stand in forget too", "retain-2 and forget-1", "data.overlap=drop")
    refused(FiveW(write(tmp_path, [row(1)], [row(1)])), "the retain split is empty")


def test_the_limit_is_for_each_label(tmp_path: Path) -> None:
    path = write(tmp_path, [row(i, label) for label in LABELS for i in range(4)], [row(9)])
    made = FiveW(path, limit=2)()
    assert Counter(e.label for e in made.forget) == dict.fromkeys(LABELS, 2)
    assert [e.id for e in made.forget][:2] == ["forget-1", "forget-3"]
    refused(lambda: FiveW(path, limit=0), "data.limit is 0")


def test_a_folder_without_the_files_says_which_one_to_name(tmp_path: Path) -> None:
    refused(FiveW(), "needs data.path", "data.forget")
    refused(FiveW(str(tmp_path / "no")), "there is no folder")
    path = write(tmp_path, [row(1)], [row(2)])
    (tmp_path / "forget_more.jsonl").write_text("{}\n")
    refused(FiveW(path), "one table called forget...", "forget_more.jsonl, forget_set_fixed.json", "data.forget=FILE")
    assert len(FiveW(path, forget=str(tmp_path / "forget_set_fixed.json"))().forget) == 1


def test_the_real_files(shared: Path) -> None:
    folder = shared / "data" / "fivewbench"
    made = FiveW(str(folder))()
    assert (len(made.forget), len(made.retain)) == (499, 500)
    leaky = FiveW(forget=str(folder / "forget_set_fixed.json"), retain=str(folder / "final_dataset_validated.json"))()
    assert len(leaky.retain) == 1513
    assert any("431 retain questions" in note for note in leaky.notes)


# The suite ------------------------------------------------------------------------------------------------------------


def test_the_suite_scores_each_w(tiny_llama: Subject, tmp_path: Path) -> None:
    rows = [[row(i + 100 * side, label) for label in LABELS for i in range(2)] for side in range(2)]
    records, scores = evaluate(tiny_llama, FiveW(write(tmp_path, *rows))(), fivew(max_new_tokens=3), precision="float32")
    for name in ("fsr", "rsr", "fsr_rsr"):
        assert {f"{name}@{label}" for label in LABELS} <= set(scores)
    assert (scores["fsr"].n, scores["fsr@why"].n, scores["fsr_rsr"].n) == (10, 2, 20)
    assert scores["fsr"].value == 100.0  # three tokens of a random model
    assert scores["rsr"].value == scores["fsr_rsr"].value == 0.0
    assert [scores[name].better for name in ("fsr", "rsr", "forget.contains_truth", "retain.contains_truth")] == [
        "higher",
        "higher",
        "lower",
        "higher",
    ]
    assert all(record.verdict("contains", "truth") for rows in records.values() for record in rows)


def test_strangers_can_be_judged_so(tiny_llama: Subject) -> None:
    benchmark = Strangers(forget_people=1, retain_people=1, holdout_people=0)()
    _, scores = evaluate(tiny_llama, benchmark, fivew(max_new_tokens=2), precision="float32")
    assert scores["fsr@where"].n == 1


def test_an_unknown_judge_is_refused() -> None:
    refused(lambda: fivew(judge="contain"), "unknown judge 'contain'", "did you mean 'contains'?")
    refused(lambda: fivew(judge={"name": "contains", "recal": 0.5}), "suite.judge.recal", "did you mean 'recall'?")
    assert fivew(judge={"name": "contains", "recall": 0.5}).judging[0].judge.identity()["recall"] == 0.5
