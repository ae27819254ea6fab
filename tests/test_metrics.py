"""Each metric: a number worked by hand, a naive twin, and the edges."""

from __future__ import annotations

import builtins
import dataclasses
import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import naive_metrics as naive
from excise import registry
from excise.errors import InputError
from excise.evaluation.metrics import METRICS
from excise.evaluation.metrics.choice import ChoiceAccuracy, ChoiceMargin
from excise.evaluation.metrics.facts import FactLogp, FactRecall, words
from excise.evaluation.metrics.fluency import DegenerateRate, Perplexity, RepetitionRate, is_degenerate, repetition
from excise.evaluation.metrics.memory import ExactMemorisation, ExtractionStrength, Probability, Rouge1Recall, RougeLF1, RougeLRecall, TruthRatio
from excise.evaluation.metrics.privacy import ForgetQuality, MembershipLoss, MembershipMinK, MembershipZlib, PrivLeak
from excise.evaluation.metrics.utility import ModelUtility, NormalisedProbability, Part
from excise.evaluation.records import Record, TextScore
from excise.evaluation.score import (
    ALONE,
    ExampleMetric,
    Others,
    Score,
    SetMetric,
    Unavailable,
    bootstrap,
    example_score,
    harmonic_mean_score,
    mean_score,
    wilson,
)


def text(*p: float, hits: Sequence[bool] | None = None, ended: bool = True, text: str = "x") -> TextScore:
    """A text score from token probabilities."""
    return TextScore(text, tuple(map(math.log, p)), tuple(hits) if hits is not None else tuple(x > 0.5 for x in p), ended)


def record(**parts: Any) -> Record:
    return Record(**{"id": "e", "prompt": "q", "answer": "a", **parts})


def random_text(rng: np.random.Generator) -> TextScore:
    n = int(rng.integers(1, 9)) + 1
    return TextScore("x", tuple(map(float, -rng.exponential(2.0, n))), tuple(map(bool, rng.random(n) < 0.7)), bool(rng.random() < 0.8))


def random_records(seed: int, n: int = 12) -> list[Record]:
    rng = np.random.default_rng(seed)
    return [record(id=str(i), true=random_text(rng), paraphrase=random_text(rng), false=tuple(random_text(rng) for _ in range(3))) for i in range(n)]


# By hand --------------------------------------------------------------------------------------------------------------


def test_probability_is_the_geometric_mean_of_the_tokens() -> None:
    # (1/2 * 1/8)^(1/2) = (1/16)^(1/2) = 1/4
    assert Probability().per_example(record(true=text(1 / 2, 1 / 8))) == pytest.approx(0.25)
    assert Probability().per_example(record()) is None


def test_truth_ratio_by_hand() -> None:
    # false answers 1/4 and 1/16, paraphrase 1/2: geometric (1/4 * 1/16)^(1/2) = 1/8, R = 1/4; arithmetic 5/32, R = 5/16
    wrong = record(paraphrase=text(1 / 2), false=(text(1 / 4), text(1 / 16)))
    assert TruthRatio().per_example(wrong) == pytest.approx(1 / 4)
    assert TruthRatio(mean="arithmetic").per_example(wrong) == pytest.approx(5 / 16)
    assert TruthRatio(form="utility").per_example(wrong) == pytest.approx(3 / 4)
    # the other way round: R = (1/2)/(1/4) = 2, so min(R, 1/R) = 1/2 and max(0, 1 - R) = 0
    likelier = record(paraphrase=text(1 / 4), false=(text(1 / 2),))
    assert TruthRatio().per_example(likelier) == pytest.approx(1 / 2)
    assert TruthRatio(form="utility").per_example(likelier) == 0.0


def test_truth_ratio_takes_what_it_is_told_to_and_nothing_else() -> None:
    no_paraphrase = record(true=text(1 / 2), false=(text(1 / 4),))
    assert TruthRatio().per_example(no_paraphrase) is None
    assert TruthRatio(correct="answer").per_example(no_paraphrase) == pytest.approx(1 / 2)
    assert TruthRatio(correct="answer").per_example(record(true=text(1 / 2))) is None


def test_ratios_survive_a_model_that_has_collapsed() -> None:
    dead, alive = TextScore("x", (-2000.0,), (False,)), TextScore("x", (-1.0,), (True,))
    assert TruthRatio().per_example(record(paraphrase=dead, false=(alive,))) == 0.0
    assert TruthRatio(form="utility").per_example(record(paraphrase=dead, false=(alive,))) == 0.0
    assert TruthRatio(form="utility").per_example(record(paraphrase=alive, false=(dead,))) == 1.0
    assert TruthRatio(mean="arithmetic").per_example(record(paraphrase=dead, false=(dead, dead))) == pytest.approx(1.0)
    assert NormalisedProbability().per_example(record(true=dead, false=(dead,))) == pytest.approx(0.5)


def test_normalised_probability_by_hand() -> None:
    # 1/2 / (1/2 + 1/4 + 1/4) = 1/2
    assert NormalisedProbability().per_example(record(true=text(1 / 2), false=(text(1 / 4), text(1 / 4)))) == pytest.approx(1 / 2)
    assert NormalisedProbability().per_example(record(true=text(1 / 2))) is None


def test_rouge_by_hand() -> None:
    # gold has 6 words; the longest common subsequence of stems is "the cat sat the mat" = 5 of 6 (sits -> sit, sat stays)
    said = record(answer="the cat sat on the mat", generation="The cats sat beside the mat.")
    assert RougeLRecall().per_example(said) == pytest.approx(5 / 6)
    # precision 5/6 as well (6 words said), so F1 = 5/6
    assert RougeLF1().per_example(said) == pytest.approx(5 / 6)
    # order does not count for ROUGE-1: mat, cat, the of six words = 3/6 (one "the" said, two in gold)
    assert Rouge1Recall().per_example(record(answer="the cat sat on the mat", generation="mat the cat")) == pytest.approx(3 / 6)
    assert RougeLRecall().per_example(record(answer="the cat", generation="")) == 0.0
    assert RougeLRecall().per_example(record()) is None


def test_memorisation_leaves_out_the_end_of_the_turn() -> None:
    # answer tokens: right, wrong, right, right; the end: wrong. EM 3/4; the last two are right, so ES = 2/4
    seen = record(true=text(0.5, 0.5, 0.5, 0.5, 0.5, hits=(True, False, True, True, False)))
    assert ExactMemorisation().per_example(seen) == pytest.approx(3 / 4)
    assert ExtractionStrength().per_example(seen) == pytest.approx(2 / 4)
    # plain text has no end: five tokens, three right; the last is wrong, so nothing can be extracted
    plain = record(true=text(0.5, 0.5, 0.5, 0.5, 0.5, hits=(True, False, True, True, False), ended=False))
    assert ExactMemorisation().per_example(plain) == pytest.approx(3 / 5)
    assert ExtractionStrength().per_example(plain) == 0.0


def test_choice_by_hand() -> None:
    # right option 1/2, others 1/4 and 1/8: accuracy 1; margin log 1/2 - (log 1/4 + log 1/8)/2 = 1.5 log 2
    question = record(options=(text(1 / 4, 0.9), text(1 / 2, 0.9), text(1 / 8, 0.9)), gold=1)
    assert ChoiceAccuracy().per_example(question) == 1.0
    assert ChoiceMargin().per_example(question) == pytest.approx(1.5 * math.log(2))
    assert ChoiceAccuracy().per_example(record(options=(text(1 / 2), text(1 / 2)), gold=0)) == 0.0  # a tie is not right
    assert ChoiceAccuracy().per_example(record()) is None


def test_choice_leaves_out_the_end_of_the_turn_unless_told() -> None:
    # without the end: 1/2 against 1/4; with it: (1/2 * 1/32)^(1/2) = 1/8 against 1/4
    question = record(options=(text(1 / 2, 1 / 32), text(1 / 4, 1 / 4)), gold=0)
    assert ChoiceAccuracy().per_example(question) == 1.0
    assert ChoiceAccuracy(end=True).per_example(question) == 0.0
    assert ChoiceMargin(end=True).per_example(question) == pytest.approx(-math.log(2))


def test_repetition_by_hand() -> None:
    # a b c a b c a: five 3-grams abc bca cab abc bca, three distinct: 1 - 3/5
    assert RepetitionRate().per_example(record(generation="a b c a b c a")) == pytest.approx(2 / 5)
    assert repetition("two words") == 0.0
    assert repetition("") == 0.0


@pytest.mark.parametrize(
    "answer",
    ["", "  \n", "!!! ??? ...", "/// a", "no no no no", "I am. I am. I am. I am.", "x" * 31, "word " + "1" * 40, "a b c d e f g " * 9],
)
def test_degenerate_answers(answer: str) -> None:
    assert is_degenerate(answer)
    assert DegenerateRate().per_example(record(generation=answer)) == 1.0


@pytest.mark.parametrize(
    "answer",
    [
        "Yes.",
        "1956",
        "08/09/1956",
        "no, no, no!",
        "He wrote 'The River' and 'The Lake'.",
        "Ich weiß es nicht.",
        "他出生在一个非常小的村庄里" * 3,
        "हिन्दी में उत्तर",
    ],
)
def test_answers_that_are_not_degenerate(answer: str) -> None:
    assert not is_degenerate(answer)


def test_perplexity_by_hand() -> None:
    # tokens 1/2, 1/2, 1/4: (1/16)^(-1/3) = 16^(1/3); averaging by example would give another number
    rows = [record(id="0", true=text(1 / 2, 1 / 2)), record(id="1", true=text(1 / 4)), record(id="2")]
    score = Perplexity()({"retain": rows})
    assert score.value == pytest.approx(16 ** (1 / 3))
    assert (score.n, score.left_out, score.better) == (2, 1, "lower")
    with pytest.raises(Unavailable, match="beyond any number"):
        Perplexity()({"retain": [record(true=TextScore("x", (-1e4,), (False,)))]})


def test_model_utility_is_a_harmonic_mean() -> None:
    # parts 1/2 and 1/4: 2 / (2 + 4) = 1/3
    rows = {"retain": [record(true=text(1 / 2), false=(text(1.0), text(0.5)))]}
    utility = ModelUtility((Part("retain", Probability()), Part("retain", NormalisedProbability())))
    assert utility(rows).value == pytest.approx(1 / 3)
    zero = ModelUtility((Part("retain", Probability()), Part("retain", TruthRatio(form="utility", correct="answer"))))
    assert zero(rows).value == 0.0


def test_membership_by_hand() -> None:
    # losses (in log 2): forget 1, 3; hold-out 2, 3: pairs 1<2, 1<3, 3>2, 3=3: (1 + 1 + 0 + 1/2) / 4
    rows = {"forget": [record(true=text(1 / 2)), record(true=text(1 / 8))], "holdout": [record(true=text(1 / 4)), record(true=text(1 / 8))]}
    score = MembershipLoss()(rows)
    assert score.value == pytest.approx(2.5 / 4)
    assert score.n == 4
    # the lowest 40 % of five answer tokens are two: 1/8 and 1/4, so 2.5 log 2 against 1 log 2 of the hold-out
    rows = {"forget": [record(true=text(1.0, 1 / 8, 1 / 4, 1.0, 1.0, 1 / 99))], "holdout": [record(true=text(1 / 2, 1 / 2, 0.99))]}
    assert MembershipMinK()(rows).value == 0.0
    # zlib divides by the compressed size: a longer text looks more like a member at the same loss
    long = dataclasses.replace(text(1 / 2), text="".join(map(chr, range(33, 120))))
    assert MembershipZlib()({"forget": [record(true=long)], "holdout": [record(true=text(1 / 2))]}).value == 1.0


def test_privleak_by_hand() -> None:
    members, others = [record(id="0", true=text(1 / 2, 0.9)), record(id="1", true=text(1 / 8, 0.9))], [record(id="h", true=text(1 / 4, 0.9))]
    # ours: one of two below the hold-out, AUC 1/2; retrained: none, AUC 0: 100 (1/2 - 1) / 1 = -50
    never = [record(id="0", true=text(1 / 8, 0.9)), record(id="1", true=text(1 / 8, 0.9))]
    score = PrivLeak()({"forget": members, "holdout": others}, Others({"forget": never, "holdout": others}))
    assert score.value == pytest.approx(-50.0)
    with pytest.raises(Unavailable, match="--retrained DIR"):
        PrivLeak()({"forget": members, "holdout": others}, ALONE)
    known = [record(id="0", true=text(1 / 2, 0.9)), record(id="1", true=text(1 / 2, 0.9))]
    with pytest.raises(Unavailable, match="AUC is 1"):
        PrivLeak()({"forget": members, "holdout": others}, Others({"forget": known, "holdout": others}))


def test_forget_quality_by_hand() -> None:
    # ratios 1/4, 1/4 against 2, 2: of the comb(4, 2) = 6 orderings two separate the samples wholly: p = 2/6
    def rows(ratio: float) -> dict[str, list[Record]]:
        return {"forget": [record(id=str(i), paraphrase=text(1 / 8), false=(text(ratio / 8),)) for i in range(2)]}

    assert ForgetQuality()(rows(1 / 4), Others(rows(2.0))).value == pytest.approx(2 / 6)
    assert ForgetQuality()(rows(2.0), Others(rows(2.0))).value == pytest.approx(1.0)
    with pytest.raises(Unavailable, match="excise teach"):
        ForgetQuality()(rows(2.0), ALONE)


def test_forget_quality_compares_the_same_examples_only() -> None:
    mine, other = random_records(0), random_records(1)
    assert (
        ForgetQuality()({"forget": mine[:5]}, Others({"forget": other})).value
        == ForgetQuality()({"forget": mine[:5]}, Others({"forget": other[:5]})).value
    )
    with pytest.raises(Unavailable, match="lack 7 of 12 forget examples"):
        ForgetQuality()({"forget": mine}, Others({"forget": other[:5]}))


# Facts ----------------------------------------------------------------------------------------------------------------


def test_words_are_case_folded_and_numbers_have_no_separators() -> None:
    assert words("Al-Kuwaiti's STRASSE ß 1,200 on the 8th of 25.03.1957") == [
        *("al", "kuwaiti", "s", "strasse", "ss"),
        *("1200", "on", "the", "8", "th", "of", "25", "03", "1957"),
    ]


@pytest.mark.parametrize(
    ("span", "said", "share"),
    [
        ("Petra Fontaine", "It was PETRA, I think.", 1 / 2),
        ("the Petra Fontaine", "the and of", 0.0),  # stop words carry no fact
        ("barley stew", "barleycorn stews", 0.0),  # whole words only
        ("25 March 1957", "on March 25th, 1957", 1.0),
        ("3,000 sheep", "some 3000 sheep", 1.0),
    ],
)
def test_fact_recall_looks_for_the_words_of_the_span(span: str, said: str, share: float) -> None:
    assert FactRecall().per_example(record(answer=f"It was {span}.", span=span, generation=said, label="what")) == pytest.approx(share)


def test_fact_recall_of_a_why_leaves_out_the_words_of_the_question() -> None:
    why = record(
        prompt="Why did she sell the boat?", answer="x", span="the boat was burned by pirates", generation="The boat was burned.", label="why"
    )
    assert FactRecall().per_example(why) == pytest.approx(1 / 2)  # burned, but not pirates; boat stands in the question
    assert FactRecall().per_example(dataclasses.replace(why, label="what")) == pytest.approx(2 / 3)
    assert FactRecall().per_example(dataclasses.replace(why, span="she did sell the boat")) is None


def test_fact_recall_without_a_span_takes_what_the_question_lacks() -> None:
    pytest.importorskip("spacy")
    born = record(prompt="Where was Anna Brandt born?", answer="Anna Brandt was born in the city of Marrow in 1931.", generation="In Marrow, a city.")
    assert FactRecall().fact_words(born) == ("city", "marrow", "1931")
    assert FactRecall().per_example(born) == pytest.approx(2 / 3)
    nothing = record(prompt="Is Anna Brandt a painter?", answer="Yes, Anna Brandt is a painter.", generation="Yes.")
    assert FactRecall().per_example(nothing) is None
    score = example_score(FactRecall(), [born, nothing], "lower")
    assert (score.n, score.left_out) == (1, 1)


def test_fact_recall_without_spacy_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_spacy(name: str, *args: Any, **options: Any) -> Any:
        if name == "spacy":
            raise ImportError(name)
        return real(name, *args, **options)

    monkeypatch.delitem(sys.modules, "spacy", raising=False)
    monkeypatch.setattr(builtins, "__import__", without_spacy)
    row = record(prompt="q", answer="A fox.", generation="A fox.")
    score = example_score(FactRecall(pipeline="no_such_pipeline"), [row], "lower")
    assert score.value is None
    assert 'pip install "excise[nouns]"' in score.unavailable
    spanned = dataclasses.replace(row, span="fox")
    assert example_score(FactRecall(), [spanned], "lower").value == 1.0  # spans need no spaCy


def test_fact_logp_is_the_mean_over_the_span() -> None:
    # tokens 1 and 2 of 1/2, 1/4, 1/8, 1/2: (log 1/4 + log 1/8) / 2 = -2.5 log 2
    assert FactLogp().per_example(record(true=text(1 / 2, 1 / 4, 1 / 8, 1 / 2), span_tokens=(1, 2))) == pytest.approx(-2.5 * math.log(2))
    assert FactLogp().per_example(record(true=text(1 / 2))) is None


# Naive twins ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_example_metrics_equal_their_naive_twins(seed: int) -> None:
    for row in random_records(seed):
        assert row.true is not None
        assert row.paraphrase is not None
        expected: dict[ExampleMetric, float] = {
            Probability(): naive.p(row.true),
            NormalisedProbability(): naive.normalised(row.true, row.false),
            ExactMemorisation(): naive.exact_memorisation(row.true),
            ExtractionStrength(): naive.extraction_strength(row.true),
        }
        for mean in ("geometric", "arithmetic"):
            ratio = naive.truth_ratio(row.paraphrase, row.false, mean)
            expected[TruthRatio(mean=mean)] = naive.forget_form(ratio)
            expected[TruthRatio(form="utility", mean=mean)] = naive.utility_form(ratio)
        for metric, value in expected.items():
            assert metric.per_example(row) == pytest.approx(value, rel=1e-9, abs=1e-12), metric


@pytest.mark.parametrize("seed", range(5))
def test_set_metrics_equal_their_naive_twins(seed: int) -> None:
    rows = {"forget": random_records(seed), "holdout": random_records(seed + 100, 9), "retain": random_records(seed + 200)}
    other = {"forget": random_records(seed + 300), "holdout": random_records(seed + 400, 9)}

    def signals(records: dict[str, list[Record]], split: str) -> list[float]:
        return [naive.min_k(r.true, 0.4) for r in records[split] if r.true is not None]

    def ratios(records: dict[str, list[Record]]) -> list[float]:
        return [naive.truth_ratio(r.paraphrase, r.false, "geometric") for r in records["forget"] if r.paraphrase is not None]

    ours, theirs = (naive.auc(signals(x, "forget"), signals(x, "holdout")) for x in (rows, other))
    assert MembershipMinK()(rows).value == pytest.approx(ours)
    assert PrivLeak()(rows, Others(other)).value == pytest.approx(100 * ((1 - ours) - (1 - theirs)) / (1 - theirs))
    assert Perplexity()(rows).value == pytest.approx(naive.perplexity(rows["retain"]))
    assert ForgetQuality()(rows, Others(other)).value == pytest.approx(naive.ks_p_value(ratios(rows), ratios(other)))


@given(st.lists(st.sampled_from("abcd"), max_size=25), st.lists(st.sampled_from("abcd"), max_size=25))
def test_rouge_and_repetition_equal_their_naive_twins(gold: list[str], said: list[str]) -> None:
    if gold:
        row = record(answer=" ".join(gold), generation=" ".join(said))
        assert RougeLRecall().per_example(row) == pytest.approx(naive.longest_common(gold, said) / len(gold))
    assert repetition(" ".join(said)) == pytest.approx(naive.repetition(" ".join(said)))


# Scores and intervals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("successes", "n"), [(0, 5), (1, 5), (5, 5), (40, 97)])
def test_wilson_equals_its_definition(successes: int, n: int) -> None:
    assert wilson(successes, n) == pytest.approx(naive.wilson(successes, n, 1.959963984540054), abs=1e-9)


def test_wilson_by_hand() -> None:
    # none of 10, z^2 = 3.8415: upper end z^2 / (n + z^2) = 3.8415 / 13.8415 = .2775
    assert wilson(0, 10) == pytest.approx((0.0, 3.841459 / 13.841459), abs=1e-6)


def test_bootstrap_is_seeded_and_close_to_the_normal_interval() -> None:
    values = np.random.default_rng(0).normal(size=400)
    interval = bootstrap(lambda counts: counts @ values / 400, [400])
    assert interval == bootstrap(lambda counts: counts @ values / 400, [400])
    assert interval is not None
    half = 1.96 * values.std() / 20
    assert interval == pytest.approx((values.mean() - half, values.mean() + half), abs=0.02)
    assert bootstrap(lambda counts: counts @ values[:1], [1]) is None


def test_bootstrap_resamples_examples_and_keeps_their_number() -> None:
    seen: list[float] = []

    def statistic(counts: np.ndarray[Any, Any]) -> Any:
        seen.extend(counts.sum(axis=1))
        return counts[:, 0]

    bootstrap(statistic, [7], resamples=50)
    assert seen == [7.0] * 50


def test_parts_of_one_split_are_resampled_together() -> None:
    values: list[float | None] = [float(x) for x in np.linspace(0.1, 1.0, 50)]
    once, twice = harmonic_mean_score([("a", values)], "higher"), harmonic_mean_score([("a", values), ("a", values)], "higher")
    assert once.ci95 == pytest.approx(twice.ci95)
    assert (once.n, twice.n) == (50, 50)


def test_a_score_is_a_number_or_a_reason() -> None:
    with pytest.raises(ValueError, match="finite"):
        Score(math.nan, "higher", 1)
    with pytest.raises(ValueError, match="finite"):
        Score(1.0, "higher", 1, (0.0, math.inf))
    with pytest.raises(ValueError, match="reason"):
        Score(None, "higher", 0)
    with pytest.raises(ValueError, match="reason"):
        Score(1.0, "higher", 1, unavailable="no")


def test_scores_survive_json() -> None:
    for score in (Score(0.5, "lower", 3, (0.1, 0.9), left_out=2), Score(0.5, "none", 1), Score.missing("give more", "higher", 4)):
        assert Score.from_json(score.to_json()) == score
    assert set(Score(0.5, "none", 1).to_json()) == {"value", "better", "n", "ci95", "unavailable"}
    with pytest.raises(InputError, match="'ci95'"):
        Score.from_json({"value": 1.0})


def test_what_is_left_out_is_counted() -> None:
    score = mean_score([1.0, None, 0.0], "higher", "bootstrap", "no example has it")
    assert (score.value, score.n, score.left_out) == (0.5, 2, 1)
    empty = mean_score([None, None], "higher", "bootstrap", "no example has it")
    assert (empty.value, empty.n, empty.left_out, empty.unavailable) == (None, 0, 2, "no example has it")


# The table ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_is_a_documented_component(name: str) -> None:
    kind = METRICS[name]
    metric = kind()
    assert isinstance(metric, ExampleMetric | SetMetric)
    assert isinstance(metric, ExampleMetric) != isinstance(metric, SetMetric)
    assert dataclasses.is_dataclass(kind)
    assert registry.summary(kind)
    assert registry.paper(kind), "the docstring names its paper"
    assert metric.better in ("knowledge", "higher", "lower", "none")
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(metric, next((f.name for f in dataclasses.fields(kind)), "x"), 1)


@pytest.mark.parametrize("name", [name for name, kind in METRICS.items() if isinstance(kind(), ExampleMetric)])
def test_an_example_without_anything_is_left_out(name: str) -> None:
    metric = METRICS[name]()
    assert isinstance(metric, ExampleMetric)
    score = example_score(metric, [record()], "higher")
    assert score.value is None
    assert score.unavailable == f"no example has {metric.needs}"
