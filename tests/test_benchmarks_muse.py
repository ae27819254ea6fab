"""MUSE: the authors' folders and the hub, solved examples before a question, and the suite."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from conftest import refused, tiny
from excise.data.benchmarks.muse import Muse
from excise.data.benchmarks.strangers import Strangers
from excise.data.encode import encode, encode_prompt
from excise.evaluation.metrics.memory import RougeLF1
from excise.evaluation.records import Record
from excise.evaluation.suites import evaluate
from excise.evaluation.suites.muse import STOPS, muse
from excise.subject import Subject

LONG = "The baker of Marrow opened the oven at four and looked at the bread for a while before the town awoke."


def write(folder: Path, side_by_side: bool = False) -> str:
    def put(place: str, value: Any) -> None:
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value if isinstance(value, str) else json.dumps(value))

    for side, name in (("forget", "forget_qa"), ("retain", "retain2_qa" if side_by_side else "retain_qa")):
        place = "news_" if side_by_side else "knowmem/"
        put(f"{place}{name}.json", [{"question": f"Who baked {side} {i}?", "answer": f"Ida {i}"} for i in range(3)])
        put(f"{place}{name}_icl.json", [{"question": f"Solved {side} {i}?", "answer": f"Yes {i}"} for i in range(2)])
    if not side_by_side:
        put("verbmem/forget.json", [{"prompt": "The baker of Marrow ", "gt": "opened the oven at four and slept"}])
        put("raw/forget.txt", f"{LONG}\n\n{LONG.replace('baker', 'cook')}")
        put("raw/retain1.txt", LONG.replace("baker", "painter"))
        put("privleak/forget.json", [LONG])
        put("privleak/holdout.json", [LONG.replace("Marrow", "Elm Lake")])
    return str(folder)


def test_the_authors_folders_become_splits(tmp_path: Path) -> None:
    made = Muse(write(tmp_path), answer_words=4)()
    assert {name: len(examples) for name, examples in made.splits.items()} == {
        "knowledge_forget": 3,
        "knowledge_retain": 3,
        "verbatim_forget": 1,
        "privleak_forget": 1,
        "holdout": 1,
        "forget": 2,
        "retain": 1,
    }
    assert made.split("knowledge_retain")[1].prompt == (
        "Question: Solved retain 0?\nAnswer: Yes 0\n\nQuestion: Solved retain 1?\nAnswer: Yes 1\n\nQuestion: Who baked retain 1?\nAnswer:"
    )
    (passage,) = made.split("verbatim_forget")
    assert (passage.prompt, passage.answer, passage.bare) == ("The baker of Marrow", "opened the oven at", True)
    assert (made.forget[0].prompt, made.forget[0].answer) == ("", LONG)


def test_files_side_by_side_hold_questions_only(tmp_path: Path) -> None:
    path = write(tmp_path, side_by_side=True)
    made = Muse(path, shots=1)()
    assert set(made.splits) == {"knowledge_forget", "knowledge_retain"}
    assert made.split("knowledge_forget")[0].prompt == "Question: Solved forget 0?\nAnswer: Yes 0\n\nQuestion: Who baked forget 0?\nAnswer:"
    assert Muse(path, shots=0)().split("knowledge_forget")[0].prompt == "Question: Who baked forget 0?\nAnswer:"
    refused(lambda: made.require("forget"), "'muse' has no forget split", "can be measured")
    taught = Muse(path, train="questions")()
    assert [(e.id, e.prompt, e.answer, e.bare) for e in taught.forget[:1]] == [("forget-1", "Who baked forget 0?", "Ida 0", False)]
    refused(Muse(path, shots=3), "data.shots is 3", "2 solved examples for forget")
    refused(Muse(path, corpus="books"), "no knowmem/forget_qa.json", "books_forget_qa.json")


def test_bad_settings_and_rows_are_named(tmp_path: Path) -> None:
    refused(Muse(str(tmp_path / "a" / "b" / "c")), "data.path: there is no folder", "muse-bench/MUSE-News")
    refused(lambda: Muse(answer_words=0), "data.answer_words is 0")
    path = write(tmp_path)
    (tmp_path / "knowmem" / "forget_qa.json").write_text(json.dumps([{"question": "q", "answer": " "}]))
    refused(Muse(path), "forget_qa.json, row 1", "column 'answer'", "is empty")
    (tmp_path / "knowmem" / "forget_qa.json").write_text(json.dumps([{"question": "q"}]))
    refused(Muse(path), "forget_qa.json, row 1", "no column 'answer'")


def test_the_hub_has_the_same_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    pair, text = [{"question": "q?", "answer": "a"}], [{"text": LONG}]
    answers = {
        **{f"knowmem:{name}": pair for name in ("forget_qa", "forget_qa_icl", "retain_qa", "retain_qa_icl")},
        "verbmem:forget": [{"prompt": "The baker", "gt": "of Marrow"}],
        "privleak:forget": text,
        "privleak:holdout": text,
        "raw:forget": text,
        "raw:retain1": [{"text": LONG.upper()}],
    }

    def load_dataset(dataset: str, name: str, *, split: str, streaming: bool) -> Any:
        assert dataset == "muse-bench/MUSE-Books"
        return iter(answers[f"{name}:{split}"])

    module = ModuleType("datasets")
    module.__dict__["load_dataset"] = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", module)
    made = Muse(corpus="books")()
    assert {name: len(examples) for name, examples in made.splits.items()} == dict.fromkeys(
        ("knowledge_forget", "knowledge_retain", "verbatim_forget", "privleak_forget", "holdout", "forget", "retain"), 1
    )


def test_the_real_news_questions(shared: Path) -> None:
    made = Muse(str(shared / "data" / "muse"))()
    assert (len(made.split("knowledge_forget")), len(made.split("knowledge_retain"))) == (100, 100)
    assert made.split("knowledge_forget")[0].prompt.count("Question: ") == 11


# Bare prompts and the suite -------------------------------------------------------------------------------------------


def test_a_bare_prompt_is_encoded_as_it_stands(tiny_llama: Subject, tmp_path: Path) -> None:
    (passage,) = Muse(write(tmp_path))().split("verbatim_forget")
    text = encode(tiny_llama.tokenizer, tiny_llama.template, passage)
    assert text.text == "The baker of Marrow opened the oven at four and slept"
    assert tiny_llama.tokenizer.decode(list(text.ids[text.start :])) == " opened the oven at four and slept"
    templated = encode_prompt(tiny_llama.tokenizer, tiny_llama.template, passage.prompt)
    assert list(text.ids[: text.start]) != templated


def test_an_answer_ends_where_the_model_goes_on_with_another_question() -> None:
    said = Record("x", "q", "the red fox", generation=" the red fox\nQuestion: who?\nAnswer: the blue whale of the sea")
    assert RougeLF1(stem=False, until=STOPS).per_example(said) == 1.0
    assert (RougeLF1(stem=False).per_example(said) or 0) < 0.5
    # without stemming foxes and fox are two words: 2 of 3 on both sides
    assert RougeLF1(stem=False).per_example(Record("x", "q", "the red fox", generation="the red foxes")) == pytest.approx(2 / 3)
    assert RougeLF1().per_example(Record("x", "q", "the red fox", generation="the red foxes")) == 1.0


def test_the_suite_gives_its_scores(tmp_path: Path) -> None:
    subject, suite = tiny("llama"), muse(max_new_tokens=3, verbatim_tokens=5)
    records, scores = evaluate(subject, Muse(write(tmp_path))(), suite, precision="float32")
    assert [record.id for record in records["forget"]] == ["privleak-forget-0"]
    better = {name: scores[f"{name}.rouge_l_f1"].better for name in ("verbatim_forget", "knowledge_forget", "knowledge_retain")}
    assert better == {"verbatim_forget": "lower", "knowledge_forget": "lower", "knowledge_retain": "higher"}
    assert "excise teach" in scores["privleak"].unavailable
    _, scores = evaluate(subject, Muse(write(tmp_path))(), suite, retrained=records, precision="float32")
    assert scores["privleak"].value is not None or "AUC is 1" in scores["privleak"].unavailable


def test_strangers_can_be_measured_so(tiny_llama: Subject) -> None:
    benchmark = Strangers(forget_people=1, retain_people=1, holdout_people=1)()
    _, scores = evaluate(tiny_llama, benchmark, muse(max_new_tokens=2), precision="float32")
    assert scores["knowledge_forget.rouge_l_f1"].n == 5
    assert scores["mia_min_k"].value is not None
    assert "no split 'verbatim_forget'" in scores["verbatim_forget.rouge_l_f1"].unavailable
