"""How strongly a model is edited: a grid of strengths, each tried on questions that no report uses."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from excise.data.example import Benchmark
from excise.errors import InputError
from excise.evaluation.collect import collect
from excise.evaluation.metrics.choice import ChoiceAccuracy, ChoiceProbability
from excise.evaluation.metrics.erasure import COHERENCE, Coherence, Efficacy, Kept, Specificity
from excise.evaluation.plan import Plan
from excise.evaluation.records import Record, Records
from excise.evaluation.score import ExampleMetric, Others, SetMetric, Unavailable, harmonic_mean
from excise.files import read_json, write_json
from excise.objectives.check import positive, within
from excise.stages.state import State

SPLITS: Mapping[str, str] = {"concept": "tuning_concept", "similar": "tuning_similar", "mmlu": "mmlu", "coherence": "coherence"}
"""What is measured -> the benchmark's split for it."""
Apply = Callable[[float], None]
"""Puts the model into the state that a strength gives; 0 is the model as it was."""
CLEAR = 2.0
"""Standard errors by which the accuracy before must exceed chance to be worth measuring."""


@dataclass(frozen=True)
class Search:
    """Takes the strength with the best harmonic mean of efficacy, specificity and coherence among those that pass the gates.

    A strength passes if the fractions of what is left of general questions (MMLU where there are any, else those of a similar domain)
    and of coherence are at least ``gate``. Ties go to the smaller strength; where none passes, nothing is edited.

    Paper: EMBER (arXiv 2606.03695), choice of the strength.
    Differs: a warning where the search ends at the top of its grid; probabilities in the place of accuracies that are at chance.
    """

    grid: tuple[float, ...] = (0.5, 1.0, 2.0, 5.0, 10.0, 50.0, 100.0, 200.0)
    gate: float = 0.9
    """Smallest fraction of general questions and of coherence that must be left."""
    measure: Literal["auto", "accuracy", "probability"] = "auto"
    """What questions are scored by; auto: the probability of the right option where the accuracy before is not clearly above chance."""
    limit: int | None = None
    """Only the first so many examples of each kind."""
    max_new_tokens: int = 32
    """Length of the continuations whose coherence is judged."""

    def __post_init__(self) -> None:
        if not self.grid:
            raise InputError("grid is empty: give strengths to try")
        for value in self.grid:
            positive("grid", value)
        within("gate", self.gate, 0.0, 1.0)


@dataclass(frozen=True)
class Trial:
    """One strength and what it does; a fraction is None where it was not measured."""

    strength: float
    efficacy: float | None = None
    general: float | None = None
    """Fraction of MMLU that is left, or of the similar domain where there is no MMLU."""
    specificity: float | None = None
    coherence: float | None = None
    overall: float = 0.0
    """0 where a gate is not passed."""
    note: str = ""


@dataclass(frozen=True)
class Found:
    """The strength that was chosen; 0 where none is acceptable."""

    strength: float
    measure: Literal["accuracy", "probability"]
    trials: tuple[Trial, ...]
    warning: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"measure": self.measure, "trials": [asdict(trial) for trial in self.trials], "warning": self.warning}


def require_questions(benchmark: Benchmark) -> None:
    """Refuses a benchmark that has nothing to search with."""
    for kind in ("concept", "similar"):
        if not benchmark.splits.get(SPLITS[kind]):
            raise InputError(
                f"strength = search needs choice questions to tune by, and the benchmark {benchmark.name!r} has no split {SPLITS[kind]!r} "
                "(the concepts benchmark makes it from the train questions of mc_questions.json): give a number, such as strength = 10"
            )


def search_strength(search: Search, state: State, apply: Apply) -> Found:
    """Tries the strengths of the grid from the weakest on, and leaves the model as it was.

    Finished trials are kept in the work folder, so that a run that was interrupted does not repeat them.

    Raises:
        InputError: the model knows no more about the concept's questions than chance, so that nothing can be measured.
    """
    require_questions(state.benchmark)
    tuning = _Tuning.of(search, state)
    place = None if state.folder is None else state.folder / "checkpoints" / f"strengths-{state.stage_index}.json"
    known = _remembered(place, search, tuning.measure) if state.resume else {}
    grid = sorted(set(search.grid))
    state.narrator.begin("trying strengths", len(grid))
    trials: list[Trial] = []
    for strength in grid:
        if strength not in known:
            apply(strength)
            known[strength] = tuning.trial(strength)
        trials.append(known[strength])
        if place is not None:
            write_json(place, {"search": asdict(search), "measure": tuning.measure, "trials": [asdict(trial) for trial in trials]})
        state.narrator.advance("trying strengths", 1, f"strength {strength:g}: overall {known[strength].overall:.3f}")
    state.narrator.end("trying strengths")
    apply(0.0)
    return _chosen(trials, tuning.measure)


def _chosen(trials: list[Trial], measure: Literal["accuracy", "probability"]) -> Found:
    best = max(trials, key=lambda trial: (trial.overall, -trial.strength))
    if best.overall <= 0:
        return Found(0.0, measure, tuple(trials), "no strength of the grid erases anything and passes the gates, so nothing was edited")
    warning = ""
    if best.strength == trials[-1].strength and len(trials) > 1:
        warning = (
            f"the search ended at the top of its grid ({best.strength:g}): fractions that are clipped at 1 do not see how far a strength "
            "overshoots a model that never learned the concept; compare with smaller ones"
        )
    return Found(best.strength, measure, tuple(trials), warning)


def _remembered(place: Path | None, search: Search, measure: str) -> dict[float, Trial]:
    if place is None or not place.exists():
        return {}
    kept = read_json(place)
    if kept["measure"] != measure or kept["search"] != {**asdict(search), "grid": list(search.grid)}:
        return {}
    return {trial["strength"]: Trial(**trial) for trial in kept["trials"]}


@dataclass(frozen=True)
class _Tuning:
    """The questions, the answers of the model before, and what questions are scored by."""

    search: Search
    state: State
    before: Records
    measure: Literal["accuracy", "probability"]

    @staticmethod
    def of(search: Search, state: State) -> _Tuning:
        before = dict(_asked(search, state, [kind for kind, split in SPLITS.items() if state.benchmark.splits.get(split)]))
        measure = search.measure if search.measure != "auto" else "accuracy" if _clear(before) else "probability"
        tuning = _Tuning(search, state, before, measure)
        reasons = {kind: reason for kind in before if (reason := tuning._unusable(kind))}
        if "concept" in reasons or not {"mmlu", "similar"} & (set(before) - set(reasons)):
            first = reasons.get("concept") or next(iter(reasons.values()))
            raise InputError(f"strength = search: {first}; give a number, such as strength = 10, or measure = probability")
        for kind, reason in reasons.items():
            state.narrator.say(f"The search for a strength goes without {kind}: {reason}.")
            del before[kind]
        return tuning

    def _unusable(self, kind: str) -> str:
        """Why a kind of examples says nothing about an edit; empty where it does."""
        try:
            self._score(Coherence(COHERENCE) if kind == "coherence" else Efficacy(self._kept(kind)), self.before)
        except Unavailable as error:
            return str(error)
        return ""

    def trial(self, strength: float) -> Trial:
        """Questions first; texts are only continued where these are good enough."""
        general = "mmlu" if "mmlu" in self.before else "similar"
        try:
            now = dict(_asked(self.search, self.state, [kind for kind in self.before if kind != "coherence"]))
            efficacy = self._score(Efficacy(self._kept("concept")), now)
            left = self._score(Specificity((self._kept(general),)), now)
            specificity = self._score(Specificity(tuple(self._kept(kind) for kind in ("mmlu", "similar") if kind in now)), now)
            trial = Trial(strength, efficacy, left, specificity)
            if efficacy <= 0 or left < self.search.gate:
                reason = "it erases nothing" if efficacy <= 0 else f"less than {self.search.gate:g} of the {general} questions is left"
                return replace(trial, note=reason)
            if "coherence" not in self.before:
                return replace(trial, overall=_mean(efficacy, specificity), note="no texts to judge coherence by")
            now |= _asked(self.search, self.state, ["coherence"])
            coherence = self._score(Coherence(COHERENCE), now)
        except Unavailable as error:
            return Trial(strength, note=str(error))
        except InputError as error:  # the same texts worked before the edit: predictions that are not finite any more
            return Trial(strength, note=str(error))
        if coherence < self.search.gate:
            return replace(trial, coherence=coherence, note=f"less than {self.search.gate:g} of the coherence is left")
        return replace(trial, coherence=coherence, overall=_mean(efficacy, specificity, coherence))

    def _kept(self, kind: str) -> Kept:
        metric: ExampleMetric = ChoiceAccuracy() if self.measure == "accuracy" else ChoiceProbability()
        return Kept(kind, metric)

    def _score(self, metric: SetMetric, now: Records) -> float:
        value = metric(now, Others(baseline=self.before)).value
        if value is None or math.isnan(value):
            raise Unavailable("a fraction cannot be computed")
        return float(value)


def _mean(*parts: float) -> float:
    return float(harmonic_mean([np.array([part]) for part in parts])[0])


def _asked(search: Search, state: State, kinds: list[str]) -> Records:
    """What the model says now: options of questions, continuations of texts."""
    splits = {kind: state.benchmark.split(SPLITS[kind]) for kind in kinds}
    continued = Plan(true=False, generation=True, max_new_tokens=search.max_new_tokens)
    plans = {kind: continued if kind == "coherence" else Plan(true=False, options=True) for kind in kinds}
    return collect(state.subject, Benchmark("tuning", splits), plans, precision=state.precision, limit=search.limit)


def _clear(before: Records) -> bool:
    """Whether the accuracy of every kind of question is clearly above chance."""
    return all(_above_chance(rows) for kind, rows in before.items() if kind != "coherence")


def _above_chance(rows: Sequence[Record]) -> bool:
    metric = ChoiceAccuracy()
    values = [value for row in rows if (value := metric.per_example(row)) is not None]
    chances = [1 / len(row.options) for row in rows if row.options]
    if not values or not chances:
        return False
    accuracy, chance, n = sum(values) / len(values), sum(chances) / len(chances), len(values)
    return accuracy - chance > CLEAR * math.sqrt(chance * (1 - chance) / n)
