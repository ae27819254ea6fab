"""Watches that training stays in the region where the model still works."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from excise.data.encode import Encoded
from excise.evaluation.generate import NotFinite, generate
from excise.evaluation.metrics.fluency import is_degenerate
from excise.layout import layout_of
from excise.objectives.check import at_least, positive
from excise.precision import autocast
from excise.tokens import collate, score

if TYPE_CHECKING:
    from excise.subject import Subject


@dataclass(frozen=True)
class Vital:
    """What the guard looks at."""

    loss: float
    """Mean loss on the watched retain answers, in nats per token."""
    degenerate: float
    """Share of the watched questions that are answered with nothing, noise or a loop."""


@dataclass(frozen=True)
class Guard:
    """Stops a training stage when the model collapses, and puts the last good state back.

    Every ``every`` steps the loss on a few retain answers is measured and a few retain questions are answered; a rise
    beyond ``rise``, a loss that is not a number, or degenerate answers count as collapse.
    """

    every: int = 10
    """Steps between two looks; 0 never looks (a loss that is not a number always stops)."""
    rise: float = 3.0
    """Allowed rise of the mean loss on retain answers, in nats per token."""
    examples: int = 8
    """How many retain answers are looked at; half as many questions are answered."""
    degenerate: float = 0.5
    """Allowed share of degenerate answers: empty, mostly no letters, a loop."""
    new_tokens: int = 16
    """Length of those answers; 0 answers none."""

    def __post_init__(self) -> None:
        at_least("guard.every", self.every, 0)
        positive("guard.rise", self.rise)
        at_least("guard.examples", self.examples, 1)
        at_least("guard.new_tokens", self.new_tokens, 0)

    def due(self, step: int) -> bool:
        """Whether to look after ``step`` steps."""
        return self.every > 0 and step % self.every == 0

    @torch.no_grad()
    def look(self, subject: Subject, texts: Sequence[Encoded], precision: Literal["float32", "bfloat16"]) -> Vital:
        """Measures the watched texts with the model as it is now."""
        was_training = subject.model.training
        subject.model.eval()
        try:
            with autocast(precision, subject.device):
                loss = -float(score(subject, collate(texts, layout_of(subject))).token_logp.mean())
            return Vital(loss, self._degenerate_share(subject, texts, precision))
        finally:
            subject.model.train(was_training)

    def _degenerate_share(self, subject: Subject, texts: Sequence[Encoded], precision: Literal["float32", "bfloat16"]) -> float:
        prompts = [text.ids[: text.start] for text in texts if text.start > 1][: max(1, self.examples // 2)]
        if not prompts or not self.new_tokens:
            return 0.0
        try:
            answers = generate(subject, prompts, self.new_tokens, precision=precision)
        except NotFinite:
            return 1.0
        return sum(is_degenerate(answer) for answer in answers) / len(answers)

    def complaint(self, before: Vital, now: Vital) -> str:
        """Why this counts as collapse; empty where it does not."""
        if not math.isfinite(now.loss):
            return "the loss on retain answers is not a number"
        if now.loss > before.loss + self.rise:
            return f"the loss on retain answers rose from {before.loss:.2f} to {now.loss:.2f} nats per token (allowed: +{self.rise:g})"
        if now.degenerate > max(self.degenerate, before.degenerate):
            return f"{now.degenerate:.0%} of the watched retain questions get a degenerate answer (allowed: {self.degenerate:.0%})"
        return ""
