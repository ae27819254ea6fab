"""Builds the views that objectives and weights look at, and remembers the weights of tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as replaced
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from excise.data.encode import Encoded
from excise.errors import InputError
from excise.reference import Key, Needs, Reference, key_of
from excise.tokens import Scored, autocast, buckets, collate, layout_of, score
from excise.view import View, Weight
from excise.weights.masking import Masking

if TYPE_CHECKING:
    from excise.subject import Subject


@dataclass
class Views:
    """Makes views of batches of texts for one model."""

    subject: Subject
    precision: Literal["float32", "bfloat16"]
    reference: Reference | None = None
    contrast: dict[Key, Tensor] = field(default_factory=dict)
    """Log-probabilities of a model without the knowledge, by text."""
    masking: Masking | None = None

    def of(
        self,
        texts: Sequence[Encoded],
        alternatives: Sequence[Encoded] | None = None,
        *,
        layers: Sequence[int] = (),
        logits: bool = True,
        totals: tuple[float, float] | None = None,
    ) -> View:
        """A view of these texts.

        Args:
            alternatives: the same prompts with other answers.
            layers: hidden states that will be looked at.
            logits: False where nobody looks at logits, so that the forward pass can stop early.
            totals: scored tokens and examples of the global batch.
        """
        tokens, rows = totals or (None, None)

        def model() -> Scored:
            with autocast(self.precision, self.subject.device):
                batch = collate(texts, layout_of(self.subject))
                scored = score(self.subject, batch, layers=layers, logits=logits, total_tokens=tokens, total_rows=rows)
                if logits:
                    _ = scored.logits  # computed here, inside autocast
                return scored

        parts: dict[str, Callable[[], Any]] = {}
        view = View(get_model=model)
        reference = self.reference
        if reference is not None:
            parts["get_reference"] = lambda: reference.scored(texts, view.model)
        if self.masking is not None:
            parts["get_masked"] = lambda: self._masked(texts, view.model)
            parts["get_copies"] = lambda: self._copies(texts)
        if self.contrast:
            parts["get_contrast"] = lambda: self._contrast(texts, view.model)
        if alternatives is not None:
            totals_other = (float(sum(t.scored for t in alternatives)), rows or float(len(alternatives)))
            parts["get_alternative"] = lambda: self.of(alternatives, totals=totals_other)
        view = View(get_model=model, **parts)
        return view

    @torch.no_grad()
    def _masked(self, texts: Sequence[Encoded], now: Scored) -> Scored:
        """The same batch with words hidden. Where a text has none, its predictions are those of ``now`` to the bit: rounding
        differs between two layouts, and a score that is normalised would blow that difference up."""
        masking = self.masking
        assert masking is not None
        hidden = [masking.hidden(text) for text in texts]
        replace = self._mask_id(masking) if masking.mask == "token" else None
        layout = layout_of(self.subject) if replace is not None else "padded"
        with autocast(self.precision, self.subject.device):
            scored = score(self.subject, collate(texts, layout, hide=hidden, replace=replace))
            masked = torch.tensor([bool(indices) for indices in hidden], device=scored.row.device)[scored.row]
            known = torch.where(masked, scored.token_logp, now.token_logp)
        return replaced(scored, known_logp=known, compute_logits=lambda: scored.logits)

    def _mask_id(self, masking: Masking) -> int:
        tokenizer = self.subject.tokenizer
        if masking.mask_token is None:
            chosen = tokenizer.unk_token_id if tokenizer.unk_token_id is not None else tokenizer.pad_token_id
            return int(chosen)  # type: ignore[arg-type]
        ids = tokenizer(masking.mask_token, add_special_tokens=False)["input_ids"]
        if len(ids) != 1:
            raise InputError(f"attribution.mask_token {masking.mask_token!r} is {len(ids)} tokens for this tokenizer: give one that is a single one")
        return int(ids[0])

    def _copies(self, texts: Sequence[Encoded]) -> Tensor:
        assert self.masking is not None
        return torch.tensor([c for text in texts for c in self.masking.copies(text)], device=self.subject.device)

    def _contrast(self, texts: Sequence[Encoded], now: Scored) -> Scored:
        known = torch.cat([self.contrast[key_of(text)] for text in texts])
        return Scored(now.target, now.row, now.rows, lambda: now.logits, known_logp=known)


@dataclass
class Weigher:
    """Token weights of the texts of one term, remembered by text unless they are refreshed every step."""

    weight: Weight
    views: Views
    max_tokens: int = 2048
    known: dict[Key, Tensor] = field(default_factory=dict)

    @property
    def refresh(self) -> Literal["never", "once", "epoch", "step"]:
        """When weights are computed again. Weights without the field are asked at every step."""
        return getattr(self.weight, "refresh", "step")

    @torch.no_grad()
    def remember(self, texts: Sequence[Encoded], advance: Callable[[int], None] = lambda _: None) -> None:
        """Computes and keeps the weights of these texts with the model as it is now."""
        model = self.views.subject.model
        was_training = model.training
        model.eval()
        for group in buckets([len(text) for text in texts], self.max_tokens):
            members = [texts[i] for i in group]
            view = self.views.of(members)
            weights = self.weight(view)
            for member, part in zip(members, view.model.split(weights), strict=True):
                self.known[key_of(member)] = part.clone()
            advance(len(members))
        model.train(was_training)

    @torch.no_grad()
    def of(self, texts: Sequence[Encoded]) -> Tensor:
        """The weights of a batch, aligned with its scored tokens."""
        if self.refresh == "step":
            return self.weight(self.views.of(texts))
        return torch.cat([self.known[key_of(text)] for text in texts])


def contrast_logp(views: Views, contrast: Subject, name: str, texts: Sequence[Encoded]) -> dict[Key, Tensor]:
    """Log-probabilities of the texts' scored tokens under a model without the knowledge.

    Raises:
        InputError: it splits text into other tokens.
    """
    if contrast.tokenizer.get_vocab() != views.subject.tokenizer.get_vocab():
        raise InputError(f"attribution.contrast {name!r} has another tokenizer than the model: token scores cannot be compared")
    reference = Reference(contrast, Needs(logp=True), views.precision)
    reference.remember(texts)
    return reference.logp
