"""Builds the views that objectives and weights look at, and remembers the weights of tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as replaced
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import Tensor

from excise.data.encode import Encoded
from excise.data.invented import invented
from excise.errors import InputError
from excise.layout import layout_of
from excise.precision import autocast
from excise.reference import Key, Needs, Reference, key_of
from excise.tokens import Scored, buckets, collate, score
from excise.view import View, Weight
from excise.weights.masking import Masking

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from excise.subject import Subject


@dataclass(frozen=True)
class Request:
    """What is to be seen of some texts."""

    texts: Sequence[Encoded]
    alternatives: Sequence[Encoded] | None = None
    """The same prompts with other answers."""
    layers: Sequence[int] = ()
    """Hidden states that will be looked at."""
    logits: bool = True
    """False where nobody looks at logits, so that the forward pass can stop early."""
    totals: tuple[float, float] | None = None
    """Scored tokens and examples of the global batch."""


def _between(whole: Callable[[], Scored], first: int, rows: int, totals: tuple[float, float] | None) -> Scored:
    return whole().between(first, first + rows, *(totals or (None, None)))


@dataclass
class Views:
    """Makes views of batches of texts for one model."""

    subject: Subject
    precision: Literal["float32", "bfloat16"]
    reference: Reference | None = None
    contrast: dict[Key, Tensor] = field(default_factory=dict)
    """Log-probabilities of a model without the knowledge, by text."""
    masking: Masking | None = None

    def of(self, texts: Sequence[Encoded]) -> View:
        """A view of these texts."""
        return self.together([Request(texts)])[0]

    def together(self, requests: Sequence[Request]) -> list[View]:
        """One view for each request, from one forward pass over all their texts."""
        lists = [part for request in requests for part in (request.texts, request.alternatives or ())]
        texts = [text for part in lists for text in part]
        layers = tuple(sorted({layer for request in requests for layer in request.layers}))
        logits = any(request.logits for request in requests)

        @cache
        def whole() -> Scored:
            with autocast(self.precision, self.subject.device):
                return score(self.subject, collate(texts, layout_of(self.subject)), layers=layers, logits=logits)

        views: list[View] = []
        at = 0
        for request in requests:
            members = request.texts
            other = None
            if request.alternatives is not None:
                others = request.alternatives
                totals = (float(sum(t.scored for t in others)), request.totals[1] if request.totals else float(len(others)))
                other = self._view(others, partial(_between, whole, at + len(members), len(others), totals))
            views.append(self._view(members, partial(_between, whole, at, len(members), request.totals), other))
            at += len(members) + len(request.alternatives or ())
        return views

    def _view(self, texts: Sequence[Encoded], model: Callable[[], Scored], alternative: View | None = None) -> View:
        parts: dict[str, Callable[[], Any]] = {"get_words": lambda: self._words(texts)}
        view = View(get_model=model)
        reference = self.reference
        if reference is not None:
            parts["get_reference"] = lambda: reference.scored(texts, view.model)
        if self.masking is not None:
            parts["get_masked"] = lambda: self._masked(texts, view.model)
            parts["get_copies"] = lambda: self._copies(texts)
        if self.contrast:
            parts["get_contrast"] = lambda: self._contrast(texts, view.model)
        if alternative is not None:
            parts["get_alternative"] = lambda: alternative
        view = View(get_model=model, **parts)
        return view

    @torch.no_grad()
    def _masked(self, texts: Sequence[Encoded], now: Scored) -> Scored:
        """The same batch with words hidden. Where a text has none, its predictions are those of ``now`` to the bit: rounding
        differs between two layouts, and a score that is normalised would blow that difference up."""
        masking = self.masking
        assert masking is not None
        hidden = [masking.hidden(text) for text in texts]
        replace = self._replacement(masking, texts)
        layout = layout_of(self.subject) if replace is not None else "padded"
        with autocast(self.precision, self.subject.device):
            scored = score(self.subject, collate(texts, layout, hide=hidden, replace=replace))
            masked = torch.tensor([bool(indices) for indices in hidden], device=scored.row.device)[scored.row]
            known = torch.where(masked, scored.token_logp, now.token_logp)
        return replaced(scored, known_logp=known)

    def _replacement(self, masking: Masking, texts: Sequence[Encoded]) -> int | list[list[int]] | None:
        """What stands in the place of hidden tokens; None: nothing, they are masked."""
        if masking.mask == "names":
            pool = name_pieces(self.subject.tokenizer)
            return [masking.stand_ins(text, pool) for text in texts]
        return self._mask_id(masking) if masking.mask == "token" else None

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

    def _words(self, texts: Sequence[Encoded]) -> Tensor:
        numbers: list[int] = []
        for text in texts:
            first = numbers[-1] + 1 if numbers else 0
            numbers += [first + number for number in text.words()]
        return torch.tensor(numbers, device=self.subject.device)

    def _contrast(self, texts: Sequence[Encoded], now: Scored) -> Scored:
        known = torch.cat([self.contrast[key_of(text)] for text in texts])
        return Scored(now.target, now.row, now.rows, now.source, known_logp=known)


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


@cache
def name_pieces(tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """The tokens that invented names are made of, each once."""
    text = " ".join(["", *invented(200, ())])
    return tuple(dict.fromkeys(cast(list[int], tokenizer(text, add_special_tokens=False)["input_ids"])))
