"""The named methods: short functions that return the stages which a method is made of.

A method's settings are the parameters of its function together with the fields of :class:`Training`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from excise.data.batches import Paired
from excise.errors import InputError
from excise.factorise.semi_nmf import SemiNMF
from excise.factorise.sparse_mf import SparseMF
from excise.features.choose import Choice
from excise.objectives import CEU, DPO, KL, NLL, NPO, RMU, UNDIAL, WGA, Ascent, HiddenMSE, SatImp, SimNPO
from excise.objectives.check import at_least, within
from excise.scope import Role, Scope, Window
from excise.settings import refuse_unknown
from excise.stages.adapters import AddAdapter
from excise.stages.embeddings import EditEmbeddings
from excise.stages.features import SuppressFeatures
from excise.stages.goal import Goal
from excise.stages.guard import Guard
from excise.stages.mlp import EditMlp
from excise.stages.optimise import Kind, Optimiser
from excise.stages.salience import Choice as Salience
from excise.stages.state import Stage
from excise.stages.strength import Search
from excise.stages.train import Term, Train
from excise.view import Objective, Weight
from excise.weights import Attribution, Facts, Uniform

Method = tuple[Stage, ...]
Retain = Literal["kl", "nll", "hidden_mse", "none"]


@dataclass(frozen=True)
class Training:
    """Settings that every method shares."""

    lr: float | None = None
    """Highest learning rate; None chooses by the model's size and whether an adapter is trained (printed in the plan)."""
    epochs: float = 5.0
    """Walks through the forget set."""
    steps: int | None = None
    """Optimiser steps; takes precedence over epochs."""
    batch: int = 8
    """Forget examples of one optimiser step."""
    retain_batch: int | None = None
    """Retain examples of one optimiser step; None: as many as ``batch``."""
    accumulate: int = 1
    """Parts into which a step is divided to save memory; the update stays the same."""
    warmup: float = 0.2
    """Share of the steps in which the learning rate goes up (one of five epochs)."""
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    optimiser: Kind = "adamw"
    """adamw, adamw_8bit (bitsandbytes: moments in a quarter of the memory) or sgd."""
    weight_decay: float = 0.0
    clip: float | None = 1.0
    """Highest norm of the gradient."""
    lora: AddAdapter | None = None
    """Train a fresh LoRA adapter instead of the model itself."""
    layers: tuple[int, ...] | None = None
    """Train only these decoder layers (0-based)."""
    modules: tuple[Role, ...] | None = None
    """Train only modules with these roles."""
    checkpointing: bool = False
    """Compute activations again in the backward pass, to save memory."""
    reference: Literal["auto", "run", "stage"] = "auto"
    """The model that a loss or a token weight refers to: as it was before the run, or before this training; auto: before this training
    where an edit of the weights (ember, snmf) stands before it in the chain."""
    checkpoint_every: int = 50
    """Steps between two checkpoints."""
    evaluate_every: int = 0
    """Score the model every so many steps; 0 never."""
    keep_best: str = ""
    """Name of the score by which the best of these states is kept."""
    goal: Goal | None = None
    """Scores that end the training as soon as they are reached, and scores that must hold (with ``evaluate_every``)."""
    guard: Guard = field(default_factory=Guard)
    """When to stop because the model collapses."""
    max_length: int | None = None
    """Longest text in tokens."""

    def stages(self, *terms: Term, scope: Scope | None = None) -> Method:
        """The stages of a method with one training stage: an adapter where asked for, then the training."""
        own = Scope(self.layers, self.modules)
        train = Train(
            terms=terms,
            scope=own if scope is None or own != Scope() else scope,
            optimiser=Optimiser(
                lr=self.lr, weight_decay=self.weight_decay, clip=self.clip, schedule=self.schedule, warmup=self.warmup, kind=self.optimiser
            ),
            batches=Paired(self.batch, self.retain_batch),
            epochs=self.epochs,
            steps=self.steps,
            accumulate=self.accumulate,
            checkpointing=self.checkpointing,
            reference=self.reference,
            guard=self.guard,
            evaluate_every=self.evaluate_every,
            keep_best=self.keep_best,
            goal=self.goal,
            checkpoint_every=self.checkpoint_every,
            max_length=self.max_length,
        )
        return (train,) if self.lora is None else (self.lora, train)


def _retained(kind: Retain, scale: float) -> tuple[Term, ...]:
    """The retain term of a method."""
    at_least("retain_scale", scale, 0.0)
    objectives: dict[str, Objective] = {"kl": KL(), "nll": NLL(), "hidden_mse": HiddenMSE()}
    return () if kind == "none" else (Term(objectives[kind], "retain", scale),)


# --- likelihood -----------------------------------------------------------------------------------------------------


def ga(training: Training) -> Method:
    """Gradient ascent on the forget set and nothing else; collapses easily.

    Paper: Jang et al. 2023 (arXiv 2210.01504).
    """
    return training.stages(Term(Ascent(), "forget"))


def graddiff(training: Training, retain_scale: float = 1.0) -> Method:
    """Gradient ascent on the forget set, ordinary training on the retain set.

    Paper: Liu et al. 2022, "Continual Learning and Private Unlearning" (arXiv 2203.12817); Maini et al. 2024 (arXiv
        2401.06121).
    """
    return training.stages(Term(Ascent(), "forget"), *_retained("nll", retain_scale))


def ga_kl(training: Training, retain: Retain = "kl", retain_scale: float = 1.0, weight: Weight = Uniform()) -> Method:
    """Gradient ascent with a KL term to the original model on the retain set.

    Paper: Maini et al. 2024, "TOFU", KL minimisation (arXiv 2401.06121).
    """
    return training.stages(Term(Ascent(), "forget", weight=weight), *_retained(retain, retain_scale))


def wga(training: Training, beta: float = 1.0, retain: Retain = "kl", retain_scale: float = 1.0, weight: Weight = Uniform()) -> Method:
    """Gradient ascent in which tokens already forgotten stop counting.

    Paper: Wang et al. 2025, "Rethinking LLM Unlearning Objectives" (arXiv 2502.19301).
    """
    return training.stages(Term(WGA(beta), "forget", weight=weight), *_retained(retain, retain_scale))


def satimp(training: Training, beta1: float = 5.0, beta2: float = 1.0, retain: Retain = "kl", retain_scale: float = 1.0) -> Method:
    """Gradient ascent weighted by saturation and importance.

    Paper: Yang et al. 2025, "Exploring Criteria of Loss Reweighting" (arXiv 2505.11953).
    """
    return training.stages(Term(SatImp(beta1, beta2), "forget"), *_retained(retain, retain_scale))


def undial(training: Training, beta: float = 10.0, retain: Retain = "none", retain_scale: float = 1.0) -> Method:
    """Self-distillation to the model's own predictions with the true token's logit lowered.

    Paper: Dong et al. 2025, "UNDIAL" (arXiv 2402.10052).
    """
    return training.stages(Term(UNDIAL(beta), "forget"), *_retained(retain, retain_scale))


def ceu(training: Training, skip: int = 1, retain: Retain = "none", retain_scale: float = 1.0) -> Method:
    """Cross-entropy to the model's own predictions without the true token.

    Paper: Yang 2025, "CE-U" (arXiv 2503.01224).
    """
    return training.stages(Term(CEU(skip), "forget"), *_retained(retain, retain_scale))


# --- preference -----------------------------------------------------------------------------------------------------


def npo(training: Training, beta: float = 0.1, retain: Retain = "kl", retain_scale: float = 1.0, weight: Weight = Uniform()) -> Method:
    """Negative preference optimisation: the forget answers become less likely than they were, with a bounded push.

    Paper: Zhang et al. 2024 (arXiv 2404.05868).
    """
    return training.stages(Term(NPO(beta), "forget", weight=weight), *_retained(retain, retain_scale))


def simnpo(
    training: Training, beta: float = 2.5, gamma: float = 0.0, forget_scale: float = 0.1375, retain: Retain = "nll", retain_scale: float = 1.0
) -> Method:
    """NPO without a reference, length-normalised; the paper's settings for TOFU forget05.

    Paper: Fan et al. 2024, "Simplicity Prevails" (arXiv 2410.07163).
    """
    return training.stages(Term(SimNPO(beta, gamma), "forget", forget_scale), *_retained(retain, retain_scale))


def dpo(training: Training, beta: float = 0.1, retain: Retain = "nll", retain_scale: float = 1.0) -> Method:
    """Prefers an alternative answer, a refusal or a false one, to the true answer.

    Paper: Maini et al. 2024, "TOFU", IdkDPO (arXiv 2401.06121); Rafailov et al. 2023 (arXiv 2305.18290).
    """
    return training.stages(Term(DPO(beta), "forget"), *_retained(retain, retain_scale))


# --- representations ------------------------------------------------------------------------------------------------


def rmu(
    training: Training,
    layer: int | None = None,
    coefficient: float | None = None,
    coefficient_scale: float = 1.0,
    retain: Retain = "hidden_mse",
    retain_scale: float = 1.0,
    weight: Weight = Uniform(),
) -> Method:
    """Representation misdirection: hidden states of forget tokens are pulled to a random vector, those of retain tokens kept.

    Trains ``mlp.down_proj`` of layers l-2 to l (an adapter there with ``lora``), unless layers or modules say otherwise.

    Paper: Li et al. 2024, "The WMDP Benchmark" (arXiv 2403.03218).
    """
    terms: list[Term] = [Term(RMU(layer, coefficient, coefficient_scale), "forget", weight=weight)]
    if retain == "hidden_mse":
        terms.append(Term(HiddenMSE(layer), "retain", retain_scale))
    else:
        terms += _retained(retain, retain_scale)
    return training.stages(*terms, scope=Scope(Window(layer), ("down",)))


COHERENCE = (
    "The old bridge was closed for repairs, so we walked along the river until we came to the next village.",
    "She put the kettle on, opened the window, and read the letter twice before she answered it.",
    "A good question is often more useful than a quick answer, because it shows what is still unknown.",
    "When the meeting ended, everybody agreed on a date, and the notes were sent round the same evening.",
    "The bakery on the corner sells bread from six in the morning and closes when the shelves are empty.",
    "To repair the fence you need a hammer, a handful of nails, two boards and an hour of dry weather.",
    "My grandmother kept her recipes in a blue notebook that smelled of flour and cinnamon.",
    "Prices rose slowly at first, and then faster than most people had expected.",
)
"""General sentences on which CRISP keeps the last layer where it was."""


def crisp(
    training: Training,
    sae: str | tuple[str, ...],
    sae_layer: int | None = None,
    k: int = 10,
    candidates: int = 10_000,
    ratio: float = 3.0,
    rank_by: Literal["ratio", "count"] = "ratio",
    margin: float = 5.0,
    beta: float = 0.99,
    gamma: float = 0.01,
    coherence: tuple[str, ...] = COHERENCE,
    full: bool = False,
) -> Method:
    """Features of a sparse autoencoder that only the forget text uses are trained away, in a LoRA adapter of rank 4.

    ``sae`` is a folder that `excise sae train` wrote, or saelens:RELEASE/ID. ``full`` trains the model itself instead of an adapter.

    Paper: Ashuach et al. 2025, "CRISP" (arXiv 2508.13650).
    """
    within("beta", beta, 0.0, 1.0)
    adapter = None if full else training.lora or AddAdapter(r=4, alpha=8)
    if full and training.lora is not None:
        raise InputError("method.full trains the model itself, and method.lora an adapter: give one of them")
    *before, train = replace(training, lora=adapter).stages(Term(HiddenMSE(), "forget"), Term(HiddenMSE(), "retain"))
    assert isinstance(train, Train)
    stage = SuppressFeatures(
        sae=sae,
        train=replace(train, coherence=coherence),
        sae_layer=sae_layer,
        choice=Salience(k, candidates, ratio, rank_by),
        margin=margin,
        beta=beta,
        gamma=gamma,
    )
    return (*before, stage)


# --- token level ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Form:
    """A family of token-level methods: each partner with this weight on its forget answers."""

    prefix: str
    """Of the methods' names."""
    weight: Attribution
    called: str
    how: str
    """Which tokens of the forget answers count."""
    paper: str


TOKEN_UNLEARN = "TokenUnlearn (arXiv 2605.00364), eq. 4-10."
FORMS = (
    Form("t", Attribution(select="hard"), "TokenUnlearn", "only on the top r of their tokens", TOKEN_UNLEARN),
    Form(
        "s",
        Attribution(select="soft"),
        "TokenUnlearn",
        "with each token weighted by a softmax of its score",
        TOKEN_UNLEARN,
    ),
    Form(
        "f",
        Facts(),
        "Token-level unlearning",
        "only on the words that carry the fact (the weight `facts`)",
        "ours, within TokenUnlearn's frame (arXiv 2605.00364).",
    ),
)


def _token_level(partner: Callable[..., Method], form: Form) -> Callable[..., Method]:
    """The same method with a token weight on the forget answers."""
    name = partner.__name__.removesuffix("_kl")

    @functools.wraps(partner)
    def method(training: Training, attribution: Attribution = form.weight, **settings: Any) -> Method:
        return partner(training, weight=attribution, **settings)

    signature = inspect.signature(partner)
    parameters = [p for p in signature.parameters.values() if p.name != "weight"]
    attribution = inspect.Parameter("attribution", inspect.Parameter.KEYWORD_ONLY, default=form.weight, annotation="Attribution")
    method.__signature__ = signature.replace(parameters=[*parameters, attribution])  # type: ignore[attr-defined]
    method.__name__ = method.__qualname__ = f"{form.prefix}_{name}"
    first = (partner.__doc__ or "").strip().split("\n")[0]
    method.__doc__ = f"{form.called} on {partner.__name__}: the forget answers {form.how}.\n\nIts uniform partner: {first}\n\nPaper: {form.paper}\n"
    return method


def compose(training: Training, terms: tuple[Any, ...]) -> Method:
    """Terms written in the recipe: each has an objective, a side of the data, and optionally a scale and a token weight.

    ``{objective: {name: npo, beta: 0.2}, data: forget, scale: 1.0, weight: {name: attribution}}``. This is how a
    registered objective or weight is used without writing a method for it.
    """
    from excise.recipe import component

    if not terms:
        raise InputError("method.terms is empty: give at least one {objective, data}")
    built: list[Term] = []
    for index, entry in enumerate(terms):
        place = f"method.terms.{index}"
        if not isinstance(entry, dict) or "objective" not in entry or "data" not in entry:
            raise InputError(f"{place}: expected a mapping with 'objective' and 'data'")
        refuse_unknown(entry, ["objective", "data", "scale", "weight"], place)
        parts: dict[str, Any] = {**entry, "objective": component("objectives", entry["objective"], f"{place}.objective")}
        if "weight" in entry:
            parts["weight"] = component("weights", entry["weight"], f"{place}.weight")
        if entry["data"] not in ("forget", "retain"):
            raise InputError(f"{place}.data: expected forget or retain, got {entry['data']!r}")
        built.append(Term(**parts))
    return training.stages(*built)


# --- edits of the weights -------------------------------------------------------------------------------------------


def ember(
    concept: str = "",
    rank: int = 200,
    keep: float = 0.01,
    restarts: int = 1,
    factor_seed: int = 42,
    patience: int = 50,
    ratio: float = 2.0,
    judge: str | Mapping[str, Any] = "similarity",
    accept: float | None = None,
    features: tuple[int, ...] | None = None,
    strength: float | Literal["search"] = "search",
    search: Search = Search(),
) -> Method:
    """EMBER: a concept's own directions are subtracted from the embeddings of the tokens that only its texts have.

    Forget: texts about the concept; retain: neutral texts. ``strength: search`` needs the questions of the concepts benchmark, or give
    a number. Put it first in a chain: ``ember+rmu``, ``ember+snmf``, ``ember+t_npo``; what follows refers to the edited model.

    Paper: EMBER (arXiv 2606.03695).
    """
    factorisation = SparseMF(rank=rank, keep=keep, restarts=restarts, seed=factor_seed, patience=patience)
    return (EditEmbeddings(concept, factorisation, Choice(ratio, judge, accept, features), strength, search),)


def snmf(
    concept: str = "",
    mlp_layers: tuple[int, ...] | None = None,
    mlp_rank: int = 100,
    mlp_keep: float = 0.01,
    mlp_seed: int = 42,
    mlp_iterations: int = 200,
    places: int | None = 8192,
    mass: float = 0.95,
    mlp_ratio: float = 2.0,
    judge: str | Mapping[str, Any] = "similarity",
    accept: float | None = None,
    mlp_features: tuple[int, ...] | None = None,
    mlp_strength: float | Literal["search"] = "search",
    mlp_search: Search = Search(grid=(1.0, 4.0, 7.0, 10.0)),
) -> Method:
    """SNMF: a concept's features in the MLP activations are projected out of what the neurons that carry them read and write.

    Forget: texts about the concept; retain: neutral texts. Layers: by default the lower third. A strength of 1 is the projection.

    Paper: Shafran et al. 2025 (arXiv 2506.10920), as a baseline and partner of EMBER (arXiv 2606.03695).
    """
    factorisation = SemiNMF(rank=mlp_rank, keep=mlp_keep, seed=mlp_seed, iterations=mlp_iterations)
    choice = Choice(mlp_ratio, judge, accept, mlp_features)
    return (EditMlp(concept, mlp_layers, factorisation, choice, mlp_strength, mlp_search, mass, places),)


_alone: tuple[Callable[..., Method], ...] = (ga, graddiff, ga_kl, wga, npo, simnpo, dpo, undial, satimp, ceu, rmu, crisp, compose, ember, snmf)
_by_token: tuple[Callable[..., Method], ...] = (ga_kl, wga, npo, rmu)

_own: dict[str, Callable[..., Method] | str] = {
    function.__name__: function
    for function in (
        *_alone,
        *(_token_level(partner, form) for form in FORMS for partner in _by_token),
    )
}

METHODS: dict[str, Callable[..., Method] | str] = {
    **_own,
    **{name: f"excise.adapter_methods:{name}" for name in ("maat", "adapter_negation", "retain_only")},
}
