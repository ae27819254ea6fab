"""Stages that cut rank dimensions out of a LoRA adapter, or turn them round."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import Tensor

from excise.errors import InputError
from excise.lora import Factors, factors_of, require_choice, to_singular_basis
from excise.memory import peak_memory_mb
from excise.objectives.check import at_least, within
from excise.scope import Role
from excise.stages.kept import keep, keep_before
from excise.stages.sensitivity import RankBy, Ranking, chosen_ranks
from excise.stages.state import State

if TYPE_CHECKING:
    from excise.subject import Subject

MLP: tuple[Role, ...] = ("gate", "up", "down")
TASK_VECTOR = "task-vector"
"""The name under which the part that was negated is kept for the repair."""


@dataclass(frozen=True)
class RequireAdapter:
    """Refuses a model whose adapter cannot be edited, before anything costs time; says what it is.

    Paper: none, a check.
    """

    def check(self, state: State) -> None:
        factors_of(state.subject)

    def prepare(self, state: State) -> None:
        self.check(state)

    def structure(self, state: State) -> None:
        """Changes nothing."""

    def changes(self, subject: Subject) -> list[str]:
        return []

    def __call__(self, state: State) -> None:
        factors = factors_of(state.subject)
        ranks = sorted({f.rank for f in factors})
        roles = ", ".join(dict.fromkeys(f.role for f in factors))
        layers = sorted({f.layer for f in factors})
        state.plan.append(f"adapter: LoRA of rank {', '.join(map(str, ranks))} on {roles} in {len(layers)} layers, {layers[0]} to {layers[-1]}")


@dataclass(frozen=True)
class PruneRanks:
    """Removes the rank dimensions that the forget answers pull at most: B[:, k] = 0 and A[k, :] = 0.

    In each module the floor(fraction x rank), at least one, dimensions of the highest gradient column norm go.

    Paper: MAAT (arXiv 2605.30514, section 3.2), "SVD pruning".

    Differs: gate_proj is pruned too, which the authors' code lists and never visits; ``basis: svd`` is what the paper's name
        says and the authors' code does not do.
    """

    fraction: float = 0.15
    """Share of the rank dimensions of each module; 0 prunes none. The paper: .15 for Llama, .02 for Gemma."""
    modules: tuple[Role, ...] | None = None
    """Roles of the modules; None: those of the MLP that the adapter has. Attention only on request."""
    layers: tuple[int, ...] | None = None
    """Decoder layers, 0-based; None: all that the adapter has."""
    basis: Literal["lora", "svd"] = "lora"
    """svd: first rotate B A into its singular basis, so that a dimension means the same whatever the training run."""
    rank_by: RankBy = "forget"
    """contrast: forget score minus retain score."""
    examples: int = 60
    """Answers that are scored."""

    def __post_init__(self) -> None:
        within("prune.fraction", self.fraction, 0.0, 1.0)
        at_least("prune.examples", self.examples, 1)

    def factors(self, subject: Subject) -> list[Factors]:
        """The modules that are pruned."""
        modules = self.modules
        if modules is None:
            have = [f.role for f in factors_of(subject)]
            chosen: list[Role] = [role for role in MLP if role in have]
            modules = tuple(chosen)
            if not modules:
                raise InputError(
                    f"prune.modules: the adapter has nothing on MLP modules ({', '.join(MLP)}), which are pruned unless others are named; "
                    f"it adapts {', '.join(dict.fromkeys(have))}"
                )
        return factors_of(subject, modules, self.layers, "prune.modules")

    def check(self, state: State) -> None:
        if self.fraction > 0:
            require_choice(self.factors(state.subject), "prune")

    def prepare(self, state: State) -> None:
        self.check(state)

    def structure(self, state: State) -> None:
        """Pruned dimensions stay where they are, as zeros."""

    def changes(self, subject: Subject) -> list[str]:
        return _names(self.factors(subject)) if self.fraction > 0 else []

    def __call__(self, state: State) -> None:
        def cut(factors: Factors, ranks: list[int], _change: Tensor | None) -> None:
            factors.b[:, ranks] = 0.0
            factors.a[ranks, :] = 0.0

        factors = self.factors(state.subject) if self.fraction > 0 else []
        _edit(state, "prune_ranks", factors, self.fraction, self.basis, Ranking(self.rank_by, self.examples), cut)


@dataclass(frozen=True)
class NegateTaskVector:
    """Takes the forget task vector away: B <- B - strength tau, with tau the B of before the run on the columns that matter.

    These are the floor(share x rank), at least one, columns that the forget answers pull at most in each module. What an ascent has
    changed since the run began stays.

    Paper: MAAT (arXiv 2605.30514, section 3.2); Ilharco et al. 2023, "Editing Models with Task Arithmetic" (arXiv 2212.04089).
    """

    share: float = 0.5
    """Share of the rank dimensions of each module that make up the task vector; at least one."""
    strength: float = 1.0
    """How much of it is taken away: 1 removes it, 2 reverses it, 0 does nothing. The paper: 1 for Llama, .05 for Gemma."""
    before: Literal["run", "stage"] = "run"
    """Whose B the task vector is: that of the adapter before the run, or before this stage."""
    modules: tuple[Role, ...] | None = None
    """Roles of the modules; None: all that the adapter has."""
    layers: tuple[int, ...] | None = None
    """Decoder layers, 0-based; None: all that the adapter has."""
    basis: Literal["lora", "svd"] = "lora"
    """svd: first rotate B A into its singular basis."""
    rank_by: RankBy = "forget"
    """contrast: forget score minus retain score."""
    examples: int = 60
    """Answers that are scored."""

    def __post_init__(self) -> None:
        within("negate.share", self.share, 0.0, 1.0)
        at_least("negate.strength", self.strength, 0.0)
        at_least("negate.examples", self.examples, 1)

    @property
    def active(self) -> bool:
        """Whether it changes anything."""
        return self.share > 0 and self.strength > 0

    def factors(self, subject: Subject) -> list[Factors]:
        """The modules that the task vector lies in."""
        return factors_of(subject, self.modules, self.layers, "negate.modules")

    def check(self, state: State) -> None:
        if self.active:
            require_choice(self.factors(state.subject), "negate")

    def prepare(self, state: State) -> None:
        self.check(state)
        if self.active and self.before == "run":
            state.prepared[id(self)] = {f.b_name: f.b.detach().clone() for f in self.factors(state.subject)}

    def structure(self, state: State) -> None:
        """Only values change."""

    def changes(self, subject: Subject) -> list[str]:
        return _names(self.factors(subject)) if self.active else []

    def __call__(self, state: State) -> None:
        vector: dict[str, Tensor] = {}
        before = cast("dict[str, Tensor]", state.prepared.pop(id(self), {}))

        def subtract(factors: Factors, ranks: list[int], change: Tensor | None) -> None:
            known = before.get(factors.b_name, factors.b.detach().clone())
            if change is not None and factors.b_name in before:
                known = (known.double() @ change).to(known.dtype)
            tau = torch.zeros_like(factors.b)
            tau[:, ranks] = known[:, ranks]
            vector[factors.b_name] = tau
            factors.b.sub_(tau, alpha=self.strength)

        factors = self.factors(state.subject) if self.active else []
        _edit(state, "negate_task_vector", factors, self.share, self.basis, Ranking(self.rank_by, self.examples), subtract)
        if vector:
            keep(state, TASK_VECTOR, vector)


def _names(factors: Sequence[Factors]) -> list[str]:
    return [name for f in factors for name in (f.a_name, f.b_name)]


def _edit(
    state: State,
    name: str,
    factors: Sequence[Factors],
    share: float,
    basis: Literal["lora", "svd"],
    ranking: Ranking,
    change: Callable[[Factors, list[int], Tensor | None], None],
) -> None:
    """Ranks the dimensions, keeps what will be replaced, changes the chosen ones, and writes the stage's record."""
    begun = time.perf_counter()
    ranks: Mapping[str, list[int]] = {}
    tokens = 0
    if factors:
        keep_before(state, name, {key: p for f in factors for key, p in ((f.a_name, f.a), (f.b_name, f.b))})
        rotated = {f.place: to_singular_basis(f) for f in factors} if basis == "svd" else {}
        scores, tokens = ranking.scores(state, factors)
        ranks = chosen_ranks({f.place: _without_pruned(scores[f.place], f) for f in factors}, share)
        ranks = {f.place: [k for k in ranks[f.place] if f.a[k].any()] for f in factors}
        with torch.no_grad():
            for f in factors:
                change(f, ranks[f.place], rotated.get(f.place))
        touched = sum(map(len, ranks.values()))
        state.plan.append(f"{name}: {touched} of {sum(f.rank for f in factors)} rank dimensions in {len(factors)} modules")
    state.records.append(_record(state, name, factors, time.perf_counter() - begun, tokens, ranks))


def _without_pruned(scores: Tensor, factors: Factors) -> Tensor:
    """The scores, with the dimensions that an earlier pruning has emptied last."""
    return scores.masked_fill(~factors.a.detach().any(dim=1), -math.inf)


def _record(state: State, name: str, factors: Sequence[Factors], seconds: float, tokens: int, ranks: Mapping[str, list[int]]) -> dict[str, Any]:
    per_rank = {f.place: f.a.shape[1] + f.b.shape[0] for f in factors}
    return {
        "name": name,
        "seconds": round(seconds, 3),
        "steps": 0,
        "tokens": tokens,
        "peak_memory_mb": peak_memory_mb(state.subject.device),
        "changed_parameters": sum(per_rank[place] * len(chosen) for place, chosen in ranks.items()),
        "stopped": "",
        "ranks": dict(ranks),
        "rank": {f.place: f.rank for f in factors},
    }
