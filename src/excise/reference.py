"""The model as it was, without a second model.

Token log-probabilities, final hidden states and hidden states by layer are computed once per text, before anything
changes, and kept. Logits of the reference come from the kept final hidden states and the output head as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from excise.data.encode import Encoded
from excise.head import output_head
from excise.layout import layout_of
from excise.precision import autocast
from excise.tokens import Batch, Scored, buckets, collate, features_of, score

if TYPE_CHECKING:
    from typing import Literal

    from excise.subject import Subject

Key = tuple[str, tuple[int, ...], int]


def key_of(text: Encoded) -> Key:
    """What identifies a text: its example, its tokens, and where scoring starts."""
    return (text.id, text.ids, text.start)


@dataclass(frozen=True)
class Needs:
    """What a stage will ask of the reference."""

    logp: bool = False
    logits: bool = False
    layers: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return self.logp or self.logits or bool(self.layers)


@dataclass
class Reference:
    """Memoised values of the model at the moment of :meth:`remember`."""

    subject: Subject
    needs: Needs
    precision: Literal["float32", "bfloat16"]
    max_tokens: int = 2048
    head: Tensor | None = None
    """The output head as it was, kept where logits are needed."""
    bias: Tensor | None = None
    """The bias of the output head as it was, where it has one."""
    logp: dict[Key, Tensor] = field(default_factory=dict)
    features: dict[Key, Tensor] = field(default_factory=dict)
    hidden: dict[int, dict[Key, Tensor]] = field(default_factory=dict)

    @torch.no_grad()
    def remember(self, texts: Iterable[Encoded], advance: Callable[[int], None] = lambda _: None) -> None:
        """Runs the model once over each text that is not known yet. The model must be what it was."""
        fresh = list({key_of(t): t for t in texts if not self._knows(key_of(t))}.values())
        if not self.needs or not fresh:
            return
        if self.needs.logits and self.head is None:
            head = cast(nn.Linear, self.subject.head)
            half = self.precision == "bfloat16"
            stays = self.subject.is_adapter and type(head) is nn.Linear  # an adapter trains nothing below it
            self.head = head.weight.detach().to(torch.bfloat16 if half else head.weight.dtype, copy=not stays)
            self.bias = None if head.bias is None else head.bias.detach().clone()
        self.hidden = self.hidden or {layer: {} for layer in self.needs.layers}
        layout = layout_of(self.subject)
        was_training = self.subject.model.training
        self.subject.model.eval()
        for group in buckets([len(text) for text in fresh], self.max_tokens):
            members = [fresh[i] for i in group]
            self._keep(members, collate(members, layout))
            advance(len(members))
        self.subject.model.train(was_training)

    def _keep(self, members: Sequence[Encoded], batch: Batch) -> None:
        outputs = self.needs.logp or self.needs.logits
        with autocast(self.precision, self.subject.device):
            scored = score(self.subject, batch, layers=self.needs.layers, logits=outputs)
            logp = scored.split(scored.token_logp) if self.needs.logp else []
        features = torch.split(features_of(scored), [m.scored for m in members]) if self.needs.logits else []
        half = self.precision == "bfloat16"
        for i, member in enumerate(members):
            key = key_of(member)
            if self.needs.logp:
                self.logp[key] = logp[i].clone()
            if self.needs.logits and key not in self.features:  # another stage of the run may have them, in other bits
                self.features[key] = features[i].to(torch.bfloat16 if half else features[i].dtype, copy=True)
        for layer, states in scored.hidden.items():
            for member, part in zip(members, torch.split(states, [m.scored for m in members]), strict=True):
                self.hidden[layer][key_of(member)] = part.clone()

    def _knows(self, key: Key) -> bool:
        tables: list[dict[Key, Tensor]] = []
        if self.needs.logp:
            tables.append(self.logp)
        if self.needs.logits:
            tables.append(self.features)
        tables += [self.hidden.get(layer, {}) for layer in self.needs.layers]
        return bool(tables) and all(key in table for table in tables)

    def scored(self, members: Sequence[Encoded], now: Scored) -> Scored:
        """What the reference says about a batch, aligned with what the model says ``now``."""
        keys = [key_of(member) for member in members]
        return Scored(
            target=now.target,
            row=now.row,
            rows=now.rows,
            source=_Remembered(self, tuple(keys), slice(None)),
            hidden={layer: torch.cat([table[key] for key in keys]) for layer, table in self.hidden.items()},
            known_logp=torch.cat([self.logp[key] for key in keys]) if self.needs.logp else None,
            total_tokens=now.total_tokens,
            total_rows=now.total_rows,
        )

    @torch.no_grad()
    def logits(self, features: Tensor) -> Tensor:
        """What the output head as it was makes of final hidden states [n, width]."""
        assert self.head is not None
        with autocast(self.precision, self.subject.device):
            return output_head(self.subject.base, features, self.head, self.bias)


@dataclass(frozen=True)
class _Remembered:
    """Logits of the model as it was, from the final hidden states that were kept."""

    reference: Reference
    keys: tuple[Key, ...]
    tokens: slice

    @property
    def vocab(self) -> int:
        return 1 if self.reference.head is None else self.reference.head.shape[0]

    @cached_property
    def features(self) -> Tensor:
        return torch.cat([self.reference.features[key] for key in self.keys])[self.tokens]

    def __call__(self, part: slice) -> Tensor:
        assert self.reference.head is not None, "the reference was not asked to keep logits"
        return self.reference.logits(self.features[part])

    def between(self, begin: int, end: int) -> _Remembered:
        first, last, _ = self.tokens.indices(len(self.features))
        return _Remembered(self.reference, self.keys, slice(first + begin, min(first + end, last)))
