"""Deletion requests. Everything heavy is imported inside the commands, so that --help answers at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from excise.cli.options import Menu, Out, Overwrite, app, narrator

Subject = Annotated[str, typer.Option("--subject", help='Forget what the model knows about this: "Ancient Rome".')]
Questions = Annotated[Optional[list[Path]], typer.Option("--questions", help="Forget the answers to these questions (a table; may be repeated).")]  # noqa: UP045
Texts = Annotated[Optional[list[Path]], typer.Option("--texts", help="Forget these texts (a file or folder; may be repeated).")]  # noqa: UP045
Retain = Annotated[Optional[Path], typer.Option("--retain", help="Samples of your own of what must stay (a table).")]  # noqa: UP045
Budget = Annotated[float, typer.Option("--budget", help="Share of utility that may be lost.")]
Set = Annotated[Optional[list[str]], typer.Option("--set", help="Change a setting of the method: name=value.")]  # noqa: UP045
System = Annotated[Optional[str], typer.Option("--system", help="The system turn of the model's chat template.")]  # noqa: UP045
Seed = Annotated[int, typer.Option(help="Seed of everything.")]

ledger_app = typer.Typer(
    name="ledger", help="A folder of deletion requests on one model, each checked again after every other.", no_args_is_help=True
)
app.add_typer(ledger_app)


def asked_of(subject: str, questions: list[Path] | None, texts: list[Path] | None, retain: Path | None) -> Any:
    """The request that the options spell."""
    from excise.requests.build import Asked

    return Asked(subject, tuple(map(str, questions or ())), tuple(map(str, texts or ())), None if retain is None else str(retain))


@app.command()
def forget(
    model: Annotated[str, typer.Argument(help="A folder, a hub id, a .gguf file, or embedded:NAME.")],
    out: Out,
    subject: Subject = "",
    questions: Questions = None,
    texts: Texts = None,
    retain: Retain = None,
    budget: Budget = 0.1,
    adapter: Annotated[bool, typer.Option("--adapter", help="Save the adapter that was trained instead of a whole model.")] = False,
    attack: Annotated[Optional[list[str]], typer.Option("--attack", help="Then try to bring it back (may be repeated).")] = None,  # noqa: UP045
    redact: Annotated[bool, typer.Option("--redact", help="Keep no text of the request anywhere.")] = False,
    system: System = None,
    set_: Set = None,
    seed: Seed = 0,
    overwrite: Overwrite = False,
    menu: Menu = True,
) -> None:
    """Carry out a deletion request: no recipe, no retain set. Exit code 3 if it cannot be met within the budget."""
    from excise.cli.options import close
    from excise.files import read_json
    from excise.loading import ModelSpec
    from excise.requests.forget import Settings, sentence
    from excise.requests.forget import forget as carry_out
    from excise.settings import overridden

    wish = asked_of(subject, questions, texts, retain)
    settings = Settings(
        budget=budget,
        method=overridden({}, set_),
        attacks=tuple(attack or ()),
        adapter=adapter,
        privacy="redact" if redact else "keep",
        seed=seed,
    )
    with narrator() as telling:
        found = carry_out(ModelSpec(path=model, system=system), wish, out, settings, overwrite=overwrite, narrator=telling)
    close(read_json(out / "result.json"), out, menu)
    print(sentence(found))
    if not found["met"]:
        raise typer.Exit(3)


@ledger_app.command()
def start(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The new ledger's folder.")],
    model: Annotated[str, typer.Argument(help="The model that all requests are about.")],
    system: System = None,
) -> None:
    """Begin a ledger on a model."""
    from excise.loading import ModelSpec
    from excise.requests.ledger import Ledger

    ledger = Ledger.start(folder, ModelSpec(path=model, system=system))
    print(f"{ledger.folder}: no requests yet; excise ledger add {folder} --questions FILE")


@ledger_app.command()
def add(
    folder: Annotated[Path, typer.Argument(metavar="DIR")],
    subject: Subject = "",
    questions: Questions = None,
    texts: Texts = None,
    retain: Retain = None,
    budget: Budget = 0.1,
    redact: Annotated[bool, typer.Option("--redact", help="Keep no text of the request; it cannot be checked again later.")] = False,
    set_: Set = None,
    seed: Seed = 0,
) -> None:
    """Carry out one more request on the ledger's model, and check all earlier ones again. Exit code 3 if it is not met."""
    from excise.console import out
    from excise.requests.forget import Settings
    from excise.requests.ledger import Ledger, table
    from excise.settings import overridden

    ledger = Ledger.open(folder)
    settings = Settings(budget=budget, method=overridden({}, set_), privacy="redact" if redact else "keep", seed=seed)
    with narrator() as telling:
        entry = ledger.add(asked_of(subject, questions, texts, retain), settings, telling)
    out.print(table(ledger))
    print(entry["sentence"])
    if not entry["met"]:
        raise typer.Exit(3)


@ledger_app.command()
def undo(folder: Annotated[Path, typer.Argument(metavar="DIR")], number: Annotated[int, typer.Argument(help="Which request.")]) -> None:
    """Take one request back, and check that the others still hold."""
    from excise.console import out
    from excise.requests.ledger import Ledger, table

    ledger = Ledger.open(folder)
    with narrator() as telling:
        ledger.undo(number, telling)
    out.print(table(ledger))


@ledger_app.command()
def status(
    folder: Annotated[Path, typer.Argument(metavar="DIR")],
    check: Annotated[bool, typer.Option("--check", help="Ask the model again instead of repeating what is written.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the ledger as JSON.")] = False,
) -> None:
    """Show every request and how well it holds after the last one."""
    import json

    from excise.console import out
    from excise.requests.ledger import Ledger, table

    ledger = Ledger.open(folder)
    if check:
        with narrator() as telling:
            ledger.check(telling)
    if as_json:
        print(json.dumps(ledger.to_json(), indent=1))
    else:
        out.print(table(ledger))
