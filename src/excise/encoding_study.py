"""An encoding study from a model and a benchmark to a folder with its numbers and figures."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from excise import registry
from excise.data.example import Benchmark
from excise.encoding import chosen_examples, study
from excise.environment import environment
from excise.errors import InputError
from excise.files import folder_beside, write_json
from excise.loading import ModelSpec, load
from excise.precision import Precision, resolve_precision
from excise.settings import build, overridden, plain, refuse_unknown
from excise.stages.state import Narrator, Silent


@dataclasses.dataclass(frozen=True)
class Settings:
    """What `excise encoding --set` can change."""

    system: str | None = None
    """The system turn; None leaves it to the chat template."""
    template: str = "auto"
    """auto, chat or plain."""
    dtype: str = "auto"
    precision: Precision = "auto"
    data: Mapping[str, Any] = dataclasses.field(default_factory=lambda: {"name": "fivew"})
    """The benchmark's name and settings."""
    seed: int = 0
    """Of the intervals."""


def write_study(
    model: str,
    out: Path,
    *,
    data: str | None = None,
    split: str = "forget",
    limit: int | None = 20,
    settings: Sequence[str] = (),
    overwrite: bool = False,
    narrator: Narrator | None = None,
) -> dict[str, Any]:
    """Studies a model and writes ``encoding.json`` and ``encoding.html``, whole or not at all. No text of the data is written.

    Returns:
        what stands in encoding.json.
    """
    from excise.report.encoding import FILE, write_page

    values = overridden({}, settings)
    refuse_unknown(values, [f.name for f in dataclasses.fields(Settings)], "")
    chosen = build(Settings, values, "")
    narrator = narrator or Silent()
    benchmark = _benchmark(data, chosen.data)
    for note in benchmark.notes:
        narrator.say(note)
    examples = chosen_examples(benchmark.split(split), limit)
    with folder_beside(Path(out), overwrite) as work:
        spec = build(ModelSpec, {"path": model, "system": chosen.system, "template": chosen.template, "dtype": chosen.dtype}, "model")
        subject = load(spec)
        if subject.quantised and not subject.is_adapter:
            raise InputError(f"{model}: the weights are quantised and have no gradient; study an adapter on them, or load with dtype")
        precision = resolve_precision(chosen.precision, subject.device)
        task = "gradients of the answers"
        narrator.begin(task, len(examples))
        found = study(subject, examples, precision, chosen.seed, lambda done: narrator.advance(task, done))
        narrator.end(task)
        around = environment(subject, benchmark, seed=chosen.seed, precision=precision)
        around.pop("example_prompt", None)
        found = {**found, "model": model, "split": split, "limit": limit, "data": plain(chosen.data), "environment": around}
        write_json(work / FILE, found)
        write_page(found, work / "encoding.html", f"{model}: {split} answers of {benchmark.name}")
    return found


def _benchmark(path: str | None, settings: Mapping[str, Any]) -> Benchmark:
    values = dict(settings)
    name = str(values.pop("name", "fivew"))
    loader = registry.find("benchmarks", name)
    if path is not None:
        if "path" not in {f.name for f in dataclasses.fields(loader)}:
            raise InputError(f"--data {path}: the benchmark {name!r} takes no folder; give its settings with --set data.NAME=VALUE")
        values["path"] = path
    return build(loader, values, "data")()
