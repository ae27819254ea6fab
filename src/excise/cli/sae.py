"""Commands about sparse autoencoders. Everything heavy is imported inside them, so that --help answers at once."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from excise.cli.options import Out, Overwrite, app, narrator

sae = typer.Typer(help="Sparse autoencoders of a model's hidden states.", no_args_is_help=True, add_completion=False)
app.add_typer(sae, name="sae")


@sae.command()
def train(
    model: str,
    text: Annotated[list[str], typer.Option(help="Text to learn from: a .txt file, a folder of them, or a table. May be given several times.")],
    layer: Annotated[int, typer.Option(help="The decoder layer (0-based) whose output is taken apart.")],
    out: Out,
    width: Annotated[int, typer.Option(help="Number of features.")] = 2048,
    k: Annotated[int, typer.Option("--k", help="Features that may be active for a token.")] = 32,
    steps: Annotated[int, typer.Option(help="Optimiser steps.")] = 2000,
    batch: Annotated[int, typer.Option(help="Tokens of one step.")] = 512,
    lr: Annotated[float, typer.Option(help="Highest learning rate.")] = 1e-3,
    dead_after: Annotated[int, typer.Option(help="Tokens without activity after which a feature counts as dead.")] = 20_000,
    passage: Annotated[int, typer.Option(help="Longest passage in words.")] = 100,
    column: Annotated[str, typer.Option(help="The column of a table that holds the text.")] = "text",
    limit: Annotated[Optional[int], typer.Option(help="Only the first N passages.")] = None,  # noqa: UP045
    seed: Annotated[int, typer.Option(help="Of the start and of the batches.")] = 0,
    overwrite: Overwrite = False,
) -> None:
    """Train a small TopK autoencoder on one layer, and show how well it puts hidden states together again."""
    from excise.console import out as console
    from excise.console import pair_table
    from excise.factorise.topk_sae import TopKTraining
    from excise.loading import load
    from excise.sae.train import train_sae

    training = TopKTraining(width=width, k=k, steps=steps, batch=batch, lr=lr, seed=seed, dead_after=dead_after)
    subject = load(model)
    with narrator() as telling:
        quality = train_sae(subject, text, layer, out, training, passage=passage, column=column, limit=limit, overwrite=overwrite, narrator=telling)
    console.print(pair_table(quality.lines()))
    print(out)
