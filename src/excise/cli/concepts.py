"""Commands about concepts. Everything heavy is imported inside them, so that --help answers at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from excise.cli.options import Out, Overwrite, app, narrator

Table = Optional[str]  # noqa: UP045


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


@app.command(name="build-concept")
def build_concept(
    name: Annotated[str, typer.Argument(help="The concept.")],
    texts: Annotated[list[str], typer.Option(help="Text about it: a .txt file, a folder of them, or a table. May be given several times.")],
    out: Out,
    neutral: Annotated[Optional[list[str]], typer.Option(help="Text about other things; without it, sentences of excise's own.")] = None,  # noqa: UP045
    choice: Annotated[Table, typer.Option(help="Table of choice questions: question, choices, answer.")] = None,
    open_: Annotated[Table, typer.Option("--open", help="Table of open questions: question, answer.")] = None,
    similar_choice: Annotated[Table, typer.Option(help="Choice questions about neighbours, which must be kept.")] = None,
    similar_open: Annotated[Table, typer.Option(help="Open questions about neighbours.")] = None,
    coherence: Annotated[Table, typer.Option(help="Texts to be continued, one a line.")] = None,
    splitter: Annotated[str, typer.Option(help="rules, or the name of a spaCy pipeline that splits sentences.")] = "rules",
    limit: Annotated[int, typer.Option(help="Most sentences.")] = 300,
    relearn_every: Annotated[int, typer.Option(help="One paragraph of so many is set aside for relearning; 0 none.")] = 3,
    others: Annotated[bool, typer.Option("--others/--no-others", help="Add the concepts of excise's own, to see that they stay.")] = True,
    overwrite: Overwrite = False,
) -> None:
    """Make a concept folder for the `concepts` benchmark from your own text files, and say what is missing."""
    from excise.console import err
    from excise.data.build_concept import ConceptSource
    from excise.data.build_concept import build_concept as build
    from excise.data.sentences import Sentences

    source = ConceptSource(
        name=name,
        texts=tuple(texts),
        neutral=tuple(neutral or ()),
        choice=choice,
        open=open_,
        similar_choice=similar_choice,
        similar_open=similar_open,
        coherence=coherence,
        sentences=Sentences(splitter),
        limit=limit,
        relearn_every=relearn_every,
        others=others,
    )
    report = build(source, out, overwrite=overwrite)
    err.print(f"{report['sentences']} sentences about {name}, {report['neutral']} neutral ones", markup=False)
    for reason, count in report["dropped"].items():
        err.print(f"left out: {count} {reason}", markup=False)
    for line in report["missing"]:
        err.print(line, markup=False)
    print(out)
