"""Scoring a model that is already there."""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from excise import environment as surroundings
from excise import registry
from excise.attacks.scene import Scene
from excise.attacks.series import TWIN, Named, add_steps_to_half, build_attacks, expanded, run_attacks
from excise.data.example import Benchmark
from excise.errors import InputError
from excise.evaluation.engines import engine_of
from excise.evaluation.plan import ANSWERS_AT_ONCE
from excise.evaluation.records import Records
from excise.evaluation.score import Score
from excise.evaluation.store import read_records, write_records
from excise.evaluation.suites import SUITE_OF, Suite, per_example, score
from excise.evaluation.suites import evaluate as evaluate_subject
from excise.files import cache_folder, folder_beside, write_json
from excise.loading import ModelSpec, load
from excise.parallel import ranks
from excise.precision import Precision, resolve_precision
from excise.run import SCHEMA, narrated
from excise.settings import build, call, overridden, plain, read_yaml, refuse_unknown
from excise.stages.state import Narrator, Silent
from excise.subject import Subject


@dataclasses.dataclass(frozen=True)
class Settings:
    """What `excise evaluate --set` can change."""

    system: str | None = None
    """The system turn; None leaves it to the chat template."""
    template: str = "auto"
    """auto, chat or plain."""
    dtype: str = "auto"
    precision: Precision = "auto"
    batch: int = ANSWERS_AT_ONCE
    """Answers that are generated at once."""
    engine: str | Mapping[str, Any] | None = None
    """vllm: who writes the answers instead of transformers; or a mapping of name and settings (memory, dtype, length)."""
    max_new_tokens: int | None = None
    """Length of generated answers; None: the suite's own."""
    data: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Settings of the benchmark, such as data.forget=forget05; data.name takes another benchmark than the suite's own."""
    suite: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Settings of the suite, such as suite.judge=contains."""
    attacks: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    """Settings of attacks by name, such as attacks.relearn.steps=20."""
    seed: int = 0
    """Of attacks."""


def evaluate_model(
    model: str,
    suite_name: str,
    out: Path,
    *,
    data: str | None = None,
    retrained: str | None = None,
    baseline: str | None = None,
    attacks: Sequence[str] = (),
    limit: int | None = None,
    settings: Sequence[str] = (),
    overwrite: bool = False,
    narrator: Narrator | None = None,
) -> dict[str, Any]:
    """Scores a model and leaves a run folder with records, result.json and a report behind.

    Args:
        retrained: a model that never saw the forget split, or the folder of an earlier evaluation of it.
        baseline: the model before unlearning, or the folder of an earlier evaluation of it. It stands under "before",
            and the model itself under "after"; without it the model stands under "before", unless it is attacked.
        attacks: names of attacks on the model, and on the retrained one for comparison.

    Raises:
        InputError: an unknown suite or setting, a benchmark without a needed split, a model that cannot be loaded.
    """
    chosen = _settings(settings)
    ranks.start()
    narrator = narrator if narrator is not None and ranks.is_main() else Silent()
    suite = _suite(suite_name, chosen)
    benchmark = _benchmark(suite, data, chosen.data)
    suite.sources(benchmark)
    named = _attacks(attacks, chosen)
    for note in benchmark.notes:
        narrator.say(note)
    with _own_folder(Path(out), overwrite) as work:
        begun = time.time()
        judging = _Judging(suite, benchmark, chosen, limit, work, narrator, named)
        twin = judging.known("retrained", retrained) if retrained else None
        origin = judging.known("before", baseline, twin) if baseline else None
        judging.ask("after" if baseline or named else "before", model, twin, origin)
        add_steps_to_half(judging.evaluations, suite.name)
        around = judging.around
        write_json(work / "environment.json", around)
        result = {
            "schema": SCHEMA,
            "excise": around["versions"]["excise"],
            "recipe": {
                "model": model,
                "data": {"name": benchmark.name, **plain(chosen.data)},
                "evaluation": {"suite": suite_name, "limit": limit, **plain(chosen.suite)},
                **({"attacks": expanded(named), "seed": chosen.seed} if named else {}),
            },
            "environment": around,
            "stages": [],
            "seconds": round(time.time() - begun, 1),
            **({"attack_costs": judging.attack_costs} if named else {}),
            "evaluations": judging.evaluations,
        }
        write_json(work / "result.json", result)
        if ranks.is_main():
            from excise.report.html import write_report

            write_report([work], work / "report.html")
        ranks.wait()
    return result


@contextmanager
def _own_folder(out: Path, overwrite: bool) -> Iterator[Path]:
    """The new folder of the result; of several processes the others get one that goes again."""
    if ranks.is_main():
        with folder_beside(out, overwrite) as work:
            yield work
    else:
        with tempfile.TemporaryDirectory(prefix="excise-") as scratch:
            yield Path(scratch)


def _settings(assignments: Sequence[str]) -> Settings:
    values = overridden({}, assignments)
    refuse_unknown(values, [f.name for f in dataclasses.fields(Settings)], "")
    return build(Settings, values, "")


def _attacks(names: Sequence[str], chosen: Settings) -> tuple[Named, ...]:
    if unused := [name for name in chosen.attacks if name not in names]:
        raise InputError(f"--set attacks.{unused[0]}...: this attack is not run; name it with --attack {unused[0]}")
    return build_attacks([{**chosen.attacks.get(name, {}), "name": name} for name in names])


def _suite(name: str, chosen: Settings) -> Suite:
    length = {} if chosen.max_new_tokens is None else {"max_new_tokens": chosen.max_new_tokens}
    return call(registry.find("suites", name), {**length, **chosen.suite}, "suite")


def _benchmark(suite: Suite, data: str | None, settings: Mapping[str, Any]) -> Benchmark:
    """The benchmark of a suite, from its own name, a path, or a YAML file with ``name`` and settings."""
    if not suite.plans:
        if data is not None or settings:
            raise InputError(f"the suite {suite.name!r} brings its own data: leave --data and --set data... out, and see `excise show {suite.name}`")
        return Benchmark(suite.name, {})
    name = (
        suite.name
        if suite.name in registry.names("benchmarks")
        else {judge: judged for judged, judge in SUITE_OF.items()}.get(suite.name, suite.name)
    )
    values: dict[str, Any] = dict(settings)
    if data is not None and data.endswith((".yaml", ".yml")):
        values = {**read_yaml(Path(data)), **values}
    elif data is not None:
        values["path"] = data
    name = str(values.pop("name", name))
    loader = registry.find("benchmarks", name)
    if "path" in values and "path" not in {f.name for f in dataclasses.fields(loader)}:
        raise InputError(f"--data {data}: the benchmark {name!r} takes no folder; give its settings with --set data.NAME=VALUE")
    return build(loader, values, "data")()


@dataclasses.dataclass
class _Judging:
    """One evaluation under way: several models, the same suite and data."""

    suite: Suite
    benchmark: Benchmark
    chosen: Settings
    limit: int | None
    work: Path
    narrator: Narrator
    attacks: tuple[Named, ...] = ()
    evaluations: dict[str, Any] = dataclasses.field(default_factory=dict)
    around: dict[str, Any] = dataclasses.field(default_factory=dict)
    attack_costs: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)

    def known(self, phase: str, source: str, retrained: Records | None = None) -> Records:
        """Another model's records: from the folder of an earlier evaluation, or by asking it. It is also compared with itself."""
        folder = Path(source).expanduser()
        if not (folder / "records").is_dir() or (phase == "retrained" and (folder / "model").is_dir()):
            inner = folder / "model"
            return self.ask(phase, str(inner) if inner.is_dir() else source, retrained, itself=True)
        there = sorted(path.name for path in (folder / "records").iterdir())
        records = read_records(folder, next((name for name in (phase, "after", "before") if name in there), phase))
        ours = {split: rows for split, rows in records.items() if split in self.suite.plans}
        return self._keep(phase, ours, self._against_itself(phase, ours, retrained))

    def ask(self, phase: str, model: str, retrained: Records | None = None, baseline: Records | None = None, itself: bool = False) -> Records:
        """Loads a model, collects its records and scores them."""
        chosen = self.chosen
        spec = build(ModelSpec, {"path": model, "system": chosen.system, "template": chosen.template, "dtype": chosen.dtype}, "model")
        subject = load(spec)
        records, scores = evaluate_subject(
            subject,
            self.benchmark,
            self.suite,
            retrained=retrained,
            baseline=baseline,
            precision=chosen.precision,
            generate_batch=chosen.batch,
            limit=self.limit,
            cache=cache_folder() / "records",
            progress=narrated(self.narrator),
            engine=engine_of(chosen.engine, model),
        )
        if itself:
            scores |= self._against_itself(phase, records, retrained)
        if phase in ("after", "retrained") and self.attacks:
            self._attack(subject, TWIN if phase == "retrained" else "")
        precision = resolve_precision(chosen.precision, subject.device)
        self.around = surroundings.environment(subject, self.benchmark, seed=chosen.seed, precision=precision)
        return self._keep(phase, records, scores)

    def _attack(self, subject: Subject, whose: str) -> None:
        scene = Scene(
            subject,
            self.benchmark.first(self.limit),
            self.suite,
            self.chosen.seed,
            self.chosen.precision,
            self.chosen.batch,
            cache=cache_folder() / "records",
            narrator=self.narrator,
            progress=narrated(self.narrator),
        )
        for named in self.attacks:
            named.attack.check(scene)
        self.evaluations |= run_attacks(self.attacks, scene, whose, self.work, redact=False, costs=self.attack_costs)

    def _against_itself(self, phase: str, records: Records, retrained: Records | None) -> dict[str, Score]:
        if phase == "retrained":
            return score(records, self.suite, records)
        return score(records, self.suite, retrained, records)

    def _keep(self, phase: str, records: Records, scores: Mapping[str, Score]) -> Records:
        write_records(self.work, phase, records, scores=per_example(records, self.suite))
        self.evaluations[phase] = {self.suite.name: {name: s.to_json() for name, s in scores.items()}}
        return records
