"""Objectives on the probability of the target token."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from excise.objectives.check import at_least, positive
from excise.tokens import Scored, at_least_float32
from excise.view import View


@dataclass(frozen=True)
class Ascent:
    """Gradient ascent on the forget set: minimises mean_i w_i log p_i.

    Paper: Jang et al. 2023, "Knowledge Unlearning for Mitigating Privacy Risks in Language Models", eq. 1
        (arXiv 2210.01504).
    """

    def __call__(self, view: View, weight: Float[Tensor, " n"]) -> Float[Tensor, ""]:
        return view.model.mean(view.model.token_logp, weight)


@dataclass(frozen=True)
class CappedAscent:
    """Gradient ascent that leaves an answer alone once its loss is high enough: (1/N) sum_answers n max(mean_i w_i log p_i, -cap).

    n is the answer's length and N the sum of all. An answer whose mean loss is above ``cap`` gets no gradient.

    Paper: the forget-loss cap of MAAT's phase 1 (arXiv 2605.30514).
    """

    cap: float = 8.0
    """Mean loss of an answer, in nats per token, at which it counts as forgotten (a uniform guess costs the logarithm of the vocabulary's size)."""

    def __post_init__(self) -> None:
        positive("capped_ascent.cap", self.cap)

    def __call__(self, view: View, weight: Float[Tensor, " n"]) -> Float[Tensor, ""]:
        scored = view.model
        mean_logp = scored.per_row(scored.token_logp * weight) / scored.length
        per_row = scored.length * mean_logp.clamp_min(-self.cap)
        total = scored.total_tokens if scored.total_tokens is not None else float(len(scored.row))
        return per_row.sum() / total


@dataclass(frozen=True)
class NLL:
    """Ordinary training: minimises the cross-entropy, mean_i w_i (-log p_i).

    Paper: the retain term of GradDiff, Liu et al. 2022, "Continual Learning and Private Unlearning"
        (arXiv 2203.12817).
    """

    def __call__(self, view: View, weight: Float[Tensor, " n"]) -> Float[Tensor, ""]:
        return -view.model.mean(view.model.token_logp, weight)


@dataclass(frozen=True)
class WGA:
    """Weighted gradient ascent: mean_i w_i sg(p_i^beta) log p_i, so that tokens already forgotten stop counting.

    Paper: Wang et al. 2025, "Rethinking LLM Unlearning Objectives: A Gradient Perspective and Go Beyond", eq. 8
        (arXiv 2502.19301).
    """

    beta: float = 1.0
    """Power of the probability; 0 is plain ascent. open-unlearning uses 1, the authors' code 5."""

    def __post_init__(self) -> None:
        at_least("wga.beta", self.beta, 0.0)

    def __call__(self, view: View, weight: Float[Tensor, " n"]) -> Float[Tensor, ""]:
        logp = view.model.token_logp
        confidence = (self.beta * logp.detach()).exp()
        return view.model.mean(confidence * logp, weight)


@dataclass(frozen=True)
class SatImp:
    """Saturation and importance: mean_i w_i sg(p_i^beta1 (1 - p_i)^beta2) log p_i.

    Paper: Yang et al. 2025, "Exploring Criteria of Loss Reweighting to Enhance LLM Unlearning", eq. 9
        (arXiv 2505.11953).
    """

    beta1: float = 5.0
    """Power of p (saturation)."""
    beta2: float = 1.0
    """Power of 1 - p (importance)."""

    def __post_init__(self) -> None:
        at_least("satimp.beta1", self.beta1, 0.0)
        at_least("satimp.beta2", self.beta2, 0.0)

    def __call__(self, view: View, weight: Float[Tensor, " n"]) -> Float[Tensor, ""]:
        logp = view.model.token_logp
        p = logp.detach().exp()
        return view.model.mean(p**self.beta1 * (1 - p).clamp_min(0.0) ** self.beta2 * logp, weight)


@dataclass(frozen=True)
class UNDIAL:
    """Self-distillation to the reference's own distribution with the target's logit lowered by ``beta``.

    mean_i w_i CE(softmax(z_ref,i - beta onehot(y_i)), model_i), on scored tokens only.

    Paper: Dong et al. 2025, "UNDIAL: Self-Distillation with Adjusted Logits for Robust Unlearning", eq. 4
        (arXiv 2402.10052).

    Differs: open-unlearning also counts padding and indexes the vocabulary with -100; scored tokens only here.
    """

    beta: float = 10.0
    """How much the target's logit is lowered."""
    reads_reference = ("logits",)

    def __post_init__(self) -> None:
        positive("undial.beta", self.beta)

    def __call__(self, view: View, weight: Float[Tensor, " n"]) -> Float[Tensor, ""]:
        scored, reference = view.model, view.reference

        def cross_entropy(logits: Tensor, part: slice) -> Tensor:
            with torch.no_grad():
                wanted = at_least_float32(reference.logits_of(part)).clone()
                wanted.scatter_add_(-1, scored.target[part, None], torch.full_like(wanted[:, :1], -self.beta))
                teacher = torch.softmax(wanted, dim=-1)
            return -(teacher * torch.log_softmax(at_least_float32(logits), dim=-1)).sum(-1)

        return scored.mean(scored.over_logits(cross_entropy), weight)


@dataclass(frozen=True)
class CEU:
    """Cross-entropy to the model's own distribution with the target's logit set to minus infinity.

    The first ``skip`` scored tokens of each answer are left out.

    Paper: Yang 2025, "CE-U: Cross Entropy Unlearning", eq. 3 (arXiv 2503.01224).
    """

    skip: int = 1
    """Scored tokens at the start of each answer that are left out."""

    def __post_init__(self) -> None:
        at_least("ceu.skip", self.skip, 0)

    def __call__(self, view: View, weight: Float[Tensor, " n"]) -> Float[Tensor, ""]:
        scored = view.model

        def cross_entropy(logits: Tensor, part: slice) -> Tensor:
            logits = at_least_float32(logits)
            teacher = torch.softmax(logits.detach().scatter(-1, scored.target[part, None], float("-inf")), dim=-1)
            return -(teacher * torch.log_softmax(logits, dim=-1)).sum(-1)

        return _mean_after(scored, scored.over_logits(cross_entropy) * weight, self.skip)


@dataclass(frozen=True)
class Entropy:
    """Mean entropy of the predictions, in nats. ``sign`` -1 raises it (the model becomes unsure), +1 lowers it.

    Paper: the entropy term of MAAT's repair phase (arXiv 2605.30514, section 3.3).
    """

    sign: int = -1
    """-1: minimising this raises the entropy."""
    skip: int = 0
    """Scored tokens at the start of each answer that are left out. 1 is what the authors' code does, which reads the distribution
    after each answer token instead of before it."""

    def __post_init__(self) -> None:
        at_least("entropy.skip", self.skip, 0)
        if self.sign not in (-1, 1):
            at_least("entropy.sign (-1 or 1)", float("-inf"), -1)

    def __call__(self, view: View, weight: Float[Tensor, " n"]) -> Float[Tensor, ""]:
        return self.sign * _mean_after(view.model, view.model.entropy * weight, self.skip)


def _mean_after(scored: Scored, per_token: Float[Tensor, " n"], skip: int) -> Float[Tensor, ""]:
    """Mean over the scored tokens of the global batch without the first ``skip`` of each answer."""
    if skip == 0:
        return scored.mean(per_token)
    position = torch.cat([torch.arange(len(part), device=scored.row.device) for part in scored.split(scored.row)])
    counted = per_token * (position >= skip)
    if scored.total_tokens is None or scored.total_rows is None:
        total = float((position >= skip).sum())
    else:
        total = scored.total_tokens - skip * scored.total_rows
    return counted.sum() / max(total, 1.0)
