"""The whole story: load, evaluate, unlearn, save, evaluate, report."""

from __future__ import annotations

import gc
import itertools
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from filelock import FileLock, Timeout

from excise import environment as surroundings
from excise.attacks.scene import Scene, narrowed
from excise.attacks.series import TWIN, add_steps_to_half, run_attacks
from excise.data.example import Benchmark
from excise.errors import InputError
from excise.evaluation.records import Records
from excise.evaluation.score import Score
from excise.evaluation.store import write_records
from excise.evaluation.suites import Suite, evaluate, per_example, score
from excise.files import cache_folder, explained, put_in_place, write_json, write_lines, write_text
from excise.loading import ModelSpec, load
from excise.parallel import ranks
from excise.parallel.sharding import resolve
from excise.precision import Precision, resolve_precision
from excise.recipe import Recipe
from excise.saving import save, update_card
from excise.stages.adapters import AddAdapter
from excise.stages.chain import changed_by, in_chain, require_savable
from excise.stages.checkpoint import Checkpoints, Loaded
from excise.stages.state import Narrator, Silent, Stage, State
from excise.stages.train import Train
from excise.stages.undo import FOLDER as EDITS
from excise.subject import Subject
from excise.token_scores import attribute
from excise.weights import Attribution

SCHEMA = 1
SHOWN = 6
"""Answers whose token scores are kept for the report."""


def unlearn(
    recipe: Recipe,
    out: str | Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    narrator: Narrator | None = None,
    benchmark: Benchmark | None = None,
    prepare: Callable[[Path], None] | None = None,
) -> dict[str, Any]:
    """Runs a recipe and leaves the run folder ``out`` behind; returns what stands in its result.json.

    Everything is written into a work folder beside ``out``, which is renamed at the very end. A run that was interrupted
    leaves the work folder, and ``resume`` goes on from its last checkpoint to the same bits.

    Args:
        benchmark: the data, where it is in memory already; the recipe says where it will lie.
        prepare: writes into the work folder what else belongs to the run, before it begins.

    Raises:
        InputError: something that the recipe names cannot be used, or ``out`` exists.
    """
    out = Path(out)
    ranks.start()
    narrator = narrator if narrator is not None and ranks.is_main() else Silent()
    with work_folder(out, recipe.to_yaml(), resume=resume, overwrite=overwrite) as work:
        if prepare is not None and ranks.is_main():
            prepare(work)
        return _Run(recipe, work, narrator, resume, shared_folder(out), benchmark).go()


def shared_folder(out: Path) -> Path:
    """The folder beside ``out`` in which a run works; of several processes only the first one writes there."""
    return out.parent / f".{out.name}.unfinished"


class work_folder:
    """The folder beside ``out`` in which a run works; renamed to ``out`` when the block ends well, kept when it does not.

    Of several processes the first one works there; the others get a folder for what they write alike, which goes again.
    """

    def __init__(self, out: Path, recipe: str, *, resume: bool, overwrite: bool) -> None:
        self.out, self.recipe, self.resume, self.overwrite = out, recipe, resume, overwrite
        self.work = shared_folder(out)
        self.scratch: Path | None = None

    def __enter__(self) -> Path:
        ranks.from_main(lambda: str(self._enter()))
        if ranks.is_main():
            return self.work
        self.scratch = Path(tempfile.mkdtemp(prefix="excise-"))
        return self.scratch

    def _enter(self) -> Path:
        if self.out.exists() and not self.out.is_dir():
            raise InputError(f"cannot write {self.out}: it is a file, and a folder was expected")
        if self.out.is_dir() and any(self.out.iterdir()) and not self.overwrite:
            raise InputError(f"{self.out} exists and is not empty: choose another place or pass --overwrite")
        with explained(self.out):
            self.work.mkdir(parents=True, exist_ok=True)
        self.lock = FileLock(self.work / "lock")
        try:
            with explained(self.out):
                self.lock.acquire(timeout=0)
        except Timeout:
            raise InputError(f"another process is working on {self.out}") from None
        self._check_leftovers()
        write_text(self.work / "recipe.yaml", self.recipe)
        return self.work

    def _check_leftovers(self) -> None:
        """What an interrupted run left behind is continued, thrown away, or protected."""
        recipe = self.work / "recipe.yaml"
        if not recipe.exists():
            return
        if self.overwrite and not self.resume:
            for path in self.work.iterdir():
                if path.name != "lock":
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            return
        if not self.resume:
            self.lock.release()
            raise InputError(f"an interrupted run lies in {self.work}: go on with --resume, or start anew with --overwrite")
        if recipe.read_text(encoding="utf-8") != self.recipe:
            self.lock.release()
            raise InputError(f"the interrupted run in {self.work} has another recipe: give the same one to --resume, or start anew with --overwrite")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.scratch is not None:
            shutil.rmtree(self.scratch, ignore_errors=True)
        else:
            self._leave(kind)
        if kind is None:
            ranks.wait()

    def _leave(self, kind: type[BaseException] | None) -> None:
        self.lock.release()
        if kind is None:
            (self.work / "lock").unlink(missing_ok=True)
            shutil.rmtree(self.work / "checkpoints", ignore_errors=True)
            with explained(self.out):
                put_in_place(self.work, self.out)
        elif issubclass(kind, InputError) and not (self.work / "checkpoints").exists():
            shutil.rmtree(self.work, ignore_errors=True)


@dataclass
class _Run:
    recipe: Recipe
    work: Path
    narrator: Narrator
    resume: bool
    shared: Path
    """The work folder of all processes, where checkpoints lie."""
    given: Benchmark | None = None
    """The data, where it need not be loaded."""
    evaluations: dict[str, dict[str, Any]] = field(default_factory=dict)
    attack_costs: dict[str, dict[str, float]] = field(default_factory=dict)
    baseline: Records | None = None
    """What the model said before unlearning, where it was asked."""

    def __post_init__(self) -> None:
        self.redact = self.recipe.privacy == "redact"
        self.suite: Suite = self.recipe.suite()
        self.precision: Precision = self.recipe.precision
        self.attacks = self.recipe.attack_list()

    def go(self) -> dict[str, Any]:
        recipe, begun = self.recipe, time.time()
        torch.manual_seed(recipe.seed)
        benchmark: Benchmark = self.given or recipe.benchmark_loader()()
        benchmark.require("forget", "retain")
        self.suite.sources(benchmark)
        for note in benchmark.notes:
            self.narrator.say(note)
        if self.attacks and recipe.evaluation.retrained is not None:
            self._check_attacks(load(recipe.model_spec()), benchmark)  # freed again: two models at once may be too many
        retrained = self._retrained(benchmark)
        subject = load(recipe.model_spec())
        self._check_attacks(subject, benchmark)
        precision = resolve_precision(self.precision, subject.device)
        around = surroundings.environment(subject, benchmark, seed=recipe.seed, precision=precision, redact=self.redact)
        write_json(self.work / "environment.json", around)
        state = State(
            subject=subject,
            benchmark=benchmark,
            seed=recipe.seed,
            precision=precision,
            folder=self.shared,
            parallel=resolve(recipe.parallel, os.environ),
            narrator=self.narrator,
            resume=self.resume,
            redact=self.redact,
        )
        stages = in_chain([stage for _, part in recipe.methods() for stage in part])
        passing = self._in_passing(stages)
        state.evaluate = lambda s: self._collect(s, benchmark, retrained, cached=False, suite=passing)[1]
        require_savable(stages, merge=recipe.merge)
        for stage in stages:
            stage.check(state)
        refuse_apart(stages, [named.attack for named in self.attacks])
        if recipe.evaluation.before:
            self._evaluate("before", subject, benchmark, retrained, itself=True)
        self._attribute(state)
        self.narrator.say(f"Unlearning {len(benchmark.forget)} examples with {'+'.join(name for name, _ in recipe.methods())}.")
        run_stages(state, stages)
        if self.redact:
            shutil.rmtree(self.work / EDITS, ignore_errors=True)  # what was taken out of the model must not lie beside it
        expanded = recipe.expanded()
        provenance = {
            "recipe": expanded,
            "method": "+".join(name for name, _ in recipe.methods()),
            "data_fingerprint": around["data"]["fingerprint"],
            "model_fingerprint_before": around["model"]["fingerprint"],
            "versions": around["versions"],
            "seed": recipe.seed,
        }
        self.narrator.say("Saving the model, and checking that it loads again with the same predictions.")
        if ranks.is_main():
            save(subject, self.work / "model", provenance=provenance, merge=recipe.merge, overwrite=True)
        ranks.wait()
        after = self._evaluate("after", subject, benchmark, retrained)
        self._attack(subject, benchmark, "")
        add_steps_to_half(self.evaluations, self.suite.name)
        if ranks.is_main():
            update_card(self.work / "model", {name: s["value"] for name, s in after.items() if "@" not in name and s["value"] is not None})
        result = {
            "schema": SCHEMA,
            "excise": around["versions"]["excise"],
            "recipe": expanded,
            "environment": around,
            "plan": state.plan,
            "stages": state.records,
            "seconds": round(time.time() - begun, 1),
            **({"attack_costs": self.attack_costs} if self.attacks else {}),
            "evaluations": self.evaluations,
        }
        write_json(self.work / "result.json", result)
        if ranks.is_main():
            from excise.report.html import write_report

            write_report([self.work], self.work / "report.html")
        return result

    # --- evaluating ---------------------------------------------------------------------------------------------------

    def _retrained(self, benchmark: Benchmark) -> Records | None:
        """Records of the model that never saw the forget split; it is loaded, asked and freed before the other one."""
        if self.recipe.evaluation.retrained is None:
            return None
        self.narrator.say(PHASES["retrained"])
        twin = load(twin_spec(self.recipe))
        records, scores = self._collect(twin, benchmark, None)
        self._keep("retrained", records, {**scores, **score(records, self.suite, records)})
        self._attack(twin, benchmark, TWIN)
        del twin
        gc.collect()
        return records

    def _evaluate(self, phase: str, subject: Subject, benchmark: Benchmark, retrained: Records | None, itself: bool = False) -> dict[str, Any]:
        """``itself``: this is the baseline that everything later is compared with."""
        self.narrator.say(PHASES[phase])
        records, scores = self._collect(subject, benchmark, retrained)
        if itself:
            self.baseline = records
            scores = {**scores, **score(records, self.suite, retrained, records)}
        return self._keep(phase, records, scores)

    def _keep(self, phase: str, records: Records, scores: Mapping[str, Score]) -> dict[str, Any]:
        values = {name: s.to_json() for name, s in scores.items()}
        write_records(self.work, phase, records, redact=self.redact, scores=per_example(records, self.suite))
        self.evaluations[phase] = {self.suite.name: values}
        return values

    def _scene(self, subject: Subject, benchmark: Benchmark) -> Scene:
        settings = self.recipe.evaluation
        return Scene(
            subject,
            benchmark.first(settings.limit),
            self.suite,
            self.recipe.seed,
            self.precision,
            settings.batch,
            cache=None if self.redact else cache_folder() / "records",
            folder=self.work / "attacks",
            narrator=self.narrator,
            progress=narrated(self.narrator),
        )

    def _check_attacks(self, subject: Subject, benchmark: Benchmark) -> None:
        """Says what does not fit before anything costs time."""
        for named in self.attacks:
            named.attack.check(self._scene(subject, benchmark))

    def _attack(self, subject: Subject, benchmark: Benchmark, whose: str) -> None:
        if self.attacks:
            self.evaluations |= run_attacks(
                self.attacks, self._scene(subject, benchmark), whose, self.work, redact=self.redact, costs=self.attack_costs
            )

    def _in_passing(self, stages: Sequence[Stage]) -> Suite:
        """What stages ask on the way: the whole suite, unless they only look at a goal."""
        looking = [stage for stage in stages if isinstance(stage, Train) and stage.evaluate_every]
        splits = {split for stage in looking if stage.goal is not None for split in stage.goal.splits}
        if not splits or not all(stage.goal is not None for stage in looking) or not splits <= set(self.suite.plans):
            return self.suite
        return narrowed(self.suite, sorted(splits))

    def _collect(
        self, subject: Subject, benchmark: Benchmark, retrained: Records | None, *, cached: bool = True, suite: Suite | None = None
    ) -> tuple[Records, dict[str, Score]]:
        settings = self.recipe.evaluation
        return evaluate(
            subject,
            benchmark,
            suite or self.suite,
            retrained=retrained,
            baseline=self.baseline,
            precision=self.precision,
            generate_batch=settings.batch,
            limit=settings.limit,
            cache=cache_folder() / "records" if cached and not self.redact else None,
            progress=narrated(self.narrator),
        )

    def _attribute(self, state: State) -> None:
        """Token scores of a few forget answers, for the report. Nothing is kept where texts must not be."""
        if self.redact:
            return
        attribution = attribution_of(self.recipe) or Attribution()
        examples = _varied(state.benchmark)
        try:
            rows = attribute(state.subject, examples, attribution, state.precision)
        except InputError as error:
            if attribution_of(self.recipe) is not None:
                raise
            self.narrator.say(f"no token heat map in the report: {error}")
            return
        write_lines(self.work / "attribution.jsonl", rows)


PHASES = {
    "before": "Asking the model before unlearning.",
    "after": "Asking the model after unlearning.",
    "retrained": "Asking the twin, which never saw the forget split.",
}


def refuse_apart(stages: Sequence[Stage], attacks: Sequence[object] = ()) -> None:
    """Refuses what several processes cannot do together.

    Raises:
        InputError: a stage that is not made for them; one process can do it.
    """
    if not ranks.several():
        return
    remedy = "run it in one process (without torchrun or accelerate launch)"
    for stage in stages:
        if not isinstance(stage, Train | AddAdapter) and not getattr(stage, "several_processes", False):
            raise InputError(f"the stage {type(stage).__name__} is not made for {ranks.world()} processes: {remedy}")
        if isinstance(stage, Train) and not getattr(stage.gradients, "additive", False):
            name = type(stage.gradients).__name__
            raise InputError(f"{name} needs the whole batch's gradients, of which {ranks.world()} processes have parts: {remedy}")
    for attack in attacks:
        if not getattr(attack, "several_processes", True):
            raise InputError(f"the attack {type(attack).__name__} is not made for {ranks.world()} processes: {remedy}")


def twin_spec(recipe: Recipe) -> ModelSpec:
    """Which model the recipe's twin is, used like the recipe's own model."""
    path = Path(recipe.evaluation.retrained or "")
    inner = path / "model"
    spec = cast(ModelSpec, recipe.model_spec())
    return ModelSpec(path=str(inner if inner.is_dir() else path), template=spec.template, system=spec.system)


def run_stages(state: State, stages: Sequence[Stage]) -> None:
    """Runs the stages of a method in order, going on from the last checkpoint where the state says so."""
    refuse_apart(stages)
    stages = in_chain(stages)
    if state.checkpoint_folder is None:
        for stage in stages:
            stage.prepare(state)
        for state.stage_index, stage in enumerate(stages):
            stage(state)
        return
    checkpoints = Checkpoints(state.checkpoint_folder)
    saved = checkpoints.newest() if state.resume else None
    done = saved.stage if saved is not None else 0
    for stage in stages[done:]:
        stage.prepare(state)
    _catch_up(state, stages[:done], checkpoints.boundary(done))
    for index, stage in enumerate(stages):
        if index < done:
            continue
        state.stage_index = index
        stage(state)
        state.resume = False
        checkpoints.write(index + 1, 0, _changed(stages[: index + 1], state), notes={"records": state.records, "plan": state.plan})


def _catch_up(state: State, finished: Sequence[Stage], saved: Loaded | None) -> None:
    """Repeats the changes of structure of the finished stages and puts their weights back."""
    for stage in finished:
        stage.structure(state)
    if saved is not None:
        saved.restore_weights(dict(state.subject.model.named_parameters()))
        state.records, state.plan = list(saved.notes["records"]), list(saved.notes["plan"])


def _changed(stages: Sequence[Stage], state: State) -> dict[str, torch.nn.Parameter]:
    """The parameters that the stages may have changed: all of them where a stage does not say which."""
    told = [changed_by(stage, state.subject) for stage in stages]
    return {name: p for name, p in state.subject.model.named_parameters() if any(names is None or name in names for names in told)}


def narrated(narrator: Narrator) -> Callable[[str, int, int], None]:
    """The evaluation's progress as a narrator's task."""
    seen: dict[str, int] = {}

    def progress(what: str, done: int, total: int) -> None:
        if what not in seen:
            seen[what] = 0
            narrator.begin(what, total)
        narrator.advance(what, done - seen[what])
        seen[what] = done
        if done >= total:
            narrator.end(what)
            seen.pop(what)

    return progress


def attribution_of(recipe: Recipe) -> Attribution | None:
    """The attribution that a recipe's method weights tokens by, if it does."""
    stages = itertools.chain.from_iterable(stages for _, stages in recipe.methods())
    weights = (term.weight for stage in stages if isinstance(stage, Train) for term in stage.terms)
    return next((weight for weight in weights if isinstance(weight, Attribution)), None)


def _varied(benchmark: Benchmark) -> list[Any]:
    """A few forget examples with different labels and groups."""
    chosen: list[Any] = []
    seen: set[str] = set()
    for example in benchmark.forget:
        if example.label not in seen or not example.label:
            chosen.append(example)
            seen.add(example.label)
    return (chosen + [e for e in benchmark.forget if e not in chosen])[:SHOWN]
