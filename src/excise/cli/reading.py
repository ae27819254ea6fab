"""Commands that show what there is, and hand it on. Everything heavy is imported inside them, so that --help answers at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Optional

import typer

from excise.cli.options import app, raise_input


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(help="Run folders.")],
    out: Annotated[Optional[Path], typer.Option(help="The HTML file.")] = None,  # noqa: UP045
) -> None:
    """Write one report of a run, or of several side by side."""
    from excise.report.html import write_report

    print(write_report(folders, out))


@app.command()
def export(
    model: Annotated[str, typer.Argument(help="A model folder, an adapter folder, a .gguf file or embedded:NAME.")],
    gguf: Annotated[Path, typer.Option("--gguf", help="The file to write.")],
    kind: Annotated[str, typer.Option("--type", help="Number format: f32, f16, bf16, q8_0, q4_0.")] = "f16",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
) -> None:
    """Write a model as a GGUF file for llama.cpp, read it back and compare."""
    from excise.export import export as export_model

    for line in export_model(model, gguf, kind=kind, overwrite=overwrite).lines():
        print(line)


@app.command(name="list")
def list_(
    kind: Annotated[
        str, typer.Argument(help="methods, objectives, weights, stages, benchmarks, suites, metrics, judges, attacks, models")
    ] = "methods",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List what there is."""
    from excise import registry

    rows = []
    for name in registry.names(kind):
        component = registry.find(kind, name)
        rows.append({"name": name, "summary": registry.summary(component), "paper": registry.paper(component)})
    if as_json:
        print(json.dumps(rows, ensure_ascii=False))
        return
    from excise.console import out, pair_table

    out.print(pair_table([(str(row["name"]), str(row["summary"])) for row in rows]))


@app.command()
def show(name: str) -> None:
    """Show a component: what it is, its formula, its paper, its settings and their defaults."""
    import inspect

    from excise import registry
    from excise.console import out, pair_table
    from excise.errors import did_you_mean

    found = [(kind, registry.find(kind, name)) for kind in registry.KINDS if name in registry.names(kind)]
    if not found:
        raise_input(f"there is nothing called {name!r}: {did_you_mean(name, [n for kind in registry.KINDS for n in registry.names(kind)])}")
    for kind, component in found:
        out.print(f"{name} ({kind})\n", markup=False)
        out.print(inspect.getdoc(component) or "", markup=False)
        if rows := registry.settings_of(kind, component):
            out.print()
            out.print(pair_table([(field, f"{kind_}   default {default}") for field, kind_, default in rows]))
