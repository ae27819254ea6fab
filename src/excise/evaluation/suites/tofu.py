"""The TOFU suite."""

from __future__ import annotations

from types import MappingProxyType

from excise.evaluation.metrics.fluency import Perplexity
from excise.evaluation.metrics.privacy import ForgetQuality
from excise.evaluation.plan import Plan
from excise.evaluation.suites.suite import Measure, Suite, measures, truth_ratios, whole


def tofu(max_new_tokens: int = 200) -> Suite:
    """TOFU: 200 invented authors, with real authors and world facts as what must stay.

    Splits forget, retain (the benchmark's retain_perturbed where it has that: the training rows lack false answers),
    real_authors and world_facts; holdout (facts that nobody was taught) makes the membership scores available. The truth
    ratio and the forget quality come in both conventions: geometric (open-unlearning), and ``_arithmetic`` (the paper).

    Paper: Maini et al. 2024, TOFU: A Task of Fictitious Unlearning (arXiv 2401.06121).
    """
    taught = Plan(paraphrase=True, false=True, generation=True, max_new_tokens=max_new_tokens)
    general = Plan(false=True, generation=True, max_new_tokens=max_new_tokens)
    known, world = ("forget", "retain"), ("real_authors", "world_facts")
    wanted = [
        *measures(known, "probability", "rouge_l_recall", "fact_recall", "exact_memorisation", "extraction_strength"),
        *measures(world, "probability", "normalised_probability", "rouge_l_recall"),
        *truth_ratios(("forget",), ("retain",), world),
        *truth_ratios(("forget",), ("retain",), world, mean="arithmetic"),
        *measures((*known, *world), "repetition_rate", "degenerate_rate"),
        Measure("retain.perplexity", Perplexity("retain")),
        *whole("model_utility", "forget_quality"),
        Measure("forget_quality_arithmetic", ForgetQuality(mean="arithmetic")),
        *whole("mia_loss", "mia_zlib", "mia_min_k", "privleak"),
    ]
    plans = {"forget": taught, "retain": taught, "real_authors": general, "world_facts": general, "holdout": Plan()}
    return Suite("tofu", MappingProxyType(plans), tuple(wanted), optional=("holdout",), preferred={"retain": "retain_perturbed"})
