"""Choice questions from files and the hub: what is read, what is refused, and how letters are asked for."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from conftest import refused
from excise.data.benchmarks.choice import Choice
from excise.data.example import Benchmark, Example
from excise.data.letters import by_letters, letter_prompt

ROWS = [{"question": f"Which fruit is number {i}?", "choices": ["fig", "plum", "leek"], "answer": i % 3, "subject": "ab"[i % 2]} for i in range(8)]


def lines(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def read(**settings: Any) -> tuple[Example, ...]:
    return Choice(**settings)().split("questions")


def test_a_file_gives_questions_by_subject_in_turn(tmp_path: Path) -> None:
    rows = [*ROWS[:1], *[{**row, "subject": "a"} for row in ROWS[1:5]], {**ROWS[5], "subject": "b"}]
    made = read(path=lines(tmp_path / "fruit.jsonl", rows))
    assert [e.id for e in made] == ["fruit-1", "fruit-6", "fruit-2", "fruit-3", "fruit-4", "fruit-5"]  # any first N are spread
    assert [e.label for e in made][:2] == ["a", "b"]
    assert (made[0].prompt, made[0].options, made[0].gold, made[0].answer) == ("Which fruit is number 0?", ("fig", "plum", "leek"), 0, "fig")


def test_the_limit_is_for_each_subject_and_spread_over_it(tmp_path: Path) -> None:
    path = lines(tmp_path / "f.jsonl", ROWS)
    assert [e.id for e in read(path=path, limit=2)] == ["f-1", "f-2", "f-5", "f-6"]
    assert [e.id for e in read(path=path, limit=2, subjects=("b",))] == ["f-2", "f-6"]
    refused(lambda: read(path=path, subjects=("c",)), "no question has the subject 'c'")
    refused(lambda: Choice(path=path, limit=0), "data.limit is 0")


def test_a_folder_gives_the_questions_of_all_its_tables(tmp_path: Path) -> None:
    lines(tmp_path / "b.jsonl", ROWS[:1])
    (tmp_path / "a.json").write_text(json.dumps(ROWS[1:3]))
    (tmp_path / "notes.txt").write_text("no table")
    assert sorted(e.id for e in read(path=str(tmp_path))) == ["a-1", "a-2", "b-1"]
    (tmp_path / "empty").mkdir()
    refused(lambda: read(path=str(tmp_path / "empty")), "has no table")


@pytest.mark.parametrize("answers", [["1", "0", "2"], ["B", "A", "C"]])
def test_csv_answers_that_could_be_words_or_places_are_read_the_same_way_in_every_row(tmp_path: Path, answers: list[str]) -> None:
    """In the second row "0" is an option too: but since the first row's "1" is none of its options, all are places."""
    choices = [["leek", "fig", "oat"], ["1", "0", "7"], ["2", "3", "4"]]
    with (tmp_path / "q.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["question", "choices", "answer"])
        writer.writerows([f"q{i}", json.dumps(options), answer] for i, (options, answer) in enumerate(zip(choices, answers, strict=True)))
    assert [e.gold for e in read(path=str(tmp_path / "q.csv"))] == [1, 0, 2]


def test_answers_that_are_all_words_are_words(tmp_path: Path) -> None:
    rows = [{"question": "q", "choices": ["2", "1", "0"], "answer": "2"}, {"question": "r", "choices": ["fig", "plum"], "answer": "plum"}]
    assert [e.gold for e in read(path=lines(tmp_path / "q.jsonl", rows))] == [0, 1]


@pytest.mark.parametrize(
    ("row", "parts"),
    [
        ({"question": "q", "choices": ["a", "b"], "answer": 2}, ["row 2", "column 'answer'", "2 is none of the 2 options", "0 to 1, A to B"]),
        ({"question": "q", "choices": ["a", "b"], "answer": -1}, ["row 2", "column 'answer'", "-1 is none"]),
        ({"question": "q", "choices": ["a", "b"], "answer": "E"}, ["row 2", "column 'answer'", "'E' is none"]),
        ({"question": "q", "choices": ["a", "b"]}, ["row 2", "no column 'answer'", "there are: 'question', 'choices'", "data.columns.answer"]),
        ({"question": "q", "answer": 1}, ["row 2", "no column 'choices' or 'options'"]),
        ({"choices": ["a", "b"], "answer": 1}, ["row 2", "no column 'question'"]),
        ({"question": " ", "choices": ["a", "b"], "answer": 1}, ["row 2", "column 'question'", "is empty"]),
        ({"question": "q", "choices": ["a"], "answer": 0}, ["row 2", "column 'choices'", "has 1 options"]),
        ({"question": "q", "choices": ["a", " "], "answer": 1}, ["row 2", "empty answer"]),
    ],
)
def test_a_row_that_is_no_choice_question_is_named(tmp_path: Path, row: dict[str, Any], parts: list[str]) -> None:
    path = lines(tmp_path / "f.jsonl", [ROWS[0], row])
    refused(lambda: read(path=path), "f.jsonl", *parts)


def test_settings_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    path = lines(tmp_path / "f.jsonl", ROWS)
    refused(lambda: read(), "needs data.path", "data.dataset")
    refused(lambda: Choice(path=path, dataset="mmlu"), "give one of them")
    refused(lambda: Choice(path=path, columns={"frage": "question"}), "data.columns.frage")
    refused(lambda: read(path=path, shots=2), "data.shots is 2", "data.examples=FILE")
    solved = lines(tmp_path / "dev.jsonl", [row for row in ROWS if row["subject"] == "a"][:2])
    refused(lambda: read(path=path, shots=2, examples=solved), "has 0 solved examples of the subject 'b'")


def test_choice_questions_alone_cannot_be_unlearned(tmp_path: Path) -> None:
    made = Choice(path=lines(tmp_path / "f.jsonl", ROWS))()
    refused(lambda: made.require("forget"), "'choice' has no forget split", "can be measured", "it has: questions", "data.name=jsonl")
    refused(lambda: made.forget, "has no forget split")
    refused(lambda: made.retain, "has no retain split")


def test_an_empty_forget_or_retain_split_is_still_refused_at_once() -> None:
    refused(lambda: Benchmark("mine", {"forget": (), "retain": (Example("a", "q", "a"),)}), "the forget split is empty")
    refused(lambda: Benchmark("mine", {"forget": (Example("a", "q", "a"),), "retain": ()}), "the retain split is empty")


# Letters --------------------------------------------------------------------------------------------------------------


def test_the_letter_form_is_that_of_the_harness() -> None:
    assert letter_prompt(" Which? ", ["fig", "plum"]) == "Which?\nA. fig\nB. plum\nAnswer:"
    form = by_letters(Example("x", "Which?", "plum", options=("fig", "plum"), gold=1, label="fruit", lead="Read.\n\n"))
    assert (form.prompt, form.answer, form.options, form.bare) == ("Read.\n\nWhich?\nA. fig\nB. plum\nAnswer:", "B", ("A", "B"), True)
    refused(lambda: by_letters(Example("x", "q", "0", options=tuple(map(str, range(27))), gold=0)), "27 options", "letters only go to 26")


def test_solved_examples_and_a_heading_stand_before_the_question(tmp_path: Path) -> None:
    path, dev = lines(tmp_path / "f.jsonl", ROWS[:1]), lines(tmp_path / "dev.jsonl", ROWS[2:5])
    (question,) = read(path=path, shots=1, examples=dev, heading="Questions about {subject}.")
    assert question.lead == "Questions about a.\n\nWhich fruit is number 2?\nA. fig\nB. plum\nC. leek\nAnswer: C\n\n"
    assert by_letters(question).prompt.endswith("Answer: C\n\nWhich fruit is number 0?\nA. fig\nB. plum\nC. leek\nAnswer:")


# The hub --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    answers: dict[str, Any] = {}

    def load_dataset(dataset: str, name: str | None, *, split: str, streaming: bool) -> Any:
        if f"{dataset}:{name}:{split}" not in answers:
            raise ConnectionError(f"Couldn't reach {dataset}\nmore")
        return iter(answers[f"{dataset}:{name}:{split}"])

    module = ModuleType("datasets")
    module.__dict__["load_dataset"] = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", module)
    return answers


def test_datasets_of_the_hub(hub: dict[str, Any]) -> None:
    hub["cais/wmdp:wmdp-cyber:test"] = [{"question": "Which?", "choices": ["a", "b", "c", "d"], "answer": 3}]
    assert [(e.id, e.gold) for e in read(dataset="wmdp-cyber")] == [("wmdp-cyber-1", 3)]
    hub["cais/mmlu:all:test"] = ROWS
    assert len(read(dataset="mmlu")) == 8
    hub["cais/mmlu:a:test"], hub["cais/mmlu:a:dev"] = ROWS[::2], ROWS[::2]
    (first, *_) = read(dataset="mmlu", subjects=("a",), shots=1)
    assert first.lead.endswith("Answer: A\n\n")
    refused(lambda: read(dataset="wmdp-bio"), "cannot load cais/wmdp (wmdp-bio)", "data.path=FILE")


def test_the_arc_of_the_hub_brings_its_own_labels(hub: dict[str, Any]) -> None:
    row = {"id": "x", "question": "Which?", "choices": {"text": ["fig", "plum", "leek"], "label": ["1", "2", "3"]}, "answerKey": "2"}
    hub["allenai/ai2_arc:ARC-Easy:test"] = [row, {**row, "choices": {**row["choices"], "label": ["A", "B", "C"]}, "answerKey": "C"}]
    assert [e.gold for e in read(dataset="arc-easy")] == [1, 2]
    hub["allenai/ai2_arc:ARC-Easy:test"] = [{**row, "answerKey": "4"}]
    refused(lambda: read(dataset="arc-easy"), "row 1", "column 'answerKey'", "'4' is none of the labels 1, 2, 3")


# Real files -----------------------------------------------------------------------------------------------------------


def test_the_real_mmlu_sample(shared: Path) -> None:
    folder = shared / "data" / "mmlu"
    made = read(path=str(folder / "test_sample.jsonl"), limit=2, shots=5, examples=str(folder / "dev.jsonl"))
    assert len({e.label for e in made[:57]}) == 57
    assert len(made) == 114
    assert all(e.lead.count("\nAnswer: ") == 5 for e in made)
