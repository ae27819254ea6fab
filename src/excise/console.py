"""What a person sees while excise works: plain lines, progress bars in a terminal, and tables of scores."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)


class Narrating:
    """A narrator that shows progress bars in a terminal, and one line per finished task elsewhere."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or err
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Narrating:
        self.progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.progress.stop()

    def say(self, text: str) -> None:
        self.console.print(text, markup=False)

    def begin(self, task: str, total: int) -> None:
        if task in self.tasks:
            self.progress.remove_task(self.tasks[task])
        self.tasks[task] = self.progress.add_task(f"  {task}", total=total, note="")

    def advance(self, task: str, done: int, note: str = "") -> None:
        self.progress.update(self.tasks[task], advance=done, note=note)

    def end(self, task: str) -> None:
        if self.progress.disable:
            return
        self.progress.stop_task(self.tasks[task])


HEADLINE = ("fact_recall", "rouge_l_recall", "probability", "truth_ratio", "choice_accuracy", "repetition_rate")
"""Metrics that the closing table shows, in this order."""


def score_table(evaluations: Mapping[str, Mapping[str, Mapping[str, Any]]], everything: bool = False) -> Table:
    """The scores of a result by phase, with intervals."""
    phases = [phase for phase in evaluations if not phase.startswith("attack:")] or list(evaluations)
    table = Table(box=None, pad_edge=False)
    table.add_column("score")
    for phase in phases:
        table.add_column(phase, justify="right")
    table.add_column("better")
    names = dict.fromkeys(name for phase in phases for suite in evaluations[phase].values() if isinstance(suite, Mapping) for name in suite)
    for name in names if everything else headline(list(names)):
        cells: list[str] = []
        better = ""
        for phase in phases:
            found = next((suite[name] for suite in evaluations[phase].values() if isinstance(suite, Mapping) and name in suite), None)
            cells.append("" if found is None else shown(found))
            better = better or ("" if found is None else {"higher": "↑", "lower": "↓"}.get(str(found["better"]), ""))
        table.add_row(name, *cells, better)
    return table


def headline(names: list[str]) -> list[str]:
    """The scores for a short table: the main metrics of each split, then what concerns the whole."""
    chosen = [name for metric in HEADLINE for name in names if name.endswith(f".{metric}")]
    return chosen + [name for name in ("model_utility", "forget_quality") if name in names]


def shown(score: Mapping[str, Any]) -> str:
    """A score with its interval in a cell."""
    if score["value"] is None:
        return "not available"
    interval = score.get("ci95")
    text = f"{score['value']:.3f}" if abs(score["value"]) >= 1e-3 or score["value"] == 0 else f"{score['value']:.1e}"
    return text if not interval else f"{text} [{interval[0]:.2f}, {interval[1]:.2f}]"


def fail(message: str, code: int = 2) -> None:
    """One line on standard error, and the exit code."""
    err.print(f"excise: {' '.join(message.split())}", markup=False)
    sys.exit(code)


def pair_table(rows: Sequence[tuple[str, Any]]) -> Table:
    """Two columns without lines."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for name, value in rows:
        table.add_row(name, str(value))
    return table


def attribution_table(scores: Mapping[str, Any]) -> Table:
    """The token scores of one answer; selected tokens are marked."""
    hidden = "".join(token["text"] for token in scores["prompt_tokens"] if token["masked"]).strip()
    table = Table(box=None, pad_edge=False, caption=f"hidden in the prompt: {hidden or 'nothing'}", caption_justify="left")
    for column in ("", "token", "phi", "delta", "entropy", "logp", "logp masked", "weight"):
        table.add_column(column, justify="left" if column in ("", "token") else "right")
    for token in scores["tokens"]:
        numbers = [f"{token[name]:.3f}" for name in ("phi", "delta", "entropy", "logp", "logp_masked", "weight")]
        table.add_row("●" if token["selected"] else "", repr(token["text"])[1:-1], *numbers)
    return table
