"""A concept's folder: what becomes of its files, and the suite on it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from conftest import refused, tiny
from excise.data.benchmarks.concepts import Concepts, shuffled
from excise.data.benchmarks.strangers import Strangers
from excise.evaluation.suites import evaluate
from excise.evaluation.suites.concepts import concepts
from excise.subject import Subject


def question(n: int) -> dict[str, Any]:
    return {"q": f"Which loaf is number {n}?", "correct_answer": f"rye {n}", "options": [f"rye {n}", f"oat {n}", f"fig {n}", f"plum {n}"]}


def files() -> dict[str, Any]:
    sides = [f"{side}_{part}" for side in ("QA", "SimdomQA") for part in ("train", "test")]
    return {
        "concept_sentences": [{"concept": c, "sentences": [f"{c} needs time {i}." for i in range(4)]} for c in ("Bread", "Soup", "Tea")],
        "neutral_sentences": [{"url": "u", "title": "t", "sentence": f"The fox ran {i} times."} for i in range(3)],
        "mc_questions": {"Bread": {side: [question(10 * k + i) for i in range(3)] for k, side in enumerate(sides)}},
        "open_questions": {"Bread": {side: [{"q": f"{side} {i}?", "a": f"rye {i}"} for i in range(2)] for side in sides}},
        "coherency_prompts": {"Bread": ["Bread is the name of a town.", "Loaf is a river."]},
        "relearn_paragraphs": {"Bread": {"RelearnParagraphs": ["Bread is baked.", "Rye is a grain."]}},
    }


def write(folder: Path, content: dict[str, Any] | None = None) -> str:
    for name, value in (files() if content is None else content).items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return str(folder)


def mmlu(folder: Path) -> str:
    rows = [{"question": f"m{i}?", "choices": ["a", "b", "c", "d"], "answer": i % 4, "subject": "s"} for i in range(3)]
    (folder / "mmlu.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder / "mmlu.jsonl")


def test_every_file_becomes_its_splits(tmp_path: Path) -> None:
    made = Concepts(write(tmp_path), "Bread", mmlu=mmlu(tmp_path), others_limit=2)()
    sizes = {name: len(examples) for name, examples in made.splits.items()}
    assert sizes == {
        "forget": 4,
        "retain": 3,
        "concept": 3,
        "tuning_concept": 3,
        "concept_open": 2,
        "similar": 3,
        "tuning_similar": 3,
        "similar_open": 2,
        "coherence": 2,
        "relearn": 2,
        "others": 4,
        "mmlu": 3,
    }
    assert (made.forget[0].prompt, made.forget[0].answer, made.retain[0].answer) == ("", "Bread needs time 0.", "The fox ran 0 times.")
    assert Counter(e.label for e in made.split("others")) == {"Soup": 2, "Tea": 2}
    assert made.split("concept")[0].prompt == "Which loaf is number 10?"
    assert made.split("concept_open")[0].prompt == "QA_test 0?"
    assert Concepts(str(tmp_path), "Bread", part="train")().split("similar")[0].prompt == "Which loaf is number 20?"
    assert made.split("tuning_similar")[0].prompt == "Which loaf is number 20?"
    assert made.split("tuning_concept")[0].prompt == "Which loaf is number 0?"
    assert all(e.bare and e.prompt for e in made.split("coherence"))


def test_options_are_shuffled_by_their_words_alone(tmp_path: Path) -> None:
    made = Concepts(write(tmp_path), "Bread")()
    for example in made.split("concept"):
        assert example.gold is not None
        assert example.options[example.gold] == example.answer
        assert example.answer.startswith("rye")
    turned = files()
    for rows in turned["mc_questions"]["Bread"].values():
        for row in rows:
            row["options"].reverse()
    assert Concepts(write(tmp_path, turned), "Bread")().split("concept") == made.split("concept")
    golds = Counter(shuffled(f"q{i}", ["a", "b", "c", "d"]).index("a") for i in range(4000))
    assert min(golds.values()) > 900  # 1000 each but for chance (standard deviation 27)


def test_files_that_are_not_there_have_no_split(tmp_path: Path) -> None:
    least = {name: value for name, value in files().items() if "sentences" in name}
    made = Concepts(write(tmp_path, least), "Soup")()
    assert set(made.splits) == {"forget", "retain", "others"}
    refused(Concepts(str(tmp_path), "Sop"), "no concept 'Sop'", "did you mean 'Soup'?")
    refused(Concepts(str(tmp_path / "no"), "Soup"), "data.path: there is no folder")
    (tmp_path / "neutral_sentences.json").unlink()
    refused(Concepts(str(tmp_path), "Soup"), "there is no file", "neutral_sentences.json")
    refused(lambda: Concepts(str(tmp_path), "Soup", others_limit=0), "data.others_limit is 0")


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (lambda f: f["mc_questions"]["Bread"]["QA_test"][1].update(correct_answer="barley"), ["QA_test, question 2", "'barley' must be exactly one"]),
        (lambda f: f["mc_questions"]["Bread"]["QA_test"][1].update(options=["a", "a"], correct_answer="a"), ["question 2", "exactly one"]),
        (lambda f: f["mc_questions"]["Bread"]["QA_test"][0].pop("options"), ["QA_test, question 1", "no 'options'", "'q', 'correct_answer'"]),
        (lambda f: f["mc_questions"]["Bread"].update(QA_test={}), ["mc_questions.json", "expected a list, got dict"]),
        (lambda f: f["mc_questions"].update(Bread=[]), ["mc_questions.json, Bread", "expected an object, got list"]),
        (lambda f: f["open_questions"]["Bread"]["QA_test"][0].update(a=" "), ["open_questions.json", "question 1", "'a' is ' '"]),
        (lambda f: f["concept_sentences"][0].update(sentences=["x", 3]), ["concept_sentences.json, row 1", "number 2 is 3"]),
        (lambda f: f["neutral_sentences"].append({"text": "x"}), ["neutral_sentences.json, row 4", "no 'sentence'", "'text'"]),
        (lambda f: f.update(concept_sentences={}), ["concept_sentences.json", "expected a list, got dict"]),
        (lambda f: f["coherency_prompts"].update(Bread="x"), ["coherency_prompts.json, Bread", "expected a list, got str"]),
    ],
)
def test_a_broken_file_is_one_clear_line(tmp_path: Path, change: Any, parts: list[str]) -> None:
    content = files()
    change(content)
    refused(Concepts(write(tmp_path, content), "Bread"), *parts)


def test_the_real_folder(shared: Path) -> None:
    folder = str(shared / "data" / "concepts")
    made = Concepts(folder, "Ancient Rome")()
    assert {name: len(made.split(name)) for name in ("forget", "retain", "concept", "similar_open", "coherence", "relearn", "others")} == {
        "forget": 300,
        "retain": 300,
        "concept": 50,
        "similar_open": 50,
        "coherence": 20,
        "relearn": 170,
        "others": 80,
    }
    assert "relearn" not in Concepts(folder, "Harry Potter")().splits
    golds = Counter(e.gold for name in ("Golf", "Baseball", "Ancient Rome", "Harry Potter") for e in Concepts(folder, name)().split("concept"))
    assert max(golds.values()) < 80  # of 200; in the files nearly all stand first


# The suite ------------------------------------------------------------------------------------------------------------


def test_the_suite_compares_with_the_model_before(tmp_path: Path) -> None:
    benchmark = Concepts(write(tmp_path), "Bread", mmlu=mmlu(tmp_path))()
    suite = concepts(max_new_tokens=4, letters=True)
    before, alone = evaluate(tiny("llama"), benchmark, suite, precision="float32")
    assert "--baseline" in alone["efficacy"].unavailable
    assert alone["concept.choice_margin"].value is not None
    assert alone["mmlu.perplexity"].value is not None
    assert (alone["concept.choice_accuracy"].better, alone["similar.choice_accuracy"].better) == ("lower", "higher")
    assert alone["coherence.related"].n == 2
    _, scores = evaluate(tiny("llama", seed=1), benchmark, suite, baseline=before, precision="float32")
    relative = [
        f"{name}{form}{clip}" for name in ("efficacy", "specificity", "overall") for form in ("", "_open", "_letters") for clip in ("", "_unclipped")
    ]
    assert {*relative, "coherence", "coherence_unclipped"} <= set(scores)
    reasons = [scores[name].unavailable for name in relative if scores[name].value is None]
    assert all("no better than chance" in reason for reason in reasons)  # a random model is at chance somewhere


def test_without_mmlu_only_what_needs_it_is_unavailable(tmp_path: Path) -> None:
    benchmark = Concepts(write(tmp_path), "Bread")()
    suite = concepts(max_new_tokens=2)
    records, _ = evaluate(tiny("llama"), benchmark, suite, precision="float32")
    _, scores = evaluate(tiny("llama"), benchmark, suite, baseline=records, precision="float32")
    assert "data.mmlu=FILE" in scores["specificity"].unavailable
    assert "no split 'mmlu'" in scores["mmlu.choice_accuracy"].unavailable


def test_strangers_can_be_measured_so(tiny_llama: Subject) -> None:
    benchmark = Strangers(forget_people=1, retain_people=4, holdout_people=0, questions=4)()
    _, scores = evaluate(tiny_llama, benchmark, concepts(max_new_tokens=2), precision="float32")
    assert scores["mmlu.choice_accuracy"].n == 4
    assert scores["concept_open.contains_truth"].n == 5
    assert scores["concept.choice_margin"].left_out == 0


def test_a_judge_of_relatedness_is_asked(tmp_path: Path) -> None:
    suite = concepts(related={"name": "similarity", "threshold": 0.6})
    assert suite.judging[1].aspects == {"coherence": ("related",)}
    refused(lambda: concepts(related="similar"), "unknown judge 'similar'", "did you mean 'similarity'?")
