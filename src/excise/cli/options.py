"""The command line's application, and what its commands share."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

app = typer.Typer(
    name="excise",
    help="Remove chosen knowledge from a causal language model, keep the rest, and prove both.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Out = Annotated[Path, typer.Option("--out", help="Folder that the result is written to; it must not exist yet.")]
Overrides = Annotated[Optional[list[str]], typer.Option("--set", help="Change one setting: a.b=value. May be given several times.")]  # noqa: UP045
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing result.")]
Data = Annotated[Optional[str], typer.Option(help="Folder or file of the benchmark.")]  # noqa: UP045
Retrained = Annotated[Optional[str], typer.Option(help="A model that never saw the forget split; attacks are tried on it as well.")]  # noqa: UP045
Baseline = Annotated[Optional[str], typer.Option(help="The model before unlearning, or the folder of its evaluation.")]  # noqa: UP045
Limit = Annotated[Optional[int], typer.Option(help="Only the first N examples of each split.")]  # noqa: UP045
Menu = Annotated[bool, typer.Option("--menu/--no-menu", help="Offer what to do next, in a terminal.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run.")]


def narrator() -> Any:
    """Progress for the person who watches; of several processes the first one tells it."""
    import os

    from excise.console import Narrating
    from excise.stages.state import Silent

    return Narrating() if os.environ.get("RANK", "0") == "0" else nullcontext(Silent())


def close(result: dict[str, Any], folder: Path, menu: bool = False) -> None:
    """The closing words of a run: the table, what was stopped, where the report is; and a menu where a person sits at a terminal."""
    from excise.console import out, score_table
    from excise.parallel import ranks
    from excise.report.result import load_result
    from excise.report.verdict import verdict

    if not ranks.is_main():
        return
    out.print(score_table(result["evaluations"]))
    for line in verdict(load_result(folder)):
        out.print(line, markup=False)
    for stage in result["stages"]:
        if stage.get("stopped"):
            out.print(f"{stage['name']} stopped at {stage['stopped']}", markup=False)
    out.print(f"report: {folder / 'report.html'}", markup=False)
    from excise.menu import interactive, offer

    if interactive(menu) and (folder / "model").is_dir():
        offer(folder)


def raise_input(message: str) -> None:
    """An input error from inside a command."""
    from excise.errors import InputError

    raise InputError(message)
