"""Membership inference: each signal by hand and again as a plain loop, and the suite end to end."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from conftest import tiny
from excise.data.benchmarks.strangers import Strangers
from excise.evaluation.metrics.privacy import MembershipGradientNorm, MembershipMinKPlusPlus, MembershipReference
from excise.evaluation.records import Record, TextScore
from excise.evaluation.score import Others, Unavailable
from excise.evaluation.suites import evaluate
from excise.evaluation.suites.membership import membership

HALF = math.log(0.5)


def text(logp: list[float], expected: list[float] | None = None, deviation: list[float] | None = None, ended: bool = False) -> TextScore:
    return TextScore("x", tuple(logp), (False,) * len(logp), ended, tuple(expected or ()), tuple(deviation or ()))


def record(id: str, score: TextScore | None = None, norm: float | None = None) -> Record:
    return Record(id, "q", "a", true=score, gradient_norm=norm)


def auc(members: list[float], others: list[float]) -> float:
    """The share of pairs in which the member's signal is lower, in a plain loop."""
    return sum(1.0 if a < b else 0.5 if a == b else 0.0 for a in members for b in others) / (len(members) * len(others))


def test_min_k_plus_plus_by_hand() -> None:
    # standardised: member (-1 - -2) / 1 = 1, (-3 - -2) / 2 = -.5 and the end; the lowest one of two (k .4: at least one) is -.5
    member = text([-1.0, -3.0, -9.0], [-2.0, -2.0, -1.0], [1.0, 2.0, 1.0], ended=True)
    other = text([-1.0, -6.0, 0.0], [-2.0, -2.0, -1.0], [1.0, 2.0, 1.0], ended=True)  # lowest -2
    found = MembershipMinKPlusPlus()({"forget": [record("a", member)], "holdout": [record("b", other)]})
    assert found.value == 1.0
    assert MembershipMinKPlusPlus()({"forget": [record("b", other)], "holdout": [record("a", member)]}).value == 0.0


def test_min_k_plus_plus_against_a_loop() -> None:
    draw = np.random.default_rng(0)
    sides: dict[str, list[Record]] = {}
    signals: dict[str, list[float]] = {}
    for split, shift in (("forget", 0.3), ("holdout", 0.0)):
        sides[split], signals[split] = [], []
        for i in range(9):
            n = int(draw.integers(1, 12))
            logp, mean, deviation = draw.normal(-2 + shift, 1, n), draw.normal(-3, 0.5, n), draw.uniform(0.5, 2, n)
            sides[split].append(record(f"{split}{i}", text(logp.tolist(), mean.tolist(), deviation.tolist())))
            z = sorted((logp[j] - mean[j]) / deviation[j] for j in range(n))
            take = max(1, int(0.4 * n))
            signals[split].append(-sum(z[:take]) / take)
    score = MembershipMinKPlusPlus()(sides)
    assert score.value == pytest.approx(auc(signals["forget"], signals["holdout"]))
    assert score.ci95 is not None
    assert score.ci95[0] <= (score.value or 0) <= score.ci95[1]


def test_the_reference_takes_away_what_is_easy_for_every_model() -> None:
    mine = {"forget": [record("a", text([-1.0])), record("b", text([-4.0]))], "holdout": [record("c", text([-0.5])), record("d", text([-3.0]))]}
    twin = {"forget": [record("b", text([-6.0])), record("a", text([-3.0]))], "holdout": [record("c", text([-0.5])), record("d", text([-3.0]))]}
    # loss minus the twin's: a 1 - 3 = -2, b 4 - 6 = -2; c 0, d 0
    assert MembershipReference()(mine, Others(retrained=twin)).value == 1.0
    with pytest.raises(Unavailable, match="give --retrained DIR"):
        MembershipReference()(mine)
    with pytest.raises(Unavailable, match="lack 1 of 2 forget"):
        MembershipReference()(mine, Others(retrained={**twin, "forget": twin["forget"][:1]}))


def test_gradient_norms() -> None:
    records = {"forget": [record("a", norm=1.0), record("b", norm=3.0)], "holdout": [record("c", norm=2.0), record("d", norm=4.0)]}
    assert MembershipGradientNorm()(records).value == 0.75
    with pytest.raises(Unavailable, match="use the suite membership"):
        MembershipGradientNorm()({"forget": [record("a")], "holdout": [record("c", norm=2.0)]})


def test_what_is_missing_is_said() -> None:
    for metric in (MembershipMinKPlusPlus(), MembershipGradientNorm(), MembershipReference()):
        with pytest.raises(Unavailable, match="no holdout split"):
            metric({"forget": [record("a", text([HALF], [HALF], [1.0]), norm=1.0)]}, Others(retrained={}))
    with pytest.raises(Unavailable, match="spread of the predictions was not collected"):
        MembershipMinKPlusPlus()({"forget": [record("a", text([HALF]))], "holdout": [record("b", text([HALF]))]})


def test_the_suite_end_to_end() -> None:
    subject = tiny("llama")
    benchmark = Strangers(forget_people=1, retain_people=1, holdout_people=1, questions=1)()
    records, scores = evaluate(subject, benchmark, membership(), precision="float32")
    assert {name for name, score in scores.items() if score.value is None} == {"mia_reference", "privleak"}
    assert all(0 <= (score.value or 0) <= 1 for score in scores.values())
    _, again = evaluate(subject, benchmark, membership(), retrained=records, precision="float32")
    wanted: dict[str, Any] = {"mia_reference": 0.5, "privleak": 0.0}
    assert {name: again[name].value for name in wanted} == wanted
