"""Which scores and curves of the runs are plotted, and with which marks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from excise.report import names, plots, tables
from excise.report.result import ALONG, ATTACK, PHASES, TWIN, Evaluation, Result, Score
from excise.report.traces import CURVES, Trace
from excise.report.verdict import chosen

Named = tuple[str, Result]
"""What a run is called on the page, and its result."""

TITLES = {"loss": "loss, all terms", "grad_norm": "gradient norm", "memory_mb": "memory in MB"}


@dataclass(frozen=True)
class Training:
    """The curves of one stage."""

    stage: str
    plots: tuple[plots.LinePlot, ...]


def training(trace: Trace) -> Training:
    """One small plot for each curve: terms differ too much in size to share an axis."""
    terms = [name for name in trace.curves if name.startswith("term: ")]
    order = [name for name in ("loss", *terms, *CURVES[1:]) if name in trace.curves]
    titles = {name: TITLES.get(name) or name.replace("term: ", "loss, ").replace("_", " ") for name in order}
    return Training(trace.stage, tuple(plots.line_plot(titles[name], [(titles[name], 1, trace.curves[name])]) for name in order))


def attack_curves(result: Result) -> tuple[plots.LinePlot, ...]:
    """How each score moves during an attack, with the twin under the same attack where it was run."""
    drawn: list[plots.LinePlot] = []
    for phase in result.attacks:
        points = result.evaluations[phase].curve
        along = result.evaluations[phase].along
        for name in names.score_order(key for point in points for key in point if key not in ALONG):
            sides = (("unlearned", 1, result.evaluations[phase]), ("retrained twin", 2, result.evaluations.get(phase + TWIN)))
            lines = [(label, look, _steps(found, name)) for label, look, found in sides if found is not None]
            if known := [line for line in lines if line[2]]:
                drawn.append(plots.line_plot(f"{phase.removeprefix(ATTACK)}: {name}", known, unit=True, along=along))
    return tuple(drawn)


def _steps(evaluation: Evaluation, name: str) -> list[plots.Point]:
    steps = ((point.get(evaluation.along), point.get(name)) for point in evaluation.curve)
    return [(step, value) for step, value in steps if step is not None and value is not None]


def scatters(runs: Sequence[Named]) -> tuple[plots.Scatter, ...]:
    """For each suite that has both: a forget score against one of what should stay."""
    drawn: list[plots.Scatter] = []
    for suite in dict.fromkeys(suite for _, result in runs for evaluation in result.evaluations.values() for suite in evaluation.suites):
        forget, retain = _axes(next(result for _, result in runs if _measures(result, suite)), suite)
        if not forget or not retain:
            continue
        pairs = _phases(runs[0][1], suite, forget, retain) if len(runs) == 1 else _side_by_side(runs, suite, forget, retain)
        if pairs:
            drawn.append(plots.scatter(forget, retain, pairs))
    return tuple(drawn)


def _measures(result: Result, suite: str) -> bool:
    return any(suite in evaluation.suites for evaluation in result.evaluations.values())


def _axes(result: Result, suite: str) -> tuple[str | None, str | None]:
    """The forget score, and the same metric on the retain split where it is there."""
    if result.score("after", suite, "fsr") and result.score("after", suite, "rsr"):
        return "fsr", "rsr"
    forget = chosen(result, suite, "forget")
    same = f"retain.{names.metric_of(forget)}" if forget else ""
    return forget, same if result.score("after", suite, same) else chosen(result, suite, "retain") or chosen(result, suite, "neighbours")


def _phases(result: Result, suite: str, forget: str, retain: str) -> list[plots.Pair]:
    others = [phase for phase in result.evaluations if phase not in PHASES]
    looks = {phase: 3 + place % (len(plots.SHAPES) - 3) for place, phase in enumerate(others)}
    looks |= {phase: look for look, phase in enumerate(PHASES)}
    found = (_pair(result, phase, names.phase_name(phase), looks[phase], (suite, forget, retain)) for phase in names.phase_order(result.evaluations))
    return [pair for pair in found if pair is not None]


def _side_by_side(runs: Sequence[Named], suite: str, forget: str, retain: str) -> list[plots.Pair]:
    """Each run after unlearning; before and retrained once, where all runs that have them agree."""
    scores = (suite, forget, retain)
    found: list[plots.Pair | None] = []
    for look, phase in ((0, "before"), (2, "retrained")):
        pairs = [_pair(result, phase, f"{names.phase_name(phase)} (shared)", look, scores) for _, result in runs]
        known = [pair for pair in pairs if pair is not None]
        found += known[:1] if all(pair == known[0] for pair in known) else []
    found += [_pair(result, "after", name, _run_look(place), scores) for place, (name, result) in enumerate(runs)]
    return [pair for pair in found if pair is not None]


def _pair(result: Result, phase: str, label: str, look: int, scores: tuple[str, str, str]) -> plots.Pair | None:
    suite, forget, retain = scores
    first, second = result.score(phase, suite, forget), result.score(phase, suite, retain)
    if first is None or second is None or first.value is None or second.value is None:
        return None
    return plots.Pair(label, look, first, second)


def _run_look(place: int) -> int:
    """Runs take the looks that ``before`` and ``retrained`` leave."""
    looks = [look for look in range(len(plots.SHAPES)) if look not in (0, 2)]
    return looks[place % len(looks)]


def bars(runs: Sequence[Named]) -> tuple[plots.IntervalBars, ...]:
    """The headline scores that lie between 0 and 1: by phase for one run, after unlearning for several."""
    drawn: list[plots.IntervalBars] = []
    for table in tables.headline_tables([result for _, result in runs]):
        rows: list[plots.ScoreRow] = [(row.name, row.better, _bar_cells(runs, table.columns, row)) for row in table.rows]
        if within := [row for row in rows if _within_one([score for _, _, score in row[2]])]:
            drawn.append(plots.interval_bars(within))
    return tuple(drawn)


def _bar_cells(runs: Sequence[Named], columns: Sequence[tables.Column], row: tables.Row) -> list[tuple[str, int, Score | None]]:
    cells = list(zip(columns, row.cells, strict=True))
    if len(runs) == 1:
        return [(names.phase_name(column.phase), PHASES.index(column.phase), score) for column, score in cells]
    return [(runs[column.run][0], _run_look(column.run), score) for column, score in cells if column.phase == "after"]


def _within_one(scores: Sequence[Score | None]) -> bool:
    values = [score.value for score in scores if score is not None and score.value is not None]
    return bool(values) and all(0 <= value <= 1 for value in values)
