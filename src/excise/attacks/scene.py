"""What an attack works on, and what it gives back."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from excise.data.example import Benchmark
from excise.errors import InputError
from excise.evaluation.collect import Progress, collect
from excise.evaluation.metrics.facts import FactRecall
from excise.evaluation.plan import ANSWERS_AT_ONCE, Plan
from excise.evaluation.records import Record, Records
from excise.evaluation.score import ExampleMetric, Score
from excise.evaluation.suites.suite import Suite, judge, score
from excise.precision import Precision
from excise.stages.state import Narrator, Silent

if TYPE_CHECKING:
    from excise.subject import Subject


@dataclass
class Scene:
    """A model, the data, and how the model is asked."""

    subject: Subject
    benchmark: Benchmark
    suite: Suite
    seed: int = 0
    precision: Precision = "auto"
    generate_batch: int = ANSWERS_AT_ONCE
    cache: Path | None = None
    """Where answers are kept; None keeps nothing."""
    folder: Path | None = None
    """Where an attack may keep the state from which it goes on; None keeps nothing."""
    narrator: Narrator = field(default_factory=Silent)
    progress: Progress | None = None
    leak: ExampleMetric = field(default_factory=lambda: cast(ExampleMetric, FactRecall()))
    """How much of the fact a generation tells, in [0, 1]."""

    def only(self, splits: Sequence[str], limit: int | None) -> Scene:
        """The same with some splits, and the first so many examples of each.

        Raises:
            InputError: a split that the suite does not have.
        """
        for split in splits:
            if split not in self.suite.plans:
                raise InputError(
                    f"an attack is to be judged on the split {split!r}, but the suite {self.suite.name!r} has: {', '.join(self.suite.plans)}"
                )
        there = {**self.suite.sources(self.benchmark)}
        chosen = [split for split in splits if split in there]
        if not chosen:
            raise InputError(f"the benchmark {self.benchmark.name!r} has none of the splits that the attack is judged on: {', '.join(splits)}")
        shown = {there[split]: self.benchmark.split(there[split])[:limit] for split in chosen}
        benchmark = dataclasses.replace(self.benchmark, splits={**self.benchmark.splits, **shown})
        return dataclasses.replace(self, benchmark=benchmark, suite=narrowed(self.suite, chosen))

    def ask(self, subject: Subject | None = None, benchmark: Benchmark | None = None, plans: Mapping[str, Plan] | None = None) -> Records:
        """Records of a model (this scene's, unless another is given), by the suite's splits.

        Args:
            benchmark: with other examples in the same splits.
            plans: split of the suite -> what is asked; None: what the suite asks.
        """
        benchmark = benchmark or self.benchmark
        sources = self.suite.sources(benchmark)
        wanted = self.suite.plans if plans is None else plans
        found = collect(
            subject or self.subject,
            benchmark,
            {sources[split]: plan for split, plan in wanted.items() if split in sources},
            precision=self.precision,
            generate_batch=self.generate_batch,
            cache=self.cache,
            progress=self.progress,
        )
        return {split: found[sources[split]] for split in wanted if split in sources}

    def outcome(self, records: Records, own: Mapping[str, Score] = MappingProxyType({}), curve: Sequence[Mapping[str, float | None]] = ()) -> Outcome:
        """The suite's scores of these records beside the attack's own that have a value, and the records with their verdicts."""
        records = judge(records, self.suite, cache=None if self.cache is None else self.cache.parent / "verdicts", progress=self.progress)
        return Outcome({**self.scores(records), **{name: s for name, s in own.items() if s.value is not None}}, records, tuple(curve))

    def scores(self, records: Records) -> dict[str, Score]:
        """The suite's scores that these records allow."""
        complete = all(records.get(split) for split in self.suite.plans)
        suite = self.suite if complete else narrowed(self.suite, [split for split in self.suite.plans if records.get(split)])
        return {name: value for name, value in score(records, suite).items() if value.value is not None}

    def told(self, records: Sequence[Record]) -> list[float | None]:
        """How much of its fact each generation tells; None where there is no fact or no generation."""
        return [self.leak.per_example(record) for record in records]


TELLING = ("fact_recall", "rouge_l_recall", "probability")
"""The metrics that say how much comes back, the most direct first."""


def telling(scores: Mapping[str, Score], split: str = "forget") -> str | None:
    """The name of the most direct of :data:`TELLING` that a split has a value of."""
    names = (f"{split}.{metric}" for metric in TELLING)
    return next((name for name in names if name in scores and scores[name].value is not None), None)


@dataclass(frozen=True)
class Outcome:
    """What came of an attack."""

    scores: Mapping[str, Score]
    """The suite's scores of the attacked model, and the attack's own."""
    records: Records
    curve: tuple[Mapping[str, float | None], ...] = ()
    """Scores along the attack; the key ``step`` (or ``layer``) says where."""


@runtime_checkable
class Attack(Protocol):
    """A frozen dataclass whose fields are its settings. The scene's model is, to the bit, what it was when the call returns or raises."""

    def check(self, scene: Scene) -> None:
        """Refuses what cannot work on this model and data, before anything costs time.

        Raises:
            InputError: what does not fit, and what to do.
        """
        ...

    def __call__(self, scene: Scene) -> Outcome: ...


def narrowed(suite: Suite, splits: Sequence[str]) -> Suite:
    """The suite on some of its splits: measures of single splits stay where theirs does, those of whole benchmarks always."""
    measures = [dataclasses.replace(m, splits=tuple(s for s in m.splits if s in splits)) for m in suite.measures]
    kept = tuple(new for old, new in zip(suite.measures, measures, strict=True) if new.splits or not old.splits)
    return dataclasses.replace(suite, plans={s: plan for s, plan in suite.plans.items() if s in splits}, measures=kept)


def questions(scene: Scene, split: str = "forget") -> None:
    """Refuses data that asks nothing.

    Raises:
        InputError: the split holds plain texts only.
    """
    source = scene.suite.sources(scene.benchmark).get(split, split)
    if not any(example.prompt for example in scene.benchmark.split(source)):
        raise InputError(f"this attack asks questions, and the split {split!r} of {scene.benchmark.name!r} holds plain texts only")


@contextmanager
def restored(subject: Subject, names: Collection[str] | None = None) -> Iterator[Subject]:
    """Lets the block change the model's weights and structure; afterwards every bit is as it was, also when the block raises.

    ``names`` says which parameters the block may change, where that is known: only these are copied.
    """
    model = subject.model
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    before = [(parameter, parameter.detach().clone()) for name, parameter in model.named_parameters() if names is None or name in names]
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield subject
    finally:
        if subject.model is not model:
            subject.model = _without_adapter(subject.model, model)
        for parameter, value in before:
            parameter.data.copy_(value)
        for parameter, wanted in flags:
            parameter.requires_grad_(wanted)
            parameter.grad = None
        for module, training in modes:
            module.training = training


def _without_adapter(changed: Any, original: Any) -> Any:
    """Takes an adapter off that was put on the original model, whose own layers it had replaced."""
    inner = changed.unload()
    assert inner is original, "the adapter does not sit on the model that was attacked"
    vars(original).pop("peft_config", None)
    return original
