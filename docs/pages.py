"""The pages that are made from the code when the site is built (mkdocs-gen-files): methods, the Python reference, benchmarks."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import mkdocs_gen_files

import excise
from excise import registry

RESULTS = Path(__file__).parent / "results"


def text_of(component: object) -> str:
    """A docstring as Markdown: what follows ``Paper:`` and ``Differs:`` stands in paragraphs of its own."""
    lines = inspect.getdoc(component) or ""
    return lines.replace("Paper:", "**Paper.**").replace("Differs:", "**Differs.**").replace("``", "`")


def page(name: str) -> str:
    component = registry.find("methods", name)
    rows = "\n".join(
        f"| `{field}` | `{kind.replace('|', chr(92) + '|')}` | `{default}` |" for field, kind, default in registry.settings_of("methods", component)
    )
    return f"# {name}\n\n{text_of(component)}\n\n| setting | type | default |\n|---|---|---|\n{rows}\n"


def main() -> None:
    rows: list[str] = []
    for name in registry.names("methods"):
        component = registry.find("methods", name)
        with mkdocs_gen_files.open(f"methods/{name}.md", "w") as file:
            file.write(page(name))
        rows.append(f"| [`{name}`](methods/{name}.md) | {registry.summary(component)} | {registry.paper(component) or ''} |")
    with mkdocs_gen_files.open("methods.md", "w") as file:
        head = "# Methods\n\nEach runs in full fine-tuning or with LoRA where that makes sense; `a+b` in a recipe runs one after the other.\n\n"
        file.write(head + "| method | what it does | paper |\n|---|---|---|\n" + "\n".join(rows) + "\n")
    with mkdocs_gen_files.open("reference.md", "w") as file:
        file.write(reference())
    with mkdocs_gen_files.open("measured.md", "w") as file:
        file.write(measured())


def measured() -> str:
    """The benchmarks' tables, from the JSON files that they wrote."""
    found = {path.stem.removeprefix("bench-"): json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("bench-*.json"))}
    parts = ["# Measured\n\nWhat `python -m benchmarks` and its parts wrote, unchanged; [Performance](performance.md) reads them.\n"]
    rows = [row for name, part in found.items() if name.startswith("training") for row in part]
    if rows:
        parts.append("\n## Training steps against a plain loop\n\n`python -m benchmarks.training`: the same batches and mathematics.\n")
        parts.append(
            table(
                "machine | model | method | trained | precision | plain s | excise s | speed | tokens/s | share of the limit | plain MB "
                "| excise MB | memory | loss differs",
                (
                    (
                        row["excise"].get("cpu", "2 threads, AMX"), *row["case"],
                        f"{row['plain']['seconds']:.2f}", f"{row['excise']['seconds']:.2f}", f"**{row['speed']:.2f}**",
                        f"{row['excise']['tokens'] / row['excise']['seconds']:.0f}",
                        f"{row['excise']['limit']:.0%}" if "limit" in row["excise"] else "",
                        f"{row['plain']['peak_mb']:.0f}", f"{row['excise']['peak_mb']:.0f}", f"**{row['memory']:.2f}**", f"{row['difference']:.1e}",
                    )
                    for row in rows
                ),
            )
        )  # fmt: skip
    if "step" in found:
        first, npo = found["step"]["ga + nll (no reference)"], found["step"]["npo + kl"]
        parts.append("\n## What the reference and the token weights cost\n\n`python -m benchmarks.step`\n")
        parts.append(
            table(
                "case | s a step | s of preparation | peak MiB | memory against no reference | time against npo",
                (
                    (
                        name, f"{row['seconds_per_step']:.2f}", f"{row['seconds_of_preparation']:.2f}", f"{row['peak_mb']:.0f}",
                        f"{row['peak_mb'] / first['peak_mb']:.2f}", f"{row['seconds_per_step'] / npo['seconds_per_step']:.2f}",
                    )
                    for name, row in found["step"].items()
                ),
            )
        )  # fmt: skip
    if "growth" in found:
        growth = found["growth"]
        parts.append("\n## How costs grow\n\n`python -m benchmarks.growth`: slope of log seconds against log tokens (1 is linear).\n")
        points = {side: ", ".join(f"{p['tokens']:.0f}: {p['seconds']:.2f} s" for p in rows) for side, rows in growth["times"].items()}
        parts.append(table("side | slope | tokens: seconds", ((side, f"**{growth['slopes'][side]:.2f}**", points[side]) for side in points)))
        if (RESULTS / "bench-growth.svg").exists():
            parts.append("\n![Peak memory of a training step against scored tokens](results/bench-growth.svg)\n")
    if "projection" in found:
        parts.append("\n## A projected step against a plain ascent step at equal tokens\n\n`python -m benchmarks.project`\n")
        plain = found["projection"]["plain ascent"]
        parts.append(
            table(
                "case | s a step | time against plain | peak MiB | memory against plain",
                (
                    (
                        name, f"{row['seconds_per_step']:.2f}", f"**{row['seconds_per_step'] / plain['seconds_per_step']:.2f}**",
                        f"{row['peak_mb']:.0f}", f"{row['peak_mb'] / plain['peak_mb']:.2f}",
                    )
                    for name, row in found["projection"].items()
                ),
            )
        )  # fmt: skip
    if "factorisation" in found:
        one = found["factorisation"]
        each = one["seconds_per_iteration"]
        parts.append("\n## Sparse factorisation\n\n`python -m benchmarks.factorise`\n")
        ratio = f"**{each['plain'] / each['excise']:.2f}**"
        cells = (
            one["rows"],
            one["width"],
            one["rank"],
            *(f"{1000 * each[s]:.1f} ms" for s in ("plain", "excise")),
            ratio,
            f"{one['loss_differs']:.0e}",
        )
        parts.append(table("rows | width | rank | plain, an iteration | excise | speed | losses differ by", (cells,)))
    if "estimate" in found:
        parts.append("\n## Estimates of `excise check` against measured\n\n`python -m benchmarks.estimate`\n")
        parts.append(
            table(
                "configuration | memory estimated, MiB | measured | ratio | step estimated, s | measured | ratio",
                (
                    (
                        name, f"{row['estimate']['training_mb']:.0f}", f"{row['measure']['peak_mb']:.0f}", f"{row['memory_ratio']:.2f}",
                        f"{row['estimate']['seconds_per_step']:.3g}", f"{row['measure']['seconds_per_step']:.3g}", f"{row['time_ratio']:.2f}",
                    )
                    for name, row in found["estimate"].items()
                ),
            )
        )  # fmt: skip
    return "\n".join(parts)


def table(head: str, rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table."""
    lines = [f"| {head} |", "|" + "---|" * (head.count("|") + 1)]
    return "\n".join([*lines, *("| " + " | ".join(map(str, row)) + " |" for row in rows)]) + "\n"


def reference() -> str:
    """What `import excise` offers, for mkdocstrings to fill in."""
    head = "# Python reference\n\nWhat `import excise` offers. Everything is typed, and imported when it is first used.\n\n"
    constants = {"METHODS", "__version__"}
    return head + "\n".join(f"::: {place(getattr(excise, name))}\n" for name in sorted(set(excise.__all__) - constants, key=str.lower))


def place(component: Any) -> str:
    """Where a public name is defined."""
    return f"{component.__module__}.{component.__qualname__}"


main()
