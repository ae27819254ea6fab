"""Commands about concepts. Everything heavy is imported inside them, so that --help answers at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from excise.cli.options import Overwrite, app, narrator


@app.command()
def features(
    model: str,
    concept: Annotated[str, typer.Option(help="Folder with concept_sentences.json and neutral_sentences.json.")],
    name: Annotated[str, typer.Option(help="Which concept of the folder; may be left out where it holds one.")] = "",
    rank: Annotated[int, typer.Option(help="Number of features.")] = 200,
    seed: Annotated[int, typer.Option(help="Seed of the factorisation.")] = 42,
    ratio: Annotated[float, typer.Option(help="Smallest mass ratio of the features that are printed; the files hold all of them.")] = 2.0,
    json_: Annotated[Optional[Path], typer.Option("--json", help="Also write all features to this file.")] = None,  # noqa: UP045
    html: Annotated[Optional[Path], typer.Option("--html", help="Also write a page with all features.")] = None,  # noqa: UP045
    overwrite: Overwrite = False,
) -> None:
    """Show the features of a concept in a model's embedding matrix: their tokens, and how much more they are the concept's own."""
    from excise.console import out
    from excise.features.show import concept_features, feature_lines, require_new, write_page, write_table

    require_new([json_, html], overwrite)
    with narrator() as telling:
        found = concept_features(model, concept, name, rank, seed, telling)
    for line in feature_lines(found, ratio):
        out.print(line, markup=False)
    if json_ is not None:
        write_table(json_, found)
        print(json_)
    if html is not None:
        write_page(html, found, ratio)
        print(html)
