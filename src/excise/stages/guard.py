"""Watches that training stays in the region where the model still works."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from excise.data.encode import Encoded
from excise.objectives.check import at_least, positive
from excise.tokens import autocast, collate, layout_of, score

if TYPE_CHECKING:
    from excise.subject import Subject


@dataclass(frozen=True)
class Guard:
    """Stops a training stage when the model collapses, and puts the last good state back.

    Every ``every`` steps the loss on a few retain answers is measured; a rise beyond ``rise``, a loss that is not a
    number, or continuations that only repeat themselves count as collapse.
    """

    every: int = 10
    """Steps between two looks; 0 never looks (a loss that is not a number always stops)."""
    rise: float = 3.0
    """Allowed rise of the mean loss on retain answers, in nats per token."""
    examples: int = 8
    """How many retain answers are looked at."""
    degenerate: float = 0.5
    """Allowed share of continuations in which one token makes up more than half."""

    def __post_init__(self) -> None:
        at_least("guard.every", self.every, 0)
        positive("guard.rise", self.rise)
        at_least("guard.examples", self.examples, 1)

    def due(self, step: int) -> bool:
        """Whether to look after ``step`` steps."""
        return self.every > 0 and step % self.every == 0

    @torch.no_grad()
    def loss(self, subject: Subject, texts: Sequence[Encoded], precision: Literal["float32", "bfloat16"]) -> float:
        """Mean loss per scored token of the watched texts, in nats."""
        with _evaluating(subject), autocast(precision, subject.device):
            return -float(score(subject, collate(texts, layout_of(subject))).token_logp.mean())

    @torch.no_grad()
    def broken_share(self, subject: Subject, texts: Sequence[Encoded], precision: Literal["float32", "bfloat16"]) -> float:
        """Share of the watched texts whose greedy predictions are more than half one and the same token."""
        with _evaluating(subject), autocast(precision, subject.device):
            scored = score(subject, collate(texts, layout_of(subject)))
        broken = 0
        for logits in torch.split(scored.logits, [text.scored for text in texts]):
            counts = torch.bincount(logits.argmax(-1))
            broken += int(len(logits) >= 4 and float(counts.max()) > 0.5 * len(logits))
        return broken / len(texts)

    def complaint(self, before: float, now: float, broken_before: float, broken: float) -> str:
        """Why this counts as collapse; empty where it does not."""
        if not math.isfinite(now):
            return "the loss on retain answers is not a number"
        if now > before + self.rise:
            return f"the loss on retain answers rose from {before:.2f} to {now:.2f} nats per token (allowed: +{self.rise:g})"
        if broken > max(self.degenerate, broken_before):
            return f"{broken:.0%} of the watched answers became repetitions of one token (allowed: {self.degenerate:.0%})"
        return ""


class _evaluating:
    """Evaluation mode during the block."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject

    def __enter__(self) -> None:
        self.was_training = self.subject.model.training
        self.subject.model.eval()

    def __exit__(self, *_: object) -> None:
        self.subject.model.train(self.was_training)
