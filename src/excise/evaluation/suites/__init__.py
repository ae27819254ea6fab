"""Which splits a benchmark is evaluated on, and by which metrics: one module for each suite, the machinery in ``suite``."""

from __future__ import annotations

from collections.abc import Callable

from excise.evaluation.suites.choice import choice
from excise.evaluation.suites.concepts import concepts
from excise.evaluation.suites.fivew import fivew
from excise.evaluation.suites.lm_eval import lm_eval
from excise.evaluation.suites.membership import membership
from excise.evaluation.suites.muse import muse
from excise.evaluation.suites.qa import qa
from excise.evaluation.suites.request import request
from excise.evaluation.suites.strangers import strangers
from excise.evaluation.suites.suite import Live, Measure, Suite, evaluate, per_example, score
from excise.evaluation.suites.text import text
from excise.evaluation.suites.tofu import tofu

SUITES: dict[str, Callable[..., Suite]] = {
    "tofu": tofu,
    "strangers": strangers,
    "qa": qa,
    "text": text,
    "choice": choice,
    "fivew": fivew,
    "concepts": concepts,
    "muse": muse,
    "membership": membership,
    "lm_eval": lm_eval,
    "request": request,
}
"""Name -> a function whose parameters are the suite's settings."""

SUITE_OF: dict[str, str] = {"wmdp": "text", "jsonl": "qa", "easyedit": "qa"}
"""Benchmark -> the suite that judges it where none is named like it."""

__all__ = ["SUITES", "SUITE_OF", "Live", "Measure", "Suite", "evaluate", "per_example", "score"]
