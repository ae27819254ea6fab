"""The MLP activations of a layer at every place of some texts, and the features that a concept has in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from excise.data.encode import Encoded, encode
from excise.data.example import Example
from excise.errors import InputError
from excise.factorise.ridge import exact_on
from excise.factorise.semi_nmf import SemiFactors, SemiNMF
from excise.features.classes import Kind, mass_ratios
from excise.features.table import TOP, Feature, FeatureTable, Token
from excise.layout import layout_of
from excise.precision import autocast
from excise.scope import ROLES, Role
from excise.tokens import Batch, buckets, collate, score

if TYPE_CHECKING:
    from excise.stages.state import State
    from excise.subject import Subject

BEFORE = 4
"""Tokens of context that are shown before a place."""


@dataclass(frozen=True)
class Mlp:
    """The two matrices of a layer's MLP that a feature is read from and written through."""

    up: nn.Linear
    down: nn.Linear
    offset: int
    """Row of ``up`` at which the neurons begin (a fused gate stands before them)."""

    @property
    def width(self) -> int:
        """Neurons."""
        return self.down.in_features

    @staticmethod
    def of(subject: Subject, layer: int) -> Mlp:
        """The MLP of a decoder layer, found by the roles of its linear layers.

        Raises:
            InputError: the layer has no single pair of such matrices (a mixture of experts, another kind of linear layer).
        """
        found: dict[Role, list[nn.Linear]] = {}
        for name, module in subject.layers[layer].named_modules():
            role = ROLES.get(name.rsplit(".", 1)[-1])
            if role in ("up", "down") and isinstance(module, nn.Linear):
                found.setdefault(role, []).append(module)
        ups, downs = found.get("up", []), found.get("down", [])
        if len(ups) != 1 or len(downs) != 1 or ups[0].out_features % downs[0].in_features:
            raise InputError(f"{subject.source}: layer {layer} has {len(ups)} up and {len(downs)} down projections; an edit needs one of each")
        return Mlp(ups[0], downs[0], ups[0].out_features - downs[0].in_features)


@dataclass(frozen=True)
class Places:
    """Every place of the concept's and the neutral texts, the first token of each text left out (its states are outsized)."""

    texts: tuple[Encoded, ...]
    concept: int
    """So many of the texts, the first ones, are about the concept."""
    row: Tensor
    """Text of each place, int [n]."""
    token: Tensor
    """Position of each place in its text, int [n]."""

    @staticmethod
    def of(subject: Subject, concept: Sequence[str], neutral: Sequence[str], most: int | None) -> Places:
        """Encodes the texts; of more than ``most`` places on a side, that many are taken, spread evenly."""
        texts = [encode(subject.tokenizer, subject.template, Example(f"text-{n}", "", text)) for n, text in enumerate([*concept, *neutral])]
        row = torch.tensor([r for r, text in enumerate(texts) for _ in range(1, len(text))])
        token = torch.tensor([t for text in texts for t in range(1, len(text))])
        mine = row < len(concept)
        kept = torch.cat([_spread(torch.nonzero(side)[:, 0], most) for side in (mine, ~mine)])
        return Places(tuple(texts), len(concept), row[kept], token[kept])

    @property
    def mine(self) -> Tensor:
        """Which places stand in the concept's texts, bool [n]."""
        return self.row < self.concept

    def id(self, place: int) -> int:
        return self.texts[int(self.row[place])].ids[int(self.token[place])]

    def shown(self, place: int) -> str:
        """The token with a little of what stands before it."""
        text, at = self.texts[int(self.row[place])], int(self.token[place])
        return text.text[text.chars[max(0, at - BEFORE)][0] : text.chars[at][1]]


def _spread(places: Tensor, most: int | None) -> Tensor:
    if most is None or len(places) <= most:
        return places
    return places[torch.linspace(0, len(places) - 1, most).round().long()]


@torch.no_grad()
def activations(state: State, places: Places, layer: int) -> Float[Tensor, "d n"]:
    """What enters the down projection of a layer at these places, float32."""
    subject = state.subject
    mlp = Mlp.of(subject, layer)
    starts = torch.tensor([0, *(len(text) - 1 for text in places.texts)]).cumsum(0)
    wanted = starts[places.row] + places.token - 1
    column = torch.full((int(starts[-1]),), -1, dtype=torch.long)
    column[wanted] = torch.arange(len(wanted))
    found = torch.empty(len(wanted), mlp.width, device=subject.device)
    was_training = subject.model.training
    subject.model.eval()
    task = f"activations of layer {layer}"
    state.narrator.begin(task, len(places.texts))
    for group in buckets([len(text) for text in places.texts], state.max_tokens):
        batch = collate([places.texts[i] for i in group], layout_of(subject))
        with _entering(mlp.down) as seen, autocast(state.precision, subject.device):
            score(subject, batch, layers=(layer,), logits=False)
        columns = torch.cat([column[starts[i] : starts[i + 1]] for i in group])
        kept = torch.nonzero(columns >= 0)[:, 0]
        found[columns[kept].to(found.device)] = _at(seen[0], batch)[kept.to(found.device)].float()
        state.narrator.advance(task, len(group))
    state.narrator.end(task)
    subject.model.train(was_training)
    return found.T


def _at(values: Tensor, batch: Batch) -> Tensor:
    """The values at the scored tokens (of plain texts: every token after the first), text by text."""
    return values.reshape(-1, values.shape[-1])[batch.here.to(values.device)]


@contextmanager
def _entering(module: nn.Module) -> Iterator[list[Tensor]]:
    seen: list[Tensor] = []

    def keep(_module: nn.Module, arguments: tuple[Any, ...]) -> None:
        seen.append(arguments[0].detach())

    handle = module.register_forward_pre_hook(keep)
    try:
        yield seen
    finally:
        handle.remove()


@dataclass(frozen=True)
class MlpFeatures:
    """The features of one layer."""

    layer: int
    factors: SemiFactors
    table: FeatureTable


def mlp_features(state: State, places: Places, layer: int, factorisation: SemiNMF) -> MlpFeatures:
    """Factorises the activations of a layer and describes the features by the places where they are strongest.

    Paper: Shafran et al. 2025, SNMF (arXiv 2506.10920); mass ratio as in EMBER (arXiv 2606.03695).
    """
    task = f"factorising layer {layer} into {factorisation.rank} features"
    state.narrator.begin(task, factorisation.iterations * factorisation.restarts)
    factors = factorisation(
        exact_on(activations(state, places, layer)), watch=lambda number, loss: state.narrator.advance(task, 1, f"loss {loss:.4g}")
    )
    state.narrator.end(task)
    g = factors.g.float().cpu()
    ratios = mass_ratios(g, places.mine, ~places.mine).tolist()
    features = sorted((_feature(places, g[:, k], k, float(ratio)) for k, ratio in enumerate(ratios)), key=lambda feature: -feature.ratio)
    mine = int(places.mine.sum())
    counts: dict[Kind, int] = {"concept_only": mine, "neutral_only": len(g) - mine, "both": 0}
    return MlpFeatures(
        layer, factors, FeatureTable(len(g), counts, factors.loss, factors.iterations, tuple(features), len(ratios), factorisation.seed)
    )


def _feature(places: Places, column: Tensor, index: int, ratio: float) -> Feature:
    kinds: tuple[Kind, Kind] = ("concept_only", "neutral_only")
    total = float(column.sum())
    mine = float(column[places.mine].sum())
    shares: dict[Kind, float] = {"concept_only": mine / total, "neutral_only": 1 - mine / total, "both": 0.0} if total else dict.fromkeys(kinds, 0.0)
    top = column.argsort(descending=True, stable=True)[:TOP].tolist()
    tokens = tuple(Token(places.id(p), places.shown(p), float(column[p]), kinds[0 if bool(places.mine[p]) else 1]) for p in top if column[p] > 0)
    return Feature(index, ratio, shares, tokens)
