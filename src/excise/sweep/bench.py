"""A worker's bench: the model, the data and what is known beforehand, loaded once, and one trial after the other on it."""

from __future__ import annotations

import dataclasses
import gc
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from filelock import FileLock

from excise import environment as surroundings
from excise.attacks.scene import Scene, narrowed, restored
from excise.attacks.series import add_steps_to_half, run_attacks
from excise.data.example import Benchmark
from excise.errors import Collapse, InputError, did_you_mean
from excise.evaluation.plan import Plan
from excise.evaluation.records import Record, Records
from excise.evaluation.score import Score
from excise.evaluation.store import read_records, write_records
from excise.evaluation.suites import Suite, evaluate, score
from excise.files import cache_folder, folder_beside, read_json, write_json, write_text
from excise.loading import ModelSpec, load
from excise.precision import resolve_precision
from excise.recipe import Recipe
from excise.run import SCHEMA, narrated, run_stages, twin_spec
from excise.saving import save
from excise.stages.adapters import AddAdapter
from excise.stages.state import Narrator, Silent, Stage, State
from excise.stages.train import Train
from excise.subject import Subject
from excise.sweep.space import Prune, Settings, Space, recipe_with, shown

Scores = Mapping[str, Score]


@dataclass(frozen=True)
class Outcome:
    """What came of a trial."""

    state: str
    """complete, pruned or failed."""
    values: Mapping[str, float] = field(default_factory=dict)
    """Objective -> value, of a complete trial."""
    reason: str = ""

    @staticmethod
    def read(folder: Path) -> Outcome:
        """From the folder of a finished trial."""
        row = read_json(folder / "result.json")["sweep"]
        return Outcome(row["state"], row["values"], row["reason"])


class Pruned(Exception):
    """A cheap look broke the bound; the message says how."""


@dataclass
class Bench:
    """Everything that the trials of a sweep share."""

    base: Mapping[str, Any]
    """The recipe as it was given."""
    space: Space
    folder: Path
    """The sweep's."""
    device: str | None = None
    narrator: Narrator = field(default_factory=Silent)
    before: dict[str, Score] = field(default_factory=dict)
    phases: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What stands in every trial's result: the scores before, and those of the twin."""
    baseline: Records = field(default_factory=dict)
    retrained: Records | None = None
    stale: bool = False
    """Whether the model must be loaded anew before it is used again."""

    def __post_init__(self) -> None:
        self.recipe = recipe_with(self.base, next(iter(self.space.combinations())))
        self.spec = cast(ModelSpec, self.recipe.model_spec())
        if self.device is not None:
            self.spec = dataclasses.replace(self.spec, device=self.device)
        self.suite: Suite = self.recipe.suite()
        self.redact = self.recipe.privacy == "redact"
        self.benchmark: Benchmark = self.recipe.benchmark_loader()()
        self.benchmark.require("forget", "retain")
        self.suite.sources(self.benchmark)
        self.subject = load(self.spec)
        self._check_combinations()
        self._know()
        self._check_objectives()
        self.look = None if self.space.prune is None else Look(self, self.space.prune)

    def _check_combinations(self) -> None:
        """Refuses what does not fit this model and data, before anything costs time."""
        for settings in self.space.combinations():
            recipe = recipe_with(self.base, settings)
            state = self._state(recipe, None)
            try:
                for _, stages in recipe.methods():
                    for stage in stages:
                        stage.check(state)
            except InputError as error:
                raise InputError(f"with {shown(settings)}: {error}") from None

    # --- what is known beforehand -------------------------------------------------------------------------------------

    def _know(self) -> None:
        """The scores before unlearning and of the twin: asked by the first worker, read by all others and after a resume."""
        place = self.folder / "baseline"
        with FileLock(self.folder / "baseline.lock"):
            if (place / "scores.json").exists():
                found = read_json(place / "scores.json")
                self.baseline = read_records(place, "before")
                self.retrained = read_records(place, "retrained") if "retrained" in found else None
            else:
                found = self._ask()
                if not self.redact:  # records hold texts
                    with folder_beside(place, overwrite=True) as part:
                        write_records(part, "before", self.baseline)
                        if self.retrained is not None:
                            write_records(part, "retrained", self.retrained)
                        write_json(part / "scores.json", found)
        self.phases = {phase: {self.suite.name: rows} for phase, rows in found.items()}
        self.before = {name: Score.from_json(row) for name, row in found["before"].items()}

    def _ask(self) -> dict[str, dict[str, Any]]:
        found: dict[str, Scores] = {}
        if self.recipe.evaluation.retrained is not None:
            self.narrator.say("Asking the twin, which never saw the forget split.")
            twin = load(twin_spec(self.recipe))
            self.retrained, scores = self._evaluate(twin, kept=True)
            found["retrained"] = {**scores, **score(self.retrained, self.suite, self.retrained)}
            del twin
            gc.collect()
        self.narrator.say("Asking the model before unlearning.")
        self.baseline, scores = self._evaluate(self.subject, kept=True)
        found["before"] = {**scores, **score(self.baseline, self.suite, self.retrained, self.baseline)}
        return {phase: {name: s.to_json() for name, s in scores.items()} for phase, scores in found.items()}

    def _evaluate(self, subject: Subject, *, kept: bool = False) -> tuple[Records, dict[str, Score]]:
        settings = self.recipe.evaluation
        return evaluate(
            subject,
            self.benchmark,
            self.suite,
            retrained=self.retrained,
            baseline=self.baseline or None,
            precision=self.recipe.precision,
            generate_batch=settings.batch,
            limit=settings.limit,
            cache=cache_folder() / "records" if kept and not self.redact else None,
            progress=narrated(self.narrator),
        )

    def _check_objectives(self) -> None:
        """Refuses a score that has no value even before unlearning."""
        for objective in self.space.objectives:
            if objective.is_cost or objective.phase != "after":
                continue
            if objective.score not in self.before:
                raise InputError(f"objectives: there is no score {objective.score!r}: {did_you_mean(objective.score, self.before)}")
            if (known := self.before[objective.score]).value is None:
                raise InputError(f"objectives: {objective.score} is unavailable ({known.unavailable})")

    @property
    def values_before(self) -> dict[str, float]:
        """Objective -> value before unlearning, for bounds; costs and attacks have none."""
        known = {o.name: self.before.get(o.score) for o in self.space.objectives if o.phase == "after"}
        return {name: s.value for name, s in known.items() if s is not None and s.value is not None}

    # --- one trial ----------------------------------------------------------------------------------------------------

    def run(self, settings: Settings, folder: Path, number: int, *, keep_model: bool = False) -> Outcome:
        """Runs a trial into a folder of its own that appears whole; the model is afterwards what it was, to the bit."""
        recipe = recipe_with(self.base, settings)
        if self.stale:
            self.subject, self.stale = load(self.spec), False
        begun = time.time()
        with folder_beside(folder) as part:
            write_text(part / "recipe.yaml", recipe.to_yaml())
            state = self._state(recipe, part)
            outcome, after, attacked = self._outcome(recipe, state, part, keep_model)
            evaluations = {**self.phases, **({"after": {self.suite.name: {n: s.to_json() for n, s in after.items()}}} if after else {}), **attacked}
            result = {
                "schema": SCHEMA,
                "excise": surroundings.version("excise"),
                "recipe": recipe.expanded(),
                "environment": {"seed": recipe.seed, "precision": state.precision, "device": str(self.subject.device)},
                "plan": state.plan,
                "stages": state.records,
                "seconds": round(time.time() - begun, 1),
                "evaluations": evaluations,
                "sweep": {"number": number, "settings": dict(settings), **dataclasses.asdict(outcome)},
            }
            write_json(part / "result.json", result)
        return outcome

    def _state(self, recipe: Recipe, folder: Path | None) -> State:
        precision = resolve_precision(recipe.precision, self.subject.device)
        return State(
            subject=self.subject, benchmark=self.benchmark, seed=recipe.seed, precision=precision, folder=folder, checkpoints=False,
            narrator=self.narrator,
        )  # fmt: skip

    def _outcome(self, recipe: Recipe, state: State, part: Path, keep_model: bool) -> tuple[Outcome, Scores, dict[str, Any]]:
        stages = self._stages(recipe)
        names = changed_by(stages, self.subject)
        self.stale = names is None  # a stage of a kind that may change more than weights
        attacked: dict[str, Any] = {}
        after: Scores = {}
        try:
            with nullcontext() if names is None else restored(self.subject, names):
                state.evaluate = self.look if self.look is not None and self.look.prune.every else self._in_passing
                torch.manual_seed(recipe.seed)
                run_stages(state, stages)
                if self.look is not None:
                    self.look(state.subject)
                _, after = self._evaluate(state.subject)
                attacks = recipe.attack_list()
                if attacks:
                    attacked = run_attacks(attacks, self._scene(state.subject, recipe), "", part, redact=self.redact)
                    phases = {**self.phases, "after": {self.suite.name: {n: s.to_json() for n, s in after.items()}}, **attacked}
                    add_steps_to_half(phases, self.suite.name)
                if keep_model:
                    save(state.subject, part / "model", provenance={"recipe": recipe.expanded(), "seed": recipe.seed}, merge=recipe.merge)
            return self._judged(state, after, attacked), after, attacked
        except Pruned as pruned:
            return Outcome("pruned", reason=str(pruned)), after, attacked
        except (InputError, Collapse, RuntimeError) as error:  # RuntimeError: what torch says, out of memory among others
            return Outcome("failed", reason=" ".join(str(error).split())[:500]), after, attacked

    def _stages(self, recipe: Recipe) -> list[Stage]:
        """The stages of a trial, with those looks during training that pruning asks for."""
        every = self.look.prune.every if self.look is not None else 0
        stages = [stage for _, part in recipe.methods() for stage in part]
        return [dataclasses.replace(s, evaluate_every=every) if every and isinstance(s, Train) else s for s in stages]

    def _in_passing(self, subject: Subject) -> Scores:
        return self._evaluate(subject)[1]

    def _scene(self, subject: Subject, recipe: Recipe) -> Scene:
        settings = recipe.evaluation
        return Scene(
            subject, self.benchmark.first(settings.limit), self.suite, recipe.seed, recipe.precision, settings.batch,
            narrator=self.narrator, progress=narrated(self.narrator),
        )  # fmt: skip

    def _judged(self, state: State, after: Scores, attacked: Mapping[str, Any]) -> Outcome:
        values: dict[str, float] = {}
        for objective in self.space.objectives:
            if objective.is_cost:
                values[objective.name] = float(sum(record[objective.score.removeprefix("cost.")] for record in state.records))
                continue
            scores = after if objective.phase == "after" else _scores(attacked.get(objective.phase, {}).get(self.suite.name, {}))
            found = scores.get(objective.score)
            if found is None or found.value is None:
                return Outcome(
                    "failed", reason=f"{objective.name} is unavailable ({'there is no such score' if found is None else found.unavailable})"
                )
            values[objective.name] = found.value
        stopped = "; ".join(f"{record['name']} stopped at {record['stopped']}" for record in state.records if record.get("stopped"))
        return Outcome("complete", values, stopped)


def _scores(rows: Mapping[str, Any]) -> dict[str, Score]:
    return {name: Score.from_json(row) for name, row in rows.items()}


def changed_by(stages: Sequence[Stage], subject: Subject) -> set[str] | None:
    """Names of the parameters of the model as it is now that the stages change; None where a stage's kind does not say."""
    if any(not isinstance(stage, Train | AddAdapter) for stage in stages):
        return None
    names: set[str] = set()
    fresh = False  # whether an adapter has been added on the way
    for stage in stages:
        if isinstance(stage, AddAdapter):
            fresh = True
        elif isinstance(stage, Train) and not (fresh and stage.scope.adapter != "no"):
            names.update(stage.scope.names(subject))
    return names


@dataclass
class Look:
    """The cheap look of pruning: one score of one split, on a few examples, asking the model no more than it needs."""

    bench: Bench
    prune: Prune

    def __post_init__(self) -> None:
        bench, prune = self.bench, self.prune
        self.split, _, metric = prune.score.partition(".")
        whole = narrowed(bench.suite, [self.split])
        measures = tuple(m for m in whole.measures if m.name == metric and self.split in m.splits)
        source = bench.suite.sources(bench.benchmark).get(self.split)
        if source is None:
            raise InputError(f"prune.score: the benchmark {bench.benchmark.name!r} has no split {self.split!r}")
        self.suite = dataclasses.replace(whole, measures=measures, live=())
        self.benchmark = Benchmark(bench.benchmark.name, {self.split: bench.benchmark.split(source)})
        known = {self.split: bench.baseline[self.split][: prune.limit]}
        before = self._value(known)
        if before is None or before.value is None:
            raise InputError(f"prune.score: {prune.score} is unavailable ({'it was not measured' if before is None else before.unavailable})")
        self.before = before.value
        self._ask_less(known)

    def _ask_less(self, known: Records) -> None:
        """Leaves out what the score does not look at: if it has the same value without, it is not asked for."""
        plan = self.suite.plans[self.split]
        drops: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
            ({"generation": None, "verdicts": ()}, {"generation": False}),
            ({"samples": ()}, {"samples": 0}),
            ({"gradient_norm": None}, {"gradient": False}),
            ({"false": ()}, {"false": False}),
            ({"options": ()}, {"options": False}),
            ({"letters": ()}, {"letters": False}),
            ({"paraphrase": None}, {"paraphrase": False}),
        )
        for lacking, less in drops:
            without = {self.split: [dataclasses.replace(record, **lacking) for record in known[self.split]]}
            found = self._value(without)
            if found is not None and found.value == self.before:
                plan, known = dataclasses.replace(plan, **less), without
                if "generation" in less:
                    self.suite = dataclasses.replace(self.suite, judging=())
        self.suite = dataclasses.replace(self.suite, plans={self.split: cast(Plan, plan)})

    def _value(self, records: Mapping[str, Sequence[Record]]) -> Score | None:
        return score(records, self.suite).get(self.prune.score)

    def __call__(self, subject: Subject) -> Scores:
        """Looks.

        Raises:
            Pruned: the bound is broken.
        """
        recipe = self.bench.recipe
        _, scores = evaluate(
            subject, self.benchmark, self.suite, precision=recipe.precision, generate_batch=recipe.evaluation.batch, limit=self.prune.limit
        )
        found = scores[self.prune.score]
        complaint = (
            f"{self.prune.score} is unavailable ({found.unavailable})"
            if found.value is None
            else self.prune.bound.broken(self.prune.score, found.value, self.before)
        )
        if complaint:
            raise Pruned(f"{complaint} (a look at {self.prune.limit} examples)")
        return scores
