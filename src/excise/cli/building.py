"""Commands that make data, or study it. Everything heavy is imported inside them, so that --help answers at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from excise.cli.options import Data, Out, Overrides, Overwrite, app, narrator, raise_input

Files = Annotated[list[Path], typer.Argument(help="Questions and answers: JSON, JSON lines, CSV, TSV, Parquet, Factify-5WQA's records.")]


@app.command(name="build-5w")
def build_5w(
    files: Files,
    out: Annotated[Optional[Path], typer.Option("--out", help="Folder of the benchmark; with --report-only a JSON file or nothing.")] = None,  # noqa: UP045
    per_w: Annotated[Optional[int], typer.Option("--per-w", help="Rows of each class, both sides together (as many as there can be).")] = None,  # noqa: UP045
    forget_share: Annotated[float, typer.Option("--forget-share", help="Share of them that is to be forgotten.")] = 0.5,
    w: Annotated[str, typer.Option("--w", help="Classes of the benchmark.")] = "who,what,when,where,why",
    seed: Annotated[int, typer.Option(help="Seed of the split.")] = 0,
    near: Annotated[float, typer.Option(help="Jaccard similarity from which on two questions may be nearly the same.")] = 0.5,
    common: Annotated[float, typer.Option(help="A name in a larger share of the questions is a setting, not a subject.")] = 0.5,
    column: Annotated[Optional[list[str]], typer.Option(help="Your name of a column: answer=reply. May be given several times.")] = None,  # noqa: UP045
    model: Annotated[Optional[str], typer.Option(help="Count tokens too, with this model's tokenizer.")] = None,  # noqa: UP045
    report_only: Annotated[bool, typer.Option("--report-only", help="Only the profile of the files: shares, lengths, repetitions.")] = False,
    overwrite: Overwrite = False,
) -> None:
    """Make a balanced who/what/when/where/why benchmark of any questions and answers, without leaks between forget and retain."""
    from excise.files import write_json
    from excise.fivew.build import Build, sources, write
    from excise.fivew.profile import lines, profile
    from excise.fivew.rows import read_pairs

    classes = tuple(part.strip() for part in w.split(",") if part.strip())
    settings = Build(per_w, forget_share, classes, seed, near, common, _columns(column or ()))
    if out is None and not report_only:
        raise_input("build-5w needs --out DIR, or --report-only to look at the files alone")
    if report_only and out is not None and (out.is_dir() or (out.exists() and not overwrite)):
        raise_input(f"{out} exists: with --report-only --out names a new JSON file (or pass --overwrite)")
    count = _tokens(model) if model else None
    if report_only:
        found = {**profile(read_pairs(files, settings.columns), near, tokens=count), "sources": sources(files)}
        if out is not None:
            write_json(out, found)
        _print(lines(found))
        return
    assert out is not None
    with narrator() as telling:
        report = write(files, out, settings, overwrite=overwrite, tokens=count, narrator=telling)
    _print(["", *lines(report["profile"]), "", *_summary(report), str(out)])


def _summary(report: dict[str, Any]) -> list[str]:
    """What was dropped, what was kept."""
    dropped = [f"{row['count']:,} {reason}" for reason, row in report["dropped"].items()]
    kept = ", ".join(f"{sum(classes.values()):,} {side}" for side, classes in report["kept"].items())
    return [f"dropped: {', '.join(dropped) or 'nothing'}", f"kept: {kept} ({report['per_class']:,} of each class); why and which: report.json"]


def _print(text: list[str]) -> None:
    for line in text:
        print(line)


def _columns(given: list[str] | tuple[()]) -> dict[str, str]:
    found: dict[str, str] = {}
    for assignment in given:
        ours, equals, theirs = assignment.partition("=")
        if not equals or not ours or not theirs:
            raise_input(f"--column {assignment!r}: expected OURS=YOURS, such as answer=reply")
        found[ours] = theirs
    return found


def _tokens(model: str) -> Any:
    """Counts the tokens of a text as this model cuts it."""
    from excise.loading import outline

    tokenizer = outline(model).tokenizer
    return lambda text: len(tokenizer(text, add_special_tokens=False)["input_ids"])


@app.command()
def encoding(
    model: str,
    out: Out,
    data: Data = None,
    split: Annotated[str, typer.Option(help="Split of the benchmark whose answers are looked at.")] = "forget",
    limit: Annotated[Optional[int], typer.Option(help="Only N answers of each label, spread evenly.")] = 20,  # noqa: UP045
    set_: Overrides = None,
    overwrite: Overwrite = False,
) -> None:
    """Show how the gradient of what is to be forgotten spreads over layers, modules and rank dimensions, for each W.

    The benchmark is fivew unless --set data.name=... says otherwise. A folder called `encoding` in a run's folder joins its report.
    """
    from excise.encoding import lines
    from excise.encoding_study import write_study

    with narrator() as telling:
        found = write_study(model, out, data=data, split=split, limit=limit, settings=set_ or (), overwrite=overwrite, narrator=telling)
    _print([*lines(found), str(out / "encoding.html")])
