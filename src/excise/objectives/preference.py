"""Objectives on whole answers: how likely each is against the model as it was, or against another answer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import logsigmoid

from excise.objectives.check import positive
from excise.tokens import Scored
from excise.view import View


@dataclass(frozen=True)
class NPO:
    """Negative preference optimisation: -(2/beta) mean_seq log sigmoid(-beta sum_i w_i (log p_i - log p_ref,i)).

    Bounded below, and equal to gradient ascent as beta -> 0.

    Paper: Zhang et al. 2024, "Negative Preference Optimization: From Catastrophic Collapse to Effective Unlearning",
        eq. 3 (arXiv 2404.05868); token weights inside the sum as in TokenUnlearn (arXiv 2605.00364).
    """

    beta: float = 0.1
    """Inverse temperature: how soon an answer counts as forgotten."""
    reads_reference = ("logp",)

    def __post_init__(self) -> None:
        positive("npo.beta", self.beta)

    def __call__(self, view: View, weight: Float[Tensor, " n"]) -> Float[Tensor, ""]:
        ratio = _log_ratio(view.model, view.reference, weight)
        return view.model.mean_rows(-2 / self.beta * logsigmoid(-self.beta * ratio))


@dataclass(frozen=True)
class SimNPO:
    """NPO without a reference, length-normalised: -(2/beta) mean_seq log sigmoid(beta (mean_i w_i CE_i - gamma)).

    Paper: Fan et al. 2024, "Simplicity Prevails: Rethinking Negative Preference Optimization for LLM Unlearning",
        eq. 4 (arXiv 2410.07163).
    """

    beta: float = 2.5
    """Inverse temperature; the paper's 2.5 for TOFU forget05 and 4.5 for forget10."""
    gamma: float = 0.0
    """Margin, in nats per token."""

    def __post_init__(self) -> None:
        positive("simnpo.beta", self.beta)

    def __call__(self, view: View, weight: Float[Tensor, " n"]) -> Float[Tensor, ""]:
        scored = view.model
        mean_loss = scored.per_row(-scored.token_logp * weight) / scored.length
        return scored.mean_rows(-2 / self.beta * logsigmoid(self.beta * (mean_loss - self.gamma)))


@dataclass(frozen=True)
class DPO:
    """Prefers the alternative answer ("I don't know", or a false answer) to the true one.

    -(2/beta) mean_seq log sigmoid(beta (sum_j (log p_j - log p_ref,j)|alternative - sum_i w_i (log p_i - log p_ref,i)|true)).

    Paper: Rafailov et al. 2023, "Direct Preference Optimization", eq. 7 (arXiv 2305.18290), as IdkDPO in TOFU, Maini
        et al. 2024 (arXiv 2401.06121); the factor 2/beta as in open-unlearning.
    """

    beta: float = 0.1
    """Inverse temperature."""
    reads_reference = ("logp",)
    needs_alternative = True

    def __post_init__(self) -> None:
        positive("dpo.beta", self.beta)

    def __call__(self, view: View, weight: Float[Tensor, " n"]) -> Float[Tensor, ""]:
        other = view.alternative
        preferred = _log_ratio(other.model, other.reference, torch.ones_like(other.model.token_logp))
        rejected = _log_ratio(view.model, view.reference, weight)
        return view.model.mean_rows(-2 / self.beta * logsigmoid(self.beta * (preferred - rejected)))


def _log_ratio(model: Scored, reference: Scored, weight: Float[Tensor, " n"]) -> Float[Tensor, " rows"]:
    return model.per_row(weight * (model.token_logp - reference.token_logp))
