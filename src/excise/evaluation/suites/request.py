"""The suite of a deletion request."""

from __future__ import annotations

from types import MappingProxyType

from excise.evaluation.metrics.fluency import Perplexity
from excise.evaluation.plan import Plan
from excise.evaluation.suites.suite import Measure, Suite, measures


def request(max_new_tokens: int = 48) -> Suite:
    """A deletion request (`excise forget`): is what was to go as unknown as what the model never knew, and what did the rest pay?

    Splits forget; controls (the same questions and answers with invented names, which nobody was taught: the floor); rephrased
    (other questions about the same, which unlearning did not see); neighbours (the model's own answers to questions like them about others);
    neutral (plain text about anything).

    Paper: ours.
    """
    asked = Plan(generation=True, max_new_tokens=max_new_tokens)
    scored = Plan()
    about = ("forget", "rephrased", "controls")
    wanted = [
        *measures((*about, "neighbours", "neutral"), "probability"),
        *measures(about, "fact_recall", "rouge_l_recall", "repetition_rate", "degenerate_rate"),
        Measure("neutral.perplexity", Perplexity("neutral")),
    ]
    plans = {"forget": asked, "rephrased": asked, "controls": asked, "neighbours": scored, "neutral": scored}
    optional = ("rephrased", "controls", "neighbours")
    return Suite("request", MappingProxyType(plans), tuple(wanted), optional, forgotten=("forget", "rephrased"), controls=("controls",))
