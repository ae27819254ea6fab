"""The one training stage of excise: what it trains, on what, how."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from excise.data.batches import Batches, Paired
from excise.errors import InputError
from excise.hidden import require_layer
from excise.objectives.check import at_least
from excise.scope import Scope
from excise.stages.goal import Goal
from excise.stages.gradients import Gradients, Sum
from excise.stages.guard import Guard
from excise.stages.loop import run_session
from excise.stages.optimise import Optimiser
from excise.stages.session import Session, require_alternatives
from excise.stages.state import State
from excise.view import Objective, ParameterObjective, Weight
from excise.weights.uniform import Uniform

Side = Literal["forget", "retain", "coherence"]
"""What a term looks at: a side of the data, or the texts of ``Train.coherence``."""


@dataclass(frozen=True)
class Term:
    """One summand of the loss: an objective on one side of the data, with a weight on its tokens."""

    objective: Objective
    data: Side
    scale: float = 1.0
    weight: Weight = field(default_factory=Uniform)
    label: str = ""
    """What tells this term from another of the same objective in the log."""

    @property
    def name(self) -> str:
        """forget.npo, retain.kl, ..."""
        if self.label:
            return f"{self.data}.{self.label}"
        return f"{self.data}.{type(self.objective).__name__.lower()}"

    @property
    def layers(self) -> tuple[int, ...]:
        """Decoder layers whose hidden states the objective looks at."""
        return getattr(self.objective, "layers", ())

    @property
    def needs_logits(self) -> bool:
        """Whether the objective looks at logits; where none does, the forward pass stops early."""
        return getattr(self.objective, "needs_logits", True)

    @property
    def positions(self) -> Literal["scored", "all", "every"]:
        """Which tokens the objective counts: the answer's, those of the prompt too, or even the very first one (hidden states only)."""
        return getattr(self.objective, "positions", "scored")

    @property
    def reads_reference(self) -> tuple[str, ...]:
        """What the objective asks of the reference: any of logp, logits, hidden."""
        return getattr(self.objective, "reads_reference", ())

    @property
    def needs_alternative(self) -> bool:
        """Whether the objective compares with another answer."""
        return getattr(self.objective, "needs_alternative", False)


@dataclass(frozen=True)
class Penalty:
    """One summand of the loss that looks at the parameters themselves, and at no text."""

    objective: ParameterObjective
    scale: float = 1.0

    @property
    def name(self) -> str:
        """adapter.taskvectorcosine, ..."""
        return f"adapter.{type(self.objective).__name__.lower()}"


@dataclass(frozen=True)
class Train:
    """Minimises the sum of its terms.

    Losses are normalised by the scored tokens (or examples) of the whole optimiser step, so that one big batch and
    several accumulated small ones give the same update.
    """

    terms: tuple[Term, ...]
    scope: Scope = field(default_factory=Scope)
    gradients: Gradients = field(default_factory=Sum)
    optimiser: Optimiser = field(default_factory=Optimiser)
    batches: Batches = field(default_factory=Paired)
    epochs: float = 5.0
    steps: int | None = None
    """Optimiser steps; takes precedence over ``epochs``."""
    accumulate: int = 1
    """Parts into which one optimiser step is divided, to save memory."""
    checkpointing: bool = False
    """Compute activations again in the backward pass, to save memory."""
    reference: Literal["auto", "run", "stage"] = "run"
    """run: the model before the whole run; stage: the model before this stage; auto: stage where an edit of the weights stands before it
    in the chain, else run."""
    guard: Guard = field(default_factory=Guard)
    evaluate_every: int = 0
    """Score the model every so many steps; 0 never."""
    keep_best: str = ""
    """Name of the score by which the best of these states is kept at the end; empty keeps the last state."""
    goal: Goal | None = None
    """Scores that end the stage early; needs ``evaluate_every``."""
    checkpoint_every: int = 50
    """Steps between two checkpoints (where the run has a folder); 0 only at the end of the stage."""
    max_length: int | None = None
    """Longest text in tokens: an error for questions, a cut for plain text."""
    penalties: tuple[Penalty, ...] = ()
    """Summands that look at the parameters themselves."""
    dropout: bool = True
    """Whether dropout (of a LoRA adapter, say) is on while this stage trains."""
    coherence: tuple[str, ...] = ()
    """Plain texts of which every step sees one in turn; what terms on ``coherence`` look at."""
    name: str = "train"

    def __post_init__(self) -> None:
        at_least("accumulate", self.accumulate, 1)
        at_least("epochs", self.epochs, 0)
        if not self.terms:
            raise InputError("a training stage needs at least one term")
        if self.keep_best and not self.evaluate_every:
            raise InputError("keep_best needs evaluate_every: how often to look")
        if self.goal is not None and (not self.evaluate_every or self.keep_best):
            raise InputError("goal needs evaluate_every, how often to look, and takes the place of keep_best")
        if not self.coherence and any(term.data == "coherence" for term in self.terms):
            raise InputError("a term on coherence needs texts: give at least one")
        for term in self.terms:
            if term.positions != "scored" and not isinstance(term.weight, Uniform):
                raise InputError(f"{term.name}: positions = {term.positions} cannot be combined with token weights, which exist for answers only")

    @property
    def unscaled(self) -> bool:
        """Whether the gradients apply the scale of the retain terms themselves, so that one of scale 0 counts too."""
        return getattr(self.gradients, "unscaled", False)

    @property
    def active_terms(self) -> tuple[Term, ...]:
        """The terms that have a say: those of scale 0 have none, unless the gradients look at them unscaled."""
        return tuple(term for term in self.terms if term.scale != 0.0 or (term.data == "retain" and self.unscaled))

    def check(self, state: State) -> None:
        self.scope.layers_of(state.subject.depth)
        for term in self.terms:
            for layer in term.layers:
                require_layer(layer, state.subject.depth)
            if term.needs_alternative:
                require_alternatives(state.side("forget"))

    def prepare(self, state: State) -> None:
        self.check(state)
        if self.reference != "stage":
            state.prepared[id(self)] = Session.build(self, state)

    def structure(self, state: State) -> None:
        """Training changes no structure."""

    def __call__(self, state: State) -> None:
        session = state.prepared.pop(id(self), None) or Session.build(self, state)
        assert isinstance(session, Session)
        run_session(session)
