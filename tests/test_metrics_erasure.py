"""Efficacy, specificity, coherence and their mean: by hand, by naive loops, and where they cannot be computed."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from excise.evaluation.metrics.choice import ChoiceAccuracy
from excise.evaluation.metrics.erasure import Coherence, Efficacy, KeepsToSubject, Kept, Overall, Related, Specificity
from excise.evaluation.metrics.judged import ContainsTruth
from excise.evaluation.records import Record, TextScore, Verdict
from excise.evaluation.score import ALONE, Others, Unavailable

Rows = dict[str, list[Record]]


def asked(split: str, right: list[bool], options: int = 4) -> list[Record]:
    """Choice questions of which these are answered right."""
    likely, not_ = TextScore("x", (math.log(0.9),), (True,), False), TextScore("y", (math.log(0.1),), (False,), False)
    return [
        Record(f"{split}{i}", "q", "a", options=tuple(likely if (k == 0) == hit else not_ for k in range(options)), gold=0)
        for i, hit in enumerate(right)
    ]


def share(n: int, k: int) -> list[bool]:
    return [True] * k + [False] * (n - k)


def continued(texts: list[str]) -> list[Record]:
    return [Record(f"c{i}", "The lighthouse of Marrow opened.", "Marrow", generation=text) for i, text in enumerate(texts)]


FINE, OFF, BROKEN = "The lighthouse was tall.", "I like bread very much.", "no no no no no"

BEFORE: Rows = {
    "concept": asked("concept", share(20, 15)),  # .75
    "similar": asked("similar", share(20, 15)),  # .75
    "mmlu": asked("mmlu", share(20, 10)),  # .50
    "coherence": continued([FINE] * 9 + [OFF]),  # related .9, fluent 1
}
AFTER: Rows = {
    "concept": asked("concept", share(20, 9)),  # .45: frac (.45 - .25) / (.75 - .25) = .4
    "similar": asked("similar", share(20, 13)),  # .65: frac .8
    "mmlu": asked("mmlu", share(20, 11)),  # .55: frac 1.2, clipped 1
    "coherence": continued([FINE] * 6 + [OFF] * 2 + [BROKEN] * 2),  # related .6: frac 2/3; fluent .8
}


def harmonic(*parts: float) -> float:
    return 0.0 if min(parts) <= 0 else len(parts) / sum(1 / part for part in parts)


def test_each_by_hand() -> None:
    others = Others(baseline=BEFORE)
    assert Efficacy()(AFTER, others).value == pytest.approx(0.6)
    assert Specificity()(AFTER, others).value == pytest.approx(harmonic(1.0, 0.8))
    assert Specificity(clip=False)(AFTER, others).value == pytest.approx(harmonic(1.2, 0.8))
    assert Coherence()(AFTER, others).value == pytest.approx(harmonic(2 / 3, 0.8))
    assert Overall()(AFTER, others).value == pytest.approx(harmonic(0.6, harmonic(1.0, 0.8), harmonic(2 / 3, 0.8)))
    assert Overall(clip=False)(AFTER, others).value == pytest.approx(harmonic(0.6, harmonic(1.2, 0.8), harmonic(2 / 3, 0.8)))
    assert (Efficacy()(AFTER, others).n, Specificity()(AFTER, others).n, Coherence()(AFTER, others).n, Overall()(AFTER, others).n) == (20, 40, 10, 70)


def test_below_chance_is_clipped_unless_told_otherwise() -> None:
    # accuracy .10: frac (.10 - .25) / .5 = -.3: efficacy 1 clipped, 1.3 not
    lost = {**AFTER, "concept": asked("concept", share(20, 2))}
    others = Others(baseline=BEFORE)
    assert Efficacy()(lost, others).value == 1.0
    assert Efficacy(clip=False)(lost, others).value == pytest.approx(1.3)
    knows_more = {**AFTER, "concept": asked("concept", share(20, 20))}
    assert Efficacy()(knows_more, others).value == 0.0
    assert Efficacy(clip=False)(knows_more, others).value == pytest.approx(-0.5)
    assert Overall()(knows_more, others).value == 0.0
    assert Overall(clip=False)(knows_more, others).value == 0.0


def test_the_model_before_against_itself_forgot_nothing_and_kept_all() -> None:
    others = Others(baseline=BEFORE)
    assert Efficacy()(BEFORE, others).value == 0.0
    assert Specificity()(BEFORE, others).value == Coherence()(BEFORE, others).value == 1.0
    assert Overall()(BEFORE, others).value == 0.0


def test_open_questions_have_no_chance_level() -> None:
    def judged(hits: list[bool]) -> list[Record]:
        return [Record(f"o{i}", "q", "a", generation="x", verdicts=(Verdict("contains", "truth", float(hit)),)) for i, hit in enumerate(hits)]

    # 8 of 10 before, 2 of 10 after: 1 - .2/.8
    open_ = Kept("concept_open", ContainsTruth(), "none")
    rows, before = {"concept_open": judged(share(10, 2))}, {"concept_open": judged(share(10, 8))}
    assert Efficacy(open_)(rows, Others(baseline=before)).value == pytest.approx(0.75)


def test_chance_is_that_of_the_options_at_hand() -> None:
    # two options: chance .5; (.6 - .5) / (.9 - .5) = .25
    rows, before = {"concept": asked("concept", share(10, 6), options=2)}, {"concept": asked("concept", share(10, 9), options=2)}
    assert Efficacy()(rows, Others(baseline=before)).value == pytest.approx(0.75)


def test_what_cannot_be_computed_says_what_to_do() -> None:
    with pytest.raises(Unavailable, match="--baseline MODEL"):
        Efficacy()(AFTER, ALONE)
    guesses = {**BEFORE, "concept": asked("concept", share(20, 5))}
    with pytest.raises(Unavailable, match=r"'concept' the model before unlearning scores 0\.250, no better than chance \(0\.250\).*margin"):
        Efficacy()(AFTER, Others(baseline=guesses))
    with pytest.raises(Unavailable, match="lack 10 of 20 concept examples"):
        Efficacy()(AFTER, Others(baseline={**BEFORE, "concept": BEFORE["concept"][:10]}))
    with pytest.raises(Unavailable, match=r"data\.mmlu=FILE"):
        Specificity()({**AFTER, "mmlu": []}, Others(baseline=BEFORE))
    with pytest.raises(Unavailable, match="no example of the split 'concept' has scored options"):
        Efficacy()({"concept": [Record("concept0", "q", "a")]}, Others(baseline=BEFORE))


def test_an_example_that_one_model_lacks_is_left_out_of_both() -> None:
    bare = [Record("concept0", "q", "a"), *AFTER["concept"][1:]]
    score = Efficacy()({**AFTER, "concept": bare}, Others(baseline=BEFORE))
    assert (score.n, score.left_out) == (19, 1)
    # without the first: 8 of 19 against 14 of 19
    assert score.value == pytest.approx(1 - (8 / 19 - 0.25) / (14 / 19 - 0.25))


def test_keeps_to_subject_by_hand() -> None:
    keeps = KeepsToSubject()
    values = [keeps.per_example(record) for record in continued([FINE, OFF, BROKEN, "", "Marrow is old.", "The of and."])]
    assert values == [1.0, 0.0, 0.0, 0.0, 1.0, 0.0]
    assert keeps.per_example(Record("x", "q", "a")) is None


def test_related_is_the_judges_grade() -> None:
    record = Record("x", "q", "a", generation="x", verdicts=(Verdict("similarity", "related", 0.4), Verdict("model", "related", 1.0)))
    assert Related().per_example(record) == 0.4
    assert Related("model").per_example(record) == 1.0
    assert Related("endpoint").per_example(record) is None


# Naive twin -----------------------------------------------------------------------------------------------------------


def naive(after: Rows, before: Rows, clip: bool) -> dict[str, float]:
    """The four numbers in loops over the records, straight from the equations."""

    def accuracy(rows: list[Record]) -> float:
        hits = 0
        for row in rows:
            best = max(range(len(row.options)), key=lambda k: row.options[k].logp[0])
            hits += best == row.gold
        return hits / len(rows)

    def frac(x: float, x0: float, chance: float) -> float:
        value = (x - chance) / (x0 - chance)
        return min(1.0, max(0.0, value)) if clip else value

    def related(rows: list[Record]) -> float:
        return sum(r.generation == FINE for r in rows) / len(rows)

    def fluent(rows: list[Record]) -> float:
        return sum(r.generation != BROKEN for r in rows) / len(rows)

    parts = {split: frac(accuracy(after[split]), accuracy(before[split]), 0.25) for split in ("concept", "similar", "mmlu")}
    coherence = harmonic(*(frac(f(after["coherence"]), f(before["coherence"]), 0.0) for f in (related, fluent)))
    specificity = harmonic(parts["mmlu"], parts["similar"])
    efficacy = 1 - parts["concept"]
    return {"efficacy": efficacy, "specificity": specificity, "coherence": coherence, "overall": harmonic(efficacy, specificity, coherence)}


def world(seed: int) -> tuple[Rows, Rows]:
    draw = random.Random(seed)

    def rows(p: float) -> Rows:
        found: Rows = {split: asked(split, [draw.random() < p for _ in range(40)]) for split in ("concept", "similar", "mmlu")}
        return {**found, "coherence": continued([draw.choice([FINE, FINE, OFF, BROKEN]) for _ in range(20)])}

    return rows(0.5), rows(0.7)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("clip", [True, False])
def test_they_equal_their_naive_twins(seed: int, clip: bool) -> None:
    after, before = world(seed)
    expected = naive(after, before, clip)
    metrics: dict[str, Any] = {"efficacy": Efficacy, "specificity": Specificity, "coherence": Coherence, "overall": Overall}
    for name, metric in metrics.items():
        score = metric(clip=clip)(after, Others(baseline=before))
        assert score.value == pytest.approx(expected[name]), name
        assert score.ci95 is not None
        assert score.ci95[0] <= score.value + 1e-9
        assert score.ci95[1] >= score.value - 1e-9
        assert score.better == "higher"


def test_both_models_answers_to_one_example_are_drawn_together() -> None:
    """A model that is right exactly where the model before is has no uncertainty: its fraction is 1 in every resample."""
    score = Efficacy(Kept("concept", ChoiceAccuracy()), clip=False)(BEFORE, Others(baseline=BEFORE))
    assert score.ci95 == pytest.approx((0.0, 0.0))
