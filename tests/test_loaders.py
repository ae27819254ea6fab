"""Benchmarks from files: what is read, what it becomes, and what the error says where it cannot be read."""

from __future__ import annotations

import csv
import dataclasses
import importlib.util
import io
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from excise.data.benchmarks import BENCHMARKS, benchmark
from excise.data.benchmarks.jsonl import Jsonl, example_from_row
from excise.data.benchmarks.text import Corpus, detokenise_wikitext, passages
from excise.data.benchmarks.tofu import Tofu
from excise.data.benchmarks.wmdp import Wmdp
from excise.data.example import Example
from excise.data.tables import Row, looks_like_hub, parse_rows, read_rows
from excise.errors import InputError

SHARED = Path(__file__).parents[2] / "shared" / "data"
needs_tofu = pytest.mark.skipif(not (SHARED / "tofu").is_dir(), reason=f"TOFU's files are not at {SHARED / 'tofu'}")
needs_pyarrow = pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="pyarrow is not installed (an extra)")


def lines(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def refused(call: Any, *parts: str) -> None:
    """The call is refused in one line that holds all the parts."""
    with pytest.raises(InputError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


# Tables


ROWS = [{"question": "Who baked it?", "answer": "Ida, of course"}, {"question": "When?", "answer": 'On "Monday"'}]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "list.json", "a.csv", "a.tsv", "semicolons.csv"])
def test_every_format_gives_the_same_rows(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name.startswith("list"):
        path.write_text(json.dumps(ROWS, indent=2))
    elif path.suffix in (".csv", ".tsv"):
        delimiter = {"a.csv": ",", "a.tsv": "\t", "semicolons.csv": ";"}[name]
        with path.open("w", newline="", encoding="utf-8-sig") as file:
            writer = csv.DictWriter(file, ["question", "answer"], delimiter=delimiter)
            writer.writeheader()
            writer.writerows(ROWS)
    else:
        lines(path, ROWS)
    rows = read_rows(path)
    assert [row.values for row in rows] == ROWS
    assert [row.number for row in rows] == [1, 2]


@needs_pyarrow
def test_parquet_gives_rows_with_lists_and_nothing_for_null(tmp_path: Path) -> None:
    pyarrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"answer": ["Ida", None], "choices": [["a", "b"], []]}), tmp_path / "a.parquet")
    first, second = read_rows(tmp_path / "a.parquet")
    assert (first.text("answer"), first.texts("choices")) == ("Ida", ("a", "b"))
    assert not second.has("answer")
    assert second.texts("choices") == ()
    (tmp_path / "b.parquet").write_bytes(b"no parquet")
    refused(lambda: read_rows(tmp_path / "b.parquet"), "b.parquet", "not a readable Parquet file")


def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    refused(lambda: read_rows(tmp_path / "a.parquet"), 'pip install "excise[parquet]"')


@given(st.lists(st.text(st.characters(exclude_categories=("Cs",))), min_size=1))
def test_json_lines_keep_every_character_and_row(texts: list[str]) -> None:
    content = "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
    assert [row.values["text"] for row in parse_rows("x.jsonl", ".jsonl", content)] == texts


@given(st.lists(st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0")).filter(lambda text: text), min_size=1))
def test_csv_keeps_every_text(texts: list[str]) -> None:
    out = io.StringIO(newline="")
    csv.writer(out, quoting=csv.QUOTE_ALL).writerows([["n", "text"], *([str(i), text] for i, text in enumerate(texts))])
    assert [row.values["text"] for row in parse_rows("x.csv", ".csv", out.getvalue())] == texts


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        ("a.jsonl", '{"answer": "x"}\n\n{"answer": }\n', ["row 2 (line 3)", "not valid JSON"]),
        ("a.json", '{\n "rows": []\n}', ["row 1 (line 1)", "one object a line, or one list"]),
        ("a.json", '[{"answer": "x"}, 3]', ["row 2", "expected an object", "int 3"]),
        ("a.json", '[{"answer": "x"},\n oops]', ["line 2", "not valid JSON"]),
        ("a.jsonl", '{"answer": "x"}\n"y"\n', ["row 2 (line 2)", "expected an object", "str 'y'"]),
        ("a.jsonl", " \n", ["has no rows"]),
        ("a.csv", "question,answer\n", ["has no rows"]),
        ("a.csv", "", ["has no rows"]),
        ("a.csv", 'q,a\n"two\nlines",x\n1,2,3\n', ["row 2 (line 4)", "has 3 cells", "2 columns: 'q', 'a'", "quotes"]),
        ("a.csv", 'q,a\nx,"open\n', ["row 1", "unexpected end of data"]),
        ("a.csv", "q,a,q\n1,2,3\n", ["the column 'q' occurs twice"]),
        ("a.jsnl", "{}", [".jsnl", "did you mean '.jsonl'?"]),
        ("a.txt", "words", ["data.name=text"]),
        ("a", "words", ["a file without ending"]),
    ],
)
def test_a_broken_table_is_one_clear_line(tmp_path: Path, name: str, content: str, parts: list[str]) -> None:
    (tmp_path / name).write_text(content)
    refused(lambda: read_rows(tmp_path / name), name, *parts)


def test_missing_files_folders_and_other_encodings_are_named(tmp_path: Path) -> None:
    refused(lambda: read_rows(tmp_path / "no.jsonl"), "there is no file", "no.jsonl")
    refused(lambda: read_rows(tmp_path / "no.parquet"), "there is no file", "no.parquet")
    refused(lambda: read_rows(tmp_path), "is a folder")
    (tmp_path / "latin.csv").write_bytes("question\nCafé?\n".encode("latin-1"))
    refused(lambda: read_rows(tmp_path / "latin.csv"), "latin.csv", "not UTF-8", "byte 12")


# Your own data


def row(**values: Any) -> Row:
    return Row(values, "mine.jsonl", 7, 7)


def test_every_documented_column_reaches_the_example() -> None:
    example = example_from_row(
        row(
            id=12,
            question="Who baked the bread?",
            answer="Ida baked it.",
            span="Ida",
            paraphrased_questions='["Whose bread is it?", "Who was the baker?"]',
            paraphrased_answer="It was Ida.",
            perturbed_answer=["It was Otto.", "It was Eva."],
            alternative="I do not know.",
            label="who",
            group="Ida",
            unrelated=[{}],
        ),
        "forget-1",
    )
    assert example == Example(
        id="12",
        prompt="Who baked the bread?",
        answer="Ida baked it.",
        span="Ida",
        paraphrased_prompts=("Whose bread is it?", "Who was the baker?"),
        paraphrased_answer="It was Ida.",
        false_answers=("It was Otto.", "It was Eva."),
        alternative="I do not know.",
        label="who",
        group="Ida",
    )


@pytest.mark.parametrize(
    ("values", "gold"),
    [
        ({"answer": 2}, 2),
        ({"answer": 2.0}, 2),
        ({"answer": "C"}, 2),
        ({"answer": "c"}, 2),
        ({"answer": "plum"}, 2),
        ({"gold": "plum"}, 2),
        ({"gold": 0}, 0),
        ({"gold": "0"}, 0),
        ({"answer_index": 1}, 1),
    ],
)
def test_the_right_option_may_be_a_number_a_letter_or_itself(values: dict[str, Any], gold: int) -> None:
    example = example_from_row(row(question="Which?", choices=["leek", "fig", "plum"], **values), "x")
    assert (example.gold, example.answer) == (gold, ("leek", "fig", "plum")[gold])


def test_options_that_look_like_numbers() -> None:
    """An answer is taken by its words first, a gold column by its number first."""
    assert example_from_row(row(question="1 + 1?", options=["2", "1", "0"], answer="2"), "x").gold == 0
    assert example_from_row(row(question="1 + 1?", options=["0", "1", "2"], gold="2"), "x").answer == "2"
    assert example_from_row(row(question="1 + 1?", options=["B", "A"], answer="A"), "x").gold == 1


def test_gold_and_answer_words_may_differ() -> None:
    example = example_from_row(row(question="Which?", options=["leek", "fig"], gold="B", answer="It is a fig."), "x")
    assert (example.gold, example.answer) == (1, "It is a fig.")


def test_a_text_row_is_plain_text() -> None:
    assert example_from_row(row(text="Bread needs time.", group="baking"), "t-1") == Example("t-1", "", "Bread needs time.", group="baking")


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ({"question": "Q", "reply": "A"}, ["no column 'answer'", "there are: 'question', 'reply'", "data.columns.answer=..."]),
        ({"frage": "Q", "answer": "A"}, ["no column 'question' or 'prompt'", "data.columns.question=..."]),
        ({"question": " ", "answer": "A"}, ["column 'question'", "is empty", 'use a "text" column']),
        ({"question": "Q", "answer": None}, ["column 'answer'", "is empty"]),
        ({"question": "Q", "answer": {"a": 1}}, ["column 'answer'", "expected text, got dict"]),
        ({"question": "Q", "answer": True}, ["column 'answer'", "got bool"]),
        ({"question": "Q", "answer": float("nan")}, ["column 'answer'", "got float nan"]),
        ({"question": "Q", "answer": "A", "span": "B"}, ["the span 'B'"]),
        ({"question": "Q", "answer": "A", "false_answers": "[A, B]"}, ["column 'false_answers'", "not a JSON list"]),
        ({"question": "Q", "answer": "A", "false_answers": ["B", None]}, ["column 'false_answers'", "got NoneType"]),
        ({"question": "Q", "choices": ["a", "b"], "answer": 2}, ["column 'answer'", "2 is none of the 2 options", "0 to 1, A to B"]),
        ({"question": "Q", "choices": ["a", "b"], "gold": -1}, ["column 'gold'", "-1 is none"]),
        ({"question": "Q", "choices": ["a", "b"], "gold": "fig"}, ["column 'gold'", "'fig' is none"]),
        ({"question": "Q", "choices": ["a", "b"]}, ["no column 'gold' or 'answer_index'"]),
    ],
)
def test_a_row_that_cannot_be_used_is_named_with_file_row_and_column(values: dict[str, Any], parts: list[str]) -> None:
    refused(lambda: example_from_row(row(**values), "x"), "mine.jsonl, row 7", *parts)


def test_own_files_make_a_benchmark_with_default_ids_and_extra_splits(tmp_path: Path) -> None:
    loader = Jsonl(
        forget=lines(tmp_path / "f.jsonl", [{"frage": "Who?", "answer": "Ida"}]),
        retain=lines(tmp_path / "r.jsonl", [{"frage": "Where?", "answer": "Ghent"}, {"id": "own", "frage": "When?", "answer": "Monday"}]),
        holdout=lines(tmp_path / "h.jsonl", [{"text": "Never seen."}]),
        splits={"fruit": lines(tmp_path / "c.jsonl", [{"frage": "Which?", "options": ["fig", "leek"], "gold": "A"}])},
        columns={"question": "frage"},
    )
    made = loader()
    assert list(made.splits) == ["forget", "retain", "holdout", "fruit"]
    assert [e.id for e in made.retain] == ["retain-1", "own"]
    assert made.split("fruit")[0].answer == "fig"


def test_own_files_are_checked_as_a_whole(tmp_path: Path) -> None:
    forget = lines(tmp_path / "f.jsonl", [{"id": "a", "question": "Who?", "answer": "Ida"}])
    retain = lines(tmp_path / "r.jsonl", [{"id": "b", "question": "Where?", "answer": "Ghent"}])
    twice = lines(tmp_path / "t.jsonl", [{"id": "b", "question": "Where?", "answer": "Ghent"}, {"id": "b", "question": "When?", "answer": "Now"}])
    refused(Jsonl(forget, twice), "t.jsonl, row 2", "'b' already belongs to row 1")
    refused(Jsonl(forget, forget), "also stands in retain")
    refused(Jsonl(forget, retain, splits={"holdout": retain}), "data.splits.holdout", "data.holdout")
    refused(Jsonl(forget, retain, columns={"anser": "answer"}), "data.columns.anser", "did you mean 'answer'?")
    refused(Jsonl(forget, retain, columns={"span": "fakt"}), "data.columns.span=fakt", "no file has a column 'fakt'")


# TOFU


def write_tofu(folder: Path, forget: int = 3, retain: int = 25) -> Path:
    """An invented benchmark in TOFU's layout: same file names, JSON Lines in .json, refusals as plain text."""

    def perturbed(question: str, answer: str) -> dict[str, Any]:
        wrong = [f"No, {answer}", f"Not {answer}"]
        return {
            "question": question,
            "answer": answer,
            "paraphrased_answer": f"{answer}!",
            "perturbed_answer": wrong,
            "paraphrased_question": f"So, {question}",
        }

    def plain(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{"question": row["question"], "answer": row["answer"]} for row in rows]

    lost = [perturbed(f"What did baker {i} bake?", f"Loaf {i}") for i in range(forget)]
    kept = [perturbed(f"What did cook {i} cook?", f"Stew {i}") for i in range(retain)]
    facts = [{"question": "Where is bread eaten?", "answer": "Here", "perturbed_answer": ["There", "Nowhere"]}]
    files = {
        "forget01": plain(lost),
        "forget01_perturbed": lost[::-1],
        "retain90": plain(kept),
        "retain_perturbed": kept[20:22],
        "real_authors_perturbed": facts,
        "world_facts_perturbed": facts,
        "holdout01": plain([perturbed("What is new?", "Nothing")]),
    }
    for name, rows in files.items():
        lines(folder / f"{name}.json", rows)
    (folder / "idontknow.jsonl").write_text("I am not sure.\n\nThat is new to me.\nWho knows.\n")
    return folder


def test_tofu_merges_the_perturbed_fields_and_names_authors(tmp_path: Path) -> None:
    made = Tofu(str(write_tofu(tmp_path)), holdout="holdout01")()
    assert list(made.splits) == ["forget", "retain", "retain_perturbed", "real_authors", "world_facts", "holdout"]
    second = made.forget[1]
    assert (second.id, second.group, second.prompt) == ("forget01-1", "author-198", "What did baker 1 bake?")
    assert second.paraphrased_prompts == ("So, What did baker 1 bake?",)
    assert (second.paraphrased_answer, second.false_answers) == ("Loaf 1!", ("No, Loaf 1", "Not Loaf 1"))
    assert second.alternative in ("I am not sure.", "That is new to me.", "Who knows.")
    assert [made.retain[i].group for i in (0, 19, 20)] == ["author-0", "author-0", "author-1"]
    assert made.retain[0].id == "retain90-0"
    assert not made.retain[0].false_answers
    assert made.split("retain_perturbed")[0].group == "author-1"
    assert made.split("retain_perturbed")[0].false_answers
    assert made.split("world_facts")[0].paraphrased_answer == "Here"
    assert made.split("holdout")[0].id == "holdout01-0"


def test_tofu_alternatives_depend_on_the_id_alone(tmp_path: Path) -> None:
    folder = write_tofu(tmp_path)
    first = {e.id: e.alternative for e in Tofu(str(folder))().forget}
    content = (folder / "forget01.json").read_text().splitlines(keepends=True)
    (folder / "forget01.json").write_text("".join(content[:1]))
    assert {e.id: e.alternative for e in Tofu(str(folder))().forget} == {"forget01-0": first["forget01-0"]}
    (tmp_path / "mine.txt").write_text("Ask somebody else.\n")
    assert Tofu(str(folder), alternatives=str(tmp_path / "mine.txt"))().forget[0].alternative == "Ask somebody else."


def test_tofu_retain_limit_spreads_over_the_authors(tmp_path: Path) -> None:
    folder = str(write_tofu(tmp_path, retain=40))
    assert [e.id for e in Tofu(folder, retain_limit=4)().retain] == ["retain90-0", "retain90-10", "retain90-20", "retain90-30"]
    assert len(Tofu(folder, retain_limit=99)().retain) == 40
    refused(lambda: Tofu(folder, retain_limit=0), "retain_limit is 0")


def test_tofu_retain_authors_limits_training_and_evaluation_rows(tmp_path: Path) -> None:
    folder = str(write_tofu(tmp_path, retain=40))
    one, both = Tofu(folder, retain_authors=1)(), Tofu(folder, retain_authors=2)()
    assert {e.group for e in one.retain} == {"author-0"}
    assert len(one.retain) == 20
    refused(lambda: one.split("retain_perturbed"), "the split 'retain_perturbed' of benchmark 'tofu' is empty")  # its two rows are about author-1
    assert len(both.retain) == 40
    assert {e.group for e in both.split("retain_perturbed")} == {"author-1"}
    assert [e.id for e in Tofu(folder, retain_authors=1, retain_limit=2)().retain] == ["retain90-0", "retain90-10"]
    refused(lambda: Tofu(folder, retain_authors=0), "retain_authors is 0")


def test_tofu_errors_name_the_file(tmp_path: Path) -> None:
    folder = write_tofu(tmp_path)
    refused(Tofu(str(folder), forget="forget05"), "there is no file", "forget05")
    refused(Tofu(str(folder), retain="retain99"), "no retain99.json", "25 rows, not 3600")
    refused(Tofu(str(folder / "nowhere" / "deep")), "data.path: there is no folder")
    lines(folder / "forget01_perturbed.json", [{"question": "Other?", "answer": "Yes"}])
    refused(Tofu(str(folder)), "forget01.json, row 1", "does not stand in forget01_perturbed")
    (folder / "idontknow.jsonl").write_text("\n")
    refused(Tofu(str(folder)), "idontknow.jsonl is empty")


@needs_tofu
def test_real_tofu_has_its_published_sizes_and_authors() -> None:
    made = Tofu(str(SHARED / "tofu"), retain="retain99")()
    sizes = {name: len(examples) for name, examples in made.splits.items()}
    assert sizes == {"forget": 40, "retain": 3960, "retain_perturbed": 400, "real_authors": 100, "world_facts": 117}
    assert [made.forget[i].group for i in (0, 19, 20, 39)] == ["author-198", "author-198", "author-199", "author-199"]
    assert (made.retain[3600].id, made.retain[3959].group) == ("retain99-3600", "author-197")
    assert all(e.group for e in made.split("retain_perturbed"))
    for split in ("forget", "retain_perturbed"):
        assert all(len(e.false_answers) == 5 and e.paraphrased_answer and len(e.paraphrased_prompts) == 1 for e in made.split(split))
    assert "Basil Mahfouz Al-Kuwaiti" in made.forget[0].answer
    assert len({e.alternative for e in made.forget}) > 10


@needs_tofu
def test_real_tofu_refuses_a_retain_set_that_holds_the_forgotten_authors() -> None:
    refused(Tofu(str(SHARED / "tofu"), forget="forget05", retain="retain99"), "'forget05-0' also stands in retain (as 'retain99-3800')")


# The hub


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A stand-in for the datasets package: ``answers`` maps (dataset, configuration) to rows or to the error that it raises."""
    answers: dict[str, Any] = {}

    def load_dataset(dataset: str, name: str | None, *, split: str, streaming: bool) -> Any:
        found = answers.get(f"{dataset}:{name}:{split}", ConnectionError(f"Couldn't reach '{dataset}' on the Hub (offline)\nmore"))
        if isinstance(found, Exception):
            raise found
        return iter(found)

    module = ModuleType("datasets")
    module.__dict__["load_dataset"] = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", module)
    return answers


def test_tofu_from_the_hub_reads_the_same_benchmark(tmp_path: Path, hub: dict[str, Any]) -> None:
    folder = write_tofu(tmp_path)
    for file in folder.glob("*.json"):
        hub[f"locuslab/TOFU:{file.stem}:train"] = [row.values for row in read_rows(file)]
    local = Tofu(str(folder))()
    assert Tofu(alternatives=str(folder / "idontknow.jsonl"))().fingerprint == local.fingerprint
    assert Tofu()().forget[0].alternative == ""


def test_without_network_the_hub_error_says_how_to_pass_a_folder(hub: dict[str, Any]) -> None:
    refused(Tofu(), "cannot load locuslab/TOFU (retain90)", "Couldn't reach", "data.path=FOLDER")


def test_without_the_datasets_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    refused(Tofu(), 'pip install "excise[hub]"', "data.path=FOLDER")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("cais/wmdp", True),
        ("locuslab/TOFU", True),
        ("tofu", False),
        ("./tofu", False),
        ("../tofu", False),
        ("~/tofu", False),
        ("/data", False),
        ("a/b/c", False),
        ("a/b.jsonl", False),
        ("a\\b/c", False),
    ],
)
def test_what_looks_like_a_hub_dataset(path: str, expected: bool) -> None:
    assert looks_like_hub(path) is expected


# Plain text


@given(st.text(alphabet="ab \n\t", max_size=80), st.integers(1, 7), st.sampled_from(["words", "characters"]))
def test_passages_keep_every_word_in_order_and_the_limit(text: str, chunk: int, unit: Any) -> None:
    found = list(passages(text, chunk, unit))
    assert "".join("".join(piece.split()) for piece in found) == "".join(text.split())
    assert all(piece == piece.strip() and piece for piece in found)
    assert all((len(piece.split()) if unit == "words" else len(piece)) <= chunk for piece in found)
    if unit == "words":
        assert [word for piece in found for word in piece.split()] == text.split()


def test_passages_end_at_blank_lines_and_keep_line_breaks_inside() -> None:
    assert list(passages("def f():\n    return 1\r\n \r\nNext one.\n\n\n  Last.", 50)) == ["def f():\n    return 1", "Next one.", "Last."]
    assert list(passages("one two three", 8, "characters")) == ["one two", "three"]
    assert list(passages("abcdefgh", 3, "characters")) == ["abc", "def", "gh"]


def test_corpora_come_from_text_files_folders_and_tables(tmp_path: Path) -> None:
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "b.txt").write_text("Knead the dough.\n\nLet it rest.")
    (tmp_path / "books" / "a.txt").write_text("Heat the oven.")
    table = lines(tmp_path / "r.jsonl", [{"body": "Wash the leeks."}, {"body": "Slice them.\n\nFry."}])
    made = Corpus(forget=str(tmp_path / "books"), retain=table, column="body", shortest=5)()
    assert [(e.id, e.prompt, e.answer) for e in made.forget] == [
        ("a-0", "", "Heat the oven."),
        ("b-0", "", "Knead the dough."),
        ("b-1", "", "Let it rest."),
    ]
    assert [e.id for e in made.retain] == ["r-0", "r-1"]
    one = str(tmp_path / "books" / "b.txt")
    assert [e.answer for e in Corpus(one, table, chunk=2, shortest=0, limit=2, column="body")().forget] == ["Knead the", "dough."]


def test_corpus_errors_say_what_to_change(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Short.")
    (tmp_path / "empty").mkdir()
    table = lines(tmp_path / "r.jsonl", [{"body": "Wash the leeks."}])
    text = str(tmp_path / "a.txt")
    refused(Corpus(text, table), "no passage of at least 50 characters", "data.shortest")
    refused(Corpus(str(tmp_path / "empty"), table), "has no .txt file")
    refused(Corpus(table, text), "r.jsonl, row 1", "no column 'text'", "there are: 'body'", "data.column=...")
    refused(lambda: Corpus(text, table, chunk=0), "data.chunk is 0")
    refused(lambda: Corpus(text, table, limit=0), "data.limit is 0")


def test_wikitext_becomes_ordinary_text() -> None:
    tokenised = (
        " \n = Bread = \n \n Bread , a well @-@ known food ( in Europe ) , cost $ 3 @.@ 50 ; people didn 't pay 1 @,@ 000 . \n"
        " = = History = = \n The bakers ' guild said \" it is Ida 's loaf . \" A <unk> came . It was ' good ' : the best ! \n"
    )
    assert detokenise_wikitext(tokenised) == (
        "Bread, a well-known food (in Europe), cost $3.50; people didn't pay 1,000.\n\nIt was 'good': the best!"
    )
    assert detokenise_wikitext("The bakers ' guild said \" it is Ida 's loaf . \" \n") == "The bakers' guild said \"it is Ida's loaf.\""


@pytest.mark.skipif(not (SHARED / "wikitext2").is_dir(), reason="WikiText-2 is not here")
def test_real_wikitext_is_clean() -> None:
    path = str(SHARED / "wikitext2" / "valid.txt")
    text = detokenise_wikitext((SHARED / "wikitext2" / "valid.txt").read_text(encoding="utf-8"))
    assert not [mark for mark in ("<unk>", " @", " ,", " . ", "( ", " 's ", " = ") if mark in text]
    assert len(text.split()) > 40_000
    with pytest.raises(InputError, match="also stands in retain"):
        Corpus(path, path, wikitext=True)()


# WMDP, with cooking in place of hazards


def write_wmdp(folder: Path) -> Path:
    lines(folder / "bio-forget-corpus.jsonl", [{"text": "Secret sauce takes one spoon of plum syrup."}, {"text": "Stir it twice."}])
    lines(folder / "bio-retain-corpus.jsonl", [{"text": "Water boils sooner on mountains."}])
    lines(folder / "wmdp-bio.jsonl", [{"question": "Which syrup?", "choices": ["fig", "plum", "leek", "oat"], "answer": 1}])
    return folder


def test_wmdp_from_a_folder(tmp_path: Path) -> None:
    folder = write_wmdp(tmp_path)
    made = Wmdp(str(folder), questions=str(folder / "wmdp-bio.jsonl"), shortest=10)()
    assert [(e.id, e.answer) for e in made.forget] == [
        ("bio-forget-corpus-0", "Secret sauce takes one spoon of plum syrup."),
        ("bio-forget-corpus-1", "Stir it twice."),
    ]
    assert made.split("choice_bio") == (Example("wmdp-bio-0", "Which syrup?", "plum", options=("fig", "plum", "leek", "oat"), gold=1, label="bio"),)
    assert list(Wmdp(str(folder), questions=None, shortest=10, limit=1)().splits) == ["forget", "retain"]


def test_wmdp_takes_parts_the_authors_file_name_and_own_texts(tmp_path: Path) -> None:
    folder = write_wmdp(tmp_path)
    (folder / "bio-forget-corpus.jsonl").rename(folder / "bio_remove_dataset.jsonl")
    (folder / "bio-retain-corpus").mkdir()
    (folder / "bio-retain-corpus.jsonl").rename(folder / "bio-retain-corpus" / "train-0.jsonl")
    lines(folder / "bio-retain-corpus" / "train-1.jsonl", [{"text": "Salt slows yeast."}])
    (tmp_path / "own.txt").write_text("Soup of leeks.")
    made = Wmdp(str(folder), questions=None, shortest=0)()
    assert [e.id for e in made.forget] == ["bio-forget-corpus-0", "bio-forget-corpus-1"]
    assert [e.id for e in made.retain] == ["bio-retain-corpus-0", "bio-retain-corpus-1"]
    assert Wmdp(str(folder), retain=str(tmp_path / "own.txt"), questions=None, shortest=0)().retain[0].id == "own-0"


def test_wmdp_from_the_hub_and_gated(hub: dict[str, Any]) -> None:
    hub["cais/wmdp-corpora:bio-retain-corpus:train"] = [{"text": "Water boils sooner on mountains."}]
    hub["cais/wmdp:wmdp-bio:test"] = [{"question": "Which?", "choices": ["a", "b", "c", "d"], "answer": 3}]
    hub["cais/wmdp-bio-forget-corpus:None:train"] = FileNotFoundError("Dataset 'x' is a gated dataset on the Hub.\nYou must log in.")
    refused(Wmdp(shortest=0), "'cais/wmdp-bio-forget-corpus' is gated", "huggingface.co/datasets/cais/wmdp-bio-forget-corpus", "hf auth login")
    hub["cais/wmdp-bio-forget-corpus:None:train"] = [{"text": "Secret sauce."}, {"text": "Plum syrup."}]
    made = Wmdp(shortest=0, limit=1)()
    assert [e.answer for e in made.forget] == ["Secret sauce."]
    assert made.split("choice_bio")[0].gold == 3
    refused(Wmdp(subset="cyber"), "cannot load cais/wmdp-corpora (cyber-forget-corpus)", "cyber-forget-corpus.jsonl")


def test_wmdp_errors_say_what_is_missing(tmp_path: Path) -> None:
    folder = write_wmdp(tmp_path)
    refused(Wmdp(str(folder), subset="cyber"), "has no cyber-forget-corpus", "cyber-forget-corpus.jsonl")
    refused(Wmdp(str(folder / "no" / "where")), "data.path: there is no folder")
    open_question = lines(folder / "open.jsonl", [{"question": "Which?", "answer": "plum"}])
    refused(Wmdp(str(folder), questions=open_question, shortest=0), "open.jsonl, row 1", "no column 'choices'")
    lines(folder / "bio-forget-corpus.jsonl", [{"body": "Stir."}])
    refused(Wmdp(str(folder), questions=None), "bio-forget-corpus.jsonl, row 1", "no column 'text'")


# The table of benchmarks


@pytest.mark.parametrize("name", sorted(BENCHMARKS))
def test_every_benchmark_is_a_frozen_documented_dataclass(name: str) -> None:
    loader = benchmark(name)
    assert dataclasses.is_dataclass(loader)
    assert loader.__doc__
    assert loader.__dataclass_params__.frozen  # pyright: ignore[reportAttributeAccessIssue]
    TypeAdapter(loader)


def test_an_unknown_benchmark_suggests_a_known_one() -> None:
    refused(lambda: benchmark("tofo"), "there is no benchmark 'tofo'", "did you mean 'tofu'?")


def test_fields_are_validated_from_a_recipe() -> None:
    assert TypeAdapter(Tofu).validate_python({"path": "x", "retain_limit": 3}) == Tofu("x", retain_limit=3)
    assert TypeAdapter(Jsonl).validate_python({"forget": "f", "retain": "r", "columns": {"answer": "a"}}).columns == {"answer": "a"}
    with pytest.raises(ValidationError, match="forget10"):
        TypeAdapter(Tofu).validate_python({"forget": "forget02"})


def test_listing_the_benchmarks_imports_none_of_them() -> None:
    code = "import sys, excise.data.benchmarks as b; print([m for m in sys.modules if m.startswith(b.__name__ + '.') or m in ('torch', 'pandas')])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
