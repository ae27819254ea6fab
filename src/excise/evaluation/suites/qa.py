"""The suite for questions and answers of your own."""

from __future__ import annotations

from types import MappingProxyType

from excise.evaluation.metrics.fluency import Perplexity
from excise.evaluation.plan import Plan
from excise.evaluation.suites.suite import Measure, Suite, measures, truth_ratios, whole


def qa(max_new_tokens: int = 100) -> Suite:
    """Questions and answers of your own: what every such benchmark can be scored by.

    Splits forget and retain; holdout (facts that nobody was taught) makes the membership scores available. Scores that
    need more than a question and an answer (false answers, a known span) leave the examples without it out.

    Paper: the measures of TOFU (arXiv 2401.06121) without its world knowledge.
    """
    plan = Plan(paraphrase=True, false=True, generation=True, max_new_tokens=max_new_tokens)
    taught = ("forget", "retain")
    wanted = [
        *measures((*taught, "holdout"), "fact_recall", by_label=True),
        *measures((*taught, "holdout"), "probability", "rouge_l_recall"),
        *measures(taught, "exact_memorisation", "extraction_strength"),
        *truth_ratios(("forget",), ("retain",)),
        *measures(taught, "repetition_rate", "degenerate_rate"),
        Measure("retain.perplexity", Perplexity("retain")),
        *whole("forget_quality", "mia_loss", "mia_zlib", "mia_min_k", "privleak"),
    ]
    return Suite("qa", MappingProxyType({"forget": plan, "retain": plan, "holdout": plan}), tuple(wanted), optional=("holdout",))
