"""SNMF's edit: a concept's features are projected out of what its neurons read and write."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from excise.errors import InputError
from excise.factorise.semi_nmf import SemiNMF
from excise.factorise.sparse_mf import TINY
from excise.features.activations import Mlp, MlpFeatures, Places, mlp_features
from excise.features.choose import Choice, Chosen, choose
from excise.features.classes import plain_texts
from excise.features.table import Feature, NoFeature
from excise.hidden import require_layer
from excise.objectives.check import at_least, within
from excise.stages.edit import concept_name, feature_rows, keep_edit, record_of, require_editable, settle_strength
from excise.stages.state import State
from excise.stages.strength import Search, require_questions
from excise.stages.undo import Slice

if TYPE_CHECKING:
    from excise.subject import Subject


@dataclass(frozen=True)
class EditMlp:
    """For the neurons j that carry a feature: W_down[:, j] -= s f_out (f_out . W_down[:, j]), W_up[j, :] -= s (W_up[j, :] . f_in) f_in.

    A feature f is a sparse combination of a layer's neurons, found by factorising the activations on the texts of the concept (the
    forget examples) and on neutral ones (retain). f_out = W_down f and f_in = W_up^T f, both of length 1, are what it writes and reads;
    its neurons are the strongest ones that together carry ``mass`` of its size. s = 1 is the projection. Features are taken one after
    the other, by falling mass ratio.

    Paper: the SNMF baseline of EMBER (arXiv 2606.03695); Shafran et al. 2025 (arXiv 2506.10920).
    Differs: by default the layers of the lower third; the first token of each text is left out; f_in is ours where the paper gives the
        formula only.
    """

    concept: str = ""
    """Its name, for judges that know what names mean; empty: the group of the forget examples, if they have one."""
    layers: tuple[int, ...] | None = None
    """Decoder layers (0-based); None: the lower third."""
    factorisation: SemiNMF = field(default_factory=SemiNMF)
    choice: Choice = field(default_factory=Choice)
    """In every layer; features chosen by hand are taken from the one layer that is given."""
    strength: float | Literal["search"] = "search"
    """1 is the projection; search tries the grid of ``search`` on the benchmark's tuning questions."""
    search: Search = field(default_factory=lambda: Search(grid=(1.0, 4.0, 7.0, 10.0)))
    mass: float = 0.95
    """Share of a feature's size that its edited neurons carry together."""
    places: int | None = 8192
    """At most so many places on each side, spread evenly; None: all."""

    edits: ClassVar[bool] = True
    """It changes the model that later stages refer to."""

    def __post_init__(self) -> None:
        within("mass", self.mass, 0.0, 1.0, open_low=True)
        if self.strength != "search":
            at_least("strength", self.strength, 0.0)
        if self.places is not None:
            at_least("places", self.places, 1)
        if self.choice.features is not None and len(self.layers or ()) != 1:
            raise InputError("features chosen by hand belong to one layer: give layers = [the layer]")

    def chosen_layers(self, depth: int) -> tuple[int, ...]:
        """The layers for a model of ``depth`` layers, lowest first."""
        return tuple(range(max(1, depth // 3))) if self.layers is None else tuple(sorted(set(self.layers)))

    def check(self, state: State) -> None:
        require_editable(state.subject)
        for layer in self.chosen_layers(state.subject.depth):
            require_layer(layer, state.subject.depth)
            Mlp.of(state.subject, layer)
        for name, side in (("concept", state.side("forget")), ("neutral", state.side("retain"))):
            if not side:
                raise InputError(f"there are no {name} texts to compare activations on")
        self.choice.require(concept_name(self.concept, state), self.factorisation.rank)
        if self.strength == "search":
            require_questions(state.benchmark)

    def prepare(self, state: State) -> None:
        self.check(state)

    def structure(self, state: State) -> None:
        """No new parameters."""

    def changes(self, subject: Subject) -> set[str]:
        """Names of the parameters that it may change."""
        mlps = [Mlp.of(subject, layer) for layer in self.chosen_layers(subject.depth)]
        edited = {id(matrix.weight) for mlp in mlps for matrix in (mlp.up, mlp.down)}
        return {name for name, parameter in subject.model.named_parameters() if id(parameter) in edited}

    def __call__(self, state: State) -> None:
        begun = time.perf_counter()
        self.check(state)
        subject, texts = state.subject, plain_texts(state.side("forget"))
        places = Places.of(subject, texts, plain_texts(state.side("retain")), self.places)
        found, chosen = self._found(state, places, texts)
        pairs = [(layer, features) for layer, features in zip(found, chosen, strict=True) if features.features]
        edits = [LayerEdit.of(subject, layer, features, self.mass) for layer, features in pairs]

        def apply(strength: float) -> None:
            for edit in edits:
                edit.apply(strength)

        strength, search = settle_strength(self.strength, self.search, state, apply)
        apply(strength)
        tables = [{"layer": layer.layer, **layer.table.to_json()} for layer in found]
        kept = keep_edit(state, "mlp", [part for edit in edits for part in edit.before], False, {"layers": tables})
        account = [{**edit.summary(), "features": feature_rows(features, state.redact)} for edit, (_, features) in zip(edits, pairs, strict=True)]
        told = ", ".join(f"layer {edit.layer}: {[d.index for d in edit.directions]}" for edit in edits)
        state.plan.append(f"edit_mlp: features {told} (chosen by {self.choice.how}), strength {strength:g}")
        changed = sum(part.values.numel() for edit in edits for part in edit.before) if strength else 0
        detail = {"chosen_by": self.choice.how, "strength": strength, "layers": account, "search": search, "files": kept}
        state.records.append(record_of("edit_mlp", begun, state, changed, detail))

    def _found(self, state: State, places: Places, texts: Sequence[str]) -> tuple[list[MlpFeatures], list[Chosen]]:
        """The features of each layer and those that were chosen; a layer may have none, but not all of them."""
        found: list[MlpFeatures] = []
        chosen: list[Chosen] = []
        reasons: list[str] = []
        for layer in self.chosen_layers(state.subject.depth):
            found.append(mlp_features(state, places, layer, self.factorisation))
            try:
                chosen.append(choose(self.choice, found[-1].table, concept_name(self.concept, state), texts))
            except NoFeature as error:
                reasons.append(f"layer {layer}: {error}")
                chosen.append(Chosen((), self.choice.how, {}))
        if len(reasons) == len(found):
            raise NoFeature(reasons[0])
        return found, chosen


@dataclass(frozen=True)
class Direction:
    """What one feature reads and writes, and the neurons that carry it."""

    index: int
    neurons: Int[Tensor, " j"]
    reads: Float[Tensor, " d"]
    writes: Float[Tensor, " d"]

    @staticmethod
    def of(mlp: Mlp, feature: Feature, neurons: Tensor, values: Tensor, mass: float) -> Direction:
        """From the neurons of a feature and their coefficients."""
        up = mlp.up.weight.detach()[mlp.offset + neurons].float()
        down = mlp.down.weight.detach()[:, neurons].float()
        return Direction(feature.index, neurons[carrying(values, mass)], _unit(up.T @ values), _unit(down @ values))


def carrying(values: Float[Tensor, " k"], mass: float) -> Int[Tensor, " j"]:
    """Places of the fewest entries whose sizes add up to ``mass`` of all, ascending."""
    size, order = values.abs().sort(descending=True, stable=True)
    sums = size.cumsum(0)
    enough = int((sums < mass * sums[-1] * (1 - 1e-6)).sum()) + 1
    return order[:enough].sort().values


def _unit(vector: Tensor) -> Tensor:
    return vector / vector.norm().clamp_min(TINY)


@dataclass(frozen=True)
class LayerEdit:
    """What is projected out of one layer, and what stood there before."""

    layer: int
    mlp: Mlp
    directions: tuple[Direction, ...]
    before: tuple[Slice, Slice]
    """Rows of W_up and columns of W_down of all the neurons that are edited."""

    @staticmethod
    def of(subject: Subject, found: MlpFeatures, chosen: Chosen, mass: float) -> LayerEdit:
        """The edit that these features make in their layer."""
        mlp, factors = Mlp.of(subject, found.layer), found.factors
        directions = tuple(
            Direction.of(mlp, f, factors.neurons[f.index].to(mlp.up.weight.device), factors.values[f.index].to(mlp.up.weight.device).float(), mass)
            for f in chosen.features
        )
        neurons = torch.cat([direction.neurons for direction in directions]).unique()
        rows = Slice.of(subject, mlp.up.weight, 0, mlp.offset + neurons)
        columns = Slice.of(subject, mlp.down.weight, 1, neurons)
        return LayerEdit(found.layer, mlp, directions, (rows, columns))

    @torch.no_grad()
    def apply(self, strength: float) -> None:
        """Sets the neurons to what the strength gives; 0 puts back the very bits."""
        rows, columns = self.before
        neurons = columns.index
        up, down = rows.values, columns.values
        if strength:
            up, down = up.to(torch.float32, copy=True), down.to(torch.float32, copy=True)
            for direction in self.directions:
                at = torch.searchsorted(neurons, direction.neurons)
                part = down[:, at]
                down[:, at] = part - strength * direction.writes[:, None] * (direction.writes @ part)
                part = up[at]
                up[at] = part - strength * (part @ direction.reads)[:, None] * direction.reads
        replace(rows, values=up).put_back({rows.parameter: self.mlp.up.weight})
        replace(columns, values=down).put_back({columns.parameter: self.mlp.down.weight})

    def summary(self) -> dict[str, Any]:
        """How many neurons."""
        return {"layer": self.layer, "neurons": len(self.before[1].index), "of": self.mlp.width}
