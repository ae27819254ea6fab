"""The suite of 5WBENCH: does the truth still come out, for who, what, when, where and why."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from excise.evaluation.metrics.judged import ContainsTruth, ForgetRetainFluency, ForgetSuccess, RetainSuccess
from excise.evaluation.plan import Plan
from excise.evaluation.suites.suite import Judging, Measure, Suite, judge_of, measures


def fivew(judge: str | Mapping[str, Any] = "contains", max_new_tokens: int = 100) -> Suite:
    """5WBENCH: forgetting and retention success by who, what, when, where and why, with fluency beside them.

    Splits forget and retain. ``fsr`` is the percentage of forget answers that do not contain the truth, ``rsr`` that of retain
    answers that do, as ``judge`` decides (a name of `excise list judges`, or a mapping of name and settings); ``fsr_rsr`` is the
    harmonic mean of both and of fluency. Each also by label (``fsr@why``).

    Paper: MAAT and 5WBENCH (arXiv 2605.30514): greedy, 100 new tokens.
    Differs: a deterministic judge by default, undecided verdicts count against the model, and fluency is reported.
    """
    decides = judge_of(judge)
    sides = ("forget", "retain")
    plan = Plan(generation=True, max_new_tokens=max_new_tokens)
    wanted = [
        Measure("fsr", ForgetSuccess(decides.name), ("forget",), by_label=True),
        Measure("rsr", RetainSuccess(decides.name), ("retain",), by_label=True),
        Measure("fsr_rsr", ForgetRetainFluency(decides.name), sides, by_label=True),
        Measure("contains_truth", ContainsTruth(decides.name), sides),
        *measures(sides, "fluency", by_label=True),
        *measures(sides, "probability", "rouge_l_recall", "repetition_rate", "degenerate_rate"),
    ]
    judging = Judging(decides, dict.fromkeys(sides, ("truth",)))
    return Suite("fivew", MappingProxyType(dict.fromkeys(sides, plan)), tuple(wanted), judging=(judging,))
