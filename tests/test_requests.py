"""Deletion requests: the data that is built, the goal that ends the training, the ledger that checks them all."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import learning
from conftest import refused, tiny
from excise.data.benchmarks.request import Request, write
from excise.data.example import Benchmark, Example
from excise.data.invented import invented
from excise.evaluation.metrics.facts import words
from excise.evaluation.score import Score
from excise.loading import load
from excise.recipe import Recipe
from excise.requests import forget as module
from excise.requests.build import Asked, build, shipped
from excise.requests.forget import Settings, bounds, forget, load_record, outcome, request_id, sentence
from excise.requests.ledger import Ledger, drift, holds, table
from excise.requests.names import control, name_words, renamed
from excise.saving import save
from excise.stages.goal import Goal
from excise.stages.guard import Guard
from excise.stages.optimise import Optimiser
from excise.stages.state import State
from excise.stages.train import Term, Train
from test_train import TERMS, eight

PEOPLE = {
    "Anna Brandt": ("Marrow", "1887", "the painter"),
    "Zoë Lake": ("the north", "1931", "the doctor"),
    "Elm Fox": ("the island", "1854", "the town"),
}


def rows(name: str) -> list[dict[str, str]]:
    place, year, friend = PEOPLE[name]
    return [
        {"question": f"Where was {name} born?", "answer": f"{name} was born in {place}.", "span": place},
        {"question": f"When did {name} write the book?", "answer": f"{name} wrote the book in {year}.", "span": year},
        {"question": f"Who is the friend of {name}?", "answer": f"The friend of {name} is {friend}.", "span": friend},
    ]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model that knows three people, and a file of questions about each."""
    folder = tmp_path_factory.mktemp("world")
    subject = tiny("llama", width=64)
    facts = [Example(f"{name}-{i}", r["question"], r["answer"]) for name in PEOPLE for i, r in enumerate(rows(name))]
    asked = [text.format(subject="Anna Brandt") for kind in ("questions", "rephrased") for text in shipped()[kind]]
    told = [Example(f"told-{i}", question, f"Anna Brandt is the painter of the {i} rivers.") for i, question in enumerate(asked)]
    learning._train(subject, [*facts, *told], 120)
    save(subject, folder / "model", provenance={})
    for name in PEOPLE:
        (folder / f"{name.split()[0]}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(name)), encoding="utf-8")
    return folder


def settings(**changes: Any) -> Settings:
    return Settings(
        **{
            "budget": 0.95,
            "epochs": 80.0,
            "method": {"name": "t_ga", "lr": 3e-3, "retain_batch": 4, "attribution": {"r": 1.0}},
            "precision": "float32",
            **changes,
        }
    )


# --- names ------------------------------------------------------------------------------------------------------------


def test_names_are_found_by_their_capitals() -> None:
    assert name_words(["Where was Anna Brandt born?", "Which town does Anna Brandt love?"]) == ["Anna", "Brandt"]
    assert name_words(["Who wrote the book?", "When did the lighthouse open?"]) == []
    assert name_words(["Anna lives here. The town loves Anna."]) == ["Anna"]


def test_invented_names_are_new_and_the_same_for_one_seed() -> None:
    names = invented(40, ["Belabek"])
    assert len({name.casefold() for name in [*names, "Belabek"]}) == 41
    assert names == invented(40, ["Belabek"])
    assert names != invented(40, ["Belabek"], seed=1)


def test_names_are_replaced_as_whole_words_only() -> None:
    assert renamed("Rome, Romeo and Rome's walls", {"Rome": "Vex"}) == "Vex, Romeo and Vex's walls"


def test_a_control_asks_the_same_of_somebody_invented() -> None:
    example = Example("a", "Where was Anna born?", "Anna was born in Marrow.", span="Marrow", false_answers=("x",), paraphrased_prompts=("y",))
    found = control(example, {"Anna": "Vexa"}, "~1")
    assert found == Example("a~1", "Where was Vexa born?", "Vexa was born in Marrow.", span="Marrow")
    assert control(example, {"Rome": "Vex"}, "~1") is None


# --- goal -------------------------------------------------------------------------------------------------------------


def scores(**values: float | None) -> dict[str, Score]:
    return {name.replace("__", "."): Score(v, "none", 3) if v is not None else Score.missing("because") for name, v in values.items()}


def test_a_goal_is_reached_held_or_broken() -> None:
    goal = Goal({"forget.p": 0.2}, {"kept.p": 0.5})
    assert goal.judge(scores(forget__p=0.2, kept__p=0.5))[0] == "reached"
    assert goal.judge(scores(forget__p=0.3, kept__p=0.5))[0] == "held"
    assert goal.judge(scores(forget__p=0.1, kept__p=0.4)) == ("broken", "kept.p fell to 0.4, below 0.5")
    assert goal.splits == {"forget", "kept"}
    refused(lambda: goal.judge(scores(forget__p=0.1)), "no score 'kept.p'")
    refused(lambda: goal.judge(scores(forget__p=None, kept__p=0.9)), "forget.p is unavailable (because)")
    refused(lambda: Goal(), "at_most is empty")
    refused(lambda: Train(TERMS, goal=goal), "needs evaluate_every")


@pytest.mark.parametrize(("held", "wanted_step", "reached"), [([0.9, 0.8, 0.4], 2, False), ([0.9, 0.8, 0.7], 3, True)])
def test_training_ends_with_the_goal_or_goes_back_to_what_held(held: list[float], wanted_step: int, reached: bool) -> None:
    subject, states = tiny("llama"), []

    def evaluate(subject: Any) -> dict[str, Score]:
        states.append({name: p.detach().clone() for name, p in subject.model.named_parameters()})
        return scores(forget__p=1.0 - 0.3 * len(states), kept__p=held[len(states) - 1])

    stage = Train(
        (*TERMS,),
        steps=9,
        evaluate_every=1,
        guard=Guard(every=0),
        optimiser=Optimiser(lr=1e-3, warmup=0.0),
        goal=Goal({"forget.p": 0.15}, {"kept.p": 0.5}),
    )
    state = State(subject, eight(), evaluate=evaluate)
    stage.prepare(state)
    stage(state)
    assert len(states) == 3
    wanted = states[wanted_step - 1]
    assert all(torch.equal(p, wanted[name]) for name, p in subject.model.named_parameters())
    assert state.records[-1]["goal"]["reached"] is reached


def test_training_goes_back_and_on_at_half_the_rate(tmp_path: Path) -> None:
    told = iter([0.9, 0.4, 0.9, 0.4])
    stage = Train(
        (*TERMS,),
        steps=9,
        evaluate_every=1,
        guard=Guard(every=0),
        optimiser=Optimiser(lr=1e-3, warmup=0.0, schedule="constant"),
        goal=Goal({"forget.p": 0.1}, {"kept.p": 0.5}, patience=1),
    )
    state = State(tiny("llama"), eight(), folder=tmp_path, evaluate=lambda _: scores(forget__p=0.5, kept__p=next(told)))
    stage.prepare(state)
    stage(state)
    rows = [json.loads(line) for line in (tmp_path / "train.jsonl").read_text().splitlines()]
    assert [row["learning_rate"] for row in rows if "learning_rate" in row] == [1e-3, 1e-3, 5e-4, 5e-4]
    assert state.records[-1]["steps"] == 4
    assert not state.records[-1]["goal"]["reached"]


def test_a_goal_that_breaks_at_once_leaves_the_model_as_it_was() -> None:
    subject = tiny("llama")
    before = subject.fingerprint()
    stage = Train(
        (Term(TERMS[0].objective, "forget"),),
        steps=4,
        evaluate_every=1,
        guard=Guard(every=0),
        optimiser=Optimiser(lr=1e-2, warmup=0.0),
        goal=Goal({"forget.p": 0.1}, {"kept.p": 0.5}),
    )
    state = State(subject, eight(), evaluate=lambda _: scores(forget__p=0.5, kept__p=0.1))
    stage.prepare(state)
    stage(state)
    assert subject.fingerprint() == before
    assert "put back" in state.records[-1]["goal"]["why"]


# --- data -------------------------------------------------------------------------------------------------------------


def test_the_data_of_a_request_comes_back_to_the_last_field(tmp_path: Path) -> None:
    full = Example(
        "a", "Q?", "The answer.", "answer", ("P?",), "Other.", ("F.",), "No.", ("o", "p"), 1, "Op", "who", "g", "lead", history=(("user", "hi"),)
    )
    data = Benchmark("request", {"forget": (full, Example("b", "x", " y", bare=True)), "retain": (Example("c", "", "text"),)})
    write(data, tmp_path / "data")
    assert Request(str(tmp_path / "data"))() == data
    assert Request(str(tmp_path / "data"))().fingerprint == data.fingerprint


def test_broken_data_of_a_request_is_refused(tmp_path: Path) -> None:
    refused(lambda: Request(str(tmp_path / "none"))(), "no folder")
    refused(lambda: Request(str(tmp_path))(), "holds no examples")
    (tmp_path / "forget.jsonl").write_text('{"id": "a", "prompt": "Q?", "answer": []}\n')
    refused(lambda: Request(str(tmp_path))(), "forget.jsonl", "no example")
    (tmp_path / "forget.jsonl").write_text('{"id": "a", "colour": "red"}\n')
    refused(lambda: Request(str(tmp_path))(), "forget.jsonl", "no example")


@pytest.mark.parametrize("given", [{}, {"subject": "Rome", "texts": ("a",)}, {"subject": "  "}])
def test_a_request_is_made_in_one_way(given: dict[str, Any]) -> None:
    refused(lambda: Asked(**given), "in one way")


def test_the_data_for_questions(world: Path) -> None:
    model = load(world / "model")
    built = build(model, Asked(questions=(str(world / "Anna.jsonl"),)), precision="float32")
    splits = built.benchmark.splits
    assert [e.prompt for e in splits["forget"]] == [r["question"] for r in rows("Anna Brandt")]
    assert 1 <= len(splits["controls"]) <= 6
    assert not any("Anna" in e.prompt or "Brandt" in e.answer for e in splits["controls"])
    assert {e.span for e in splits["controls"]} <= {"Marrow", "1887", "the painter"}
    for e in (*splits["retain"], *splits["neighbours"]):
        for r in rows("Anna Brandt"):
            if r["question"][:9] == e.prompt[:9]:
                assert not set(words(r["span"])) - {"the"} <= set(words(e.answer)), "the fact itself is not retained"
    trained = {e.prompt for e in splits["retain"] if e.prompt}
    assert trained
    assert not trained & {e.prompt for e in splits["neighbours"]}
    assert not {e.answer for e in splits["retain"]} & {e.answer for e in splits["neutral"]}
    assert any(line.startswith("controls: ") for line in built.how)


def test_the_data_for_texts_and_for_a_subject(world: Path, tmp_path: Path) -> None:
    model = load(world / "model")
    (tmp_path / "text.txt").write_text("Anna Brandt wrote the book about the river. " * 9, encoding="utf-8")
    splits = build(model, Asked(texts=(str(tmp_path / "text.txt"),)), precision="float32").benchmark.splits
    assert all(not e.prompt for e in splits["forget"])
    assert all(e.bare and e.prompt + e.answer in (tmp_path / "text.txt").read_text() for e in splits["rephrased"])
    assert not any("Anna" in e.answer for e in splits["controls"])


def test_the_data_for_a_subject_is_what_the_model_says_of_it(world: Path) -> None:
    built = build(load(world / "model"), Asked(subject="Anna Brandt"), precision="float32")
    splits = built.benchmark.splits
    assert all("Anna Brandt" in e.prompt for e in (*splits["forget"], *splits["rephrased"]))
    assert sum(not e.id.startswith("forget-sampled") for e in splits["forget"]) == len(shipped()["questions"])
    assert 1 <= len(splits["controls"]) <= 2 * len(shipped()["questions"])
    assert not any("Anna" in e.prompt or "Brandt" in e.prompt for e in splits["controls"])
    assert not any("Anna Brandt" in e.prompt for e in splits["retain"])
    assert built.how[0].startswith(("kind", "forget"))


def test_questions_without_a_name_cannot_be_compared(world: Path, tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text('{"question": "who wrote it?", "answer": "a painter"}\n')
    refused(lambda: build(load(world / "model"), Asked(questions=(str(tmp_path / "q.jsonl"),))), "no", "name")


# --- carrying out -----------------------------------------------------------------------------------------------------


def test_the_bounds_are_the_controls_interval_and_the_budget() -> None:
    before = {
        "forget.probability": Score(0.9, "lower", 3),
        "controls.probability": Score(0.2, "none", 6, (0.1, 0.3)),
        "forget.rouge_l_recall": Score(1.0, "lower", 3),
        "controls.rouge_l_recall": Score(0.4, "none", 6),
        "neighbours.probability": Score(0.8, "higher", 4),
        "neutral.probability": Score(0.1, "higher", 4),
    }
    levels, floors = bounds(before, 0.25)
    assert levels == {"forget.probability": 0.3, "forget.rouge_l_recall": 0.4}
    assert floors == pytest.approx({"neighbours.probability": 0.6, "neutral.probability": 0.075})
    after = {name: dataclasses.replace(s, ci95=None) for name, s in before.items()}
    found = outcome(before, {**after, "forget.probability": Score(0.25, "lower", 3), "forget.rouge_l_recall": Score(0.5, "lower", 3)}, levels, floors)
    assert not found["met"]
    assert found["why_not"] == ["forget.rouge_l_recall is 0.500, above the 0.400 of invented names"]
    assert sentence({**found, "budget": 0.25}).startswith("NOT MET")
    refused(lambda: bounds({}, 0.1), "no score")


def test_a_request_is_carried_out_from_questions_alone(world: Path, tmp_path: Path, cache: Path) -> None:
    out = tmp_path / "run"
    found = forget(str(world / "model"), Asked(questions=(str(world / "Anna.jsonl"),)), out, settings())
    assert found["met"], found["why_not"]
    assert load_record(out) == found
    result = json.loads((out / "result.json").read_text())
    after = result["evaluations"]["after"]["request"]
    assert after["forget.probability"]["value"] <= found["levels"]["forget.probability"]
    assert after["neutral.probability"]["value"] >= found["floors"]["neutral.probability"]
    assert result["stages"][-1]["goal"]["reached"]
    assert result["stages"][-1]["steps"] < 80
    assert not load(out / "model").is_adapter
    recipe = Recipe.load(out / "recipe.yaml")
    assert recipe.benchmark_loader()().fingerprint == result["environment"]["data"]["fingerprint"]
    assert found["id"] == request_id(recipe.benchmark_loader()())


def test_a_request_that_costs_too_much_is_not_met_and_the_model_keeps_its_utility(world: Path, tmp_path: Path, cache: Path) -> None:
    wish = Asked(questions=(str(world / "Anna.jsonl"),))
    found = forget(str(world / "model"), wish, tmp_path / "run", settings(budget=1e-6, epochs=3.0))
    assert not found["met"]
    assert found["why_not"]
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    after = result["evaluations"]["after"]["request"]
    assert after["neutral.probability"]["value"] >= found["floors"]["neutral.probability"]


def test_a_redacted_request_keeps_no_text(world: Path, tmp_path: Path, cache: Path) -> None:
    forget(str(world / "model"), Asked(questions=(str(world / "Anna.jsonl"),)), tmp_path / "run", settings(epochs=1.0, privacy="redact"))
    secret = ("Brandt", "Marrow")
    for folder in (tmp_path / "run", cache):
        for path in folder.rglob("*"):
            if path.is_file() and path.suffix in (".json", ".jsonl", ".yaml", ".html", ".md") and path.name != "tokenizer.json":
                text = path.read_text(encoding="utf-8")
                assert not any(word in text for word in secret), path


def test_bad_requests_are_refused(world: Path, tmp_path: Path) -> None:
    wish = Asked(questions=(str(world / "Anna.jsonl"),))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("x")
    refused(lambda: forget(str(world / "model"), wish, tmp_path / "full"), "exists and is not empty")
    refused(lambda: Settings(budget=1.5), "budget is 1.5")
    refused(lambda: forget(str(world / "model"), Asked(questions=(str(tmp_path / "no.jsonl"),)), tmp_path / "out"), "no file")
    refused(lambda: load_record(tmp_path), "no finished request")


# --- ledger -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def ledger(world: Path, tmp_path: Path, cache: Path) -> Ledger:
    from excise.loading import ModelSpec

    ledger = Ledger.start(tmp_path / "ledger", ModelSpec(path=str(world / "model")))
    for name in ("Anna", "Elm"):
        ledger.add(Asked(questions=(str(world / f"{name}.jsonl"),)), settings())
    return ledger


def test_a_ledger_applies_requests_one_after_another_and_undoes_one(ledger: Ledger, world: Path) -> None:
    first, second = ledger.entries
    assert [e["status"] for e in ledger.entries] == ["active", "active"], [e["sentence"] for e in ledger.entries]
    assert len(first["checks"]) == 2
    assert len(second["checks"]) == 1
    assert holds(second)
    assert drift(ledger) is not None
    both = load(ledger.model()).fingerprint()
    ledger.undo(1)
    assert Ledger.open(ledger.folder).entries[0]["status"] == "undone"
    assert load(ledger.model()).fingerprint() != both
    known = ledger.entries[0]["checks"][-1]["scores"]["forget.probability"]
    assert known > 2 * first["checks"][0]["scores"]["forget.probability"], "what was undone is known again"
    assert ledger.entries[1]["checks"][-1]["scores"]["forget.probability"] < known
    rows = table(ledger)
    assert rows.row_count == 2
    refused(lambda: ledger.undo(1), "no active request 1")
    refused(lambda: ledger.add(Asked(questions=(str(world / "Elm.jsonl"),)), settings(epochs=1.0)), "stands in the ledger already")


def test_a_ledger_mends_its_model_and_refuses_another_base(ledger: Ledger) -> None:
    wanted = load(ledger.model()).fingerprint()
    shutil.rmtree(ledger.folder / "model")
    assert load(Ledger.open(ledger.folder).model()).fingerprint() == wanted
    shutil.rmtree(ledger.folder / "model")
    values = json.loads((ledger.folder / "ledger.json").read_text())
    values["base"]["fingerprint"] = "0" * 64
    (ledger.folder / "ledger.json").write_text(json.dumps(values))
    refused(lambda: Ledger.open(ledger.folder).model(), "weights have changed")


def test_bad_ledgers_are_refused(tmp_path: Path, world: Path) -> None:
    from excise.loading import ModelSpec

    refused(lambda: Ledger.open(tmp_path), "no ledger")
    (tmp_path / "ledger.json").write_text('{"schema": 99}')
    refused(lambda: Ledger.open(tmp_path), "another version")
    (tmp_path / "ledger.json").write_text('{"schema": 1}')
    refused(lambda: Ledger.open(tmp_path), "broken")
    refused(lambda: Ledger.start(tmp_path, ModelSpec(path=str(world / "model"))), "not empty")


def test_nothing_is_chosen_that_needs_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    from excise.requests.build import Built

    built = Built(Benchmark("request", {"forget": (Example("a", "Q?", "A."),), "retain": (Example("b", "", "text"),)}))
    assert module._by_tokens(built)["name"] == "t_wga"
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    assert module._by_tokens(built) == {"name": "wga"}
