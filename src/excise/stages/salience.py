"""Which features of a sparse autoencoder belong to a text and not to another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from excise.factorise.autoencoder import Autoencoder
from excise.objectives.check import at_least, positive


@dataclass(frozen=True)
class Counted:
    """What the features did on a text."""

    tokens: int
    count: Float[Tensor, " features"]
    """For how many tokens each was active."""
    total: Float[Tensor, " features"]
    """The sum of its activations."""

    def for_tokens(self, tokens: int) -> Counted:
        """The same scaled to a text of so many tokens."""
        factor = tokens / max(self.tokens, 1)
        return Counted(tokens, self.count * factor, self.total * factor)


@torch.no_grad()
def counted(autoencoder: Autoencoder, states: Sequence[Float[Tensor, "_ width"]]) -> Counted:
    """Counts over hidden states, text by text, in float64."""
    count, total = (torch.zeros(autoencoder.features, dtype=torch.float64) for _ in range(2))
    for part in states:
        activations = autoencoder.encode(part).double().cpu()
        count += (activations > 0).sum(0)
        total += activations.sum(0)
    return Counted(sum(len(part) for part in states), count, total)


@dataclass(frozen=True)
class Chosen:
    """One salient feature and the figures that it was chosen by."""

    index: int
    ratio: float
    target_tokens: float
    benign_tokens: float


@dataclass(frozen=True)
class Choice:
    """Chooses features by how much more often and how much more strongly they are active on target text.

    First the ``candidates`` with the greatest difference of counts, then those with ratio = sum_target / (sum_benign + 1) of at least
    ``ratio``, then the first ``k`` by ``rank_by``.

    Paper: CRISP, feature selection (arXiv 2508.13650).

    Differs: the benign figures are scaled to the number of target tokens, so that texts may differ in length.
    """

    k: int = 10
    """How many, of each autoencoder."""
    candidates: int = 10_000
    """How many by count difference."""
    ratio: float = 3.0
    """Least ratio of activations."""
    rank_by: Literal["ratio", "count"] = "ratio"
    """What decides among those that are left."""

    def __post_init__(self) -> None:
        at_least("k", self.k, 1)
        at_least("candidates", self.candidates, 1)
        positive("ratio", self.ratio)

    def __call__(self, target: Counted, benign: Counted) -> tuple[Chosen, ...]:
        """The salient features, best first; none where nothing qualifies."""
        benign = benign.for_tokens(target.tokens)
        difference = target.count - benign.count
        ratio = target.total / (benign.total + 1.0)
        first = torch.argsort(difference, descending=True, stable=True)[: self.candidates]
        left = first[(difference[first] > 0) & (ratio[first] >= self.ratio)]
        if self.rank_by == "ratio":
            left = left[torch.argsort(ratio[left], descending=True, stable=True)]
        return tuple(Chosen(int(i), float(ratio[i]), float(target.count[i]), float(benign.count[i])) for i in left[: self.k])


def density(autoencoder: Autoencoder, states: Sequence[Float[Tensor, "_ width"]], features: Sequence[int]) -> float:
    """How many of these features are active for a token, on average."""
    index = torch.tensor(list(features), device=autoencoder.encoder.device)
    active = sum(float((autoencoder.encode(part)[:, index] > 0).sum()) for part in states)
    return active / max(1, sum(len(part) for part in states))
