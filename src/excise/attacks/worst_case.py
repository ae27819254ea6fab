"""The worst case: a search for the attack settings that bring most back while the model stays useful."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from excise.attacks.relearn import Relearn
from excise.attacks.scene import Outcome, Scene, telling
from excise.errors import InputError
from excise.objectives.check import at_least, within
from excise.stages.adapters import AddAdapter
from excise.sweep.study import cut_to_whole_lines, open_study, optuna, sampler


@dataclass(frozen=True)
class WorstCase:
    """Searches over relearning settings (data, learning rate, steps, batch, adapter or all weights) for the strongest attack.

    Maximises the forget split's fact recall among attacks that keep ``keep`` of the retain split's, since an attacker wants a
    working model. The search (TPE) goes on where it stopped: with the same seed and settings a resumed one ends like an
    undisturbed one. The reported scores are those of the best attack.

    Paper: Che et al. 2025, "Model Tampering Attacks Enable More Rigorous Evaluations of LLM Capabilities" (arXiv 2502.05209).
    """

    trials: int = 12
    most_steps: int = 50
    """The longest relearning that is tried."""
    data: tuple[str, ...] = ("forget",)
    """What may be shown: splits of the benchmark or files (see ``relearn``)."""
    part: float = 1.0
    """Share of it (see ``relearn``)."""
    lr: tuple[float, float] = (1e-6, 1e-3)
    """Range of the learning rate, searched on a logarithmic scale."""
    keep: float = 0.9
    """Share of the retain score that the attacked model must keep."""
    limit: int | None = 50
    several_processes = False

    def __post_init__(self) -> None:
        at_least("worst_case.trials", self.trials, 1)
        at_least("worst_case.most_steps", self.most_steps, 1)
        within("worst_case.keep", self.keep, 0.0, 1.0)
        if not 0 < self.lr[0] <= self.lr[1]:
            raise InputError(f"worst_case.lr is {self.lr}: give (lowest, highest), both above 0")
        if not self.data:
            raise InputError("worst_case.data is empty: name at least one split or file")

    def check(self, scene: Scene) -> None:
        optuna("worst_case")
        for data in self.data:
            self._relearn({"data": data, "steps": 1, "lr": self.lr[0], "batch": 4, "adapter": False}).check(scene)

    def __call__(self, scene: Scene) -> Outcome:
        library = optuna("worst_case")
        watched = scene.only(("forget", "retain"), self.limit)
        before = watched.scores(watched.ask())
        goal = telling(before)
        kept = None if goal is None else goal.replace("forget.", "retain.")
        if goal is None or before.get(kept or "") is None:
            raise InputError(f"worst_case needs the same score on forget and retain, and the suite {scene.suite.name!r} has none of the known ones")
        floor = self.keep * (before[kept].value or 0.0)  # type: ignore[index]
        outcomes: dict[int, Outcome] = {}

        def objective(trial: Any) -> float:
            settings = {
                "data": trial.suggest_categorical("data", list(self.data)),
                "lr": trial.suggest_float("lr", *self.lr, log=True),
                "steps": trial.suggest_int("steps", 1, self.most_steps, log=True),
                "batch": trial.suggest_categorical("batch", [1, 4, 8]),
                "adapter": trial.suggest_categorical("adapter", [False, True]) if not scene.subject.is_adapter else False,
            }
            scene.narrator.say(f"worst case, trial {trial.number + 1} of {self.trials}: {settings}")
            outcome = self._relearn(settings)(scene)
            told, useful = outcome.scores[goal].value or 0.0, outcome.scores[kept].value or 0.0  # type: ignore[index]
            trial.set_user_attr("kept", useful)
            outcomes[trial.number] = outcome
            return told if useful >= floor else told - 1.0  # below every attack that keeps the model useful

        study = self._study(library, scene)
        done = len([t for t in study.trials if t.state.is_finished()])
        if done < self.trials:
            study.optimize(objective, n_trials=self.trials - done)
        best = study.best_trial
        outcome = outcomes.get(best.number) or self._relearn({"adapter": False, **best.params})(
            scene
        )  # of an earlier session: the same settings give the same result
        curve = tuple(
            {"trial": float(t.number), goal: t.value if t.value is not None and t.value >= 0 else None} for t in study.trials if t.state.is_finished()
        )
        return Outcome(outcome.scores, outcome.records, curve)

    def _study(self, library: Any, scene: Scene) -> Any:
        place = None if scene.folder is None else scene.folder / "worst_case.log"
        if place is not None:
            cut_to_whole_lines(place)
        study = open_study(library, "worst_case", place, ["maximize"])
        finished = len([t for t in study.trials if t.state.is_finished()])
        study.sampler = sampler(library, "tpe", scene.seed, finished, self.trials)
        return study

    def _relearn(self, settings: dict[str, Any]) -> Relearn:
        adapter = AddAdapter() if settings["adapter"] else None
        return Relearn(
            data=settings["data"],
            steps=settings["steps"],
            points=(),
            lr=settings["lr"] * (10 if adapter else 1),
            batch=settings["batch"],
            lora=adapter,
            part=self.part,
            splits=("forget", "retain"),
            limit=self.limit,
        )
