"""The suite of MUSE."""

from __future__ import annotations

from types import MappingProxyType

from excise.evaluation.metrics.memory import RougeLF1
from excise.evaluation.plan import Plan
from excise.evaluation.suites.suite import Measure, Suite, measures, whole

STOPS = ("\n\n", "\nQuestion", "Question:")
"""Where the answer to a question ends that stands behind solved examples."""


def muse(max_new_tokens: int = 32, verbatim_tokens: int = 128) -> Suite:
    """MUSE: verbatim memorisation, knowledge memorisation on both sides, and privacy leakage.

    ``verbatim_forget.rouge_l_f1`` (128 new tokens), ``knowledge_forget.rouge_l_f1`` and ``knowledge_retain.rouge_l_f1`` (32 new tokens, cut
    where the model goes on with another question) and ``privleak``, which needs a retrained model and a hold-out split. ROUGE without
    stemming. Texts that a benchmark lacks make their scores unavailable; questions without solved examples take the place of MUSE's.

    Paper: Shi et al. 2024, MUSE (arXiv 2407.06460), section 3.1.
    """
    knowledge, verbatim = ("knowledge_forget", "knowledge_retain"), "verbatim_forget"
    wanted = [
        Measure("rouge_l_f1", RougeLF1(stem=False), (verbatim,)),
        Measure("rouge_l_f1", RougeLF1(stem=False, until=STOPS), knowledge),
        *measures((verbatim, *knowledge), "degenerate_rate"),
        *whole("privleak", "mia_min_k"),
    ]
    asked = Plan(true=False, generation=True, max_new_tokens=max_new_tokens)
    plans = {
        **dict.fromkeys(knowledge, asked),
        verbatim: Plan(true=False, generation=True, max_new_tokens=verbatim_tokens),
        "forget": Plan(),
        "holdout": Plan(),
    }
    return Suite(
        "muse",
        MappingProxyType(plans),
        tuple(wanted),
        optional=(verbatim, "forget", "holdout"),
        forgotten=("knowledge_forget", verbatim),
        preferred={"forget": "privleak_forget"},
        instead={"knowledge_forget": "forget", "knowledge_retain": "retain"},
    )
