"""The whole sweep: workers, resume, the best trial again and with other seeds, the report."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from excise import environment as surroundings
from excise.errors import InputError
from excise.files import read_json, write_json
from excise.run import unlearn
from excise.stages.state import Narrator, Silent
from excise.sweep.bench import Bench, Outcome
from excise.sweep.folder import SweepFolder, is_repeat, session_name
from excise.sweep.front import best, front
from excise.sweep.space import Objective, Space, checked, recipe_with
from excise.sweep.study import optuna
from excise.sweep.worker import told, work

SCHEMA = 1


def sweep(
    recipe: Mapping[str, Any],
    space: Mapping[str, Any],
    out: str | Path,
    *,
    trials: int | None = None,
    workers: str = "1",
    verify_seeds: int = 0,
    keep_models: bool = False,
    resume: bool = False,
    narrator: Narrator | None = None,
) -> dict[str, Any]:
    """Runs a recipe with many settings and leaves the sweep's folder behind; returns what stands in its sweep.json.

    Args:
        recipe: settings as a recipe file holds them.
        space: what varies, as a space file holds it (docs/sweeps.md).
        trials: how many; None: as many as the grid or the list of trials has.
        workers: a number of processes, or a device for each (``cuda:0,cuda:1``).
        verify_seeds: run the best trial again as an ordinary run, and with so many other seeds.
        keep_models: keep the model of every trial.
        resume: go on with a sweep, or extend a finished one to more trials.

    Raises:
        InputError: a combination that is none, found before anything runs.
    """
    narrator = narrator or Silent()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise InputError("a sweep starts its own processes (--workers): run it without torchrun or accelerate launch")
    optuna("excise sweep")
    ready = checked(recipe, Space.parse(space))
    count = ready.how_many(trials)
    devices = devices_of(workers)
    folder = SweepFolder(Path(out))
    fresh = not folder.place.exists()
    folder.begin(recipe, space, resume=resume)
    lock = folder.lock()
    try:
        return _Sweep(folder, ready, count, devices, verify_seeds, keep_models, narrator).go()
    except InputError:
        if fresh and not folder.begun:
            shutil.rmtree(folder.place, ignore_errors=True)
        raise
    finally:
        lock.release()


def devices_of(workers: str) -> list[str | None]:
    """A device for each worker; None: what the recipe says."""
    if workers.strip().isdigit() and int(workers) > 0:
        return [None] * int(workers)
    names = [name.strip() for name in workers.split(",") if name.strip()]
    if not names or any(name.lstrip("-").isdigit() for name in names):
        raise InputError(f"--workers {workers!r}: give a number of processes, or a device for each, such as cuda:0,cuda:1")
    return list(names)


class _Sweep:
    def __init__(
        self, folder: SweepFolder, space: Space, trials: int, devices: Sequence[str | None], seeds: int, keep_models: bool, narrator: Narrator
    ) -> None:
        self.folder, self.space, self.trials, self.devices, self.seeds = folder, space, trials, devices, seeds
        self.keep_models, self.narrator, self.session = keep_models, narrator, session_name()
        self.recipe = folder.recipe
        self.own_bench: Bench | None = None

    def bench(self) -> Bench:
        """This process's own bench, made when it is first needed."""
        if self.own_bench is None:
            self.own_bench = Bench(self.recipe, self.space, self.folder.place, self.devices[0], self.narrator)
        return self.own_bench

    def go(self) -> dict[str, Any]:
        self.folder.repair()
        self.folder.prepare(self.space)
        done = self.folder.finished(self.space)
        if done:
            self.narrator.say(f"Going on: {done} of {self.trials} trials are finished.")
        if done < self.trials:
            if len(self.devices) == 1:
                work(
                    self.folder, self.space, trials=self.trials, session=self.session, narrator=self.narrator,
                    keep_models=self.keep_models, bench=self.bench,
                )  # fmt: skip
            else:
                self._workers(min(len(self.devices), self.trials - done))
        found = self._found()
        if len(found) < self.trials:
            self.narrator.say(f"{len(found)} trials instead of {self.trials}: nothing new was found in the space.")
        complete = {n: outcome.values for n, outcome in found.items() if outcome.state == "complete"}
        members, chosen = front(complete, self.space.objectives), best(complete, self.space.objectives, self._before())
        result = self._result(found, members, chosen)
        if chosen is not None and self.seeds:
            result["verified"] = self._verify(chosen, complete[chosen])
        write_json(self.folder.place / "sweep.json", result)
        from excise.report.sweep import write_sweep_report

        write_sweep_report(self.folder.place)
        return result

    # --- several workers ----------------------------------------------------------------------------------------------

    def _workers(self, count: int) -> None:
        running = {worker: self._start(worker) for worker in range(count)}
        try:
            while running:
                worker = next((w for w, process in running.items() if process.poll() is not None), None)
                if worker is None:
                    process = next(iter(running.values()))
                    try:
                        process.wait(timeout=0.2)
                    except subprocess.TimeoutExpired:
                        continue
                    continue
                status = running.pop(worker).returncode
                if status == 2:
                    raise InputError("a worker of the sweep found something that cannot be used: see its line above")
                if status:
                    said = self.folder.died(self.space, worker)
                    if not said:
                        raise RuntimeError(f"worker {worker} of the sweep ended with status {status} outside a trial")
                    self.narrator.say(said)
                    running[worker] = self._start(worker)
        finally:
            for process in running.values():
                process.terminate()
            for process in running.values():
                process.wait()

    def _start(self, worker: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "excise.sweep.worker", str(self.folder.place), "--worker", str(worker), "--trials", str(self.trials)]
        command += ["--session", self.session, "--parent", str(os.getpid())]
        command += ["--keep-models"] if self.keep_models else []
        if (device := self.devices[worker]) is not None:
            command += ["--device", device]
        threads = str(max(1, (os.cpu_count() or 1) // len(self.devices)))
        return subprocess.Popen(command, env={"OMP_NUM_THREADS": threads, **os.environ})

    # --- what came of it ----------------------------------------------------------------------------------------------

    def _found(self) -> dict[int, Outcome]:
        """The outcomes of all trials: from their folders, or from the journal where a process died."""
        from optuna.trial import TrialState

        found: dict[int, Outcome] = {}
        for trial in self.folder.study(self.space).get_trials(deepcopy=False):
            if not trial.state.is_finished() or is_repeat(trial):
                continue
            place = self.folder.trial(trial.number)
            if (place / "result.json").exists():
                found[trial.number] = Outcome.read(place)
            elif trial.state == TrialState.FAIL:
                found[trial.number] = Outcome("failed", reason=str(trial.user_attrs.get("reason", "")))
        return found

    def _before(self) -> dict[str, float]:
        """Objective -> value before unlearning."""
        place = self.folder.place / "baseline" / "scores.json"
        if not place.exists():
            return self.bench().values_before
        rows = read_json(place)["before"]
        named = {o.name: rows.get(o.score) for o in self.space.objectives if o.phase == "after"}
        return {name: row["value"] for name, row in named.items() if row and row["value"] is not None}

    def _result(self, found: Mapping[int, Outcome], members: Sequence[int], chosen: int | None) -> dict[str, Any]:
        study = self.folder.study(self.space)
        settings = {t.number: t.user_attrs.get("settings", {}) for t in study.get_trials(deepcopy=False)}
        return {
            "schema": SCHEMA,
            "excise": surroundings.version("excise"),
            "recipe": self.recipe,
            "objectives": [{**asdict(o), "name": o.name} for o in self.space.objectives],
            "sampler": {"name": self.space.sampler, "seed": self.space.seed},
            "before": self._before(),
            "trials": [{"number": n, "settings": settings[n], **asdict(outcome)} for n, outcome in sorted(found.items())],
            "front": list(members),
            "best": chosen,
            "why": _why(chosen, members, self.space.objectives),
            "verified": None,
        }

    # --- the best trial again -----------------------------------------------------------------------------------------

    def _verify(self, chosen: int, values: Mapping[str, float]) -> dict[str, Any]:
        """The best trial once more as an ordinary run, and with other seeds."""
        settings = read_json(self.folder.trial(chosen) / "result.json")["sweep"]["settings"]
        recipe = recipe_with(self.recipe, settings)
        rows: list[dict[str, Any]] = []
        for seed in range(recipe.seed + 1, recipe.seed + 1 + self.seeds):
            place = self.folder.place / "verified" / f"trial-{chosen}-seed-{seed}"
            self.narrator.say(f"The best trial with seed {seed}.")
            if not (place / "result.json").exists():
                self.bench().run({**settings, "seed": seed}, place, chosen)
            outcome = Outcome.read(place)
            self.narrator.say(f"Seed {seed}: {told(outcome)}.")
            rows.append({"seed": seed, **asdict(outcome)})
        self.own_bench = None
        gc.collect()
        again = self._again(chosen, recipe)
        names = [o.name for o in self.space.objectives if o.score != "cost.seconds"]
        same = {name: again[name] == values[name] for name in names if name in again}
        return {"seed": recipe.seed, "values": dict(values), "again": again, "same": all(same.values()), "seeds": rows}

    def _again(self, chosen: int, recipe: Any) -> dict[str, float]:
        """Runs the best trial as an ordinary run into ``best`` (with its model and report) and reads the objectives from its result."""
        place = self.folder.place / "best"
        self.narrator.say(f"The best trial once more, as a run of its own in {place}.")
        result = place / "result.json"
        if not result.exists() or read_json(result)["recipe"] != recipe.expanded():
            left = place.parent / f".{place.name}.unfinished" / "recipe.yaml"
            going_on = left.exists() and left.read_text(encoding="utf-8") == recipe.to_yaml()
            unlearn(recipe, place, resume=going_on, overwrite=True, narrator=self.narrator)
        row = read_json(result)
        suite = recipe.suite().name
        values: dict[str, float] = {}
        for objective in self.space.objectives:
            if objective.is_cost:
                values[objective.name] = float(sum(stage[objective.score.removeprefix("cost.")] for stage in row["stages"]))
            else:
                values[objective.name] = row["evaluations"][objective.phase][suite][objective.score]["value"]
        return values


def _why(chosen: int | None, members: Sequence[int], objectives: Sequence[Objective]) -> str:
    if not members:
        return "No trial came to its end."
    if chosen is None:
        bounds = ", ".join(o.name for o in objectives if o.bound)
        return f"None of the {len(members)} trials of the front holds the bounds ({bounds})."
    weights = ", ".join(f"{o.name} ({o.share:g})" for o in objectives)
    return f"Of the {len(members)} trials of the front, the nearest to the ideal, each objective scaled over the front; weights: {weights}."
