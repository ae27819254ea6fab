"""The suite for plain text."""

from __future__ import annotations

from types import MappingProxyType

from excise.evaluation.metrics.fluency import Perplexity
from excise.evaluation.plan import Plan
from excise.evaluation.suites.suite import Measure, Suite, measures, whole


def text() -> Suite:
    """Plain text: how likely the forget and the retain passages are to the model.

    Paper: perplexity as in WMDP (arXiv 2403.03218) and MUSE (arXiv 2407.06460).
    """
    sides = ("forget", "retain")
    wanted = [
        *measures(sides, "probability", "exact_memorisation", "extraction_strength"),
        Measure("retain.perplexity", Perplexity("retain")),
        *whole("mia_loss", "mia_zlib", "mia_min_k"),
    ]
    return Suite("text", MappingProxyType({split: Plan() for split in (*sides, "holdout")}), tuple(wanted), optional=("holdout",))
