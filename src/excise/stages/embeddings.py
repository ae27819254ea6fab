"""EMBER: a concept's features are subtracted from the embedding rows of the tokens that only the concept has."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from excise.errors import InputError
from excise.factorise.sparse_mf import SparseMF
from excise.features.choose import Choice, Chosen, choose
from excise.features.classes import plain_texts, shown, token_classes
from excise.features.embedding import Localised, localise, require_own_table
from excise.objectives.check import at_least
from excise.stages.edit import concept_name, feature_rows, keep_edit, record_of, require_editable, settle_strength
from excise.stages.state import State
from excise.stages.strength import Search, require_questions
from excise.stages.undo import Slice, name_of
from excise.subject import untie

if TYPE_CHECKING:
    from excise.subject import Subject

STRONGEST = 20
"""Tokens that the record of a run names."""


@dataclass(frozen=True)
class EditEmbeddings:
    """e_t <- e_t - strength sum_k G_tk f_k for the tokens t that only the concept's texts have, over the features k that are its own.

    The forget examples are the concept's texts, the retain examples the neutral ones. A tied output head gets its own copy first and
    stays what it was. Computed in float32 and rounded once to the model's number format.

    Paper: EMBER (arXiv 2606.03695), sections on localisation and editing.
    Differs: computed in float32 where the authors compute in bfloat16; rows of a scaled embedding are factorised as the model uses them
        and written back unscaled; tokens are matched by id.
    """

    concept: str = ""
    """Its name, for judges that know what names mean; empty: the group of the forget examples, if they have one."""
    factorisation: SparseMF = field(default_factory=SparseMF)
    choice: Choice = field(default_factory=Choice)
    strength: float | Literal["search"] = "search"
    """How much is subtracted; search tries the grid of ``search`` on the benchmark's tuning questions."""
    search: Search = field(default_factory=Search)

    edits: ClassVar[bool] = True
    """It changes the model that later stages refer to."""

    def __post_init__(self) -> None:
        if self.strength != "search":
            at_least("strength", self.strength, 0.0)

    def check(self, state: State) -> None:
        require_editable(state.subject)
        require_own_table(state.subject)
        classes = token_classes(state.subject.tokenizer, plain_texts(state.side("forget")), plain_texts(state.side("retain")))
        if len(classes.ids) < self.factorisation.rank:
            raise InputError(f"the texts have {len(classes.ids)} different tokens, fewer than rank = {self.factorisation.rank}: lower the rank")
        self.choice.require(concept_name(self.concept, state), self.factorisation.rank)
        if self.strength == "search":
            require_questions(state.benchmark)

    def prepare(self, state: State) -> None:
        self.check(state)

    def structure(self, state: State) -> None:
        if self.strength != 0:
            untie(state.subject)

    def changes(self, subject: Subject) -> set[str]:
        """Names of the parameters that it may change."""
        return {name for name, parameter in subject.model.named_parameters() if parameter is subject.embedding.weight}

    def __call__(self, state: State) -> None:
        begun = time.perf_counter()
        self.check(state)
        subject, texts = state.subject, plain_texts(state.side("forget"))
        found = localise(subject, texts, plain_texts(state.side("retain")), self.factorisation, state.narrator)
        chosen = choose(self.choice, found.table, concept_name(self.concept, state), texts)
        was_tied = subject.tied
        self.structure(state)
        edit = Edit.of(subject, found, chosen)
        strength, search = settle_strength(self.strength, self.search, state, edit.apply)
        edit.apply(strength)
        tokens = [] if state.redact else edit.tokens(strength, subject)
        kept = keep_edit(state, "embeddings", [edit.before], was_tied, {"features": found.table.to_json(), "tokens": tokens})
        moved = edit.summary(strength, subject)
        state.plan.append(
            f"edit_embeddings: features {list(chosen.indexes)} (chosen by {chosen.how}), strength {strength:g}, "
            f"{moved['tokens']} tokens = {100 * moved['share_of_vocabulary']:.2f} % of the vocabulary"
        )
        factorised = {"n": found.table.n, "counts": dict(found.table.counts), "loss": found.table.loss, "iterations": found.table.iterations}
        account = {"chosen_by": chosen.how, "features": feature_rows(chosen, state.redact), "strength": strength, "moved": moved}
        account |= {"strongest": tokens[:STRONGEST], "factorised": {**factorised, "scale": found.scale}, "search": search, "files": kept}
        changed = edit.contribution.numel() if strength else 0
        state.records.append(record_of("edit_embeddings", begun, state, changed, account))


@dataclass(frozen=True)
class Edit:
    """What is subtracted from which rows of an embedding."""

    weight: nn.Parameter
    ids: Int[Tensor, " t"]
    contribution: Float[Tensor, "t d"]
    """sum_k G_tk f_k, in the model's scale, float32."""
    scale: float
    before: Slice

    @staticmethod
    def of(subject: Subject, found: Localised, chosen: Chosen) -> Edit:
        """The edit that these features make.

        Raises:
            InputError: none of the concept's own tokens has a coefficient in them.
        """
        ids, contribution = found.removable(chosen.indexes)
        if not len(ids):
            raise InputError(
                f"features {list(chosen.indexes)} have no coefficient on any token that only the concept's texts have: choose other ones"
            )
        weight = cast(nn.Parameter, subject.embedding.weight)
        return Edit(weight, ids, contribution, found.scale, Slice.of(subject, weight, 0, ids))

    @torch.no_grad()
    def apply(self, strength: float) -> None:
        """Sets the rows to what the strength gives; 0 puts back the very bits."""
        rows = self.before.values
        if strength:
            rows = (rows.float() - strength / self.scale * self.contribution.to(rows.device)).to(rows.dtype)
        self.weight[self.ids.to(self.weight.device)] = rows

    def tokens(self, strength: float, subject: Subject) -> list[dict[str, Any]]:
        """Every token that moved, by falling distance, in the scale in which the model uses its rows."""
        norms = self.contribution.norm(dim=1).cpu()
        rows = []
        for place in norms.argsort(descending=True, stable=True).tolist():
            token = int(self.ids[place])
            rows.append(
                {"id": token, "text": shown(subject.tokenizer, token), "contribution": float(norms[place]), "moved": strength * float(norms[place])}
            )
        return rows

    def summary(self, strength: float, subject: Subject) -> dict[str, Any]:
        """How many tokens moved, what share of the vocabulary that is, and how far."""
        norms, rows = self.contribution.norm(dim=1), self.before.values.float() * self.scale
        after = rows - strength * self.contribution.to(rows.device)
        return {
            "tokens": len(self.ids) if strength else 0,
            "share_of_vocabulary": len(self.ids) / subject.vocabulary if strength else 0.0,
            "mean_contribution": float(norms.mean()),
            "max_contribution": float(norms.max()),
            "mean_norm_before": float(rows.norm(dim=1).mean()),
            "mean_norm_after": float(after.norm(dim=1).mean()),
            "parameter": name_of(subject, self.weight),
        }
