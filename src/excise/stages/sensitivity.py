"""Which rank dimensions of an adapter carry what is to be forgotten: gradient norms of the columns of B."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from excise.data.encode import Encoded, encode
from excise.errors import InputError
from excise.layout import layout_of
from excise.lora import Factors, asking_for_gradients
from excise.objectives.check import within
from excise.precision import autocast, evaluating
from excise.stages.state import State
from excise.tokens import collate, score

if TYPE_CHECKING:
    from excise.subject import Subject

RankBy = Literal["forget", "contrast"]
Scores = dict[str, Float[Tensor, " rank"]]
"""Place of a module ("7.down") -> the score of each of its rank dimensions."""


def column_scores(
    subject: Subject,
    texts: Sequence[Encoded],
    factors: Sequence[Factors],
    precision: Literal["float32", "bfloat16"] = "float32",
    advance: Callable[[int], None] = lambda _: None,
) -> Scores:
    """s_k = mean over texts of || column k of dL/dB ||, with L the mean cross-entropy of the text's answer.

    The norm is taken for each text before they are averaged, so that gradients of different answers do not cancel out.

    Paper: MAAT (arXiv 2605.30514, section 3.2).

    Differs: a mean where the paper sums, which changes no order and makes sets of different sizes comparable.
    """
    totals = {f.place: torch.zeros(f.rank, dtype=torch.float64, device=f.b.device) for f in factors}
    with evaluating(subject.model), asking_for_gradients(subject, [f.b for f in factors]), torch.enable_grad():
        for text in texts:
            with autocast(precision, subject.device):
                loss = -score(subject, collate([text], layout_of(subject))).token_logp.mean()
            gradients = torch.autograd.grad(loss, [f.b for f in factors], allow_unused=True)
            for f, gradient in zip(factors, gradients, strict=True):
                if gradient is not None:
                    totals[f.place] += gradient.double().norm(dim=0)
            advance(1)
    if broken := next((place for place, total in totals.items() if not torch.isfinite(total).all()), None):
        raise InputError(f"the gradient at {broken} is not a number: the model has collapsed, so its rank dimensions cannot be ranked")
    return {place: total / max(1, len(texts)) for place, total in totals.items()}


@dataclass(frozen=True)
class Ranking:
    """How rank dimensions are put in order: by which texts, and how many of them."""

    by: RankBy = "forget"
    """forget: by the gradient of the forget answers; contrast: by that minus the gradient of the retain answers."""
    examples: int = 60
    """Answers that are looked at on each side, drawn by the run's seed; all where there are fewer."""

    def scores(self, state: State, factors: Sequence[Factors]) -> tuple[Scores, int]:
        """The scores, and how many tokens were run for them."""
        forget, tokens = self._side(state, factors, "forget")
        if self.by == "forget":
            return forget, tokens
        retain, more = self._side(state, factors, "retain")
        return {place: forget[place] - retain[place] for place in forget}, tokens + more

    def _side(self, state: State, factors: Sequence[Factors], side: Literal["forget", "retain"]) -> tuple[Scores, int]:
        subject, rows = state.subject, state.side(side)
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(state.seed)).tolist()[: self.examples]
        texts = [encode(subject.tokenizer, subject.template, rows[i]) for i in sorted(order)]
        task = f"looking which rank dimensions the {side} answers pull at"
        state.narrator.begin(task, len(texts))
        found = column_scores(subject, texts, factors, state.precision, lambda done: state.narrator.advance(task, done))
        state.narrator.end(task)
        return found, sum(len(text) for text in texts)


def highest(scores: Float[Tensor, " rank"], share: float) -> Int[Tensor, " chosen"]:
    """The floor(share x rank) >= 1 dimensions of the highest score, ascending; of equal ones the first. None where share is 0."""
    count = max(1, math.floor(share * len(scores) + 1e-9)) if share > 0 else 0
    return torch.argsort(scores, descending=True, stable=True)[:count].sort().values


def chosen_ranks(scores: Mapping[str, Tensor], share: float) -> dict[str, list[int]]:
    """Place of a module -> its dimensions of the highest score."""
    within("share of the rank dimensions", share, 0.0, 1.0)
    return {place: highest(values, share).tolist() for place, values in scores.items()}
