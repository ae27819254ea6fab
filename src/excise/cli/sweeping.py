"""Sweeps. Everything heavy is imported inside the command, so that --help answers at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from excise.cli.options import Overrides, app, narrator


@app.command()
def sweep(
    recipe: Path,
    space: Annotated[Path, typer.Option(help="What varies and what counts: a YAML file, see docs/sweeps.md.")],
    out: Annotated[Path, typer.Option("--out", help="Folder of the sweep.")],
    trials: Annotated[Optional[int], typer.Option(help="How many trials; a grid or a list of trials knows it itself.")] = None,  # noqa: UP045
    workers: Annotated[str, typer.Option(help="Processes, or a device for each: 2, or cuda:0,cuda:1.")] = "1",
    verify_seeds: Annotated[int, typer.Option(min=0, help="Run the best trial once more, and with so many other seeds.")] = 2,
    keep_models: Annotated[bool, typer.Option("--keep-models", help="Keep the model of every trial.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted sweep, or extend a finished one.")] = False,
    set_: Overrides = None,
) -> None:
    """Run a recipe with many settings: search or grid, several objectives, a Pareto front, the best trial verified."""
    from excise.console import out as console
    from excise.console import pair_table
    from excise.settings import number_like, overridden, read_yaml
    from excise.sweep.conduct import sweep as run_sweep

    values = overridden(number_like(read_yaml(recipe)), set_)
    with narrator() as telling:
        result = run_sweep(
            values,
            read_yaml(space),
            out,
            trials=trials,
            workers=workers,
            verify_seeds=verify_seeds,
            keep_models=keep_models,
            resume=resume,
            narrator=telling,
        )
    front = [row for row in result["trials"] if row["number"] in result["front"]]
    for row in front:
        mark = "  <- best" if row["number"] == result["best"] else ""
        console.print(f"trial {row['number']}{mark}", markup=False)
        console.print(pair_table([(f"  {name}", value) for name, value in {**row["settings"], **row["values"]}.items()]))
    console.print(result["why"], markup=False)
    console.print(f"report: {out / 'report.html'}", markup=False)
