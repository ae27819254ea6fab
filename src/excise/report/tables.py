"""Scores arranged for the page: a column for each phase of each run, a row for each score."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from excise.report.names import METRICS, label_rank, metric_of, phase_order, score_order, split_of
from excise.report.result import PHASES, TWIN, Better, Result, Score

HEADLINE_ROWS = 14


@dataclass(frozen=True)
class Column:
    """One phase of one run."""

    run: int
    phase: str


@dataclass(frozen=True)
class Row:
    """One score in every column; None: that phase did not measure it."""

    name: str
    better: Better
    cells: tuple[Score | None, ...]

    @property
    def n(self) -> int | None:
        """How many examples every cell was measured on; None where they differ or no cell says so."""
        counts = {cell.n for cell in self.cells if cell is not None and cell.value is not None}
        return counts.pop() if len(counts) == 1 else None


@dataclass(frozen=True)
class ScoreTable:
    """All runs side by side for one suite."""

    suite: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

    def width(self, run: int) -> int:
        """How many columns belong to a run."""
        return sum(column.run == run for column in self.columns)

    @property
    def runs(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(column.run for column in self.columns))


@dataclass(frozen=True)
class LabelTable:
    """Scores that are also known by label (who, what, ...): one row for each label, one column for each score."""

    suite: str
    scores: tuple[str, ...]
    better: tuple[Better, ...]
    labels: tuple[str, ...]
    cells: tuple[tuple[tuple[Score | None, ...], ...], ...]
    """label, score, phase (before, after, retrained)."""


def headline_tables(results: Sequence[Result]) -> tuple[ScoreTable, ...]:
    """The scores that matter first, in the phases before, after and retrained."""
    return _tables(results, lambda result: [phase for phase in PHASES if phase in result.evaluations], headline)


def attack_tables(results: Sequence[Result]) -> tuple[ScoreTable, ...]:
    """The same scores under each attack, beside those without it; empty where no run was attacked."""

    def attacked(result: Result) -> list[str]:
        if not result.attacks:
            return []
        pairs = [phase for attack in result.attacks for phase in (attack, attack + TWIN)]
        return [phase for phase in ("after", *pairs) if phase in result.evaluations]

    return _tables(results, attacked, headline)


def full_tables(results: Sequence[Result]) -> tuple[ScoreTable, ...]:
    """Every score of every phase."""
    return _tables(results, lambda result: phase_order(result.evaluations), score_order)


def headline(names: Iterable[str]) -> list[str]:
    """The scores without a label that a reader wants first; all of them where none is known by name."""
    plain = [name for name in score_order(names) if "@" not in name]
    known = [name for name in plain if metric_of(name) in METRICS or not split_of(name)]
    return (known or plain)[:HEADLINE_ROWS]


def _tables(results: Sequence[Result], phases: Callable[[Result], list[str]], choose: Callable[[Iterable[str]], list[str]]) -> tuple[ScoreTable, ...]:
    wanted = [Column(run, phase) for run, result in enumerate(results) for phase in phases(result)]
    evaluations = [results[column.run].evaluations[column.phase] for column in wanted]
    tables: list[ScoreTable] = []
    for suite in dict.fromkeys(suite for evaluation in evaluations for suite in evaluation.suites):
        columns = tuple(column for column, evaluation in zip(wanted, evaluations, strict=True) if suite in evaluation.suites)
        names = choose([name for evaluation in evaluations for name in evaluation.suites.get(suite, {})])
        rows = (Row(name, _better(cells), cells) for name in names if any(cells := _cells(results, columns, suite, name)))
        if kept := tuple(rows):
            tables.append(ScoreTable(suite, columns, kept))
    return tuple(tables)


def _cells(results: Sequence[Result], columns: Sequence[Column], suite: str, name: str) -> tuple[Score | None, ...]:
    return tuple(results[column.run].score(column.phase, suite, name) for column in columns)


def _better(cells: Iterable[Score | None]) -> Better:
    known: list[Better] = [cell.better for cell in cells if cell is not None]
    return known[0] if known else "none"


def label_tables(result: Result) -> tuple[LabelTable, ...]:
    """For each suite the scores whose names end in ``@label``."""
    tables: list[LabelTable] = []
    for suite in dict.fromkeys(suite for evaluation in result.evaluations.values() for suite in evaluation.suites):
        names = [name for phase in PHASES if phase in result.evaluations for name in result.evaluations[phase].suites.get(suite, {})]
        labelled = [name for name in names if "@" in name]
        scores = headline(name.partition("@")[0] for name in labelled)
        labels = sorted({name.partition("@")[2] for name in labelled if name.partition("@")[0] in scores}, key=label_rank)
        if not labels:
            continue
        cells = tuple(tuple(tuple(result.score(phase, suite, f"{score}@{label}") for phase in PHASES) for score in scores) for label in labels)
        better: tuple[Better, ...] = tuple(_better(cell for row in cells for cell in row[index]) for index in range(len(scores)))
        tables.append(LabelTable(suite, tuple(scores), better, tuple(labels), cells))
    return tuple(tables)
