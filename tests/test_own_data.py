"""docs/own-data.md: every file that it shows is written and read as it says; and what the four loaders refuse."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from conftest import REPOSITORY, adapted, refused, tiny, tiny_tokenizer
from excise.data.benchmarks.easyedit import EasyEdit
from excise.data.benchmarks.jsonl import Jsonl
from excise.data.benchmarks.muse import Muse
from excise.data.benchmarks.text import Corpus
from excise.data.benchmarks.tofu import Tofu
from excise.data.encode import Template, encode, encode_prompt
from excise.data.example import Benchmark, Example
from excise.evaluation.collect import answer_key, collect, score_key
from excise.evaluation.plan import Plan
from excise.loading import ModelSpec, load
from excise.recipe import Recipe
from excise.saving import save
from test_benchmarks_muse import write as write_muse
from test_loaders import lines, write_tofu

PAGE = (REPOSITORY / "docs" / "own-data.md").read_text(encoding="utf-8")
FILES = re.findall(r"^`([\w./-]+)`:\n\n```\w+\n(.*?)^```", PAGE, flags=re.S | re.M)
RECIPES = [yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```", PAGE, flags=re.S | re.M)]
SHELL = [line for block in re.findall(r"^```sh\n(.*?)^```", PAGE, flags=re.S | re.M) for line in block.splitlines()]
needs_pyarrow = pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="pyarrow is not installed (an extra)")


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the page's files, which is the current one."""
    for name, content in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(name: str) -> Benchmark:
    """The benchmark of the page's recipe for a loader, as a run would read it."""
    (data,) = (recipe["data"] for recipe in RECIPES if recipe.get("data", {}).get("name") == name)
    return Recipe.parse({"model": "m", "data": data, "method": "npo"}).benchmark_loader()()


def test_every_sample_of_the_page_is_known_here() -> None:
    assert [recipe.get("data", {}).get("name", "a model") for recipe in RECIPES] == ["jsonl", "text", "easyedit", "tofu", "muse", "a model"]
    assert all(line.startswith("hf download ") for line in SHELL)
    assert len(FILES) == 6


# Conversations


def test_the_last_answer_of_a_conversation_is_asked_for(written: Path) -> None:
    first, second = read("jsonl").forget
    assert first.history == (
        ("system", "You keep the town's records."),
        ("user", "Do you know Ida Marrow?"),
        ("assistant", "Yes, the baker."),
    )
    assert (first.prompt, first.answer, first.span, first.group) == ("Where does she live?", "At 12 Elm Lane.", "12 Elm Lane", "Ida Marrow")
    assert (second.history, second.prompt, second.answer) == ((), "Who plays the organ?", "Odo Brannigan does.")


def test_every_answer_becomes_an_example_where_asked_for(written: Path) -> None:
    made = Jsonl("forget.jsonl", "retain.jsonl", turns="all")()
    assert [(e.id, e.answer, e.span, len(e.history)) for e in made.forget] == [
        ("forget-1-1", "Yes, the baker.", "", 1),
        ("forget-1-2", "At 12 Elm Lane.", "12 Elm Lane", 3),
        ("forget-2", "Odo Brannigan does.", "", 0),
    ]


TURNS = (("user", "Do you know Ida?"), ("assistant", "Yes."))
LATER = Example("later", "Where does she live?", "At 12 Elm Lane.", history=TURNS)


def test_a_conversation_is_written_by_the_models_own_template() -> None:
    tokenizer = tiny_tokenizer()
    text = encode(tokenizer, Template("chat"), LATER)
    turns = [{"role": r, "content": c} for r, c in (*TURNS, ("user", LATER.prompt), ("assistant", LATER.answer))]
    whole = tokenizer.apply_chat_template(turns, tokenize=False)
    assert isinstance(whole, str)
    assert text.text == whole.rstrip("\n")
    assert text.text[slice(*text.question)] == LATER.prompt
    assert text.text[slice(*text.answer)] == LATER.answer
    assert list(text.ids[: text.start]) == encode_prompt(tokenizer, Template("chat"), LATER.prompt, history=TURNS)
    scored = tokenizer.decode(list(text.ids[text.start :]))
    assert scored == "At 12 Elm Lane.<|im_end|>"


def test_the_system_turn_of_a_conversation_comes_before_the_recipes() -> None:
    tokenizer = tiny_tokenizer()
    template = Template("chat", system="From the recipe.")
    own = (("system", "From the file."), *TURNS)
    assert template.prompt(tokenizer, "Q?", history=own).count("<|im_start|>system") == 1
    assert "From the recipe." not in template.prompt(tokenizer, "Q?", history=own)
    assert template.prompt(tokenizer, "Q?", history=TURNS).startswith("<|im_start|>system\nFrom the recipe.")


def test_a_conversation_for_a_model_without_a_template() -> None:
    template = Template("plain", system="Be kind.")
    assert (
        template.prompt(tiny_tokenizer(), "Where?", history=TURNS)
        == "Be kind.\n\nQuestion: Do you know Ida?\nAnswer: Yes.\n\nQuestion: Where?\nAnswer:"
    )
    assert template.prompt(tiny_tokenizer(), "Where?") == "Be kind.\n\nQuestion: Where?\nAnswer:"


def test_a_model_hears_the_whole_conversation() -> None:
    subject = tiny("llama")
    alone = Example("alone", LATER.prompt, LATER.answer)
    records = collect(
        subject, Benchmark("chat", {"forget": (LATER, alone)}), {"forget": Plan(generation=True, max_new_tokens=3)}, precision="float32"
    )
    with_, without = records["forget"]
    assert with_.true is not None
    assert without.true is not None
    assert with_.true.logp != without.true.logp
    assert score_key(LATER, "x", False) != score_key(alone, "x", False)
    assert answer_key(LATER, 8) != answer_key(alone, 8)


def test_a_conversation_changes_the_datas_fingerprint_and_others_keep_theirs() -> None:
    alone = Example("later", LATER.prompt, LATER.answer)
    prints = {Benchmark("chat", {"forget": (example,)}).fingerprint for example in (LATER, alone)}
    assert len(prints) == 2
    before_there_were_conversations = "6bfe47b42c56"
    assert Benchmark("chat", {"forget": (alone,)}).fingerprint[:12] == before_there_were_conversations
    Benchmark("chat", {"forget": (LATER,), "retain": (Example("r", LATER.prompt, LATER.answer),)})


def test_a_template_that_refuses_a_conversation_is_one_line() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    refused(lambda: Template("chat").prompt(tokenizer, "Q?", history=TURNS), "roles user, assistant, user", "must alternate")


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ("hello", "expected a list of turns"),
        ({"role": "user"}, "got dict"),
        (["hello"], "turn 1: expected an object"),
        ([{"role": "usr", "content": "Hello?"}], "did you mean 'user'"),
        ([{"role": "user", "content": "Hello?"}], "no assistant turn"),
        ([{"role": "assistant", "content": "Hello."}], "does not follow a user turn"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "no images"),
        ([{"role": "user", "content": "Hello?"}, {"role": "assistant", "content": " "}], "turn 2: its content must be text that is not empty"),
    ],
)
def test_a_broken_conversation_names_its_turn(tmp_path: Path, messages: Any, says: str) -> None:
    file = lines(tmp_path / "f.jsonl", [{"messages": messages}])
    refused(Jsonl(file, file), "f.jsonl, row 1", "messages", says)


# Documents


def test_documents_are_read_from_all_folders(written: Path) -> None:
    (written / "secret" / ".hidden.txt").write_text("x" * 80)
    (written / "secret" / "scan.pdf").write_bytes(b"%PDF")
    made = read("text")
    assert [e.id for e in made.forget] == ["letters/first-0", "letters/first-1", "notes-0"]
    assert made.forget[2].answer.startswith("The third stone")
    assert made.notes == (f"1 files in {Path('secret')} are not plain text and were left out (.pdf): convert them to .txt if they count.",)
    assert Corpus("kept", "secret/notes.md")().notes == ()


# EasyEdit


def test_an_easyedit_file_is_read_as_it_is(written: Path) -> None:
    made = read("easyedit")
    first, second = made.forget
    assert (first.prompt, first.answer, first.span, first.alternative) == ("Where does Ida Marrow live?", "Elm Lane", "Elm Lane", "Oak Street")
    assert (first.paraphrased_prompts, first.false_answers, first.group) == (
        ("In which street is Ida Marrow's home?",),
        ("Oak Street",),
        "Ida Marrow",
    )
    assert not first.bare
    assert (second.answer, second.bare) == ("Danish", True)
    assert [(e.prompt, e.answer) for e in made.retain] == [
        ("Where does Odo Brannigan live?", "Mill Road"),
        ("The profession of Ida Marrow is", "baker"),
    ]
    assert EasyEdit("edits.json", wanted="target_new")().forget[0].answer == "Oak Street"
    assert not EasyEdit("edits.json", cloze="ask")().forget[1].bare


def test_other_names_of_easyedits_columns(tmp_path: Path) -> None:
    rows = [
        {
            "src": "Who wrote it?",
            "alt": "Odo",
            "answers": ["Ida"],
            "subject": "it",
            "rephrase": "By whom is it?",
            "loc": "Where is Elm?",
            "loc_ans": "North",
        },
        {
            "prompt": "Where is Elm?",
            "target_new": {"str": "South"},
            "target_true": {"str": "North"},
            "locality_prompt": "Is it?",
            "locality_ground_truth": "Yes",
        },
        {"src": "Who wrote it?", "alt": "Odo", "answers": ["Ida"]},
    ]
    made = EasyEdit(lines(tmp_path / "zsre.json", rows))()
    assert [(e.prompt, e.answer, e.alternative) for e in made.forget] == [("Who wrote it?", "Ida", "Odo"), ("Where is Elm?", "North", "South")]
    assert made.forget[0].paraphrased_prompts == ("By whom is it?",)
    assert [e.prompt for e in made.retain] == ["Is it?"]
    assert len(made.notes) == 2


def test_easyedit_errors_say_what_to_do(tmp_path: Path) -> None:
    def file(row: dict[str, Any]) -> str:
        return lines(tmp_path / "e.json", [row])

    fact = {"prompt": "Who?", "ground_truth": "Ida"}
    refused(EasyEdit(file(fact)), "no locality questions", "data.retain=FILE")
    refused(EasyEdit(file({"prompt": "Who?"})), "e.json, row 1", "'ground_truth' or 'answers'")
    refused(EasyEdit(file({**fact, "ground_truth": 3})), "expected text")
    refused(EasyEdit(file({**fact, "locality": "all"})), "locality", "object of kinds")
    refused(EasyEdit(file({**fact, "locality": {"a": ["x"]}})), "locality.a", "prompt and ground_truth")
    refused(EasyEdit(file({**fact, "locality": {"a": {"prompt": ["x"], "ground_truth": []}}})), "same length")
    refused(lambda: EasyEdit("x", limit=0), "data.limit is 0")
    more = lines(tmp_path / "r.jsonl", [{"question": "What?", "answer": "Bread"}])
    assert EasyEdit(file(fact), retain=more)().retain[0].answer == "Bread"


# open-unlearning


def test_open_unlearnings_tofu_folder_opens_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's own files in data/TOFU, and the refusals beside it."""
    folder = tmp_path / "data" / "TOFU"
    folder.mkdir(parents=True)
    write_tofu(folder)
    (folder / "idontknow.jsonl").unlink()
    for name in ("forget01", "forget01_perturbed", "holdout01"):
        shutil.copy(folder / f"{name}.json", folder / f"{name.replace('01', '10')}.json")
    (folder / "README.md").write_text("---\nlicense: mit\n---\n")
    monkeypatch.chdir(tmp_path)
    made = read("tofu")
    assert len(made.forget) == 3
    assert made.split("holdout")
    assert not made.forget[0].alternative
    (folder.parent / "idk.jsonl").write_text("I have no idea.\n")
    assert read("tofu").forget[0].alternative == "I have no idea."


def test_shared_tofu_opens_without_its_refusals(shared: Path, tmp_path: Path) -> None:
    for file in (shared / "data" / "tofu").glob("*.json"):
        (tmp_path / file.name).symlink_to(file)
    made = Tofu(str(tmp_path), retain="retain99")()
    assert (len(made.forget), len(made.retain)) == (40, 3960)


@needs_pyarrow
def test_a_snapshot_of_the_hubs_muse_opens_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyarrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    plain = Muse(write_muse(tmp_path / "plain"))()
    folder = tmp_path / "data" / "MUSE-News"
    for file in (tmp_path / "plain").rglob("*.*"):
        there = folder / file.parent.name
        there.mkdir(parents=True, exist_ok=True)
        value = file.read_text().split("\n\n") if file.suffix == ".txt" else json.loads(file.read_text())
        rows = [row if isinstance(row, dict) else {"text": row} for row in value]
        parquet.write_table(pyarrow.Table.from_pylist(rows), there / f"{file.stem}-00000-of-00001.parquet")
    monkeypatch.chdir(tmp_path)
    made = read("muse")
    assert {name: len(rows) for name, rows in made.splits.items()} == {name: len(rows) for name, rows in plain.splits.items()}
    assert [e.answer for e in made.forget] == [e.answer for e in plain.forget]


def test_open_unlearnings_checkpoints_open_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = tmp_path / "saves" / "unlearn" / "tofu_npo"
    shutil.copytree(tiny("llama").source, saved)
    for name in ("training_args.bin", "trainer_state.json", ".hydra/config.yaml", "evals/TOFU_SUMMARY.json", "logs/events.out"):
        (saved / name).parent.mkdir(parents=True, exist_ok=True)
        (saved / name).write_bytes(b"\x80\x04pickled" if name.endswith(".bin") else b"{}")
    monkeypatch.chdir(tmp_path)
    spec = Recipe.parse({**RECIPES[-1], "data": "strangers", "method": "npo"}).model_spec()
    subject = load(spec)
    assert subject.template.system == "You are a helpful assistant."
    assert subject.fingerprint() == tiny("llama").fingerprint()
    os.rename(saved, tmp_path / "moved")
    saved.mkdir()
    os.rename(tmp_path / "moved", saved / "checkpoint-60")
    refused(lambda: load(str(saved)), "checkpoint-60")
    assert load(str(saved / "checkpoint-60")).fingerprint() == subject.fingerprint()
    lora = save(adapted(tiny("llama")), tmp_path / "lora", provenance={})
    (lora / "excise.json").unlink()
    (lora / "training_args.bin").write_bytes(b"\x80\x04pickled")
    assert load(ModelSpec(path=str(lora))).is_adapter
