"""What a person sees while excise works: plain lines, progress bars in a terminal, and tables of scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

WIDE = 132
"""Columns of a file or a pipe, where no terminal says how wide it is."""


def _console(stderr: bool) -> Console:
    plain = Console(stderr=stderr, highlight=False, soft_wrap=True)
    return plain if plain.is_terminal else Console(stderr=stderr, highlight=False, soft_wrap=True, width=WIDE)


out = _console(stderr=False)
err = _console(stderr=True)


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


HEADLINE = ("fact_recall", "rouge_l_recall", "probability")
"""Which metric stands for what a model knows in a short table: the first of these that there is."""
ORDER = ("before", "after", "retrained")


def score_table(evaluations: Mapping[str, Mapping[str, Mapping[str, Any]]], everything: bool = False) -> Table:
    """The scores of a result by phase, with intervals."""
    phases = [phase for phase in ORDER if phase in evaluations] or list(evaluations)
    suites = {phase: {n: s for suite in evaluations[phase].values() if isinstance(suite, Mapping) for n, s in suite.items()} for phase in phases}
    names = list(dict.fromkeys(name for scores in suites.values() for name in scores))
    table = Table(box=None, pad_edge=False)
    table.add_column("score", no_wrap=True)
    for phase in phases:
        table.add_column(phase, justify="right", no_wrap=True)
    table.add_column("better", no_wrap=True)
    for name in names if everything else headline(names):
        found = {phase: suites[phase].get(name) for phase in phases}
        better = next((str(score["better"]) for score in found.values() if score is not None), "none")
        cells = ["" if score is None else shown(score, intervals=out.width >= 100) for score in found.values()]
        table.add_row(name, *cells, {"higher": "↑", "lower": "↓"}.get(better, ""))
    return table


def headline(names: list[str]) -> list[str]:
    """The scores for a short table: what is known of each split, fluency, and what concerns the whole."""
    metric = next((m for m in HEADLINE if any(name.endswith(f".{m}") for name in names)), HEADLINE[-1])
    chosen = [name for name in names if name.endswith(f".{metric}")]
    more = (
        *("forget.truth_ratio", "real_world.choice_accuracy", "forget.repetition_rate", "retain.repetition_rate", "model_utility", "forget_quality"),
        *("questions.choice_accuracy", "questions.letter_accuracy", "fsr", "rsr", "fsr_rsr", "efficacy", "specificity", "coherence", "overall"),
        *("verbatim_forget.rouge_l_f1", "knowledge_forget.rouge_l_f1", "knowledge_retain.rouge_l_f1", "privleak"),
    )
    return chosen + [name for name in more if name in names]


def shown(score: Mapping[str, Any], intervals: bool = True) -> str:
    """A score in a cell, with its interval where there is room."""
    if score["value"] is None:
        return "not available"
    interval = score.get("ci95")
    text = f"{score['value']:.3f}" if abs(score["value"]) >= 1e-3 or score["value"] == 0 else f"{score['value']:.1e}"
    return text if not interval or not intervals else f"{text} [{interval[0]:.2f}, {interval[1]:.2f}]"


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
