"""The suite that asks whether training on the forget split can still be told."""

from __future__ import annotations

from types import MappingProxyType

from excise.evaluation.plan import Plan
from excise.evaluation.suites.suite import Suite, whole


def membership() -> Suite:
    """Membership inference: can it be told that the forget split was trained on?

    Splits forget and holdout (examples like the forget split's that nobody was taught); six signals, each as an AUC with its
    interval, and PrivLeak. A retrained model (``--retrained``) makes the reference signal and PrivLeak available.

    Paper: Shi et al. 2024, MUSE (arXiv 2407.06460), section 3.1; signals as in open-unlearning (arXiv 2506.12618).
    """
    plan = Plan(spread=True, gradient=True)
    wanted = whole("mia_loss", "mia_zlib", "mia_min_k", "mia_min_k_plus_plus", "mia_reference", "mia_gradient_norm", "privleak")
    return Suite("membership", MappingProxyType({"forget": plan, "holdout": plan}), tuple(wanted))
