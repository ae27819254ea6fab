"""The rows of an input embedding as the model uses them, and the features that a concept has in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from excise.errors import InputError
from excise.factorise.ridge import exact_on
from excise.factorise.sparse_mf import SparseFactors, SparseMF
from excise.features.classes import KINDS, Kind, TokenClasses, mass_ratios, shown, token_classes
from excise.features.table import TOP, Feature, FeatureTable, Token
from excise.hidden import capture

if TYPE_CHECKING:
    from excise.stages.state import Narrator
    from excise.subject import Subject

PROBED = 64
"""Tokens that the scale is found with."""
ROUNDING = 2.0**-6
"""Largest relative difference of an element that rounding to bfloat16 may make, with room for a scale that is rounded too."""


@dataclass(frozen=True)
class Localised:
    """A concept's features in the embedding of a model."""

    classes: TokenClasses
    factors: SparseFactors
    """Of the rows as the model uses them, one column of A for each of ``classes.ids``."""
    scale: float
    """What the model multiplies its embedding by."""
    table: FeatureTable

    def removable(self, features: Sequence[int]) -> tuple[Tensor, Float[Tensor, "t d"]]:
        """What these features contribute to the concept's own tokens.

        Returns:
            ids [t] of the concept-only tokens with a coefficient in any of the features, and sum_k G_tk f_k of each [t, d], float32.
        """
        g = self.factors.g[:, list(features)]
        mine = self.classes.mask("concept_only").to(g.device) & (g != 0).any(dim=1)
        return torch.tensor(self.classes.ids)[mine.cpu()], (g[mine] @ self.factors.f[:, list(features)].T).float()


def localise(
    subject: Subject, concept: Sequence[str], neutral: Sequence[str], factorisation: SparseMF, narrator: Narrator | None = None
) -> Localised:
    """Factorises the embedding rows of the texts' tokens and describes the features.

    Paper: EMBER (arXiv 2606.03695), localisation.
    Differs: the rows of a model that scales its embedding are taken scaled, with the scale found by running the model.
    """
    classes = token_classes(subject.tokenizer, concept, neutral)
    if len(classes.ids) < factorisation.rank:
        raise InputError(
            f"the texts have {len(classes.ids)} different tokens, fewer than rank = {factorisation.rank}: lower the rank or give more texts"
        )
    scale = embedding_scale(subject)
    rows = cast(Tensor, subject.embedding.weight).detach()[torch.tensor(classes.ids, device=subject.device)].float() * scale
    factors = _factorised(factorisation, exact_on(rows), narrator)
    return Localised(classes, factors, scale, _table(subject.tokenizer, classes, factors, factorisation))


def _factorised(factorisation: SparseMF, rows: Tensor, narrator: Narrator | None) -> SparseFactors:
    task = f"factorising {len(rows)} embedding rows into {factorisation.rank} features"
    if narrator is None:
        return factorisation(rows.T)
    narrator.begin(task, factorisation.iterations * factorisation.restarts)
    factors = factorisation(rows.T, watch=lambda number, loss: narrator.advance(task, 1, f"loss {loss:.2f}"))
    narrator.end(task)
    return factors


def _table(tokenizer: PreTrainedTokenizerBase, classes: TokenClasses, factors: SparseFactors, factorisation: SparseMF) -> FeatureTable:
    g = factors.g.float().cpu()
    ratios = mass_ratios(g.abs(), classes.mask("concept_only"), classes.mask("neutral_only")).tolist()
    tokens, values = factors.tokens.cpu(), factors.values.float().cpu()
    features: list[Feature] = []
    for k, ratio in enumerate(ratios):
        size = values[k].abs()
        order = size.argsort(descending=True, stable=True)[:TOP].tolist()
        codes = classes.codes[tokens[k]]
        total = float(size.sum())
        shares: dict[Kind, float] = {kind: float(size[codes == c].sum()) / total if total else 0.0 for c, kind in enumerate(KINDS)}
        places = [(int(tokens[k, o]), float(values[k, o])) for o in order if float(values[k, o]) != 0]
        shown_tokens = tuple(Token(classes.ids[i], shown(tokenizer, classes.ids[i]), value, KINDS[int(classes.codes[i])]) for i, value in places)
        features.append(Feature(k, float(ratio), shares, shown_tokens))
    features.sort(key=lambda feature: -feature.ratio)
    return FeatureTable(len(classes.ids), classes.counts, factors.loss, factors.iterations, tuple(features), len(ratios), factorisation.seed)


# The scale ------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def embedding_scale(subject: Subject) -> float:
    """What a row of the embedding is multiplied by before the first layer, found by running the model.

    Models multiply inside the embedding module (Gemma 3) or after it (older ones); where something else is added too (learned
    positions), only what the module itself does counts.

    Raises:
        InputError: the embedding is no table, or the module does more than multiply.
    """
    module = subject.embedding
    weight = getattr(module, "weight", None)
    if not isinstance(module, nn.Embedding) or not isinstance(weight, Tensor):
        raise InputError(f"{subject.source}: the input embedding of a {type(subject.base).__name__} is no plain table, so its rows cannot be edited")
    ids = _probed(subject)
    rows = weight.detach()[ids].double()
    inside = _ratio(rows, module(ids[None])[0].double())
    if inside is None:
        raise InputError(f"{subject.source}: the input embedding does more than scale its rows, so they cannot be edited one by one")
    arriving = _first_input(subject, ids)
    outside = _ratio(rows * inside, arriving.double()) if arriving is not None and arriving.shape == rows.shape else None
    return inside * (outside if outside is not None else 1.0)


def _probed(subject: Subject) -> Tensor:
    """Tokens spread over the vocabulary whose rows are not zero."""
    weight = cast(Tensor, subject.embedding.weight).detach()
    ids = torch.arange(4 * PROBED, device=subject.device) * 7919 % subject.vocabulary
    return ids[weight[ids].any(dim=1)][:PROBED]


def _ratio(rows: Tensor, used: Tensor) -> float | None:
    """s with used = s rows, up to rounding; None where there is none. Exactly 1 where nothing was done."""
    if torch.equal(rows, used):
        return 1.0
    scale = float((rows * used).sum() / rows.square().sum())
    return scale if scale > 0 and bool(((used - scale * rows).abs() <= ROUNDING * (scale * rows).abs() + 1e-30).all()) else None


def _first_input(subject: Subject, ids: Tensor) -> Tensor | None:
    """What the first decoder layer receives for these tokens."""
    seen: list[Tensor] = []

    def keep(_module: nn.Module, arguments: Any, named: Any) -> None:
        found = arguments[0] if arguments else named.get("hidden_states")
        if isinstance(found, Tensor):
            seen.append(found[0])

    handle = subject.layers[0].register_forward_pre_hook(keep, with_kwargs=True)
    try:
        with capture(subject.layers, (0,), stop=True) as captured:
            captured.run(lambda: subject.decoder(input_ids=ids[None], use_cache=False).last_hidden_state)
    finally:
        handle.remove()
    return seen[0] if seen else None


def require_own_table(subject: Subject) -> None:
    """Refuses a model whose input table serves something else than the input and the output head."""
    table = cast(Tensor, subject.embedding.weight)
    allowed = {id(subject.embedding), id(subject.head)}
    for name, module in subject.base.named_modules():
        own = [parameter for parameter in module.parameters(recurse=False) if parameter is table]
        if own and id(module) not in allowed:
            raise InputError(
                f"{subject.source}: the input embedding is shared with {name}, so editing its rows would change that too: this model cannot be edited"
            )
