"""One or several runs as a single HTML file: no scripts, no network, every text from a model or a recipe escaped."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import yaml
from markupsafe import Markup

from excise.errors import InputError
from excise.files import write_text
from excise.report import figures, names, plots, tables
from excise.report.answers import Answers, load_answers
from excise.report.edits import FRACTIONS, Edit, edits
from excise.report.encoding import Study, load_study
from excise.report.leaks import Leaks, load_leaks
from excise.report.result import PHASES, Result, load_result
from excise.report.traces import Attribution, load_attributions, load_traces
from excise.report.verdict import verdict

MOST_ANSWERS = 20
MOST_ATTRIBUTIONS = 6
MOST_LEAKS = 8
UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


@dataclass(frozen=True)
class Run:
    """Everything that the page shows of one run."""

    name: str
    result: Result
    method: str
    model: str
    verdict: tuple[str, ...]
    labels: tuple[tables.LabelTable, ...]
    training: tuple[figures.Training, ...]
    curves: tuple[plots.LinePlot, ...]
    attributions: tuple[Attribution, ...]
    answers: tuple[Answers, ...]
    leaks: tuple[Leaks, ...]
    study: Study | None
    edits: tuple[Edit, ...]
    recipe: str
    environment: tuple[tuple[str, str], ...]


def write_report(folders: Sequence[Path], out: Path | None = None) -> Path:
    """Writes the report of one run into its folder, or of several side by side into ``report.html`` here; returns its place."""
    if not folders:
        raise InputError("a report needs at least one run folder")
    if len(folders) == 1 and (Path(folders[0]) / "sweep.json").is_file():
        from excise.report.sweep import write_sweep_report

        return write_sweep_report(Path(folders[0]), out)
    place = out or (Path(folders[0]) / "report.html" if len(folders) == 1 else Path("report.html"))
    if place.is_dir():
        raise InputError(f"cannot write {place}: it is a folder, and the name of an HTML file was expected")
    write_text(place, render([load_result(Path(folder)) for folder in folders]))
    return place


def render(results: Sequence[Result]) -> str:
    """The page as text."""
    runs = tuple(_run(result, name) for result, name in zip(results, _distinct([r.name for r in results]), strict=True))
    pairs = [(run.name, run.result) for run in runs]
    return (
        page_environment()
        .get_template("report.html.j2")
        .render(
            runs=runs,
            title=f"{runs[0].method} on {runs[0].model}" if len(runs) == 1 else f"{len(runs)} runs side by side",
            headline=tables.headline_tables(results),
            attacks=tables.attack_tables(results),
            full=tables.full_tables(results),
            scatters=figures.scatters(pairs),
            bars=figures.bars(pairs),
            phases=PHASES,
            shapes=plots.SHAPES,
            fractions=FRACTIONS,
        )
    )


def _run(result: Result, name: str) -> Run:
    folder = result.folder
    return Run(
        name=name,
        result=result,
        method=_called(result.recipe.get("method"), "name", "unlearning"),
        model=_called(result.recipe.get("model"), "path", "a model"),
        verdict=verdict(result),
        labels=tables.label_tables(result),
        training=tuple(figures.training(trace) for trace in load_traces(folder)),
        curves=figures.attack_curves(result),
        attributions=() if result.redacted else load_attributions(folder, MOST_ATTRIBUTIONS),
        answers=() if result.redacted else load_answers(folder, MOST_ANSWERS),
        leaks=() if result.redacted else load_leaks(result, MOST_LEAKS),
        study=load_study(folder),
        edits=edits(result),
        recipe=yaml.safe_dump(dict(result.recipe), sort_keys=False, allow_unicode=True) if result.recipe else "",
        environment=tuple(_flat(result.environment)),
    )


def _called(value: object, key: str, otherwise: str) -> str:
    """The name in ``method: npo`` and in ``method: {name: npo}`` alike; a chain is joined by plus signs."""
    if isinstance(value, list):
        return "+".join(_called(part, key, otherwise) for part in value) or otherwise
    found = value.get(key) if isinstance(value, Mapping) else value
    return str(found) if found else otherwise


def _distinct(given: Sequence[str]) -> list[str]:
    """Names of runs; where two folders are called the same, each with its number."""
    often = Counter(given)
    return [f"{name} ({place})" if often[name] > 1 else name for place, name in enumerate(given, start=1)]


def _flat(value: object, path: str = "") -> list[tuple[str, str]]:
    """``versions.torch`` -> ``2.13.0`` and so on for anything that JSON can hold."""
    if isinstance(value, Mapping):
        return [pair for key, inner in value.items() for pair in _flat(inner, f"{path}.{key}" if path else str(key))]
    if isinstance(value, list):
        value = ", ".join(map(str, value))
    return [(path, "–" if value is None else str(value))]


@cache
def page_environment(*more: Path) -> jinja2.Environment:
    """Where the pages' templates are (``more``: folders that are looked at first), escaping everything."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([*more, Path(__file__).parent / "templates"]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["readable"] = names.readable
    environment.filters["phase_name"] = names.phase_name
    environment.filters["plain"] = lambda value: json.dumps(value, ensure_ascii=False)
    environment.filters["count"] = lambda value: "–" if value is None else f"{value:,.0f}"
    return environment


def printable(value: Any) -> Any:
    """Control characters and half surrogates, which no HTML file may hold, become visible stand-ins."""
    return UNPRINTABLE.sub(_stand_in, value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _stand_in(found: re.Match[str]) -> str:
    code = ord(found[0])
    return chr(0x2400 + code) if code < 0x20 else "\ufffd"
