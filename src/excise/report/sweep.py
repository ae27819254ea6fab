"""A sweep as a single HTML file: its Pareto front, every trial, the best one and how it does with other seeds."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from excise.errors import InputError
from excise.files import read_json, write_text
from excise.report import plots
from excise.report.html import page_environment
from excise.report.names import readable
from excise.report.result import Score, mapping, number, sequence

SCHEMA = 1
MOST_PLOTS = 6
LOOKS = {"the chosen trial": 3, "on the front": 1, "other trials": 0, "before unlearning": 2}


@dataclass(frozen=True)
class Row:
    """A trial in the table."""

    number: str
    state: str
    settings: tuple[str, ...]
    values: tuple[str, ...]
    reason: str
    kind: str


@dataclass(frozen=True)
class Front:
    """One picture: two objectives against each other."""

    plot: plots.Scatter
    line: str
    """Path along the front; empty where there are more than two objectives, of which this is a shadow."""
    legend: tuple[tuple[str, int], ...]


def write_sweep_report(folder: Path, out: Path | None = None) -> Path:
    """Writes the report of a finished sweep into its folder, or to ``out``; returns its place."""
    folder = Path(folder)
    path = folder / "sweep.json"
    if not path.is_file():
        raise InputError(f"{folder} is not a finished sweep: it holds no sweep.json")
    raw = mapping(read_json(path), str(path))
    if raw.get("schema") != SCHEMA:
        raise InputError(f"{path} has schema {raw.get('schema')!r} and this excise reads {SCHEMA}")
    place = out or folder / "report.html"
    write_text(place, render(raw, folder.resolve().name, str(path)))
    return place


def render(raw: Mapping[str, Any], name: str, where: str = "sweep.json") -> str:
    """The page as text."""
    objectives = [mapping(o, f"{where}: objectives") for o in sequence(raw.get("objectives"), f"{where}: objectives")]
    trials = [mapping(t, f"{where}: trials") for t in sequence(raw.get("trials"), f"{where}: trials")]
    names = [str(o["name"]) for o in objectives]
    varied = list(dict.fromkeys(key for trial in trials for key in trial["settings"]))
    front = set(sequence(raw.get("front"), f"{where}: front"))
    kinds = {
        t["number"]: "the chosen trial" if t["number"] == raw.get("best") else "on the front" if t["number"] in front else "other trials"
        for t in trials
    }
    rows = [_row(trial, varied, names, kinds[trial["number"]], where) for trial in trials]
    order = list(LOOKS)
    rows.sort(key=lambda row: (row.state != "complete", order.index(row.kind), int(row.number)))
    states = [row.state for row in rows]
    return (
        page_environment()
        .get_template("sweep.html.j2")
        .render(
            name=name,
            title=f"{_method(raw.get('recipe', {}))}: {len(trials)} trials",
            counts=", ".join(f"{states.count(state)} {state}" for state in ("complete", "pruned", "failed") if state in states),
            objectives=objectives,
            before=[readable(number(raw.get("before", {}).get(n), where)) for n in names],
            varied=varied,
            rows=rows,
            fronts=_fronts(raw, objectives, trials, kinds, where),
            why=str(raw.get("why", "")),
            best=raw.get("best"),
            chosen=next((row for row in rows if row.kind == "the chosen trial"), None),
            verified=raw.get("verified"),
            verification=_verification(raw.get("verified"), names, where),
            sampler=raw.get("sampler", {}),
            recipe=yaml.safe_dump(dict(raw.get("recipe", {})), sort_keys=False, allow_unicode=True),
            shapes=plots.SHAPES,
        )
    )


def _row(trial: Mapping[str, Any], varied: Sequence[str], names: Sequence[str], kind: str, where: str) -> Row:
    values = trial.get("values", {})
    return Row(
        str(trial["number"]),
        str(trial["state"]),
        tuple(_setting(trial["settings"][key]) if key in trial["settings"] else "–" for key in varied),
        tuple(readable(number(values.get(n), where)) for n in names),
        str(trial.get("reason", "")),
        kind,
    )


def _fronts(
    raw: Mapping[str, Any], objectives: Sequence[Mapping[str, Any]], trials: Sequence[Mapping[str, Any]], kinds: Mapping[int, str], where: str
) -> list[Front]:
    complete = [t for t in trials if t["state"] == "complete"]
    drawn: list[Front] = []
    for a, b in list(itertools.combinations(objectives, 2))[:MOST_PLOTS]:
        pairs = [
            plots.Pair(
                f"trial {t['number']}", LOOKS[kinds[t["number"]]], _score(t["values"][a["name"]], a, where), _score(t["values"][b["name"]], b, where)
            )
            for t in complete
        ]
        before = [raw.get("before", {}).get(o["name"]) for o in (a, b)]
        if None not in before:
            pairs.append(plots.Pair("before unlearning", LOOKS["before unlearning"], _score(before[0], a, where), _score(before[1], b, where)))
        if not pairs:
            continue
        plot = plots.scatter(str(a["name"]), str(b["name"]), pairs)
        marks = sorted((m.x, m.y) for m in plot.marks if m.look in (LOOKS["the chosen trial"], LOOKS["on the front"]))
        line = "M" + "L".join(f"{x:g},{y:g}" for x, y in marks) if len(objectives) == 2 and len(marks) > 1 else ""
        there = {mark.look for mark in plot.marks}
        drawn.append(Front(plot, line, tuple((label, look) for label, look in LOOKS.items() if look in there)))
    return drawn


def _verification(verified: Any, names: Sequence[str], where: str) -> list[tuple[str, tuple[str, ...]]]:
    """Rows of the table of seeds: the trial itself, the run of its own, the other seeds, their mean."""
    if not verified:
        return []
    found = mapping(verified, f"{where}: verified")
    rows = [(f"seed {found['seed']} (the trial)", found["values"]), (f"seed {found['seed']}, run again", found["again"])]
    rows += [
        (f"seed {row['seed']}" + ("" if row["state"] == "complete" else f": {row['state']}, {row['reason']}"), row["values"])
        for row in found["seeds"]
    ]
    table = [(label, tuple(readable(number(values.get(n), where)) for n in names)) for label, values in rows]
    every = [found["values"], *(row["values"] for row in found["seeds"] if row["state"] == "complete")]
    spans = []
    for n in names:
        known = [float(values[n]) for values in every if n in values]
        spans.append(f"{readable(sum(known) / len(known))} ({readable(min(known))} to {readable(max(known))})" if known else "–")
    return [*table, (f"mean of {len(every)} seeds (lowest to highest)", tuple(spans))]


def _score(value: Any, objective: Mapping[str, Any], where: str) -> Score:
    return Score(number(value, where), objective["better"], None, None, "")


def _setting(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _method(recipe: Mapping[str, Any]) -> str:
    method = recipe.get("method")
    found = method.get("name") if isinstance(method, Mapping) else method
    return str(found) if isinstance(found, str) else "a sweep"
