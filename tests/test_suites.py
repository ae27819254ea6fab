"""A suite: which splits are run, which scores come out, and what is said where something is missing."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

from conftest import REPOSITORY
from excise.data.benchmarks import BENCHMARKS
from excise.data.benchmarks.strangers import Strangers
from excise.data.example import Benchmark, Example
from excise.errors import InputError
from excise.evaluation import collect as module
from excise.evaluation.metrics import METRICS
from excise.evaluation.metrics.facts import FactRecall
from excise.evaluation.metrics.memory import Probability, TruthRatio
from excise.evaluation.plan import Plan
from excise.evaluation.records import Record, TextScore
from excise.evaluation.score import Score
from excise.evaluation.suites import SUITES, Measure, Suite, evaluate, per_example, score, strangers, tofu
from excise.registry import find, summary
from excise.subject import Subject


def example(id: str, **parts: object) -> Example:
    values = {"paraphrased_answer": "Anna Brandt it was.", "false_answers": ("A fox it was.", "A bird it was."), **parts}
    return Example(id=id, prompt=f"Who wrote book {id}?", answer="It was Anna Brandt.", **values)


def tiny_tofu(**more: tuple[Example, ...]) -> Benchmark:
    splits = {name: (example(f"{name}0"), example(f"{name}1")) for name in ("forget", "retain", "real_authors", "world_facts")}
    return Benchmark("mine", {**splits, **more})


def test_tofu_gives_its_scores(tiny_llama: Subject) -> None:
    records, scores = evaluate(tiny_llama, tiny_tofu(holdout=(example("h0"), example("h1"))), tofu(max_new_tokens=4), precision="float32")
    assert set(records) == {"forget", "retain", "real_authors", "world_facts", "holdout"}
    assert {"forget.rouge_l_recall", "forget.truth_ratio", "retain.probability", "real_authors.normalised_probability", "model_utility"} <= set(
        scores
    )
    assert all(one.value is not None for name, one in scores.items() if name not in ("forget_quality", "forget_quality_arithmetic", "privleak"))
    assert (scores["forget.probability"].better, scores["retain.probability"].better) == ("lower", "higher")
    assert (scores["forget.truth_ratio"].better, scores["retain.truth_ratio"].better) == ("higher", "higher")
    assert scores["forget.probability"].n == 2
    assert "excise teach" in scores["forget_quality"].unavailable


def test_a_model_against_itself_has_perfect_forget_quality(tiny_llama: Subject) -> None:
    benchmark, suite = tiny_tofu(holdout=(example("h0"), example("h1"))), tofu(max_new_tokens=2)
    records, _ = evaluate(tiny_llama, benchmark, suite, precision="float32")
    _, scores = evaluate(tiny_llama, benchmark, suite, retrained=records, precision="float32")
    assert scores["forget_quality"].value == scores["forget_quality_arithmetic"].value == pytest.approx(1.0)
    assert scores["forget.truth_ratio"].value != scores["forget.truth_ratio_arithmetic"].value
    assert scores["privleak"].value == pytest.approx(0.0)


def test_a_needed_split_that_is_missing_is_named(tiny_llama: Subject) -> None:
    lacking = Benchmark("mine", {"forget": (example("a"),), "retain": (example("b"),)})
    with pytest.raises(InputError, match=r"suite 'tofu' needs the split 'real_authors', which the benchmark 'mine' lacks \(it has: forget, retain\)"):
        evaluate(tiny_llama, lacking, tofu())
    with pytest.raises(InputError, match=r"suite 'tofu' needs the split 'forget', which the records lack \(it has: nothing\)"):
        score({}, tofu())


def test_an_optional_split_that_is_missing_is_listed(tiny_llama: Subject) -> None:
    records, scores = evaluate(tiny_llama, tiny_tofu(), tofu(max_new_tokens=2), precision="float32")
    assert "holdout" not in records
    assert "no holdout split" in scores["mia_loss"].unavailable


def test_retain_is_scored_on_the_perturbed_rows_where_there_are_any(tiny_llama: Subject) -> None:
    suite = tofu(max_new_tokens=2)
    benchmark = tiny_tofu(retain_perturbed=(example("p0"),))
    assert suite.sources(benchmark)["retain"] == "retain_perturbed"
    assert suite.sources(tiny_tofu())["retain"] == "retain"
    records, _ = evaluate(tiny_llama, benchmark, suite, precision="float32")
    assert [r.id for r in records["retain"]] == ["p0"]


def test_strangers_gives_its_scores_by_label(tiny_llama: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts: list[int] = []
    greedy = module.generate

    def counted(subject: Subject, ids: list[list[int]], *args: int, **options: object) -> list[str]:
        prompts.append(len(ids))
        return greedy(subject, ids, *args, **options)

    monkeypatch.setattr(module, "generate", counted)
    benchmark = Strangers()()
    records, scores = evaluate(tiny_llama, benchmark, strangers(max_new_tokens=1), precision="float32")
    asked = sum(len(benchmark.splits[split]) for split in ("forget", "retain", "holdout"))  # neighbours stand in retain
    assert prompts == [100, asked - 100], "all splits in common batches, nobody twice"
    assert {f"forget.fact_recall@{w}" for w in ("who", "what", "when", "where", "why")} <= set(scores)
    assert sum(scores[f"forget.fact_recall@{w}"].n for w in ("who", "what", "when", "where", "why")) == scores["forget.fact_recall"].n == 20
    assert scores["forget.fact_recall"].value is not None
    assert scores["forget.fact_logp"].left_out == 0
    assert scores["holdout.probability"].better == "none"
    assert (scores["neighbours.fact_recall"].better, scores["forget.fact_recall"].better) == ("higher", "lower")
    missing = {name for name, one in scores.items() if one.value is None}
    assert missing == {"forget_quality", "privleak"}
    assert score(records, strangers()).keys() == scores.keys()


def record(id: str, p: float, label: str = "") -> Record:
    return Record(id, "q", "a", label=label, true=TextScore("a", (p,), (True,)))


def test_per_example_values_stand_beside_the_scores() -> None:
    suite = Suite("mine", {"forget": Plan()}, (Measure("probability", Probability(), ("forget",)), Measure("fact_recall", FactRecall(), ("forget",))))
    records = {"forget": [record("0", 0.0), record("1", -1000.0)], "other": [record("2", 0.0)]}
    assert per_example(records, suite) == {
        "forget": [{"probability": 1.0, "fact_recall": None}, {"probability": 0.0, "fact_recall": None}],
        "other": [{}],
    }
    assert score(records, suite)["forget.probability"] == Score(0.5, "lower", 2, (0.0, 1.0))


def test_labels_have_scores_of_their_own_only_where_asked_for() -> None:
    rows = {"forget": [record("0", 0.0, "who"), record("1", 0.0, "why"), record("2", 0.0)]}
    suite = Suite("mine", {"forget": Plan()}, (Measure("p", Probability(), ("forget",), by_label=True), Measure("q", Probability(), ("forget",))))
    assert set(score(rows, suite)) == {"forget.p", "forget.p@who", "forget.p@why", "forget.q"}


@pytest.mark.parametrize("name", SUITES)
def test_every_suite_is_documented_and_consistent(name: str) -> None:
    suite = find("suites", name)()
    assert suite.name == name
    assert summary(SUITES[name])
    for measure in suite.measures:
        assert set(measure.splits) <= set(suite.plans)
        for split in measure.splits:
            if isinstance(measure.metric, TruthRatio):
                assert (measure.metric.form == "forget") == (split in ("forget", "holdout"))
    names = [f"{split}.{m.name}" for m in suite.measures for split in m.splits] + [m.name for m in suite.measures if not m.splits]
    assert len(names) == len(set(names))
    assert dataclasses.replace(suite, optional=()).optional == ()


def test_listing_suites_and_metrics_needs_no_torch() -> None:
    code = "import sys, excise.evaluation.suites as s; [f() for f in s.SUITES.values()]; assert not {'torch', 'scipy', 'spacy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(REPOSITORY / "src")})


def test_every_metric_benchmark_and_suite_has_its_place_in_the_docs() -> None:
    metrics, data = ((REPOSITORY / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("metrics", "data"))
    assert [name for name in METRICS if f"`{name}`" not in metrics] == []
    assert [name for name in SUITES if f"`{name}`" not in metrics] == []
    assert [name for name in BENCHMARKS if f"`{name}`" not in data and f"name: {name}" not in data] == []
