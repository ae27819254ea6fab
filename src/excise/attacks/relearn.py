"""Relearning: a little fine-tuning, and how soon the knowledge is back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from excise.attacks.scene import Outcome, Scene, restored, telling
from excise.attacks.success import truths
from excise.data.benchmarks.text import cut, read_documents
from excise.data.example import Example
from excise.errors import InputError, did_you_mean
from excise.evaluation.plan import Plan
from excise.evaluation.records import Records
from excise.evaluation.score import Score
from excise.methods import Training
from excise.objectives import NLL
from excise.objectives.check import at_least, positive
from excise.precision import resolve_precision
from excise.stages.adapters import AddAdapter
from excise.stages.guard import Guard
from excise.stages.state import State
from excise.stages.train import Term
from excise.subject import Subject

CHUNK_WORDS = 200


@dataclass(frozen=True)
class Relearn:
    """Fine-tunes the model for a few steps, and watches whether the knowledge comes back sooner than a model that never had it learns it.

    The curve gives the scores after some of the steps; ``steps_to_half`` says when half of what was lost is back. The same
    attack on a retrained twin is the honest ceiling: what it learns from the attacker's data was not hidden in its weights.
    With ``part`` below 1 only a part of the forget examples is shown and the scores ``forget.*@unseen`` (with a judge ``fsr@unseen`` too)
    are those of the others, which nobody taught again.

    Paper: Hu et al. 2024, "Jogging the Memory of Unlearned Models Through Targeted Relearning Attacks" (arXiv 2406.13356);
    Lynch et al. 2024, "Eight Methods to Evaluate Robust Unlearning in LLMs" (arXiv 2402.16835).
    """

    data: str = "forget"
    """What is shown: a split of the benchmark (forget, retain, passages_forget for related text, passages_retain for unrelated
    text, ...), or a text file or folder."""
    steps: int = 50
    points: tuple[int, ...] = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500)
    """Steps after which the model is asked; those beyond ``steps`` are left out."""
    lr: float | None = None
    """Learning rate, constant; None takes the default of the model's size."""
    batch: int = 4
    lora: AddAdapter | None = None
    """Relearn with a fresh adapter instead of the whole model (an adapter that is there is trained as it is)."""
    part: float = 1.0
    """Share of the shown examples that is used, the same of each label; the others are ``unseen``."""
    splits: tuple[str, ...] = ("forget", "retain")
    """Where the attacked model is asked at the end; the curve shows the forget split."""
    limit: int | None = 50
    """The first so many examples of each of them; None: all."""

    def __post_init__(self) -> None:
        at_least("relearn.steps", self.steps, 1)
        at_least("relearn.batch", self.batch, 1)
        if self.lr is not None:
            positive("relearn.lr", self.lr)
        if not 0 < self.part <= 1:
            raise InputError(f"relearn.part is {self.part}: it must be above 0 and at most 1")
        if any(point < 0 for point in self.points):
            raise InputError(f"relearn.points has {min(self.points)}: steps count from 0")

    def check(self, scene: Scene) -> None:
        scene.only(self.splits, self.limit)
        self._shown(scene)
        if self.lora is not None and scene.subject.is_adapter:
            raise InputError("relearn.lora: the model is an adapter already, which is relearned as it is; leave out lora")

    def __call__(self, scene: Scene) -> Outcome:
        scene = scene.only(self.splits, self.limit)
        shown = self._shown(scene)
        unseen = self._unseen(scene, shown)
        watched = sorted({point for point in self.points if point < self.steps} | {0, self.steps})
        curve: list[Mapping[str, float | None]] = []
        last: list[Records] = []
        done = 0

        def look(subject: Subject) -> Mapping[str, Score]:
            nonlocal done
            if done in watched:
                whole = done == self.steps
                records = scene.ask(subject, plans=scene.suite.plans if whole else {"forget": self._asked(scene)})
                curve.append({"step": float(done), **self._point(scene, records, unseen)})
                if whole:
                    last.append(records)
            done += 1
            return {}

        with restored(scene.subject) as subject:
            look(subject)
            training = Training(
                lr=self.lr, steps=self.steps, batch=self.batch, lora=self.lora, warmup=0.0, schedule="constant",
                evaluate_every=1, checkpoint_every=0, guard=Guard(every=0),
            )  # fmt: skip
            precision = resolve_precision(scene.precision, subject.device)
            sides = {"forget": (), "retain": shown}
            state = State(subject, scene.benchmark, sides, scene.seed, precision, narrator=scene.narrator, evaluate=look)  # type: ignore[arg-type]
            for stage in training.stages(Term(NLL(), "retain")):
                stage(state)
        if not last:
            raise InputError(f"relearning stopped early: {state.records[-1]['stopped']}; a lower relearn.lr may help")
        outcome = scene.outcome(last[0], curve=curve)
        if unseen:
            rest = [record for record in outcome.records["forget"] if record.id in unseen]
            scores = scene.scores({"forget": rest})
            whole = [name for name in scores if (name.startswith("forget.") or "." not in name) and "@" not in name]
            others = {f"{name}@unseen": scores[name] for name in whole}
            return dataclasses.replace(outcome, scores={**outcome.scores, **others})
        return outcome

    def _asked(self, scene: Scene) -> Plan:
        """What the points of the curve are made of: answers where there are questions, likelihood elsewhere."""
        plan = scene.suite.plans["forget"]
        asks = plan.generation and any(example.prompt for example in scene.benchmark.split(scene.suite.sources(scene.benchmark)["forget"]))
        return dataclasses.replace(plan, paraphrase=False, false=False, options=False, generation=asks, true=not asks)

    def _point(self, scene: Scene, records: Records, unseen: frozenset[str]) -> dict[str, float | None]:
        asked = truths(scene, "forget", records["forget"])
        scores = scene.scores({"forget": asked})
        names = [name for name in (telling(scores), "fsr") if name is not None and name in scores]
        found = {name: scores[name].value for name in names}
        if unseen:
            rest = scene.scores({"forget": [record for record in asked if record.id in unseen]})
            found |= {f"{name}@unseen": rest[name].value if name in rest else None for name in names}
        return found

    def _shown(self, scene: Scene) -> tuple[Example, ...]:
        """What the model is trained on."""
        if self.data in scene.benchmark.splits:
            examples = scene.benchmark.split(self.data)
        elif Path(self.data).expanduser().exists():
            examples = tuple(cut(read_documents(self.data), CHUNK_WORDS, "words", 50))
            if not examples:
                raise InputError(f"relearn.data: {self.data} holds no text of at least 50 characters")
        else:
            hint = did_you_mean(self.data, scene.benchmark.splits)
            raise InputError(f"relearn.data: {self.data!r} is neither a split of the benchmark ({hint}) nor a file")
        labels = list(dict.fromkeys(example.label for example in examples))
        by_label = sorted(examples, key=lambda example: labels.index(example.label))  # every label in its turn gives its part
        spread = {e.id for i, e in enumerate(by_label) if int((i + 1) * self.part) > int(i * self.part)}
        return tuple(example for example in examples if example.id in spread) or examples[:1]

    def _unseen(self, scene: Scene, shown: tuple[Example, ...]) -> frozenset[str]:
        if self.part == 1 or self.data != "forget":
            return frozenset()
        seen = {example.id for example in shown}
        return frozenset(example.id for example in scene.benchmark.forget if example.id not in seen)


def steps_to_half(curve: tuple[Mapping[str, float | None], ...], name: str, before: float, after: float) -> Score:
    """The first step of the curve at which half of what was lost is back: a value of at least (before + after) / 2.

    Between two points of the curve the step is interpolated linearly.

    Args:
        before: the score before unlearning.
        after: the score of the unlearned model (also where the curve is the twin's: the level is the same for both).
    """
    points = [(point["step"], point[name]) for point in curve if point.get("step") is not None and point.get(name) is not None]
    if not points:
        return Score.missing(f"the curve has no {name!r}")
    level = (before + after) / 2
    if before <= after:
        return Score.missing("nothing was lost: the score after unlearning is not below the one before")
    previous: tuple[float, float] | None = None
    for step, value in points:
        assert step is not None
        assert value is not None
        if value >= level:
            if previous is None or value == previous[1]:
                return Score(step, "higher", 1)
            return Score(previous[0] + (step - previous[0]) * (level - previous[1]) / (value - previous[1]), "higher", 1)
        previous = (step, value)
    return Score.missing(f"half of what was lost did not come back within {points[-1][0]:.0f} steps", "higher")
