"""SPACE.yaml: what varies between the trials of a sweep, what counts, and when a trial is given up early."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from excise.errors import InputError, did_you_mean
from excise.evaluation.score import ExampleMetric
from excise.objectives.check import at_least
from excise.recipe import Recipe
from excise.settings import build, number_like, put, refuse_unknown

Settings = Mapping[str, Any]
"""Place in the recipe -> value, such as ``method.lr`` -> 1e-4."""

VARIED = ("method", "seed")
COSTS = ("cost.seconds", "cost.steps", "cost.tokens", "cost.changed_parameters")
"""What a trial's training took, from its result; lower is better."""
MOST_CHECKED = 512
"""Combinations that are all checked beforehand; of a larger space each value is checked beside the first of the others."""


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``; whole ones where both are, unless ``whole`` says otherwise."""

    low: float
    high: float
    log: bool = False
    """Drawn evenly on a logarithmic scale."""
    step: float | None = None
    """Only low, low + step, ..."""
    points: int | None = None
    """So many values for a grid, evenly spaced."""
    whole: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low <= self.high):
            raise InputError(f"low is {self.low} and high is {self.high}: give two numbers, the lower first")
        if self.log and self.low <= 0:
            raise InputError(f"low is {self.low}: a logarithmic range begins above 0")
        if self.log and self.step is not None:
            raise InputError("log and step exclude each other: leave one of them out")
        if self.step is not None and self.step <= 0:
            raise InputError(f"step is {self.step}: it must be above 0")
        if self.points is not None:
            at_least("points", self.points, 1)

    def suggest(self, trial: Any, name: str) -> float | int:
        if self.whole:
            return int(trial.suggest_int(name, int(self.low), int(self.high), log=self.log, step=int(self.step or 1)))
        return float(trial.suggest_float(name, self.low, self.high, log=self.log, step=self.step))

    def ends(self) -> tuple[Any, ...]:
        """The extremes, which are tried before anything runs."""
        ends = dict.fromkeys((self.low, self.high))
        return tuple(int(end) if self.whole else float(end) for end in ends)

    def grid(self) -> tuple[Any, ...]:
        """The values of a grid; none where neither ``points`` nor ``step`` nor whole numbers say which."""
        if self.points is not None:
            shares = [i / max(1, self.points - 1) for i in range(self.points)]
            values = [self.low * (self.high / self.low) ** s if self.log else self.low + s * (self.high - self.low) for s in shares]
        elif self.step is not None or self.whole:
            step = self.step or 1.0
            values = [self.low + i * step for i in range(math.floor((self.high - self.low) / step + 1e-9) + 1)]
        else:
            return ()
        return tuple(dict.fromkeys(round(v) if self.whole else min(self.high, float(v)) for v in values))

    def holds(self, value: Any) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool) and self.low <= value <= self.high


@dataclass(frozen=True)
class Choice:
    """One of several values; mappings and lists are told apart by their JSON."""

    values: tuple[Any, ...]

    def suggest(self, trial: Any, name: str) -> Any:
        return self.value(trial.suggest_categorical(name, [self.label(value) for value in self.values]))

    def ends(self) -> tuple[Any, ...]:
        return self.values

    def grid(self) -> tuple[Any, ...]:
        return self.values

    def holds(self, value: Any) -> bool:
        return value in self.values

    @staticmethod
    def label(value: Any) -> Any:
        """What Optuna's storage holds of a value: only scalars."""
        return value if value is None or isinstance(value, str | int | float | bool) else json.dumps(value, sort_keys=True)

    def value(self, label: Any) -> Any:
        return next(value for value in self.values if self.label(value) == label and type(self.label(value)) is type(label))


Dimension = Range | Choice


@dataclass(frozen=True)
class Bound:
    """What a score must hold."""

    at_least: float | None = None
    at_most: float | None = None
    keep: float | None = None
    """Share of the value before unlearning that must be left."""

    def __post_init__(self) -> None:
        if self.keep is not None and not 0 <= self.keep <= 1:
            raise InputError(f"keep is {self.keep}: a share from 0 to 1 is expected")

    def __bool__(self) -> bool:
        return any(limit is not None for limit in (self.at_least, self.at_most, self.keep))

    def broken(self, name: str, value: float, before: float | None) -> str:
        """Why the value does not hold the bound; empty where it does."""
        if self.at_least is not None and value < self.at_least:
            return f"{name} is {value:.4g}, below {self.at_least:g}"
        if self.at_most is not None and value > self.at_most:
            return f"{name} is {value:.4g}, above {self.at_most:g}"
        if self.keep is not None and before is not None and value < self.keep * before:
            return f"{name} is {value:.4g}, below {self.keep:g} of the {before:.4g} before unlearning"
        return ""


@dataclass(frozen=True)
class Objective:
    """A score that counts."""

    score: str
    """Name of a score of the recipe's suite, or one of cost.seconds, cost.steps, cost.tokens, cost.changed_parameters."""
    better: Literal["higher", "lower"] | None = None
    """None: what the score itself says."""
    phase: str = "after"
    """Of which phase: after, or attack:NAME of an attack in the recipe."""
    weight: float | None = None
    """How much it counts in the choice of the best trial; None: 1 for a score, 0 for a cost."""
    at_least: float | None = None
    """The best trial must have at least this."""
    at_most: float | None = None
    keep: float | None = None
    """The best trial must have left at least this share of the value before unlearning."""

    def __post_init__(self) -> None:
        self.bound.__bool__()
        if self.weight is not None:
            at_least("weight", self.weight, 0.0)

    @property
    def bound(self) -> Bound:
        return Bound(self.at_least, self.at_most, self.keep)

    @property
    def name(self) -> str:
        """The score, with its phase where that is not ``after``."""
        return self.score if self.phase == "after" else f"{self.phase} {self.score}"

    @property
    def is_cost(self) -> bool:
        return self.score in COSTS

    @property
    def share(self) -> float:
        return self.weight if self.weight is not None else 0.0 if self.is_cost else 1.0


@dataclass(frozen=True)
class Prune:
    """Gives a trial up when a cheap look at a few examples breaks a bound.

    The look comes after training and before the full evaluation, and with ``every`` also during training.
    """

    score: str
    """A score of one split, such as retain.probability; one that needs no generation is cheapest."""
    at_least: float | None = None
    at_most: float | None = None
    keep: float | None = None
    """Share of the value before unlearning, on the same examples, that must be left."""
    limit: int = 16
    """Examples that are looked at."""
    every: int = 0
    """Also look after every so many steps of training; 0 does not."""

    def __post_init__(self) -> None:
        at_least("prune.limit", self.limit, 1)
        at_least("prune.every", self.every, 0)
        if not self.bound:
            raise InputError("prune has no bound: give at_least, at_most or keep")

    @property
    def bound(self) -> Bound:
        return Bound(self.at_least, self.at_most, self.keep)


@dataclass(frozen=True)
class Space:
    """What a sweep tries, and by what it judges."""

    dimensions: Mapping[str, Dimension]
    objectives: tuple[Objective, ...]
    trials: tuple[Settings, ...] = ()
    """Settings that are tried first, each once."""
    sampler: Literal["tpe", "nsga2", "random", "grid"] = "tpe"
    """grid: every combination once."""
    seed: int = 0
    prune: Prune | None = None

    @staticmethod
    def parse(values: Mapping[str, Any], where: str = "the space") -> Space:
        """Reads settings as a person writes them.

        Raises:
            InputError: an unknown name, a space without anything to vary, a value that is none.
        """
        values = number_like(dict(values))
        refuse_unknown(values, ["space", "objectives", "trials", "sampler", "seed", "prune"], "")
        dimensions = {str(name): _dimension(given, f"space.{name}") for name, given in _mapping(values.get("space") or {}, "space").items()}
        objectives = tuple(_objective(given, f"objectives.{i}") for i, given in enumerate(_list(values.get("objectives"), "objectives")))
        listed = tuple(_mapping(given, f"trials.{i}") for i, given in enumerate(_list(values.get("trials") or [], "trials")))
        for name in (*dimensions, *(name for settings in listed for name in settings)):
            _check_place(name)
        if not dimensions and not listed:
            raise InputError(f"{where} varies nothing: give 'space' (places in the recipe and their values) or 'trials' (a list of settings)")
        if not objectives:
            raise InputError(f"{where} has no 'objectives': name the scores that count, such as forget.fact_recall and retain.fact_recall")
        names = [objective.name for objective in objectives]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise InputError(f"objectives: {twice} stands there twice")
        rest = {name: values[name] for name in ("sampler", "seed") if name in values}
        prune = build(Prune, values["prune"], "prune") if values.get("prune") else None
        _check_rest(rest)
        space = Space(dimensions, objectives, listed, prune=prune, **rest)
        space._check_lists()
        return space

    def _check_lists(self) -> None:
        for number, settings in enumerate(self.trials):
            if self.dimensions and set(settings) != set(self.dimensions):
                odd = sorted(set(settings) ^ set(self.dimensions))[0]
                raise InputError(f"trials.{number}: {odd} stands either there or in 'space', and both must name the same settings")
            for name, value in settings.items():
                if self.dimensions and not self.dimensions[name].holds(value):
                    raise InputError(f"trials.{number}.{name}: {value!r} is not in the space")
        if self.sampler == "grid":
            for name, dimension in self.dimensions.items():
                if not dimension.grid():
                    raise InputError(f"space.{name}: a grid needs a list of values, or 'points' or 'step' beside low and high")

    @property
    def fixed(self) -> tuple[dict[str, Any], ...]:
        """The trials that are known beforehand: the list, and the cells of a grid that are not in it."""
        cells = list(map(dict, self.trials))
        if self.sampler == "grid" and self.dimensions:
            cells += [cell for cell in self._product([d.grid() for d in self.dimensions.values()]) if cell not in cells]
        return tuple(cells)

    @property
    def samples(self) -> bool:
        """Whether trials are drawn beyond those that are fixed."""
        return bool(self.dimensions) and self.sampler != "grid"

    def how_many(self, asked: int | None) -> int:
        """The number of trials.

        Raises:
            InputError: none is given where the space does not say it.
        """
        if asked is not None:
            if asked < 1:
                raise InputError(f"--trials {asked}: at least one trial is needed")
            return asked if self.samples else min(asked, len(self.fixed))
        if self.samples:
            raise InputError(f"--trials N is needed: the sampler {self.sampler} draws as many as it is told to")
        return len(self.fixed)

    def combinations(self) -> Iterator[dict[str, Any]]:
        """Settings that together show every value of every dimension; all combinations where there are few."""
        yield from self.fixed
        ends = [dimension.ends() for dimension in self.dimensions.values()]
        if self.sampler == "grid" or not ends:
            return
        if math.prod(map(len, ends)) <= MOST_CHECKED:
            yield from self._product(ends)
            return
        first = {name: values[0] for name, values in zip(self.dimensions, ends, strict=True)}
        yield from ({**first, name: value} for name, values in zip(self.dimensions, ends, strict=True) for value in values)

    def _product(self, values: Sequence[Sequence[Any]]) -> Iterator[dict[str, Any]]:
        return (dict(zip(self.dimensions, cell, strict=True)) for cell in itertools.product(*values))


def recipe_with(base: Mapping[str, Any], settings: Settings) -> Recipe:
    """The recipe of a trial.

    Raises:
        InputError: a combination that is none; the message names the settings.
    """
    said = f"with {shown(settings)}"
    values = dict(base)
    for name in sorted(settings, key=lambda name: name.count(".")):  # method before method.lr
        values = put(values, name, settings[name], said)
    try:
        return Recipe.parse(values)
    except InputError as error:
        raise InputError(f"{said}: {error}") from None


def checked(base: Mapping[str, Any], space: Space) -> Space:
    """The space with the direction of every objective filled in, after every combination that stands for the others was parsed.

    Raises:
        InputError: a combination that is none; a score that the suite does not have, or one without a direction.
    """
    recipes = [recipe_with(base, settings) for settings in space.combinations()]
    suite, attacks = recipes[0].suite(), [f"attack:{named.label}" for named in recipes[0].attack_list()]
    known: dict[str, str] = dict(_directions(suite))
    if (prune := space.prune) is not None:
        if prune.every and any(getattr(s, "evaluate_every", 0) for r in recipes for _, stages in r.methods() for s in stages):
            raise InputError("prune.every and method.evaluate_every both say when to look around: leave one of them out")
        single = [name for name in known if "." in name]
        if prune.score not in single:
            raise InputError(f"prune.score: {prune.score!r} is no score of one split: {did_you_mean(prune.score, single)}")
        if prune.keep is not None and known[prune.score] == "lower":
            raise InputError(f"prune.keep asks that a share of {prune.score} is left, and lower is better there: give at_most")
    known |= dict.fromkeys(COSTS, "lower")
    objectives: list[Objective] = []
    for objective in space.objectives:
        if objective.phase not in ("after", *attacks):
            hint = did_you_mean(objective.phase, ["after", *attacks])
            raise InputError(f"objectives: {objective.score} is asked of the phase {objective.phase!r}, which this recipe has not: {hint}")
        better = objective.better or known.get(objective.score.partition("@")[0])
        if better is None and objective.phase == "after" and not suite.live:
            raise InputError(f"objectives: the suite {suite.name!r} has no score {objective.score!r}: {did_you_mean(objective.score, known)}")
        if better not in ("higher", "lower"):
            raise InputError(f"objectives: {objective.score} has no direction of its own: give it as {{score: ..., better: higher}} (or lower)")
        objectives.append(dataclasses.replace(objective, better=cast(Any, better)))
    return dataclasses.replace(space, objectives=tuple(objectives))


def _directions(suite: Any) -> Iterator[tuple[str, str]]:
    for measure in suite.measures:
        if isinstance(measure.metric, ExampleMetric):
            yield from ((f"{split}.{measure.name}", suite.direction(measure.metric, split)) for split in measure.splits)
        else:
            yield measure.name, measure.metric.better


def _dimension(given: Any, place: str) -> Dimension:
    if isinstance(given, list):
        if not given:
            raise InputError(f"{place}: the list is empty")
        return Choice(tuple(given))
    if isinstance(given, Mapping) and "low" in given and "high" in given:
        whole = all(isinstance(given[end], int) and not isinstance(given[end], bool) for end in ("low", "high"))
        whole = whole and float(given.get("step") or 1).is_integer()
        try:
            return build(Range, {"whole": whole, **given}, place)
        except InputError as error:
            raise InputError(str(error) if str(error).startswith(place) else f"{place}: {error}") from None
    raise InputError(f"{place}: expected a list of values, or {{low: ..., high: ...}} with log, step or points")


def _objective(given: Any, place: str) -> Objective:
    return build(Objective, {"score": given} if isinstance(given, str) else _mapping(given, place), place)


def _check_place(name: str) -> None:
    if name.split(".")[0] not in VARIED:
        raise InputError(f"space.{name}: a sweep varies method and seed; model, data, precision and evaluation are the same in every trial")


def _check_rest(rest: Mapping[str, Any]) -> None:
    allowed = ("tpe", "nsga2", "random", "grid")
    if (kind := rest.get("sampler", "tpe")) not in allowed:
        raise InputError(f"sampler: unknown sampler {kind!r}: {did_you_mean(str(kind), allowed)}")
    if not isinstance(rest.get("seed", 0), int):
        raise InputError(f"seed: a whole number is expected (got {rest['seed']!r})")


def _mapping(value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError(f"{place}: expected settings as 'name: value' lines, got {type(value).__name__}")
    return cast("dict[str, Any]", dict(value))


def _list(value: Any, place: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise InputError(f"{place}: expected a list, got {type(value).__name__}")
    return value


def _shown(value: Any) -> str:
    return json.dumps(value) if isinstance(value, Mapping | list) else f"{value:g}" if isinstance(value, float) else str(value)


def shown(settings: Settings) -> str:
    """Settings in a line."""
    return ", ".join(f"{name}={_shown(value)}" for name, value in settings.items()) or "the recipe as it is"
