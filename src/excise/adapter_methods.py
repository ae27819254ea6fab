"""Methods that edit a LoRA adapter, and the baselines that they are compared with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from excise.data.batches import Paired, PerSample
from excise.errors import InputError
from excise.methods import Method, Training
from excise.objectives import KL, NLL, Ascent, CappedAscent, Entropy, HiddenCosine, TaskVectorCosine
from excise.objectives.check import at_least, positive
from excise.scope import Role, Scope
from excise.stages.combine import AddSecondAdapter, CombineAdapters
from excise.stages.gradients import ProjectConflicts, Sum
from excise.stages.guard import Guard
from excise.stages.state import Stage
from excise.stages.surgery import NegateTaskVector, PruneRanks, RequireAdapter
from excise.stages.train import Penalty, Term, Train
from excise.view import Weight
from excise.weights import Uniform


@dataclass(frozen=True)
class Ascend:
    """Phase 1 of MAAT: ascent on one forget answer after the other, along gradients that do not work against the retain term."""

    steps: int = 12
    """Optimiser steps in a row on each forget example; the paper's 12, 15 on TOFU, and 2 for Gemma."""
    paired: bool = False
    """Batches of ``batch`` examples, as the other methods have them, in place of several steps on one example."""
    project: bool = True
    """Project conflicting gradients; off is plain ascent."""
    anchor: float = 0.0
    """Scale of the retain term in the step itself. 0: it shapes the projection only, as in the authors' code."""
    temperature: float = 0.7
    """Of the KL divergence to the adapter before the run, summed over each retain text."""
    positions: Literal["scored", "all"] = "all"
    """Which tokens of the retain texts count: all, or the answer's only."""
    retain_batch: int = 1
    """Retain examples of one step."""
    rephrasings: int = 0
    """So many rephrased questions of each example are forget texts too; the paper's 2."""
    rephrased_steps: int = 8
    """Optimiser steps in a row on each rephrasing."""
    cap: float | None = None
    """Mean loss, in nats per token, above which an answer is left alone."""
    lr: float | None = None
    """Learning rate; None: the method's ``lr``, and where that is not given either, the paper's 1e-5."""
    epochs: float = 1.0
    """Walks through the forget set (the method's ``steps`` takes precedence)."""
    schedule: Literal["linear", "cosine", "constant"] = "constant"
    """How the learning rate goes down."""
    warmup: float = 0.0
    """Share of the steps in which the learning rate goes up."""
    moments: Literal["kept", "fresh"] = "kept"
    """fresh: the optimiser starts anew at each example."""
    modules: tuple[Role, ...] | None = None
    """Roles of the modules that are trained; None: all that the adapter has. The authors' code: q, v, up, down."""
    dropout: bool = False
    """Whether the adapter's dropout is on while training, as in the authors' code."""

    def __post_init__(self) -> None:
        at_least("ascent.anchor", self.anchor, 0.0)
        positive("ascent.temperature", self.temperature)

    def stage(self, training: Training, weight: Weight) -> Train:
        """The training stage; what is not set here is what every method shares."""
        (train,) = replace(training, lora=None).stages(
            Term(Ascent() if self.cap is None else CappedAscent(self.cap), "forget", weight=weight),
            Term(KL(self.temperature, self.positions, "sequence"), "retain", self.anchor),
        )
        assert isinstance(train, Train)
        return replace(
            train,
            name="ascent",
            scope=Scope(training.layers, self.modules or training.modules, "only"),
            gradients=ProjectConflicts() if self.project else Sum(),
            optimiser=replace(train.optimiser, lr=self.lr or training.lr or 1e-5, schedule=self.schedule, warmup=self.warmup, moments=self.moments),
            batches=train.batches if self.paired else PerSample(self.steps, self.retain_batch, self.rephrasings, self.rephrased_steps),
            epochs=self.epochs,
            dropout=self.dropout,
        )


@dataclass(frozen=True)
class Repair:
    """Phase 3 of MAAT: brings retain answers back without bringing the forgotten ones back."""

    steps: int = 300
    """Optimiser steps; the paper's 300, 400 on TOFU."""
    batch: int = 1
    """Forget and retain examples of one step."""
    lr: float = 8e-5
    """Highest learning rate."""
    floor: float = 5e-6
    """Learning rate at the end of the cosine."""
    warmup: float = 0.0
    """Share of the steps in which the learning rate goes up."""
    kl: float = 0.6
    """Scale of the KL divergence to the model before the run, summed over each retain text."""
    temperature: float = 2.0
    """Of that KL divergence."""
    positions: Literal["scored", "all"] = "all"
    """Which tokens of the retain texts that divergence counts: all, or the answer's only."""
    hidden: float = 0.25
    """Scale of the distance of the mean hidden state, on retain texts."""
    depth: float = 0.7
    """Share of the layers before and at the one whose hidden state is looked at."""
    first_token: bool = False
    """Whether the first token's hidden state counts, as in the authors' code."""
    entropy: float = 0.1
    """Scale of the entropy of the forget answers, which is raised."""
    entropy_skip: int = 0
    """Answer tokens that the entropy leaves out at the start; the authors' code leaves out 1."""
    task_vector: float = 0.05
    """Scale of the cosine to the task vector that was negated."""
    slow: tuple[Role, ...] = ("gate", "k", "o")
    """Modules that learn at ``slow_factor`` times the rate."""
    slow_factor: float = 0.3
    """Factor on the learning rate of the slow modules."""
    modules: tuple[Role, ...] | None = None
    """Roles of the modules that are trained; None: all that the adapter has."""
    layers: tuple[int, ...] | None = None
    """Decoder layers that are trained; None: the adapter's own. The authors' code: 7 to 20."""
    dropout: bool = False
    """Whether the adapter's dropout is on while training."""

    def __post_init__(self) -> None:
        for name in ("kl", "hidden", "entropy", "task_vector", "slow_factor"):
            at_least(f"repair.{name}", getattr(self, name), 0.0)
        if not self.kl and not self.hidden and not self.entropy:
            raise InputError("repair: kl, hidden and entropy are all 0, so there is nothing to learn from: leave the repair out (repair: null)")

    def stage(self, training: Training, negated: bool) -> Train:
        """The training stage. The task-vector term needs something that was negated."""
        terms = (
            Term(KL(self.temperature, self.positions, "sequence"), "retain", self.kl),
            Term(HiddenCosine(depth=self.depth, first_token=self.first_token), "retain", self.hidden),
            Term(Entropy(-1, self.entropy_skip), "forget", self.entropy),
        )
        (train,) = replace(training, lora=None).stages(*(term for term in terms if term.scale))
        assert isinstance(train, Train)
        factors = dict.fromkeys(self.slow, self.slow_factor)
        optimiser = replace(train.optimiser, lr=self.lr, floor=self.floor, warmup=self.warmup, schedule="cosine", factors=factors, moments="kept")
        return replace(
            train,
            name="repair",
            scope=Scope(self.layers, self.modules, "only"),
            optimiser=optimiser,
            batches=Paired(self.batch),
            steps=self.steps,
            penalties=(Penalty(TaskVectorCosine(), self.task_vector),) if negated and self.task_vector else (),
            dropout=self.dropout,
        )


def maat(
    training: Training,
    ascent: Ascend | None = Ascend(),
    prune: PruneRanks | None = PruneRanks(),
    negate: NegateTaskVector | None = NegateTaskVector(),
    repair: Repair | None = Repair(),
    weight: Weight = Uniform(),
) -> Method:
    """Adapter surgery in three phases: projected ascent, removal of rank dimensions and of the forget task vector, repair.

    ``null`` switches a phase off. ``lr``, ``steps``, ``batch`` and ``modules`` are those of the ascent; the repair has its own. ``weight``
    is the weight of the forget answers' tokens in the ascent. The model must be a LoRA adapter that holds the knowledge; it is never
    merged while it is edited.

    Paper: MAAT (arXiv 2605.30514), section 3.

    Differs: gate_proj is pruned as well; entropy over the positions that predict the answer; the first token left out of the mean hidden
        state; no dropout; the adapter's own layers. Each can be switched back by a setting.
    """
    if training.lora is not None:
        raise InputError(
            "method.lora: maat edits the adapter that holds the knowledge, and a fresh one holds none: load that adapter, and leave lora out"
        )
    stages: list[Stage] = [RequireAdapter()]
    if ascent is not None:
        stages.append(ascent.stage(training, weight))
    if prune is not None:
        stages.append(prune)
    if negate is not None:
        stages.append(negate)
    if repair is not None:
        stages.append(repair.stage(training, negated=negate is not None and negate.active))
    if len(stages) == 1:
        raise InputError("method: every phase of maat is switched off (ascent, prune, negate, repair)")
    return tuple(stages)


def adapter_negation(training: Training, strength: float = 1.0) -> Method:
    """Trains a second adapter on the forget answers, on the bare base, and subtracts it from the model's own.

    On a model without an adapter the second one is trained on the model itself, and the result is an adapter that takes it away. The
    second adapter has the shape of the model's own, or that of ``lora``. The result has the rank of both together.

    Paper: Ilharco et al. 2023, "Editing Models with Task Arithmetic" (arXiv 2212.04089); a baseline of MAAT (arXiv 2605.30514).
    """
    at_least("strength", strength, 0.0)
    (train,) = replace(training, lora=None).stages(Term(NLL(), "forget"))
    assert isinstance(train, Train)
    # the guard watches the model that is unlearned, and that is not what is trained here
    train = replace(train, scope=replace(train.scope, adapter="only"), guard=Guard(every=0))
    return (AddSecondAdapter(training.lora), train, CombineAdapters(-strength))


def retain_only(training: Training) -> Method:
    """Ordinary training on the retain set and nothing else: what is forgotten by mere neglect.

    Paper: a baseline of MAAT (arXiv 2605.30514), RO-FT; TOFU's "retain fine-tuning" (arXiv 2401.06121).
    """
    return training.stages(Term(NLL(), "retain"))
