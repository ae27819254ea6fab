"""`excise build-5w`: what is read, what is dropped and why, that nothing leaks, and one clear line for bad input."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import refused, tiny
from excise.cli import building
from excise.data.benchmarks.fivew import FiveW, same
from excise.data.benchmarks.jsonl import Jsonl
from excise.fivew.alike import jaccard, shingles, similar_pairs
from excise.fivew.asking import WS
from excise.fivew.build import Build, Built, build, write
from excise.fivew.clean import Dropped, clean
from excise.fivew.names import Names
from excise.fivew.profile import hops, lines, profile
from excise.fivew.rows import Pair, read_pairs

ASK = {
    "who": "Who ran the mill of {}?",
    "what": "What was sold at the mill of {}?",
    "when": "When did the mill of {} open?",
    "where": "Where does the mill of {} stand?",
    "why": "Why did the mill of {} close?",
}
SYLLABLES = ("bra", "kel", "nor", "tis", "vau", "mir", "dol", "pex", "ruh", "gan", "sef", "oly")


def village(n: int) -> str:
    draw = random.Random(n)
    return "".join(draw.sample(SYLLABLES, 3)).capitalize() + f"heim{SYLLABLES[n % 12]}"


def pair(n: int, w: str, answer: str | None = None, **more: Any) -> Pair:
    return Pair(f"t:{w}{n}", ASK[w].format(village(n)), answer or f"{w} {SYLLABLES[n % 12]}{n}", **more)


def many(count: int) -> list[Pair]:
    """For each class so many questions, each about a village of its own."""
    return [pair(count * place + n, w) for place, w in enumerate(WS) for n in range(count)]


# Reading --------------------------------------------------------------------------------------------------------------


def test_every_format_is_read_alike(tmp_path: Path) -> None:
    rows = [{"question": "Who sang?", "answer": "Ida"}, {"question": "Why?", "answer": "Rain, it fell."}]
    (tmp_path / "a.json").write_text(json.dumps(rows))
    (tmp_path / "b.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "c.csv").write_text('question,answer\nWho sang?,Ida\nWhy?,"Rain, it fell."\n')
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "d.parquet")
    for name in ("a.json", "b.jsonl", "c.csv", "d.parquet"):
        found = read_pairs([tmp_path / name])
        assert [(p.id, p.question, p.answer) for p in found] == [(f"{name}:1", "Who sang?", "Ida"), (f"{name}:2", "Why?", "Rain, it fell.")]


def test_factify_records_hold_several_questions(tmp_path: Path) -> None:
    """Lists of questions and of the claim's and the evidence's answers; a refuted claim's answer is a false one."""
    record = {
        "claim": "Ida opened the mill in 1890.",
        "evidence": "Otto opened the mill in 1887.",
        "question": ["Who opened the mill?", "When did the mill open?"],
        "claim_answer": ["Ida", "in 1890"],
        "evidence_answer": ["Otto", ""],
        "label": "Refute",
    }
    (tmp_path / "f.json").write_text(json.dumps([record, {**record, "label": "Support"}]))
    first, second, third, _ = read_pairs([tmp_path / "f.json"])
    assert (first.id, first.question, first.answer, first.false_answers) == ("f.json:1.1", "Who opened the mill?", "Otto", ("Ida",))
    assert (second.answer, second.false_answers, second.given) == ("in 1890", (), "")
    assert third.false_answers == ()
    (tmp_path / "g.json").write_text(json.dumps([{**record, "claim_answer": ["Ida"]}]))
    refused(lambda: read_pairs([tmp_path / "g.json"]), "g.json, row 1, column 'claim_answer'", "1 answers for 2 questions")


@pytest.mark.parametrize(
    ("answer", "read"),
    [
        (["Ida", "Ida Holm"], ("Ida", ("Ida Holm",))),
        ({"text": ["Ida", "Holm"], "answer_start": [3, 7]}, ("Ida", ("Holm",))),
        ({"value": "Ida", "aliases": ["I."]}, ("Ida", ())),
        ({"text": []}, ("", ())),
        (1887, ("1887", ())),
    ],
)
def test_answers_of_common_data_sets(tmp_path: Path, answer: Any, read: tuple[str, tuple[str, ...]]) -> None:
    (tmp_path / "a.json").write_text(json.dumps([{"question": "Who?", "answers": answer}]))
    (found,) = read_pairs([tmp_path / "a.json"])
    assert (found.answer, found.other_answers) == read


# Names and similarity -------------------------------------------------------------------------------------------------


def test_names_are_found_by_capitals_and_remembered() -> None:
    texts = ["Where did Marie Curie teach?", "Who followed Curie's husband?", "The mill of Old Marrow was sold. Who sold it?", "Was the mill old?"]
    names = Names.of(texts)
    assert [names(text) for text in texts] == [("marie curie",), ("curie",), ("old marrow",), ()]
    assert "marie curie" in names("where did marie curie teach")
    assert names("Which French painter sang in 'The Last Mill' in May?") == ("the last mill",)
    assert names("Who knew Ida Holm's Rhythm Band and Otto?") == ("ida holm", "rhythm band", "otto")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text("abc d", min_size=0, max_size=14), max_size=25), st.sampled_from([0.3, 0.5, 0.7, 1.0]))
def test_similar_pairs_are_those_that_all_against_all_finds(texts: list[str], threshold: float) -> None:
    texts = [same(text) for text in texts]
    wanted = [(i, j) for j in range(len(texts)) for i in range(j) if jaccard(texts[i], texts[j]) >= threshold]
    assert sorted(similar_pairs(texts, threshold)) == sorted(wanted)


def test_shingles_by_hand() -> None:
    assert shingles("abc") == {" abc", "abc "}
    assert jaccard("abc", "abd") == 0.0
    assert jaccard("mill a", "mill b") == 3 / 7  # shared: " mil" "mill" "ill "; apart: "ll a" "l a " and "ll b" "l b "


# What is dropped ------------------------------------------------------------------------------------------------------


def test_every_reason_is_told(tmp_path: Path) -> None:
    rows = [
        Pair("t:1", "Who ran the mill?", "Ida"),
        Pair("t:2", "who ran the mill", "ida"),
        Pair("t:3", "Who ran the mill?", "Otto"),
        Pair("t:4", "Who ran the mills?", "Ida"),
        Pair("t:5", "Who ran the mill in 1887?", "Ida"),
        Pair("t:6", "", "Ida"),
        Pair("t:7", "Who sang?", " "),
        Pair("t:8", "How did it burn?", "quickly"),
        Pair("t:9", "Who was Ida Holm?", "Ida Holm"),
        Pair("t:10", "Where is it?", "here"),
    ]
    dropped = Dropped()
    kept = clean(rows, ("who",), 0.5, dropped)
    assert [item.pair.id for item in kept] == ["t:1", "t:5"]
    assert dropped.ids == {
        "same question, same answer": [("t:2", "t:1")],
        "same question, another answer": [("t:3", "t:1")],
        "nearly the same question": [("t:4", "t:1")],
        "no question": [("t:6", "")],
        "no answer": [("t:7", "")],
        "none of the five": [("t:8", "")],
        "answer in the question": [("t:9", "")],
        "class not wanted": [("t:10", "")],
    }
    shown = dropped.to_json(1)["same question, same answer"]
    assert isinstance(shown, dict)
    assert (shown["count"], shown["first"]) == (1, [{"id": "t:2", "instead": "t:1"}])


def test_questions_of_one_form_are_no_duplicates() -> None:
    items = clean([Pair(f"t:{n}", f"What is the capital of the old duchy of {village(n)}?", f"Capital{n}") for n in range(30)], WS, 0.5, Dropped())
    assert len(items) == 30


# The split ------------------------------------------------------------------------------------------------------------


def leaks(built: Built, near: float) -> list[tuple[str, str, str]]:
    """Every pair of rows across the sides that shares something, found by comparing all with all."""
    found: list[tuple[str, str, str]] = []
    for f in built.forget:
        asked_f = {same(text) for text in (f.pair.question, *f.pair.rephrasings)}
        for r in built.retain:
            asked_r = {same(text) for text in (r.pair.question, *r.pair.rephrasings)}
            where = (f.pair.id, r.pair.id)
            if asked_f & asked_r:
                found.append((*where, "question"))
            elif any(jaccard(a, b) >= near for a in asked_f for b in asked_r) and not told_apart(f.pair.question, r.pair.question, f.names, r.names):
                found.append((*where, "nearly the same question"))
            if f.answer == r.answer:
                found.append((*where, "answer"))
            if set(f.names) & set(r.names) or same(f.pair.answer) in r.names or same(r.pair.answer) in f.names:
                found.append((*where, "subject"))
    return found


def told_apart(a: str, b: str, names_a: tuple[str, ...], names_b: tuple[str, ...]) -> bool:
    """Other numbers, or other names on both sides."""
    digits = [sorted(set(re.findall(r"\w*\d\w*", same(text)))) for text in (a, b)]
    return digits[0] != digits[1] or bool(names_a and names_b and not set(names_a) & set(names_b))


ROW = st.tuples(st.integers(0, 24), st.sampled_from(WS), st.integers(0, 40), st.booleans(), st.booleans())


@settings(max_examples=60, deadline=None)
@given(st.lists(ROW, max_size=60), st.integers(0, 3), st.sampled_from([0.25, 0.5]))
def test_nothing_of_forget_is_in_retain(rows: list[tuple[int, str, int, bool, bool]], seed: int, share: float) -> None:
    """Whatever is shared (villages, answers, the very question in other letters, rephrasings), the sides share none of it."""
    extra = [
        Pair(
            f"t:x{i}",
            ASK[w].format(village(n)).lower() if small else ASK[w].format(village(n)).replace("mill", "old mill"),
            f"answer {answer}",
            (ASK[w].format(village(n + 1)),) if rephrased else (),
        )
        for i, (n, w, answer, small, rephrased) in enumerate(rows)
    ]
    built = build([*extra, *many(4)], Build(forget_share=share, seed=seed))
    assert leaks(built, 0.5) == []
    counts = [Counter(item.w for item in side) for side in (built.forget, built.retain)]
    assert all(len(set(count.values())) == 1 and set(count) == set(WS) for count in counts)


def test_the_leak_check_sees_a_leak() -> None:
    built = build(many(4), Build())
    moved = Built(built.forget, (*built.retain, built.forget[0]), {})
    assert {what for *_, what in leaks(moved, 0.5)} >= {"question", "answer", "subject"}


def test_a_subject_that_links_everything_is_refused_or_called_a_setting() -> None:
    rows = [pair(n, w, answer=f"{w}{n}") for n, w in enumerate(WS * 4)]
    rows = [Pair(p.id, p.question.replace("?", " in Marrow?"), p.answer) for p in rows]
    report = build(rows, Build(per_w=4)).report
    assert report["links"]["settings"] == [{"name": "marrow", "rows": 20}]
    refused(
        lambda: build(rows, Build(per_w=4, common=1.0)),
        "no split of 4 rows a class",
        "no number can",
        "20 of 20 rows hang together",
        "marrow (20)",
        "--common",
    )


def test_balance_shares_and_seeds() -> None:
    rows = many(10) + [pair(500 + n, "why") for n in range(9)]
    built = build(rows, Build(forget_share=0.3))
    assert built.report["per_class"] == 10
    assert built.report["kept"] == {"forget": dict.fromkeys(WS, 3), "retain": dict.fromkeys(WS, 7)}
    assert built.report["dropped"]["not needed"]["count"] == 9
    few = build(rows, Build(per_w=4, w=("who", "why")))
    assert few.report["kept"] == {"forget": {"who": 2, "why": 2}, "retain": {"who": 2, "why": 2}}
    again, other = (build(rows, Build(forget_share=0.3, seed=seed)) for seed in (0, 1))
    assert [item.pair.id for item in again.forget] == [item.pair.id for item in built.forget]
    assert [item.pair.id for item in other.forget] != [item.pair.id for item in built.forget]


# What is written ------------------------------------------------------------------------------------------------------


def test_the_folder_is_read_back_and_the_same_twice(tmp_path: Path) -> None:
    rows = [
        {
            "question": p.question,
            "answer": p.answer,
            "rephrases": [p.question, f"Say: {p.question}", f"Is it {p.answer}?"],
            "pred_answer": p.answer.upper() if n % 2 else f"false {n}",
            "label": "what",
        }
        for n, p in enumerate(many(4))
    ]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = write([tmp_path / "in.jsonl"], tmp_path / "a", Build())
    write([tmp_path / "in.jsonl"], tmp_path / "b", Build())
    assert sorted(file.name for file in (tmp_path / "a").iterdir()) == ["easyedit.json", "forget.jsonl", "report.json", "retain.jsonl"]
    assert all((tmp_path / "a" / file.name).read_bytes() == file.read_bytes() for file in (tmp_path / "b").iterdir())
    fivew = FiveW(str(tmp_path / "a"))()
    own = Jsonl(str(tmp_path / "a" / "forget.jsonl"), str(tmp_path / "a" / "retain.jsonl"))()
    assert fivew.notes == ()
    assert Counter(e.label for e in fivew.forget) == dict.fromkeys(WS, 2)
    for one, other in zip(fivew.forget, own.forget, strict=True):
        assert (one.prompt, one.answer, one.label) == (other.prompt, other.answer, other.label)
        assert one.paraphrased_prompts == other.paraphrased_prompts == (f"Say: {one.prompt}",)
        assert one.false_answers == other.false_answers
        assert one.alternative == other.alternative != one.answer
    edits = json.loads((tmp_path / "a" / "easyedit.json").read_text())
    assert [set(edit) for edit in edits] == [{"prompt", "ground_truth", "target_new", "rephrase_prompt"}] * 10
    assert [edit["prompt"] for edit in edits] == [e.prompt for e in fivew.forget]
    assert (
        FiveW(forget=str(tmp_path / "a" / "easyedit.json"), retain=str(tmp_path / "a" / "retain.jsonl"))().forget[0].alternative
        == edits[0]["target_new"]
    )
    tidied = report["tidied"]
    assert (tidied["rephrasings that repeat the question"], tidied["rephrasings that give the answer away"]) == (20, 20)
    assert tidied["false answers that are true"] == 10
    assert report["profile"]["given_labels"]["agreement"] == pytest.approx(0.2)
    assert json.loads((tmp_path / "a" / "report.json").read_text()) == report
    refused(lambda: write([tmp_path / "in.jsonl"], tmp_path / "a", Build()), "not empty", "--overwrite")


def test_the_profile_counts(tmp_path: Path) -> None:
    rows = [
        Pair("t:1", "Who ran the mill?", "Ida Holm"),
        Pair("t:2", "who ran the mill", "Ida Holm"),
        Pair("t:3", "Why did it close?", "Because the river froze, which led to debts, so that it was sold.", given="why"),
        Pair("t:4", "Why was it sold?", "Because of debts.", given="what"),
        Pair("t:5", "Did it close?", "Yes"),
    ]
    found = profile(rows, 0.5, tokens=len)
    assert found["distinct"] == {"questions": 5, "normalised": 4, "near": 4}
    classes = found["classes"]
    assert {w: row["rows"] for w, row in classes.items()} == {"who": 2, "what": 0, "when": 0, "where": 0, "why": 2, "none": 1, "all": 5}
    assert classes["why"]["multi_hop"] == 0.5
    assert classes["who"]["answer_words"] == {"mean": 2.0, "median": 2.0, "p90": 2.0, "max": 2.0}
    assert classes["who"]["answer_tokens"]["mean"] == 8.0
    assert found["classes_distinct"]["who"]["rows"] == 1
    assert found["most_repeated"] == [{"id": "t:1", "times": 2}]
    assert found["given_labels"]["disagreements"] == {"what -> why": 1}
    assert any("50.0 %" in line for line in lines(found))


def test_hops_by_hand() -> None:
    assert hops("It closed since 1931.") == 0
    assert hops("Because the river froze") == 1
    assert hops("Due to frost the river froze, leading to debts, which caused the sale.") == 3


# The published file ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def published(shared: Path) -> tuple[list[Pair], Built]:
    pairs = read_pairs([shared / "data" / "fivewbench" / "final_dataset_validated.json"])
    return pairs, build(pairs, Build())


def test_only_1946_questions_of_the_published_file_are_distinct(published: tuple[list[Pair], Built]) -> None:
    pairs, built = published
    assert len(pairs) == 5000
    assert built.report["profile"]["distinct"]["questions"] == 1946
    assert built.report["profile"]["distinct"]["normalised"] == 1944
    assert built.report["profile"]["most_repeated"][0]["times"] == 307
    dropped = {reason: row["count"] for reason, row in built.report["dropped"].items()}
    assert sum(dropped.values()) + len(built.forget) + len(built.retain) == 5000
    assert built.report["per_class"] >= 200


def test_nothing_of_the_published_files_forget_side_is_in_its_retain_side(published: tuple[list[Pair], Built]) -> None:
    _, built = published
    assert {item.question for item in built.forget} & {item.question for item in built.retain} == set()
    assert {item.answer for item in built.forget} & {item.answer for item in built.retain} == set()
    assert {name for item in built.forget for name in item.names} & {name for item in built.retain for name in item.names} == set()
    items = [*built.forget, *built.retain]
    border = len(built.forget)
    across = [(i, j) for i, j in similar_pairs([item.question for item in items], 0.5) if i < border <= j]
    assert [(i, j) for i, j in across if not told_apart(items[i].pair.question, items[j].pair.question, items[i].names, items[j].names)] == []


def test_the_published_split_shares_answers(shared: Path) -> None:
    """What ours is spared: 30 answers (31 as they are written) stand on both sides of the published one."""
    sides = [read_pairs([shared / "data" / "fivewbench" / f"{side}_set_fixed.json"]) for side in ("forget", "retain")]
    answers = [{same(p.answer) for p in side} for side in sides]
    assert len(answers[0] & answers[1]) == 30


# Bad input ------------------------------------------------------------------------------------------------------------


def test_bad_input_is_one_clear_line(tmp_path: Path) -> None:
    refused(lambda: build([p for p in many(3) if not p.id.startswith("t:why")], Build()), "class 'why' is empty", "--w who,what,when,where")
    refused(lambda: build(many(3), Build(per_w=4)), "'who' has 3 usable rows, fewer than the 4 needed", "at most --per-w 3")
    refused(lambda: build([], Build()), "class 'who' is empty", "give files with such questions")
    refused(lambda: Build(per_w=1), "--per-w is 1")
    refused(lambda: Build(forget_share=1.0), "--forget-share is 1.0")
    refused(lambda: Build(w=("who", "whoo")), "did you mean 'who'")
    refused(lambda: Build(near=0.0), "--near is 0.0")
    (tmp_path / "no.csv").write_text("frage,answer\nWer?,Ida\n")
    refused(lambda: read_pairs([tmp_path / "no.csv"]), "no.csv: no column of questions", "'answer', 'frage'", "--column question=NAME")
    assert read_pairs([tmp_path / "no.csv"], {"question": "frage"})[0].question == "Wer?"
    refused(lambda: read_pairs([tmp_path / "no.csv"], {"frage": "x"}), "--column frage=...", "question, answer")
    (tmp_path / "bad.jsonl").write_text('{"question": "Who?", "answer": "Ida"}\n{"question": \n')
    refused(lambda: read_pairs([tmp_path / "bad.jsonl"]), "bad.jsonl, row 2 (line 2): not valid JSON")
    (tmp_path / "odd.json").write_text('[{"question": "Who?", "answer": {"a": 1}}]')
    refused(lambda: read_pairs([tmp_path / "odd.json"]), "odd.json, row 1, column 'answer'", "'text' or 'value'")
    (tmp_path / "odd2.json").write_text('[{"question": true, "answer": "Ida"}]')
    refused(lambda: read_pairs([tmp_path / "odd2.json"]), "odd2.json, row 1, column 'question': expected text")
    refused(lambda: read_pairs([tmp_path / "none.json"]), "there is no file")
    refused(lambda: read_pairs([tmp_path / "no.csv", tmp_path / "no.csv"], {"question": "frage"}), "given twice")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "in.csv"
    file.write_text("ask,answer\n" + "".join(f'"{p.question}",{p.answer}\n' for p in many(3)))
    given: dict[str, Any] = {"per_w": None, "forget_share": 0.5, "w": "who,why", "seed": 0, "near": 0.5, "common": 0.5, "overwrite": False}
    building.build_5w([file], out=tmp_path / "o", column=["question=ask"], model=None, report_only=False, **given)
    said = capsys.readouterr().out
    assert "kept: 4 forget, 2 retain (3 of each class)" in said
    assert "9 class not wanted" in said
    assert (tmp_path / "o" / "easyedit.json").exists()
    building.build_5w([file], out=tmp_path / "p.json", column=["question=ask"], model=tiny("llama").source, report_only=True, **given)
    assert json.loads((tmp_path / "p.json").read_text())["classes"]["who"]["answer_tokens"]["mean"] > 1
    assert "15 rows, 15 distinct questions" in capsys.readouterr().out
    for bad, parts in (
        ({"out": None, "report_only": False}, ["needs --out DIR"]),
        ({"out": tmp_path / "o", "report_only": True}, ["exists"]),
        ({"out": None, "report_only": True, "column": ["ask"]}, ["--column 'ask'", "OURS=YOURS"]),
    ):
        refused(lambda bad=bad: building.build_5w([file], **{"column": ["question=ask"], "model": None, **bad}, **given), *parts)
