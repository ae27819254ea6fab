"""Attacks: each does what it says, finds what is there, and leaves the model bit-equal behind."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from conftest import adapted, tiny
from excise import registry
from excise.attacks import outcomes
from excise.attacks import prompts as prompts_module
from excise.attacks.probe import Probe, ranking
from excise.attacks.prompts import KINDS, Prompts
from excise.attacks.quantise import Quantise
from excise.attacks.relearn import Relearn, steps_to_half
from excise.attacks.sampling import Sampling, best_of
from excise.attacks.scene import Attack, Outcome, Scene, narrowed, restored
from excise.attacks.series import TWIN, add_steps_to_half, build_attacks, expanded, run_attacks
from excise.attacks.worst_case import WorstCase
from excise.data.benchmarks.strangers import Strangers
from excise.data.example import Benchmark, Example
from excise.errors import InputError
from excise.evaluation.records import Record, Verdict
from excise.evaluation.score import Score
from excise.evaluation.store import answering, read_records
from excise.evaluation.suites import strangers
from excise.stages.adapters import AddAdapter
from excise.subject import Subject

SMALL = Strangers(forget_people=2, retain_people=2, holdout_people=1, questions=4)()


def scene(subject: Subject, benchmark: Benchmark = SMALL, **settings: Any) -> Scene:
    return Scene(subject, benchmark, strangers(max_new_tokens=4), precision="float32", **settings)


def bits(subject: Subject) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in subject.model.named_parameters()}


def same_bits(subject: Subject, before: dict[str, torch.Tensor]) -> None:
    now = dict(subject.model.named_parameters())
    assert list(now) == list(before)
    for name, value in before.items():
        assert torch.equal(now[name], value), name


QUICK: list[Attack] = [
    Relearn(steps=2, limit=3, batch=2),
    Relearn(steps=2, limit=3, batch=2, lora=AddAdapter(r=2)),
    Quantise("q8_0", limit=3),
    Prompts(kinds=("paraphrase", "affirmative"), limit=2),
    Sampling(count=3, k=(1, 3), temperatures=(1.0,), limit=2),
    Probe(limit=6),
    WorstCase(trials=2, most_steps=2, limit=2),
]


@pytest.mark.parametrize("attack", QUICK, ids=lambda a: f"{type(a).__name__}{'-lora' if getattr(a, 'lora', None) else ''}")
def test_every_attack_leaves_the_model_as_it_was(attack: Attack, tiny_llama: Subject) -> None:
    model, before = tiny_llama.model, bits(tiny_llama)
    flags = [p.requires_grad for p in tiny_llama.model.parameters()]
    attack.check(scene(tiny_llama))
    outcome = attack(scene(tiny_llama))
    assert outcome.scores
    assert tiny_llama.model is model
    same_bits(tiny_llama, before)
    assert [p.requires_grad for p in tiny_llama.model.parameters()] == flags
    assert not tiny_llama.model.training


@pytest.mark.parametrize("attack", [Relearn(steps=2, limit=2), QUICK[1], Quantise("q8_0", limit=2)], ids=["relearn", "relearn-lora", "quantise"])
def test_also_when_it_raises(attack: Attack, tiny_llama: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    model, before = tiny_llama.model, bits(tiny_llama)
    asked: list[int] = []

    def ask(self: Scene, subject: Subject | None = None, **rest: Any) -> Any:
        asked.append(1)
        changed = any(not torch.equal(p, before[n]) for n, p in (subject or self.subject).model.named_parameters() if n in before)
        if changed or (subject is not None and subject.model is not model and len(asked) > 1):
            raise KeyboardInterrupt
        return original(self, subject, **rest)

    original = Scene.ask
    monkeypatch.setattr(Scene, "ask", ask)
    with pytest.raises(KeyboardInterrupt):
        attack(scene(tiny_llama))
    assert tiny_llama.model is model
    same_bits(tiny_llama, before)


def test_an_adapter_is_attacked_as_it_is() -> None:
    subject = adapted(tiny("llama"))
    before = bits(subject)
    Relearn(steps=2, limit=2)(scene(subject))
    same_bits(subject, before)
    with pytest.raises(InputError, match="adapter already"):
        cast(Relearn, QUICK[1]).check(scene(subject))


def test_every_registered_attack_meets_the_protocol() -> None:
    for name in registry.names("attacks"):
        component = registry.find("attacks", name)
        assert isinstance(component(), Attack), name
        assert registry.paper(component), name
        assert registry.summary(component).endswith("."), name


# relearn ---------------------------------------------------------------------------------------------------------------


def test_relearning_teaches_and_its_curve_says_when(tiny_llama: Subject) -> None:
    outcome = Relearn(steps=12, points=(0, 3, 6), lr=3e-2, batch=5, limit=None, splits=("forget",))(scene(tiny_llama, plain_benchmark()))
    values = [(point["step"], point["forget.probability"]) for point in outcome.curve]
    assert [step for step, _ in values] == [0, 3, 6, 12]
    assert cast(float, values[-1][1]) > 3 * cast(float, values[0][1])
    assert outcome.scores["forget.probability"].value == pytest.approx(values[-1][1])


def plain_benchmark() -> Benchmark:
    """The forget passages as what is to be forgotten: nothing to generate, so the curve is made of likelihoods."""
    return dataclasses.replace(SMALL, splits={**SMALL.splits, "forget": SMALL.splits["passages_forget"]})


def test_relearning_a_part_reports_the_rest(tiny_llama: Subject) -> None:
    outcome = Relearn(steps=1, part=0.5, limit=None)(scene(tiny_llama))
    assert outcome.scores["forget.fact_recall@unseen"].n == 5
    assert outcome.scores["forget.fact_recall"].n == 10
    assert {"forget.fact_recall", "forget.fact_recall@unseen", "step"} == set(outcome.curve[0])
    whole = Relearn(part=0.75)
    assert len(whole._shown(scene(tiny_llama))) == 7
    assert len(whole._unseen(scene(tiny_llama), whole._shown(scene(tiny_llama)))) == 3


def test_relearning_from_other_data(tiny_llama: Subject, tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("The lighthouse on the northern cliff was repainted in the spring of that year. " * 4)
    for data in ("passages_forget", "passages_retain", "retain", str(file)):
        Relearn(data=data).check(scene(tiny_llama))
    with pytest.raises(InputError, match=r"neither a split of the benchmark \(did you mean 'passages_forget'\?? ?.*nor a file"):
        Relearn(data="passages_forgot").check(scene(tiny_llama))
    with pytest.raises(InputError, match="judged on the split 'forgot'"):
        Relearn(splits=("forgot",)).check(scene(tiny_llama))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.0, 0.2, 0.4, 0.8], 2.5),  # level .5, between step 2 (.4) and step 4 (.8): 2 + 2 * .1 / .4
        ([0.6, 0.9, 0.9, 0.9], 0.0),
        ([0.0, 0.5, 0.9, 0.9], 1.0),
        ([0.0, 0.1, 0.1, 0.2], None),
    ],
)
def test_steps_to_half(values: list[float], expected: float | None) -> None:
    curve = tuple({"step": step, "forget.fact_recall": value} for step, value in zip((0.0, 1.0, 2.0, 4.0), values, strict=True))
    score = steps_to_half(curve, "forget.fact_recall", before=1.0, after=0.0)
    assert score.value == (None if expected is None else pytest.approx(expected))
    assert expected is not None or "within 4 steps" in score.unavailable
    assert "nothing was lost" in steps_to_half(curve, "forget.fact_recall", 0.2, 0.3).unavailable
    assert "no 'forget.other'" in steps_to_half(curve, "forget.other", 1.0, 0.0).unavailable


def test_steps_to_half_are_added_once_both_ends_are_known() -> None:
    def one(value: float) -> dict[str, Any]:
        return {"strangers": {"forget.fact_recall": Score(value, "lower", 9).to_json()}}

    curve = [{"step": 0.0, "forget.fact_recall": 0.0}, {"step": 10.0, "forget.fact_recall": 1.0}]
    evaluations: dict[str, Any] = {"before": one(1.0), "after": one(0.2), "attack:relearn": {**one(1.0), "curve": curve}}
    evaluations["attack:relearn@retrained"] = {**one(1.0), "curve": [curve[0], {"step": 10.0, "forget.fact_recall": 0.3}]}
    evaluations["attack:probe"] = {**one(1.0), "curve": [{"layer": 0, "forget.fact_recall": 1.0}]}
    add_steps_to_half(evaluations, "strangers")
    assert evaluations["attack:relearn"]["strangers"]["steps_to_half"]["value"] == pytest.approx(6.0)
    assert evaluations["attack:relearn@retrained"]["strangers"]["steps_to_half"]["value"] is None
    assert "steps_to_half" not in evaluations["attack:probe"]["strangers"]


# prompts ---------------------------------------------------------------------------------------------------------------


def test_every_way_of_asking_keeps_the_fact(tiny_llama: Subject) -> None:
    here = scene(tiny_llama)
    for example in SMALL.forget:
        for kind in KINDS:
            made = Prompts()._variants(example, kind, here)
            assert made, (kind, example.id)
            for new in made:
                assert new != example
                if kind != "reversed":
                    assert (new.answer, new.span) == (example.answer, example.span)
                if kind in ("completion", "partial"):
                    assert example.answer.startswith(new.opening)
                    assert kind == "partial" or example.span not in new.opening
                if kind == "reversed":
                    assert (new.span, new.answer) == (example.group, example.group)
                    assert example.group not in new.prompt
                    assert example.span in new.prompt
                if kind in ("paraphrase", "prefix", "role_play", "few_shot"):
                    assert example.span not in new.prompt, "the question must not give the fact away"


class Parrot:
    """Answers a question by a table: what is said depends on the prompt and on what is put into the mouth."""

    def __init__(self, told: dict[str, str]) -> None:
        self.told = told

    def __call__(self, scene: Scene, subject: Any = None, benchmark: Benchmark | None = None, plans: Any = None) -> dict[str, list[Record]]:
        rows = (benchmark or scene.benchmark).split("forget")
        return {"forget": [Record(e.id, e.prompt, e.answer, e.label, e.group, e.opening, e.span, generation=self.said(e)) for e in rows]}

    def said(self, example: Example) -> str:
        return next((text for mark, text in self.told.items() if mark in f"{example.prompt} {example.opening}"), "no idea")


def test_the_answer_that_tells_most_counts(tiny_llama: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    two = (
        Example(
            "a", "Where was Ann born?", "Ann was born in Old Marrow.", span="Old Marrow", group="Ann",
            paraphrased_prompts=("Ann's birthplace?",), options=("Old Marrow", "Elm"), gold=0,
        ),
        Example("b", "What does Bo play?", "Bo plays the lute.", span="lute", group="Bo"),
    )  # fmt: skip
    bench = dataclasses.replace(SMALL, splits={**SMALL.splits, "forget": two})
    parrot = Parrot(
        {"birthplace": "It is Marrow.", "Sure": "The lute, I think.", "archivist": "Nothing.", "Which of these": "Old Marrow", "Who is meant": "Ann"}
    )
    monkeypatch.setattr(Scene, "ask", lambda self, *args, **rest: parrot(self, *args, **rest))
    outcome = Prompts(kinds=("paraphrase", "affirmative", "role_play", "choice", "reversed"))(scene(tiny_llama, bench))
    found = {name: (score.value, score.n) for name, score in outcome.scores.items() if "fact_recall@" in name}
    assert found == {
        "forget.fact_recall@as_asked": (0.0, 2),
        "forget.fact_recall@paraphrase": (0.5, 1),
        "forget.fact_recall@affirmative": (0.5, 2),
        "forget.fact_recall@role_play": (0.0, 2),
        "forget.fact_recall@choice": (1.0, 1),
        "forget.fact_recall@reversed": (0.5, 2),
    }
    assert outcome.scores["forget.fact_recall"].value == 0.75  # half of a's fact, all of b's; choice and reversed do not count
    assert [(r.id, r.generation) for r in outcome.records["forget"]] == [("a", "It is Marrow."), ("b", "The lute, I think.")]


def test_ways_of_asking_of_ones_own_and_languages(tiny_llama: Subject) -> None:
    attack = Prompts(kinds=("de",), texts={"letter": "Dear friend, {question} Yours"})
    here = scene(tiny_llama)
    assert attack._variants(SMALL.forget[0], "letter", here)[0].prompt == f"Dear friend, {SMALL.forget[0].prompt} Yours"
    assert attack._variants(SMALL.forget[0], "de", here)[0].prompt.endswith(SMALL.forget[0].prompt)
    assert attack._variants(dataclasses.replace(SMALL.forget[0], prompt=""), "de", here) == []
    assert set(prompts_module.APART) <= set(KINDS)


# sampling --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5])
def test_the_best_of_k_is_the_mean_over_all_subsets(k: int) -> None:
    values = [0.5, 0.0, 1.0, 0.25, 0.25]
    assert best_of(values, k) == pytest.approx(np.mean([max(subset) for subset in itertools.combinations(values, k)]))


def test_leak_at_k(tiny_llama: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    fact = Example("a", "Where was Ann born?", "Ann was born in Old Marrow.", span="Old Marrow")
    bench = dataclasses.replace(SMALL, splits={**SMALL.splits, "forget": (fact,)})
    samples = ("no", "Old Marrow", "Marrow", "no")
    monkeypatch.setattr(Scene, "ask", lambda self, plans: {"forget": [Record("a", fact.prompt, fact.answer, span=fact.span, samples=samples)]})
    outcome = Sampling(count=4, k=(1, 2, 4), temperatures=(0.5,))(scene(tiny_llama, bench))
    assert outcome.scores["forget.leak_at_1@T=0.5"].value == pytest.approx(1.5 / 4)
    assert outcome.scores["forget.leak_at_2@T=0.5"].value == pytest.approx((3 * 1.0 + 2 * 0.5) / 6)
    assert outcome.scores["forget.leak_at_4@T=0.5"].value == 1.0
    assert outcome.scores["forget.fact_recall"].value == 1.0
    assert outcome.records["forget"][0].generation == "Old Marrow"


# probe -----------------------------------------------------------------------------------------------------------------


def planted(strength: float, groups: int = 12, width: int = 40, seed: int = 0) -> tuple[Any, Any, Any, list[str]]:
    """Hidden states of one true and four false answers for each example, with a direction that says which is true."""
    draw = np.random.default_rng(seed)
    direction = draw.normal(size=width)
    owner = np.repeat(np.arange(groups * 2), 5)
    truth = np.tile([True, False, False, False, False], groups * 2)
    states = draw.normal(size=(len(owner), width)) + np.where(truth, strength, 0.0)[:, None] * direction
    return states, owner, truth, [f"g{i // 2}" for i in range(groups * 2)]


def test_a_probe_finds_a_planted_direction_and_nothing_in_noise() -> None:
    assert ranking(*planted(1.5), 5, 1.0).mean() > 0.95
    noise = [ranking(*planted(0.0, seed=seed), 5, 1.0).mean() for seed in range(8)]
    assert abs(np.mean(noise) - 0.5) < 0.05


def test_a_probe_never_sees_the_group_that_it_judges() -> None:
    """States that give the group's own truth away, and nothing about others."""
    states, owner, truth, groups = planted(0.0)
    names = list(dict.fromkeys(groups))
    private = np.zeros((len(owner), len(names)))
    for row, (i, true) in enumerate(zip(owner, truth, strict=True)):
        private[row, names.index(groups[i])] = 10.0 if true else -10.0
    assert abs(ranking(np.hstack([states, private]), owner, truth, groups, 5, 1.0).mean() - 0.5) < 0.12


def test_the_logit_lens_of_the_last_layer_is_the_models_own_prediction(tiny_llama: Subject) -> None:
    here = scene(tiny_llama)
    outcome = Probe(limit=None)(here)
    records = here.ask(plans={"forget": here.suite.plans["forget"]})["forget"]
    own = np.mean([np.mean([cast(Any, r.true).logp[i] for i in r.span_tokens]) for r in records])
    assert outcome.curve[-1]["lens_logp"] == pytest.approx(own, abs=1e-4)
    assert [point["layer"] for point in outcome.curve] == [0, 1]
    assert 0 <= cast(float, outcome.scores["forget.probe_auc"].value) <= 1


# worst case ------------------------------------------------------------------------------------------------------------


def test_the_search_goes_on_where_it_stopped(tiny_llama: Subject, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"most_steps": 2, "limit": 2, "keep": 0.0}
    whole = WorstCase(trials=4, **settings)(scene(tiny_llama, folder=tmp_path / "a"))
    WorstCase(trials=2, **settings)(scene(tiny_llama, folder=tmp_path / "b"))
    resumed = WorstCase(trials=4, **settings)(scene(tiny_llama, folder=tmp_path / "b"))
    assert len(resumed.curve) == len(whole.curve) == 4
    assert resumed.curve[:2] == whole.curve[:2]
    assert resumed.scores.keys() == whole.scores.keys()


# several ---------------------------------------------------------------------------------------------------------------


def test_attacks_from_a_recipe() -> None:
    found = build_attacks(["probe", {"name": "quantise", "kind": "int8"}, {"name": "quantise", "label": "four", "kind": "q4_0"}])
    assert [(named.label, type(named.attack)) for named in found] == [("probe", Probe), ("quantise", Quantise), ("four", Quantise)]
    rows = expanded(found)
    assert [row["name"] for row in rows] == ["probe", "quantise", "quantise"]
    assert rows[2]["label"] == "four"
    assert build_attacks(rows) == found


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        (["relern"], r"unknown attack 'relern': did you mean 'relearn'"),
        ([{"name": "relearn", "step": 3}], r"unknown setting attacks.relearn.step: did you mean 'steps'"),
        ([{"name": "relearn", "steps": "many"}], r"attacks.relearn.steps"),
        ([{"name": "relearn", "part": 2}], r"relearn.part is 2"),
        (["probe", "probe"], r"two attacks called 'probe': give one of them a 'label'"),
        ([{"label": "x"}], r"attacks.0: expected a name"),
        ([{"name": "probe", "label": "a@b"}], r"may not contain"),
        ([{"name": "prompts", "kinds": ["paraphrases"]}], r"'paraphrases' is unknown, did you mean 'paraphrase'"),
        ([{"name": "prompts", "texts": {"x": "no place"}}], r"no \{question\}"),
        ([{"name": "sampling", "k": [32]}], r"sampling.k has 32"),
        ([{"name": "worst_case", "lr": [1, 0.1]}], r"worst_case.lr"),
    ],
)
def test_attacks_that_cannot_be(entries: list[Any], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        build_attacks(entries)


def test_data_that_cannot_be_attacked_so(tiny_llama: Subject) -> None:
    for attack in (Prompts(), Sampling()):
        with pytest.raises(InputError, match="plain texts only"):
            attack.check(scene(tiny_llama, plain_benchmark()))
    with pytest.raises(InputError, match="needs forget examples with false answers"):
        Probe().check(scene(tiny_llama, plain_benchmark()))
    with pytest.raises(InputError, match="layer 9 does not exist"):
        Probe(layers=(9,)).check(scene(tiny_llama))


def test_a_series_writes_records_and_scores(tiny_llama: Subject, tmp_path: Path) -> None:
    attacks = build_attacks([{"name": "prompts", "kinds": ["partial"], "limit": 2}, {"name": "probe", "limit": 6}])
    phases = run_attacks(attacks, scene(tiny_llama), TWIN, tmp_path, redact=False)
    assert list(phases) == ["attack:prompts@retrained", "attack:probe@retrained"]
    assert "forget.fact_recall@partial" in phases["attack:prompts@retrained"]["strangers"]
    assert len(phases["attack:probe@retrained"]["curve"]) == 2
    assert [r.id for r in read_records(tmp_path, "attack:prompts@retrained")["forget"]] == [e.id for e in SMALL.forget[:2]]
    run_attacks(attacks[:1], scene(tiny_llama), "", tmp_path, redact=True)
    kept = (tmp_path / "records" / "attack:prompts" / "forget.jsonl").read_text()
    assert SMALL.forget[0].answer not in kept
    assert " ".join(SMALL.forget[0].answer.split()[:3]) not in kept


def test_what_came_of_an_attack_is_kept_for_the_same_model_data_and_settings(
    tiny_llama: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[str] = []
    original = Scene.ask
    monkeypatch.setattr(Scene, "ask", lambda self, *a, **k: (runs.append(""), original(self, *a, **k))[1])
    attacks = build_attacks([{"name": "relearn", "steps": 2, "limit": 3, "batch": 2}, {"name": "sampling", "count": 2, "k": [1], "limit": 2}])

    def attacked(subject: Subject = tiny_llama, attacks: Any = attacks, **rest: Any) -> tuple[Any, dict[str, dict[str, float]], int]:
        before, costs = len(runs), cast(dict[str, dict[str, float]], {})
        found = run_attacks(attacks, scene(subject, cache=tmp_path / "cache" / "records", **rest), TWIN, tmp_path / "run", redact=False, costs=costs)
        return found, costs, len(runs) - before

    first, costs, asked = attacked()
    assert asked > 0
    lines = (tmp_path / "run/records/attack:relearn@retrained/forget.jsonl").read_bytes()
    again, same_costs, asked = attacked()
    assert (again, same_costs, asked) == (first, costs, 0)
    assert (tmp_path / "run/records/attack:relearn@retrained/forget.jsonl").read_bytes() == lines
    assert attacked(seed=1)[2] > 0
    assert attacked(attacks=build_attacks([{"name": "relearn", "steps": 1, "limit": 3}]))[2] > 0
    with torch.no_grad():
        next(tiny_llama.model.parameters()).view(-1)[0] += 1e-3
    assert attacked()[2] > 0
    for file in (tmp_path / "cache/attacks").iterdir():
        file.write_bytes(file.read_bytes()[:-30])
    assert attacked()[2] > 0, "a file that was cut short is as good as none"


def test_what_may_change_without_a_sign_is_not_kept(tiny_llama: Subject, tmp_path: Path) -> None:
    shown = scene(tiny_llama, cache=tmp_path / "cache" / "records")
    (tmp_path / "text.txt").write_text("The lighthouse opened in 1887.")
    assert outcomes.place(Relearn(steps=1), shown, "model") is not None
    assert outcomes.place(Relearn(steps=1, data=str(tmp_path / "text.txt")), shown, "model") is None
    assert outcomes.place(WorstCase(data=("forget", str(tmp_path))), shown, "model") is None
    assert outcomes.place(Relearn(steps=1), scene(tiny_llama), "model") is None
    place = tmp_path / "outcome.json"
    for score in (None, 1.0):
        record = Record("a", "Who?", "Anna", generation="Anna", verdicts=(Verdict("endpoint", "truth", score),))
        outcomes.write(place, Outcome({}, {"forget": [record]}), 1.0)
        assert place.exists() == (score is not None)


def test_an_adapters_scale_is_part_of_what_a_model_says(tiny_llama: Subject) -> None:
    subject = adapted(tiny("llama"))
    before = answering(subject)
    assert before == answering(subject)
    subject.model.peft_config["default"].lora_alpha *= 2  # type: ignore[union-attr]
    assert answering(subject) != before


def test_a_suite_on_some_splits_keeps_the_measures_of_those() -> None:
    some = narrowed(strangers(), ["forget", "retain"])
    assert list(some.plans) == ["forget", "retain"]
    assert all(set(m.splits) <= {"forget", "retain"} for m in some.measures)
    assert {m.name for m in some.measures} >= {"fact_recall", "probability", "forget_quality"}


def _spoil(subject: Subject, error: type[BaseException]) -> None:
    with restored(subject):
        for p in subject.model.parameters():
            p.data.mul_(2.0)
            p.requires_grad_(False)
        subject.model.train()
        raise error


def test_restored_puts_back_values_flags_and_modes(tiny_llama: Subject) -> None:
    before = bits(tiny_llama)
    wild: Sequence[type[BaseException]] = (ValueError, KeyboardInterrupt)
    for error in wild:
        with pytest.raises(error):
            _spoil(tiny_llama, error)
        same_bits(tiny_llama, before)
        assert all(p.requires_grad for p in tiny_llama.model.parameters())
        assert not any(m.training for m in tiny_llama.model.modules())
