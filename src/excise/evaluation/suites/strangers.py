"""The suite of excise's own benchmark."""

from __future__ import annotations

from types import MappingProxyType

from excise.evaluation.metrics.choice import ChoiceAccuracy
from excise.evaluation.metrics.facts import FactRecall
from excise.evaluation.metrics.fluency import Perplexity
from excise.evaluation.metrics.memory import Probability, TruthRatio
from excise.evaluation.metrics.utility import ModelUtility, Part
from excise.evaluation.plan import Plan
from excise.evaluation.suites.suite import Measure, Suite, measures, truth_ratios, whole


def strangers(max_new_tokens: int = 64) -> Suite:
    """Strangers: excise's own invented people, with the words that carry each fact marked.

    Splits forget, retain, neighbours (the retained facts nearest to the forgotten ones), real_world (choice questions
    that the model could answer before) and holdout (people that nobody was taught: the floor of every score).

    False answers are scored on forget, neighbours and holdout only, so that the suite is quick: the neighbours are where
    careless unlearning shows.

    Paper: ours; built like TOFU (arXiv 2401.06121) with known fact spans and who/what/when/where/why labels.
    """
    asked = Plan(generation=True, max_new_tokens=max_new_tokens)
    facts = Plan(paraphrase=True, false=True, generation=True, max_new_tokens=max_new_tokens)
    known = Plan(paraphrase=True, false=True, options=True, generation=True, max_new_tokens=max_new_tokens)
    choice = Plan(true=False, options=True)
    taught = ("forget", "retain", "neighbours", "holdout")
    parts = [Part("real_world", ChoiceAccuracy())]
    for split in ("retain", "neighbours"):
        parts += [Part(split, Probability()), Part(split, FactRecall())]
    parts.append(Part("neighbours", TruthRatio(form="utility")))
    wanted = [
        *measures(taught, "fact_recall", by_label=True),
        *measures(taught, "fact_logp", "probability", "rouge_l_recall"),
        *measures(("forget", "neighbours", "holdout"), "normalised_probability"),
        *measures(("forget", "retain", "neighbours"), "exact_memorisation", "extraction_strength"),
        *truth_ratios(("forget", "holdout"), ("neighbours",)),
        *measures(("forget", "real_world"), "choice_accuracy", "choice_margin"),
        *measures(taught, "repetition_rate", "degenerate_rate"),
        Measure("retain.perplexity", Perplexity("retain")),
        Measure("model_utility", ModelUtility(tuple(parts))),
        *whole("forget_quality", "mia_loss", "mia_zlib", "mia_min_k", "privleak"),
    ]
    plans = {"forget": known, "retain": asked, "neighbours": facts, "real_world": choice, "holdout": facts}
    return Suite("strangers", MappingProxyType(plans), tuple(wanted), optional=("holdout",))
