"""Scoring a model that is already there."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from excise import environment as surroundings
from excise import registry
from excise.data.example import Benchmark
from excise.errors import InputError
from excise.evaluation.records import Records
from excise.evaluation.store import write_records
from excise.evaluation.suites import SUITE_OF, Suite, per_example, score
from excise.evaluation.suites import evaluate as evaluate_subject
from excise.files import cache_folder, folder_beside, write_json
from excise.run import SCHEMA, narrated
from excise.settings import build, override, plain, read_yaml, refuse_unknown
from excise.stages.state import Narrator, Silent
from excise.subject import ModelSpec, load
from excise.tokens import resolve_precision


@dataclasses.dataclass(frozen=True)
class Settings:
    """What `excise evaluate --set` can change."""

    system: str | None = None
    """The system turn; None leaves it to the chat template."""
    template: str = "auto"
    """auto, chat or plain."""
    dtype: str = "auto"
    precision: str = "auto"
    batch: int = 32
    """Answers that are generated at once."""
    max_new_tokens: int | None = None
    """Length of generated answers; None: the suite's own."""
    data: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Settings of the benchmark, such as data.forget=forget05."""


def evaluate_model(
    model: str,
    suite_name: str,
    out: Path,
    *,
    data: str | None = None,
    retrained: str | None = None,
    limit: int | None = None,
    settings: Sequence[str] = (),
    overwrite: bool = False,
    narrator: Narrator | None = None,
) -> dict[str, Any]:
    """Scores a model and leaves a run folder with records, result.json and a report behind.

    Raises:
        InputError: an unknown suite or setting, a benchmark without a needed split, a model that cannot be loaded.
    """
    chosen = _settings(settings)
    narrator = narrator or Silent()
    make_suite = registry.find("suites", suite_name)
    suite: Suite = make_suite() if chosen.max_new_tokens is None else make_suite(max_new_tokens=chosen.max_new_tokens)
    benchmark = _benchmark(suite_name, data, chosen.data)
    suite.sources(benchmark)
    with folder_beside(Path(out), overwrite) as work:
        begun = time.time()
        evaluations: dict[str, Any] = {}
        twin = _phase("retrained", retrained, suite, benchmark, chosen, limit, None, work, evaluations, narrator) if retrained else None
        _phase("before", model, suite, benchmark, chosen, limit, twin, work, evaluations, narrator)
        around = evaluations.pop("environment")
        write_json(work / "environment.json", around)
        result = {
            "schema": SCHEMA,
            "excise": around["versions"]["excise"],
            "recipe": {"model": model, "data": {"name": suite_name, **plain(chosen.data)}, "evaluation": {"suite": suite_name, "limit": limit}},
            "environment": around,
            "stages": [],
            "seconds": round(time.time() - begun, 1),
            "evaluations": evaluations,
        }
        write_json(work / "result.json", result)
        from excise.report.html import write_report

        write_report([work], work / "report.html")
    return result


def _settings(assignments: Sequence[str]) -> Settings:
    values: dict[str, Any] = {}
    for assignment in assignments:
        values = override(values, assignment)
    refuse_unknown(values, [f.name for f in dataclasses.fields(Settings)], "")
    return build(Settings, values, "")


def _benchmark(suite: str, data: str | None, settings: Mapping[str, Any]) -> Benchmark:
    """The benchmark of a suite, from its own name, a path, or a YAML file with ``name`` and settings."""
    name = suite if suite in registry.names("benchmarks") else {judge: judged for judged, judge in SUITE_OF.items()}.get(suite, suite)
    values: dict[str, Any] = dict(settings)
    if data is not None and data.endswith((".yaml", ".yml")):
        values = {**read_yaml(Path(data)), **values}
        name = str(values.pop("name", name))
    elif data is not None:
        values["path"] = data
    loader = registry.find("benchmarks", name)
    if "path" in values and "path" not in {f.name for f in dataclasses.fields(loader)}:
        raise InputError(f"--data {data}: the benchmark {name!r} takes no folder; give its settings with --set data.NAME=VALUE")
    return build(loader, values, "data")()


def _phase(
    phase: str,
    model: str,
    suite: Suite,
    benchmark: Benchmark,
    chosen: Settings,
    limit: int | None,
    twin: Records | None,
    work: Path,
    evaluations: dict[str, Any],
    narrator: Narrator,
) -> Records:
    spec = build(ModelSpec, {"path": model, "system": chosen.system, "template": chosen.template, "dtype": chosen.dtype}, "model")
    subject = load(spec)
    records, scores = evaluate_subject(
        subject,
        benchmark,
        suite,
        retrained=twin,
        precision=chosen.precision,  # type: ignore[arg-type]
        generate_batch=chosen.batch,
        limit=limit,
        cache=cache_folder() / "records",
        progress=narrated(narrator),
    )
    if phase == "retrained":
        scores = score(records, suite, records)
    write_records(work, phase, records, scores=per_example(records, suite))
    evaluations[phase] = {suite.name: {name: s.to_json() for name, s in scores.items()}}
    precision = resolve_precision(chosen.precision, subject.device)  # type: ignore[arg-type]
    evaluations["environment"] = surroundings.environment(subject, benchmark, seed=0, precision=precision)
    return records
