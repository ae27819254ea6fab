"""TokenUnlearn: which answer tokens carry the knowledge, and how much each of them counts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from excise.data.nouns import Nouns
from excise.objectives.check import positive, within
from excise.view import View
from excise.weights.masking import Masking


def hard(phi: Float[Tensor, " n"], r: float) -> Float[Tensor, " n"]:
    """The top ``r`` of one sequence: ceil(r n) tokens, at least one, ties by position, weigh n / |K|; the others exactly zero."""
    count = max(1, math.ceil(r * len(phi) - 1e-9))
    chosen = torch.sort(phi, descending=True, stable=True).indices[:count]
    return torch.zeros_like(phi).index_fill(0, chosen, len(phi) / count)


def soft(phi: Float[Tensor, " n"], tau: float) -> Float[Tensor, " n"]:
    """n softmax(phi / tau) over one sequence: uniform as tau grows, the arg max as tau -> 0."""
    return len(phi) * torch.softmax(phi / tau, dim=0)


@dataclass(frozen=True)
class Attribution:
    """TokenUnlearn: weights tokens by phi = alpha norm(delta) + (1 - alpha) norm(H).

    delta_i = |log p(y_i | prompt) - log p(y_i | prompt with its nouns hidden)| for the true token, H_i the entropy of
    the prediction on the full prompt; both normalised over the scored tokens of the sequence.

    Paper: TokenUnlearn, eq. 4-8 (arXiv 2605.00364).

    Differs: the paper names neither the normalisation nor the way of masking; ``hide``, ``copies``, ``unit`` and
        ``contrast`` are ours (docs/numerics.md says what they are for), their defaults are the paper's.
    """

    select: Literal["hard", "soft"] = "hard"
    """hard ("T-"): only the top tokens of each answer. soft ("S-"): all of them, by a softmax."""
    r: float = 0.2
    """hard: share of the tokens that is selected, in (0, 1]; 1 is uniform."""
    tau: float = 0.25
    """soft: temperature, on the scale of phi."""
    alpha: float = 0.7
    """Share of delta against entropy, in [0, 1]."""
    norm: Literal["minmax", "zscore", "rank", "none"] = "minmax"
    """How delta and entropy are made comparable within a sequence; a constant becomes zeros."""
    mask: Literal["attention", "token", "names"] = "attention"
    """attention: hidden tokens cannot be attended to. token: they are replaced by ``mask_token``. names: by pieces of invented names, the
    same for the same token, so that the question is asked of somebody whom nobody knows."""
    mask_token: str | None = None
    """The token that replaces hidden ones; None takes the tokenizer's unknown, else its padding token."""
    nouns: Nouns = field(default_factory=Nouns)
    """Which words of the question are hidden."""
    hide: Literal["prompt", "mentions"] = "prompt"
    """mentions: also later repetitions of those words in the answer."""
    copies: Literal["keep", "drop"] = "keep"
    """drop: answer tokens that repeat a noun of the question get phi 0."""
    unit: Literal["token", "word"] = "token"
    """word: all tokens of a word get the highest score among them, for a name is known by its first piece and the others follow from it."""
    contrast: str | None = None
    """A model without the knowledge (before teaching, a twin): delta becomes log p_model(y_i) - log p_contrast(y_i), at least 0."""
    refresh: Literal["once", "epoch", "step"] = "once"
    """When scores are computed: once from the model before unlearning, or again from the current one."""

    def __post_init__(self) -> None:
        within("attribution.r", self.r, 0.0, 1.0, open_low=True)
        positive("attribution.tau", self.tau)
        within("attribution.alpha", self.alpha, 0.0, 1.0)

    @property
    def masking(self) -> Masking:
        """How prompts are masked for this score."""
        return Masking(self.nouns, self.mask, self.mask_token, self.hide)

    @torch.no_grad()
    def __call__(self, view: View) -> Float[Tensor, " n"]:
        parts = view.model.split(self.phi(view))
        return torch.cat([hard(part, self.r) if self.select == "hard" else soft(part, self.tau) for part in parts])

    @torch.no_grad()
    def phi(self, view: View) -> Float[Tensor, " n"]:
        """The score of every scored token."""
        entropy = view.model.entropy
        delta = self.delta(view) if self.alpha else torch.zeros_like(entropy)  # alpha 0 hides nothing and costs no second pass
        parts = zip(view.model.split(delta), view.model.split(entropy), strict=True)
        phi = torch.cat([self.alpha * self._normalised(d) + (1 - self.alpha) * self._normalised(h) for d, h in parts])
        if self.unit == "word":
            highest = torch.full((int(view.words.max()) + 1,), -torch.inf, dtype=phi.dtype, device=phi.device)
            phi = highest.scatter_reduce(0, view.words, phi, "amax")[view.words]
        return phi.masked_fill(view.copies, 0.0) if self.copies == "drop" else phi

    @torch.no_grad()
    def delta(self, view: View) -> Float[Tensor, " n"]:
        """How far the log-probability of each true token moves, in nats."""
        if self.contrast is not None:
            return (view.model.token_logp - view.contrast.token_logp).clamp_min(0.0)
        return (view.model.token_logp - view.masked.token_logp).abs()

    def _normalised(self, values: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        spread = values.max() - values.min()
        if self.norm == "none":
            return values
        if float(spread) == 0.0:
            return torch.zeros_like(values)
        if self.norm == "minmax":
            return (values - values.min()) / spread
        if self.norm == "zscore":
            return (values - values.mean()) / values.std(correction=0)
        order = torch.argsort(torch.argsort(values, stable=True), stable=True)
        return order.to(values.dtype) / (len(values) - 1)


@dataclass(frozen=True)
class Facts(Attribution):
    """The tokens that carry the fact, found from one pass: entropy by word, without the words that the question gives away.

    What the studies of docs/results.md found to mark an answer's fact best among the scores that need no second model: on answers that
    repeat a name the paper's score ranks the copied name first and the fact near zero, and the entropy of whole words does not.

    Paper: ours, within TokenUnlearn's frame (arXiv 2605.00364).
    """

    r: float = 0.3
    """hard: share of the tokens that is selected."""
    alpha: float = 0.0
    """Share of delta against entropy: 0 is entropy alone."""
    copies: Literal["keep", "drop"] = "drop"
    """drop: answer tokens that repeat a noun of the question get phi 0."""
    unit: Literal["token", "word"] = "word"
    """word: all tokens of a word get the highest score among them."""
