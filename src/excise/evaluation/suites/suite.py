"""What a suite is, and how a model is scored by one: collect records, then compute every score from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast, runtime_checkable

from excise import registry
from excise.data.example import Benchmark
from excise.errors import InputError, did_you_mean
from excise.evaluation.judges import Judge
from excise.evaluation.metrics import METRICS, Metric
from excise.evaluation.metrics.memory import TruthRatio
from excise.evaluation.plan import ANSWERS_AT_ONCE, Plan
from excise.evaluation.records import Record, Records
from excise.evaluation.score import Better, ExampleMetric, Others, Score, SetMetric, Unavailable, example_score
from excise.settings import build

if TYPE_CHECKING:
    from pathlib import Path

    from excise.evaluation.collect import Progress
    from excise.evaluation.engines import Engine
    from excise.precision import Precision
    from excise.subject import Subject


@dataclass(frozen=True)
class Measure:
    """A metric, and where it is taken."""

    name: str
    """The score is called ``<split>.<name>``, or ``<name>`` for a metric of whole splits."""
    metric: Metric
    splits: tuple[str, ...] = ()
    """For an example metric: the splits, each with a score of its own. For a metric of whole splits: those whose labels count (none: all)."""
    by_label: bool = False
    """Also ``<split>.<name>@<label>`` for each label of the examples; ``<name>@<label>`` for a metric of whole splits."""


@runtime_checkable
class Live(Protocol):
    """A measurement that has no records: it asks the model itself (another evaluation harness)."""

    def __call__(self, subject: Subject, limit: int | None) -> Mapping[str, Score]:
        """Scores by name."""
        ...


@dataclass(frozen=True)
class Judging:
    """Who judges the generations, and on what."""

    judge: Judge
    aspects: Mapping[str, tuple[str, ...]]
    """Split -> the aspects that are decided (:data:`excise.evaluation.judges.ASPECTS`)."""


@dataclass(frozen=True)
class Suite:
    """What an evaluation runs and what it measures."""

    name: str
    plans: Mapping[str, Plan]
    """Split -> which parts of its examples are needed."""
    measures: tuple[Measure, ...]
    optional: tuple[str, ...] = ()
    """Splits that a benchmark may lack; their scores are then unavailable."""
    forgotten: tuple[str, ...] = ("forget",)
    """Splits on which knowing less is better."""
    controls: tuple[str, ...] = ("holdout",)
    """Splits that nobody was taught: no direction is better."""
    preferred: Mapping[str, str] = field(default_factory=dict)
    """Split -> the benchmark's split that is run in its place where there is one."""
    instead: Mapping[str, str] = field(default_factory=dict)
    """Split -> the benchmark's split that is run where it lacks this one."""
    judging: tuple[Judging, ...] = ()
    """Who judges the answers before they are scored."""
    live: tuple[Live, ...] = ()
    """What is measured on the model itself, beside the records."""

    def sources(self, benchmark: Benchmark) -> dict[str, str]:
        """Split of the suite -> split of the benchmark that is run for it; a needed one that it lacks is an error."""
        there = [name for name, examples in benchmark.splits.items() if examples]
        candidates = {split: (self.preferred.get(split, split), split, self.instead.get(split, split)) for split in self.plans}
        chosen = {split: next((name for name in names if name in there), None) for split, names in candidates.items()}
        self._require([split for split, name in chosen.items() if name is not None], f"the benchmark {benchmark.name!r} lacks", there)
        return {split: name for split, name in chosen.items() if name is not None}

    def direction(self, metric: Metric, split: str) -> Better:
        """Which way is better for a metric on a split."""
        if split in self.controls:
            return "none"
        if metric.better != "knowledge":
            return metric.better
        return "lower" if split in self.forgotten else "higher"

    def _require(self, found: Sequence[str], where: str, there: Sequence[str]) -> None:
        lacking = [split for split in self.plans if split not in self.optional and split not in found]
        if lacking:
            raise InputError(f"suite {self.name!r} needs the split {lacking[0]!r}, which {where} (it has: {', '.join(sorted(there)) or 'nothing'})")


def evaluate(
    subject: Subject,
    benchmark: Benchmark,
    suite: Suite,
    *,
    retrained: Records | None = None,
    baseline: Records | None = None,
    precision: Precision = "auto",
    max_tokens: int = 4096,
    generate_batch: int = ANSWERS_AT_ONCE,
    limit: int | None = None,
    cache: Path | None = None,
    progress: Progress | None = None,
    engine: Engine | None = None,
) -> tuple[Records, dict[str, Score]]:
    """Collects records and scores them. The settings are those of :func:`excise.evaluation.collect.collect`.

    Args:
        retrained: records of a model that never saw the forget split, on the same data and suite.
        baseline: records of the model before unlearning, on the same data and suite.

    Raises:
        InputError: the benchmark lacks a split that the suite needs.
    """
    from excise.evaluation.collect import collect

    sources = suite.sources(benchmark)
    records = collect(
        subject,
        Benchmark(benchmark.name, {split: benchmark.split(source) for split, source in sources.items()}),
        {split: suite.plans[split] for split in sources},
        precision=precision,
        max_tokens=max_tokens,
        generate_batch=generate_batch,
        limit=limit,
        cache=cache,
        progress=progress,
        engine=engine,
    )
    records = _judged_once(records, suite, cache=None if cache is None else cache.parent / "verdicts", progress=progress)
    scores = score(records, suite, retrained, baseline)
    for measurement in suite.live:
        scores |= measurement(subject, limit)
    return records, scores


def _judged_once(records: Records, suite: Suite, *, cache: Path | None, progress: Progress | None) -> Records:
    """Verdicts by the first of several processes, which may ask a server, for all of them."""
    if not suite.judging:
        return records
    from excise.parallel import ranks  # which needs torch; listing suites does not

    if not ranks.several():
        return judge(records, suite, cache=cache, progress=progress)
    told = ranks.from_main(
        lambda: {split: [r.to_json() for r in rows] for split, rows in judge(records, suite, cache=cache, progress=progress).items()}
    )
    return {split: [Record.from_json(row) for row in rows] for split, rows in told.items()}


def judge(records: Records, suite: Suite, *, cache: Path | None = None, progress: Progress | None = None) -> Records:
    """The same records with the verdicts that the suite's scores need."""
    if not suite.judging:
        return records
    from excise.evaluation.judges.judging import judged

    for judging in suite.judging:
        by_aspects: dict[tuple[str, ...], list[str]] = {}
        for split, aspects in judging.aspects.items():
            if split in records:
                by_aspects.setdefault(aspects, []).append(split)
        for aspects, splits in by_aspects.items():
            records = judged(records, judging.judge, aspects, splits, cache=cache, progress=progress)
    return records


def score(records: Records, suite: Suite, retrained: Records | None = None, baseline: Records | None = None) -> dict[str, Score]:
    """Every score of a suite, from records alone."""
    there = [split for split, rows in records.items() if rows]
    suite._require(there, "the records lack", there)
    others = Others(retrained, baseline)
    scores: dict[str, Score] = {}
    for measure in suite.measures:
        metric = measure.metric
        if isinstance(metric, ExampleMetric):
            for split in measure.splits:
                scores |= _split_scores(measure, metric, split, records, suite)
        else:
            scores |= _set_scores(measure, metric, records, others)
    return scores


def _split_scores(measure: Measure, metric: ExampleMetric, split: str, records: Records, suite: Suite) -> dict[str, Score]:
    name, better = f"{split}.{measure.name}", suite.direction(metric, split)
    if not records.get(split):
        return {name: Score.missing(f"the benchmark has no split {split!r}", better)}
    found = {name: example_score(metric, records[split], better)}
    labels = sorted({record.label for record in records[split] if record.label}) if measure.by_label else []
    for label in labels:
        found[f"{name}@{label}"] = example_score(metric, [r for r in records[split] if r.label == label], better)
    return found


def _set_scores(measure: Measure, metric: SetMetric, records: Records, others: Others) -> dict[str, Score]:
    found = {measure.name: _set_score(metric, records, others)}
    counted = measure.splits or tuple(records)
    labels = sorted({record.label for split in counted for record in records.get(split, ()) if record.label}) if measure.by_label else []
    for label in labels:
        theirs = Others(*(None if them is None else _labelled(them, label) for them in (others.retrained, others.baseline)))
        found[f"{measure.name}@{label}"] = _set_score(metric, _labelled(records, label), theirs)
    return found


def _labelled(records: Records, label: str) -> dict[str, list[Record]]:
    return {split: [record for record in rows if record.label == label] for split, rows in records.items()}


def _set_score(metric: SetMetric, records: Records, others: Others) -> Score:
    try:
        return metric(records, others)
    except Unavailable as error:
        return Score.missing(str(error), cast(Better, metric.better))


def per_example(records: Records, suite: Suite) -> dict[str, list[dict[str, float | None]]]:
    """Split -> for each example its value of every example metric of the suite (None: left out)."""
    table: dict[str, list[dict[str, float | None]]] = {split: [{} for _ in rows] for split, rows in records.items()}
    for measure in suite.measures:
        if not isinstance(measure.metric, ExampleMetric):
            continue
        for split in measure.splits:
            for record, row in zip(records.get(split, ()), table.get(split, ()), strict=True):
                row[measure.name] = _value(measure.metric, record)
    return table


def _value(metric: ExampleMetric, record: Record) -> float | None:
    try:
        return metric.per_example(record)
    except Unavailable:
        return None


# --- for writing a suite ----------------------------------------------------------------------------------------------


def measures(splits: tuple[str, ...], *names: str, by_label: bool = False) -> list[Measure]:
    """Metrics by name, each on these splits."""
    return [Measure(name, METRICS[name](), splits, by_label) for name in names]


def judge_of(value: str | Mapping[str, Any], place: str = "suite.judge") -> Judge:
    """A judge from its name, or from a mapping of ``name`` and its settings."""
    settings = {"name": value} if isinstance(value, str) else dict(value)
    if "name" not in settings:
        raise InputError(f"{place}: no 'name'; {did_you_mean('', registry.names('judges'))}")
    return build(registry.find("judges", str(settings.pop("name"))), settings, place)


def whole(*names: str) -> list[Measure]:
    """Metrics of whole splits by name."""
    return [Measure(name, METRICS[name]()) for name in names]


def truth_ratios(
    forget: tuple[str, ...],
    utility: tuple[str, ...],
    without_paraphrase: tuple[str, ...] = (),
    mean: Literal["geometric", "arithmetic"] = "geometric",
) -> list[Measure]:
    """The truth ratio in the form of each split; the arithmetic mean over the false answers has a name of its own."""
    name = "truth_ratio" if mean == "geometric" else "truth_ratio_arithmetic"
    return [
        Measure(name, TruthRatio(mean=mean), forget),
        Measure(name, TruthRatio(form="utility", mean=mean), utility),
        Measure(name, TruthRatio(form="utility", mean=mean, correct="answer"), without_paraphrase),
    ]
