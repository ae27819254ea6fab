"""The folder of a sweep: what was asked, the journal of trials, and a folder for each trial.

recipe.yaml  space.yaml  sweep.log   the question, and Optuna's journal
baseline/                            records and scores before unlearning and of the twin
trials/0003/                         recipe.yaml, result.json: written once
best/  verified/                     the best trial as an ordinary run, and with other seeds
sweep.json  report.html              what came of it
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from excise.errors import InputError
from excise.files import explained, write_text
from excise.settings import read_yaml
from excise.sweep.bench import Outcome
from excise.sweep.space import Choice, Objective, Settings, Space, checked
from excise.sweep.study import cut_to_whole_lines, open_study, optuna, sampler

MOST_DRAWS = 20
"""How often new settings are drawn where those drawn were run already, before a small space counts as exhausted."""
ATTEMPTS = 2
"""How often a trial is begun within one session before it counts as failed: its process may die again and again."""


@dataclass
class Claim:
    """A trial that this process has taken."""

    number: int
    settings: Settings
    trial: Any


@dataclass
class SweepFolder:
    """A sweep on disk."""

    place: Path

    @property
    def recipe(self) -> dict[str, Any]:
        return read_yaml(self.place / "recipe.yaml")

    @property
    def space(self) -> Space:
        return checked(self.recipe, Space.parse(read_yaml(self.place / "space.yaml"), str(self.place / "space.yaml")))

    @property
    def begun(self) -> bool:
        """Whether any trial has left something."""
        return any((self.place / "trials").iterdir())

    def trial(self, number: int) -> Path:
        return self.place / "trials" / f"{number:04d}"

    def begin(self, recipe: Mapping[str, Any], space: Mapping[str, Any], *, resume: bool) -> None:
        """Writes down what is asked, or makes sure that the same is asked as before.

        Raises:
            InputError: the folder holds something, and ``resume`` is not given; another recipe or space than before.
        """
        if self.place.exists() and not self.place.is_dir():
            raise InputError(f"cannot write {self.place}: it is a file, and a folder was expected")
        texts = {"recipe.yaml": _yaml(recipe), "space.yaml": _yaml(space)}
        there = self.place.is_dir() and any(self.place.iterdir())
        if there and not (self.place / "space.yaml").exists():
            raise InputError(f"{self.place} exists and holds no sweep: choose another place")
        if there and not resume:
            raise InputError(f"{self.place} holds a sweep: go on with --resume, or choose another place")
        for name, text in texts.items():
            if there and (self.place / name).exists() and read_yaml(self.place / name) != yaml.safe_load(text):
                raise InputError(f"the sweep in {self.place} was begun with another {name}: give the same one to --resume, or choose another place")
        with explained(self.place):
            (self.place / "trials").mkdir(parents=True, exist_ok=True)
            (self.place / "workers").mkdir(exist_ok=True)
        for name, text in reversed(texts.items()):  # the space, by which a sweep is known, comes first
            write_text(self.place / name, text)

    def lock(self) -> FileLock:
        """Held by the process that conducts the sweep.

        Raises:
            InputError: another one does, or one of its workers is still at work.
        """
        lock = FileLock(self.place / "lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise InputError(f"another process is working on {self.place}") from None
        try:
            for other in (self.place / "workers").glob("*.lock"):
                with FileLock(other, timeout=30):
                    pass
        except Timeout:
            lock.release()
            raise InputError(f"a worker of an earlier session is still working on {self.place}: wait for it or end it") from None
        return lock

    def worker_lock(self, worker: int) -> FileLock:
        """Held by a worker as long as it lives."""
        return FileLock(self.place / "workers" / f"{worker}.lock")

    # --- the journal --------------------------------------------------------------------------------------------------

    def study(self, space: Space) -> Any:
        directions = ["maximize" if objective.better == "higher" else "minimize" for objective in space.objectives]
        return open_study(optuna("excise sweep"), "sweep", self.place / "sweep.log", directions)

    def repair(self) -> None:
        """Before a session: removes what a killed one left half-written. The caller holds the lock."""
        cut_to_whole_lines(self.place / "sweep.log")
        for left in (*self.place.glob(".*.part-*"), *self.place.glob("trials/.*.part-*"), *self.place.glob("verified/.*.part-*")):
            shutil.rmtree(left, ignore_errors=True)

    def prepare(self, space: Space) -> None:
        """Before a session: queues the trials that are fixed, and those that were running when the last one was killed."""
        from optuna.trial import TrialState

        study = self.study(space)
        for settings in space.fixed:
            study.enqueue_trial({name: _label(space, name, value) for name, value in settings.items()}, {"settings": settings}, skip_if_exists=True)
        for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            study._storage.set_trial_state_values(trial._trial_id, TrialState.WAITING)

    def died(self, space: Space, worker: int) -> str:
        """After a worker's death: its trial is queued once more, or counts as failed. Returns what is to be said."""
        from optuna.trial import TrialState

        study = self.study(space)
        said = ""
        for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if trial.user_attrs.get("worker") != worker:
                continue
            if trial.user_attrs.get("attempts", 1) < ATTEMPTS:
                study._storage.set_trial_state_values(trial._trial_id, TrialState.WAITING)
                said = f"The process of trial {trial.number + 1} died; it is run once more."
            else:
                study._storage.set_trial_user_attr(trial._trial_id, "reason", "its process died twice")
                study.tell(trial.number, state=TrialState.FAIL)
                said = f"The process of trial {trial.number + 1} died again; it counts as failed."
        return said

    def claim(self, study: Any, space: Space, trials: int, worker: int, session: str) -> Claim | None:
        """Takes the next trial; None where as many as asked have been taken, or nothing new is found. One process at a time."""
        from optuna.trial import TrialState

        with FileLock(self.place / "claim.lock"):
            for attempt in range(MOST_DRAWS):
                found = study.get_trials(deepcopy=False)
                waiting = [t for t in found if t.state == TrialState.WAITING]
                taken = [t for t in found if t.state != TrialState.WAITING and not is_repeat(t)]
                if len(taken) >= trials or (not waiting and not space.samples):
                    return None
                if space.samples:
                    assert space.sampler != "grid"
                    kind = space.sampler if attempt < MOST_DRAWS // 2 else "random"
                    study.sampler = sampler(optuna("excise sweep"), kind, space.seed, len(found), trials)
                trial = study.ask()
                settings = self._settings(trial, space)
                if any(t.user_attrs.get("settings") == settings for t in taken):
                    trial.set_user_attr("repeat", True)
                    study.tell(trial, state=TrialState.FAIL)
                    continue
                again = trial.user_attrs.get("session") == session
                trial.set_user_attr("attempts", trial.user_attrs.get("attempts", 0) + 1 if again else 1)
                trial.set_user_attr("session", session)
                trial.set_user_attr("worker", worker)
                return Claim(trial.number, settings, trial)
        return None

    def _settings(self, trial: Any, space: Space) -> dict[str, Any]:
        """The settings of a trial: those that it was queued or begun with, or new ones."""
        known = trial.user_attrs.get("settings")
        drawn = {name: dimension.suggest(trial, name) for name, dimension in space.dimensions.items()}
        if known is None:
            trial.set_user_attr("settings", drawn)
        return drawn if known is None else known

    def tell(self, study: Any, claim: Claim, outcome: Outcome, objectives: tuple[Objective, ...]) -> None:
        """Writes the outcome of a trial into the journal."""
        from optuna.trial import TrialState

        if outcome.reason:
            claim.trial.set_user_attr("reason", outcome.reason)
        if outcome.state == "complete":
            study.tell(claim.trial, [outcome.values[o.name] for o in objectives])
        else:
            study.tell(claim.trial, state=TrialState.PRUNED if outcome.state == "pruned" else TrialState.FAIL)

    def finished(self, space: Space) -> int:
        """How many trials are over."""
        return len([t for t in self.study(space).get_trials(deepcopy=False) if t.state.is_finished() and not is_repeat(t)])


def is_repeat(trial: Any) -> bool:
    """Whether a trial was drawn with settings that had been run, and so was not run."""
    return bool(trial.user_attrs.get("repeat"))


def _label(space: Space, name: str, value: Any) -> Any:
    dimension = space.dimensions.get(name)
    return Choice.label(value) if dimension is None or isinstance(dimension, Choice) else value


def _yaml(values: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True)


def session_name() -> str:
    """Tells the sessions of a sweep apart."""
    return f"{os.getpid()}-{time.time_ns()}"
