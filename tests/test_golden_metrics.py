"""Parity with open-unlearning: its own losses through our formulas, its own texts through our ROUGE, and the model end to end.

Variant C (true attention mask, one end of turn) is what excise computes; the peer's own numbers hide every genuine
``<|im_end|>`` and count two more label tokens, so they serve for the formulas only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from scipy.stats import ks_2samp

from excise.data.example import Benchmark, Example
from excise.evaluation.collect import Plan, collect
from excise.evaluation.metrics.choice import ChoiceAccuracy, ChoiceMargin
from excise.evaluation.metrics.memory import ExactMemorisation, ExtractionStrength, Probability, TruthRatio, rouge
from excise.evaluation.metrics.privacy import ForgetQuality, MembershipLoss, MembershipMinK, MembershipZlib, order
from excise.evaluation.metrics.utility import ModelUtility, NormalisedProbability, Part
from excise.evaluation.records import Record, Records, TextScore
from excise.evaluation.score import Others
from excise.files import read_json, read_lines
from excise.loading import load

TABLE = Path(__file__).parent / "golden" / "ou_metrics.json"
SPLITS = {"forget": "forget", "retain": "retain", "ra": "real_authors"}


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    return cast(dict[str, Any], read_json(TABLE))


def text(loss: float) -> TextScore:
    """A text of one token with this loss: all that a length-normalised formula sees."""
    return TextScore("", (-loss,), (False,), ended=False)


def rows(losses: dict[str, list[Any]]) -> list[Record]:
    n = len(next(iter(losses.values())))
    return [
        Record(
            *(str(i), "q", "a"),
            true=text(losses["true"][i]) if "true" in losses else None,
            paraphrase=text(losses["paraphrase"][i]) if "paraphrase" in losses else None,
            false=tuple(map(text, losses["false"][i])) if "false" in losses else (),
        )
        for i in range(n)
    ]


def records(golden: dict[str, Any]) -> dict[str, list[Record]]:
    return {SPLITS[short]: rows(golden["average_loss"][short]) for short in SPLITS}


def ratios(metric: TruthRatio, records: Sequence[Record]) -> list[float]:
    return [math.exp(cast(float, metric.log_ratio(record))) for record in records]


def mean(values: Sequence[float | None]) -> float:
    return float(np.mean([cast(float, v) for v in values]))


def test_the_table_says_where_it_comes_from(golden: dict[str, Any]) -> None:
    assert "open-unlearning" in golden["source"]


@pytest.mark.parametrize("short", SPLITS)
def test_truth_ratios_of_every_example(golden: dict[str, Any], short: str) -> None:
    metric = TruthRatio(correct="paraphrase" if short in ("forget", "retain") else "answer")
    # float32 losses in the peer's file: 1e-6 relative
    assert ratios(metric, records(golden)[SPLITS[short]]) == pytest.approx(golden["peer"]["truth_ratio"][short], rel=2e-6)


@pytest.mark.parametrize("short", ["forget", "retain", "ra"])
def test_truth_ratios_in_the_original_arithmetic_form(golden: dict[str, Any], short: str) -> None:
    correct = "paraphrase" if short in ("forget", "retain") else "answer"
    found = records(golden)[SPLITS[short]]
    assert ratios(TruthRatio(mean="arithmetic", correct=correct), found) == pytest.approx(golden["original_tofu"][short], rel=2e-6)
    metric = TruthRatio("forget" if short == "forget" else "utility", "arithmetic", correct)
    assert mean([metric.per_example(r) for r in found]) == pytest.approx(golden["original_tofu"][f"{short}_mean"], rel=2e-6)


def test_aggregates(golden: dict[str, Any]) -> None:
    found, peer = records(golden), golden["peer"]["aggregate"]
    assert mean([TruthRatio().per_example(r) for r in found["forget"]]) == pytest.approx(peer["forget_truth_ratio"], rel=2e-6)
    assert mean([TruthRatio("utility").per_example(r) for r in found["retain"]]) == pytest.approx(peer["retain_Truth_Ratio"], rel=2e-6)
    truth = TruthRatio("utility", correct="answer")
    assert mean([truth.per_example(r) for r in found["real_authors"]]) == pytest.approx(peer["ra_Truth_Ratio"], rel=2e-6)
    normalised = [NormalisedProbability().per_example(r) for r in found["real_authors"]]
    assert normalised == pytest.approx(golden["peer"]["normalised"]["ra"], rel=2e-6)
    assert mean(normalised) == pytest.approx(peer["ra_Q_A_Prob_normalised"], rel=2e-6)
    assert mean([Probability().per_example(r) for r in found["forget"]]) == pytest.approx(peer["forget_Q_A_Prob"], rel=2e-6)


class Given:
    """The peer's ROUGE-L recall of each record, by position (our ROUGE on its texts is tested below)."""

    better = "knowledge"
    interval = "bootstrap"
    needs = "a value"

    def __init__(self, values: Sequence[float]) -> None:
        self.values = values

    def per_example(self, record: Record) -> float | None:
        return self.values[int(record.id)]


def test_model_utility(golden: dict[str, Any]) -> None:
    parts: list[Any] = []
    for short, split in (("retain", "retain"), ("ra", "real_authors")):
        probability = Probability() if short == "retain" else NormalisedProbability()
        truth = TruthRatio("utility", "arithmetic", "paraphrase" if short == "retain" else "answer")
        parts += [(split, probability), (split, Given(golden["peer"]["rouge_l_recall"][short])), (split, truth)]
    # the golden files have the world facts as three means only
    parts += [("world_facts", Given([value])) for value in golden["original_tofu"]["model_utility_nine"][6:]]
    utility = ModelUtility(tuple(Part(split, metric) for split, metric in parts))
    score = utility({**records(golden), "world_facts": [Record("0", "q", "a")]})
    assert score.value == pytest.approx(golden["original_tofu"]["model_utility"], rel=2e-6)


def test_forget_quality(golden: dict[str, Any]) -> None:
    unlearned, retrained = records(golden), {"forget": rows(golden["average_loss"]["forget_retrained"])}
    assert ForgetQuality()(unlearned, Others(retrained)).value == pytest.approx(golden["peer"]["aggregate"]["forget_quality"], rel=1e-6)
    assert ForgetQuality()(unlearned, Others(unlearned)).value == 1.0
    # and where the samples differ: forget against retain, scipy on the peer's own ratios
    other = {"forget": unlearned["retain"]}
    expected = cast(Any, ks_2samp(golden["peer"]["truth_ratio"]["forget"], golden["peer"]["truth_ratio"]["retain"])).pvalue
    assert ForgetQuality()(unlearned, Others(other)).value == pytest.approx(expected)


def test_membership_and_privleak(golden: dict[str, Any]) -> None:
    peer, values = golden["peer"]["aggregate"], golden["peer"]["min_k"]
    found = {"forget": records(golden)["forget"], "holdout": rows(golden["average_loss"]["holdout"])}
    assert MembershipLoss()(found).value == pytest.approx(peer["mia_loss"])
    ours, theirs = (float(order(values[m]["forget"], values[m]["holdout"]).mean()) for m in ("unlearned", "retrained"))
    assert ours == pytest.approx(peer["mia_min_k"])
    assert theirs == pytest.approx(golden["peer"]["aggregate_retrained"]["mia_min_k"])
    assert 100 * ((1 - ours) - (1 - theirs)) / (1 - theirs) == pytest.approx(peer["privleak"], rel=1e-6)


# With ../shared -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("short", SPLITS)
def test_rouge_of_the_peers_generations(shared: Path, short: str) -> None:
    table = json.loads((shared / "golden" / "ou" / "metrics_per_example.json").read_text())["pristine_m64"][f"{short}_Q_A_ROUGE"]
    pairs = list(zip(table["ground_truth"], table["generation"], strict=True))
    assert [rouge("rougeL", gold, said).recall for gold, said in pairs] == pytest.approx(table["rougeL_recall"])
    assert [rouge("rougeL", gold, said).fmeasure for gold, said in pairs] == pytest.approx(table["rougeL_f1"])
    assert [rouge("rouge1", gold, said).recall for gold, said in pairs] == pytest.approx(table["rouge1_recall"])


def tofu_rows(folder: Path, name: str, rows: slice) -> tuple[Example, ...]:
    return tuple(Example(f"{name}-{i}", row["question"], row["answer"]) for i, row in enumerate(read_lines(folder / f"{name}.json")[rows]))


@pytest.fixture(scope="module")
def end_to_end(shared: Path, smollm2_folder: Path) -> Records:
    folder = shared / "data" / "tofu"
    forget, holdout = tofu_rows(folder, "forget01", slice(40)), tofu_rows(folder, "retain90", slice(40, 80))
    subject = load(smollm2_folder, system="You are a helpful assistant.", dtype="float32")
    benchmark = Benchmark("golden", {"forget": forget, "retain": holdout, "holdout": holdout})
    return collect(subject, benchmark, {"forget": Plan(), "holdout": Plan()}, precision="float32")


@pytest.mark.slow
@pytest.mark.parametrize("split", ["forget", "holdout"])
def test_the_model_end_to_end(end_to_end: Records, golden: dict[str, Any], split: str) -> None:
    found, expected = end_to_end[split], golden["variant_c"]["per_example"][split]
    assert [len(cast(TextScore, r.true).logp) for r in found] == [row["n_labels"] for row in expected]
    assert [-cast(TextScore, r.true).mean_logp for r in found] == pytest.approx([row["avg_loss"] for row in expected], rel=1e-5, abs=1e-5)
    assert [Probability().per_example(r) for r in found] == pytest.approx([row["prob"] for row in expected], rel=1e-4)
    assert [ExactMemorisation().per_example(r) for r in found] == pytest.approx([row["EM"] for row in expected])
    assert [ExtractionStrength().per_example(r) for r in found] == pytest.approx([row["ES_fixed"] for row in expected])


@pytest.mark.slow
def test_membership_end_to_end(end_to_end: Records, golden: dict[str, Any]) -> None:
    expected = golden["variant_c"]["aggregate"]
    assert MembershipLoss()(end_to_end).value == pytest.approx(expected["AUC_mia_loss"])
    assert MembershipZlib()(end_to_end).value == pytest.approx(expected["AUC_mia_zlib"])
    assert MembershipMinK()(end_to_end).value == pytest.approx(expected["AUC_mia_min_k"])


@pytest.mark.slow
@pytest.mark.parametrize(("questions", "accuracy", "margin"), [("QA_test", 0.36, 0.733), ("SimdomQA_test", 0.52, 0.930)])
def test_choice_questions_about_rome(shared: Path, smollm2_folder: Path, questions: str, accuracy: float, margin: float) -> None:
    """The values of ../shared/golden/ember/behaviour_smol_rome.json (base model; plain template, end of turn left out)."""
    table = json.loads((shared / "data" / "concepts" / "mc_questions.json").read_text())["Ancient Rome"][questions]
    examples = tuple(
        Example(str(i), row["q"], row["correct_answer"], options=tuple(row["options"]), gold=row["options"].index(row["correct_answer"]))
        for i, row in enumerate(table)
    )
    benchmark = Benchmark("rome", {"forget": examples, "retain": (Example("r", "q", "a"),)})
    subject = load(smollm2_folder, template="plain", dtype="float32")
    found = collect(subject, benchmark, {"forget": Plan(true=False, options=True)}, precision="float32")["forget"]
    assert mean([ChoiceAccuracy().per_example(r) for r in found]) == pytest.approx(accuracy)
    assert mean([ChoiceMargin().per_example(r) for r in found]) == pytest.approx(margin, abs=5e-4)
