"""Which splits a benchmark is evaluated on, and by which metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from excise.errors import InputError
from excise.evaluation.metrics import METRICS, Metric
from excise.evaluation.metrics.choice import ChoiceAccuracy
from excise.evaluation.metrics.facts import FactRecall
from excise.evaluation.metrics.fluency import Perplexity
from excise.evaluation.metrics.memory import Probability, TruthRatio
from excise.evaluation.metrics.utility import ModelUtility, Part
from excise.evaluation.plan import Plan
from excise.evaluation.records import Record, Records
from excise.evaluation.score import Better, ExampleMetric, Score, SetMetric, Unavailable, example_score

if TYPE_CHECKING:
    from excise.data.example import Benchmark
    from excise.evaluation.collect import Progress
    from excise.subject import Subject
    from excise.tokens import Precision


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

    def sources(self, benchmark: Benchmark) -> dict[str, str]:
        """Split of the suite -> split of the benchmark that is run for it; a needed one that it lacks is an error."""
        there = [name for name, examples in benchmark.splits.items() if examples]
        self._require(there, f"the benchmark {benchmark.name!r} lacks")
        chosen = {split: self.preferred.get(split, split) for split in self.plans if split in there}
        return {split: source if source in there else split for split, source in chosen.items()}

    def direction(self, metric: Metric, split: str) -> Better:
        """Which way is better for a metric on a split."""
        if split in self.controls:
            return "none"
        if metric.better != "knowledge":
            return metric.better
        return "lower" if split in self.forgotten else "higher"

    def _require(self, there: Sequence[str], where: str) -> None:
        lacking = [split for split in self.plans if split not in self.optional and split not in there]
        if lacking:
            raise InputError(f"suite {self.name!r} needs the split {lacking[0]!r}, which {where} (it has: {', '.join(sorted(there)) or 'nothing'})")


def evaluate(
    subject: Subject,
    benchmark: Benchmark,
    suite: Suite,
    *,
    retrained: Records | None = None,
    precision: Precision = "auto",
    max_tokens: int = 4096,
    generate_batch: int = 32,
    limit: int | None = None,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> tuple[Records, dict[str, Score]]:
    """Collects records and scores them. The settings are those of :func:`excise.evaluation.collect.collect`.

    Args:
        retrained: records of a model that never saw the forget split, on the same data and suite.

    Raises:
        InputError: the benchmark lacks a split that the suite needs.
    """
    from excise.evaluation.collect import collect

    sources = suite.sources(benchmark)
    found = collect(
        subject,
        benchmark,
        {source: suite.plans[split] for split, source in sources.items()},
        precision=precision,
        max_tokens=max_tokens,
        generate_batch=generate_batch,
        limit=limit,
        cache=cache,
        progress=progress,
    )
    records = {split: found[source] for split, source in sources.items()}
    return records, score(records, suite, retrained)


def score(records: Records, suite: Suite, retrained: Records | None = None) -> dict[str, Score]:
    """Every score of a suite, from records alone."""
    suite._require([split for split, rows in records.items() if rows], "the records lack")
    scores: dict[str, Score] = {}
    for measure in suite.measures:
        metric = measure.metric
        if isinstance(metric, ExampleMetric):
            for split in measure.splits:
                scores |= _split_scores(measure, metric, split, records, suite)
        else:
            scores[measure.name] = _set_score(metric, records, retrained)
            for label in _labels(measure, records) if measure.by_label else ():
                scores[f"{measure.name}@{label}"] = _set_score(metric, _labelled(records, label), _labelled(retrained, label) if retrained else None)
    return scores


def _labels(measure: Measure, records: Records) -> list[str]:
    return sorted({record.label for split in measure.splits or records for record in records.get(split, ()) if record.label})


def _labelled(records: Records, label: str) -> Records:
    return {split: [record for record in rows if record.label == label] for split, rows in records.items()}


def _split_scores(measure: Measure, metric: ExampleMetric, split: str, records: Records, suite: Suite) -> dict[str, Score]:
    name, better = f"{split}.{measure.name}", suite.direction(metric, split)
    if not records.get(split):
        return {name: Score.missing(f"the benchmark has no split {split!r}", better)}
    found = {name: example_score(metric, records[split], better)}
    labels = sorted({record.label for record in records[split] if record.label}) if measure.by_label else []
    for label in labels:
        found[f"{name}@{label}"] = example_score(metric, [r for r in records[split] if r.label == label], better)
    return found


def _set_score(metric: SetMetric, records: Records, retrained: Records | None) -> Score:
    try:
        return metric(records, retrained)
    except Unavailable as error:
        return Score.missing(str(error), cast(Better, metric.better))


def per_example(records: Records, suite: Suite) -> dict[str, list[dict[str, float | None]]]:
    """Split -> for each example its value of every example metric of the suite (None: left out)."""
    table: dict[str, list[dict[str, float | None]]] = {split: [{} for _ in rows] for split, rows in records.items()}
    for measure in suite.measures:
        for split in measure.splits:
            for record, row in zip(records.get(split, ()), table.get(split, ()), strict=True):
                row[measure.name] = _value(cast(ExampleMetric, measure.metric), record)
    return table


def _value(metric: ExampleMetric, record: Record) -> float | None:
    try:
        return metric.per_example(record)
    except Unavailable:
        return None


# --- the suites -------------------------------------------------------------------------------------------------------


def _measures(splits: tuple[str, ...], *names: str, by_label: bool = False) -> list[Measure]:
    return [Measure(name, METRICS[name](), splits, by_label) for name in names]


def _whole(*names: str) -> list[Measure]:
    return [Measure(name, METRICS[name]()) for name in names]


def _truth_ratios(forget: tuple[str, ...], utility: tuple[str, ...], without_paraphrase: tuple[str, ...] = ()) -> list[Measure]:
    return [
        Measure("truth_ratio", TruthRatio(), forget),
        Measure("truth_ratio", TruthRatio(form="utility"), utility),
        Measure("truth_ratio", TruthRatio(form="utility", correct="answer"), without_paraphrase),
    ]


def tofu(max_new_tokens: int = 200) -> Suite:
    """TOFU: 200 invented authors, with real authors and world facts as what must stay.

    Splits forget, retain (the benchmark's retain_perturbed where it has that: the training rows lack false answers),
    real_authors and world_facts; holdout (facts that nobody was taught) makes the membership scores available.

    Paper: Maini et al. 2024, TOFU: A Task of Fictitious Unlearning (arXiv 2401.06121).
    """
    taught = Plan(paraphrase=True, false=True, generation=True, max_new_tokens=max_new_tokens)
    general = Plan(false=True, generation=True, max_new_tokens=max_new_tokens)
    known, world = ("forget", "retain"), ("real_authors", "world_facts")
    measures = [
        *_measures(known, "probability", "rouge_l_recall", "fact_recall", "exact_memorisation", "extraction_strength"),
        *_measures(world, "probability", "normalised_probability", "rouge_l_recall"),
        *_truth_ratios(("forget",), ("retain",), world),
        *_measures((*known, *world), "repetition_rate", "degenerate_rate"),
        Measure("retain.perplexity", Perplexity("retain")),
        *_whole("model_utility", "forget_quality", "mia_loss", "mia_zlib", "mia_min_k", "privleak"),
    ]
    plans = {"forget": taught, "retain": taught, "real_authors": general, "world_facts": general, "holdout": Plan()}
    return Suite("tofu", MappingProxyType(plans), tuple(measures), optional=("holdout",), preferred={"retain": "retain_perturbed"})


def strangers(max_new_tokens: int = 64) -> Suite:
    """Strangers: excise's own invented people, with the words that carry each fact marked.

    Splits forget, retain, neighbours (the retained facts nearest to the forgotten ones), real_world (choice questions
    that the model could answer before) and holdout (people that nobody was taught: the floor of every score).

    False answers are scored on forget, neighbours and holdout only, so that the suite is quick: the neighbours are where
    careless unlearning shows.

    Paper: ours; built like TOFU (arXiv 2401.06121) with known fact spans and who/what/when/where/why labels.
    """
    asked = Plan(generation=True, max_new_tokens=max_new_tokens)
    facts = Plan(paraphrase=True, false=True, generation=True, max_new_tokens=max_new_tokens)
    known = Plan(paraphrase=True, false=True, options=True, generation=True, max_new_tokens=max_new_tokens)
    choice = Plan(true=False, options=True)
    taught = ("forget", "retain", "neighbours", "holdout")
    parts = [Part("real_world", ChoiceAccuracy())]
    for split in ("retain", "neighbours"):
        parts += [Part(split, Probability()), Part(split, FactRecall())]
    parts.append(Part("neighbours", TruthRatio(form="utility")))
    measures = [
        *_measures(taught, "fact_recall", by_label=True),
        *_measures(taught, "fact_logp", "probability", "rouge_l_recall"),
        *_measures(("forget", "neighbours", "holdout"), "normalised_probability"),
        *_measures(("forget", "retain", "neighbours"), "exact_memorisation", "extraction_strength"),
        *_truth_ratios(("forget", "holdout"), ("neighbours",)),
        *_measures(("forget", "real_world"), "choice_accuracy", "choice_margin"),
        *_measures(taught, "repetition_rate", "degenerate_rate"),
        Measure("retain.perplexity", Perplexity("retain")),
        Measure("model_utility", ModelUtility(tuple(parts))),
        *_whole("forget_quality", "mia_loss", "mia_zlib", "mia_min_k", "privleak"),
    ]
    plans = {"forget": known, "retain": asked, "neighbours": facts, "real_world": choice, "holdout": facts}
    return Suite("strangers", MappingProxyType(plans), tuple(measures), optional=("holdout",))


def qa(max_new_tokens: int = 100) -> Suite:
    """Questions and answers of your own: what every such benchmark can be scored by.

    Splits forget and retain; holdout (facts that nobody was taught) makes the membership scores available. Scores that
    need more than a question and an answer (false answers, a known span) leave the examples without it out.

    Paper: the measures of TOFU (arXiv 2401.06121) without its world knowledge.
    """
    plan = Plan(paraphrase=True, false=True, generation=True, max_new_tokens=max_new_tokens)
    taught = ("forget", "retain")
    measures = [
        *_measures((*taught, "holdout"), "fact_recall", by_label=True),
        *_measures((*taught, "holdout"), "probability", "rouge_l_recall"),
        *_measures(taught, "exact_memorisation", "extraction_strength"),
        *_truth_ratios(("forget",), ("retain",)),
        *_measures(taught, "repetition_rate", "degenerate_rate"),
        Measure("retain.perplexity", Perplexity("retain")),
        *_whole("forget_quality", "mia_loss", "mia_zlib", "mia_min_k", "privleak"),
    ]
    return Suite("qa", MappingProxyType({"forget": plan, "retain": plan, "holdout": plan}), tuple(measures), optional=("holdout",))


def text() -> Suite:
    """Plain text: how likely the forget and the retain passages are to the model.

    Paper: perplexity as in WMDP (arXiv 2403.03218) and MUSE (arXiv 2407.06460).
    """
    sides = ("forget", "retain")
    measures = [
        *_measures(sides, "probability", "exact_memorisation", "extraction_strength"),
        Measure("retain.perplexity", Perplexity("retain")),
        *_whole("mia_loss", "mia_zlib", "mia_min_k"),
    ]
    return Suite("text", MappingProxyType({split: Plan() for split in (*sides, "holdout")}), tuple(measures), optional=("holdout",))


SUITES: dict[str, Callable[..., Suite]] = {"tofu": tofu, "strangers": strangers, "qa": qa, "text": text}
"""Name -> a function whose parameters are the suite's settings."""

SUITE_OF: dict[str, str] = {"wmdp": "text", "jsonl": "qa"}
"""Benchmark -> the suite that judges it where none is named like it."""
