"""The robustness probes on a 5W benchmark: other words, the first word given, relearning on a part; FSR and RSR of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conftest import REPOSITORY, refused
from excise.attacks.prompts import Prompts
from excise.attacks.relearn import Relearn
from excise.attacks.scene import Scene
from excise.attacks.series import build_attacks
from excise.data.benchmarks.strangers import Strangers
from excise.data.example import Benchmark, Example
from excise.evaluation.records import Record
from excise.evaluation.suites.fivew import fivew
from excise.recipe import Recipe
from excise.subject import Subject

FORGET = (
    Example("f1", "Who ran the mill?", "Ida Holm", paraphrased_prompts=("Name of the miller?", "The miller was?"), label="who"),
    Example("f2", "Where is the mill?", "In Old Marrow", paraphrased_prompts=("The mill's place?",), label="where"),
    Example("f3", "When did it open?", "1887", label="when"),
)
RETAIN = (
    Example("r1", "Who sang?", "Otto Quist", paraphrased_prompts=("The singer's name?", "Singer?"), label="who"),
    Example("r2", "Where was it sung?", "In Elm", paraphrased_prompts=("Place of the song?",), label="where"),
)
BENCH = Benchmark("fivew", {"forget": FORGET, "retain": RETAIN})


def scene(subject: Subject, benchmark: Benchmark = BENCH) -> Scene:
    return Scene(subject, benchmark, fivew(max_new_tokens=4), precision="float32")


def parrot(monkeypatch: pytest.MonkeyPatch, told: dict[str, str]) -> None:
    """A model that answers by a table: (prompt, opening) has this in it -> this is said."""

    def said(e: Example) -> str:
        return next((text for mark, text in told.items() if mark in f"{e.prompt} {e.opening}"), "nobody knows that here")

    def ask(self: Scene, subject: Any = None, benchmark: Benchmark | None = None, plans: Any = None) -> dict[str, list[Record]]:
        rows = {split: (benchmark or self.benchmark).split(split) for split in plans}
        return {
            split: [Record(e.id, e.prompt, e.answer, e.label, opening=e.opening, generation=said(e)) for e in found] for split, found in rows.items()
        }

    monkeypatch.setattr(Scene, "ask", ask)


def test_rates_by_way_of_asking(tiny_llama: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    told = {
        "The miller was?": "It was Ida Holm.",
        "mill? In": "Old Marrow",
        "Who sang?": "Otto Quist",
        "Singer?": "Otto Quist",
        "Elm": "",
        "sung? In": "Elm",
    }
    parrot(monkeypatch, told)
    attack = Prompts(kinds=("paraphrase", "partial"), tokens=1, splits=("forget", "retain"))
    attack.check(scene(tiny_llama))
    outcome = attack(scene(tiny_llama))
    found = {name: (score.value, score.n) for name, score in outcome.scores.items() if name.startswith(("fsr", "rsr")) and "who" not in name}
    assert found["fsr@paraphrase"] == (50.0, 2)  # f1 comes out in one of two other wordings, f2 does not
    assert found["fsr@partial"] == (50.0, 2)  # f2 after "In"; f1 not after "Ida"; f3 is one word, of which nothing can be given
    assert found["fsr@any"] == (pytest.approx(100 / 3), 3)
    assert found["fsr"] == (pytest.approx(100 / 3), 3)
    assert found["rsr@paraphrase"] == (25.0, 2)  # r1 in one of two wordings, r2 in none of one
    assert found["rsr@partial"] == (100.0, 2)  # "Otto" is given, and "Quist" is said; "In" is given, and "Elm" is said
    assert found["rsr"] == (50.0, 2)  # as asked
    assert outcome.scores["fsr@paraphrase"].ci95 is not None
    assert [r.generation for r in outcome.records["forget"]][:2] == ["It was Ida Holm.", "Old Marrow"]


def test_what_is_given_away_is_not_looked_for(tiny_llama: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    parrot(monkeypatch, {"mill? Ida": "Ida, Ida, Ida"})
    outcome = Prompts(kinds=("partial",), tokens=1)(scene(tiny_llama))
    assert outcome.scores["fsr@partial"].value == 100.0


def test_without_a_judge_nothing_changes(tiny_llama: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    from excise.evaluation.suites import qa

    parrot(monkeypatch, {"The miller was?": "It was Ida Holm."})
    outcome = Prompts(kinds=("paraphrase",))(Scene(tiny_llama, BENCH, qa(), precision="float32"))
    assert not [name for name in outcome.scores if name.startswith(("fsr", "rsr"))]
    assert outcome.scores["forget.fact_recall@paraphrase"].value is not None
    refused(lambda: Prompts(splits=("retain",)), "prompts.splits", "[forget, retain]")


def test_few_shot_examples_never_hold_the_retain_question_itself(tiny_llama: Subject) -> None:
    made = Prompts()._variants(RETAIN[0], "few_shot", scene(tiny_llama))
    assert [m.prompt.count("Who sang?") for m in made] == [1]


def test_relearning_twenty_and_watching_thirty(tiny_llama: Subject) -> None:
    """part 0.4 of 50 items: 20 are shown, and the FSR of the other 30 is stated, along the curve too."""
    people = Strangers(forget_people=10, retain_people=1, holdout_people=0)()
    attack = Relearn(part=0.4, steps=1, points=(0,), limit=50)
    here = scene(tiny_llama, people)
    shown = attack._shown(here)
    assert (len(people.forget), len(shown)) == (50, 20)
    assert {label: sum(e.label == label for e in shown) for label in ("who", "what", "when", "where", "why")} == dict.fromkeys(
        ("who", "what", "when", "where", "why"), 4
    )
    outcome = attack(here)
    assert (outcome.scores["fsr@unseen"].n, outcome.scores["fsr"].n, outcome.scores["rsr"].n) == (30, 50, 5)
    assert [set(point) >= {"step", "fsr", "fsr@unseen"} for point in outcome.curve] == [True, True]
    assert outcome.curve[-1]["fsr@unseen"] == outcome.scores["fsr@unseen"].value


def test_the_recipe_probes_what_the_docs_say() -> None:
    recipe = Recipe.load(REPOSITORY / "recipes" / "fivew-npo.yaml")
    prompts, relearn = (named.attack for named in build_attacks(recipe.attacks))
    assert isinstance(prompts, Prompts)
    assert isinstance(relearn, Relearn)
    assert (prompts.kinds, prompts.tokens, prompts.splits) == (("paraphrase", "partial"), 1, ("forget", "retain"))
    assert (relearn.part, relearn.limit) == (0.4, 50)
    assert Path(str(recipe.data["path"])).name == "mine"
