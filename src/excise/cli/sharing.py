"""Commands for those who get a model, or give one away. Everything heavy is imported inside them, so that --help answers at once."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Annotated, Optional

import typer

from excise.cli.options import app, narrator, raise_input


@app.command()
def certify(
    folder: Annotated[Optional[Path], typer.Argument(metavar="DIR", help="The folder of a finished run.")] = None,  # noqa: UP045
    key: Annotated[Optional[Path], typer.Option("--key", help="Private Ed25519 key (PEM); else $EXCISE_SIGNING_KEY.")] = None,  # noqa: UP045
    new_key: Annotated[Optional[Path], typer.Option("--new-key", help="Make a key, into this file, and its public half beside it.")] = None,  # noqa: UP045
    include_text: Annotated[bool, typer.Option("--include-text", help="Show what was to be forgotten in words.")] = False,
    model_key: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--model-key", help="Also sign the model folder in the model-signing format with this elliptic-curve key (PEM)."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing certificate.")] = False,
) -> None:
    """Write a signed certificate of a run: what was asked, done, measured, attacked, and what was not tested."""
    from excise.certificate import signing

    if new_key is not None:
        if key is not None:
            raise_input("--key and --new-key exclude each other: a new key signs at once if a DIR is given")
        print(f"key: {new_key} (keep it secret), public half {new_key}.pub\npublic key: {signing.new_key(new_key).public}")
        key = new_key
    if folder is None:
        if new_key is None:
            raise_input("certify needs the DIR of a finished run (or --new-key FILE)")
        return
    from excise.certificate.issue import certify as issue

    if key is not None and key.is_file() and signing.readable_by_others(key):
        print(f"{key} can be read by others: chmod 600 {key}", file=sys.stderr)
    signer = signing.signer(key)
    issued = issue(folder, signer, include_text=include_text, overwrite=overwrite)
    print(f"certificate: {issued.certificate}\npage: {issued.page}")
    if model_key is not None:
        from excise.certificate.openssf import sign_model

        print(f"model signature: {sign_model(folder / 'model', model_key, overwrite=overwrite)}")
    if issued.public_key is None:
        print(f"NOT SIGNED: give --key FILE or ${signing.VARIABLE} (`excise certify --new-key FILE` makes a key)")
    else:
        print(f"signed by: {issued.public_key}")


@app.command()
def verify(
    certificate: Annotated[Path, typer.Argument(help="The certificate.json.")],
    model: Annotated[Path, typer.Argument(help="The model folder, or the run folder that holds it.")],
    public_key: Annotated[Optional[Path], typer.Option("--public-key", help="Who must have signed: a public key (PEM).")] = None,  # noqa: UP045
    rerun: Annotated[int, typer.Option("--rerun", min=0, help="Repeat so many of the scores on the model.")] = 0,
    tolerance: Annotated[float, typer.Option(min=0.0, help="How far a repeated score may be off (where it is above 1: this share of it).")] = 0.02,
    model_signature: Annotated[Optional[Path], typer.Option(help="A model-signing signature of the model folder.")] = None,  # noqa: UP045
    model_public_key: Annotated[Optional[Path], typer.Option(help="The public key (PEM) for --model-signature.")] = None,  # noqa: UP045
) -> None:
    """Check a certificate's signature, and that model and result are the certified ones; repeat some scores."""
    from excise.certificate.check import verify as check
    from excise.certificate.signing import public_key as read_key

    if (model_signature is None) != (model_public_key is None):
        raise_input("--model-signature and --model-public-key belong together")
    checked = check(certificate, model, read_key(public_key) if public_key else None)
    lines = list(checked.lines)
    if model_signature is not None and model_public_key is not None:
        from excise.certificate.openssf import check_model

        lines.append(check_model(checked.model, model_signature, model_public_key))
    subject = None
    if rerun or checked.body["model"]["kind"] == "adapter":
        from excise.certificate.rerun import subject_of

        subject = subject_of(checked)
        lines.append("model: loaded, its weights have the certified fingerprint.")
    if rerun:
        from excise.certificate.rerun import rerun as repeat
        from excise.run import narrated

        with narrator() as telling:
            repeated = repeat(checked, rerun, subject, progress=narrated(telling))
        off = [row for row in repeated if not row.agrees(tolerance)]
        if off:
            first = off[0]
            now = "no value" if first.now is None else f"{first.now:.6g}"
            raise_input(
                f"{len(off)} of {len(repeated)} repeated scores differ from the certificate by more than {tolerance:g}, "
                f"the first: {first.name} is {now} now, certified {first.certified:.6g}"
            )
        lines += [f"repeated: {row.name} {row.now:.6g}, certified {row.certified:.6g}" for row in repeated]
        lines.append(f"{len(repeated)} of {rerun} scores repeated, all within {tolerance:g}.")
    print("\n".join(lines))


@app.command()
def push(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run folder, or a model that excise saved.")],
    repository: Annotated[str, typer.Argument(metavar="REPO", help="OWNER/NAME on the hub.")],
    public: Annotated[bool, typer.Option("--public", help="Everybody may see it; without it a new repository is private.")] = False,
    base: Annotated[Optional[str], typer.Option(help="Hub id of the base model, where the record names a local folder.")] = None,  # noqa: UP045
    message: Annotated[str, typer.Option(help="Of the commit.")] = "",
) -> None:
    """Upload a model or an adapter to the Hugging Face hub with a card that shows the results. The token comes from $HF_TOKEN."""
    from excise.push import push as push_model

    pushed = push_model(folder, repository, public=public, base=base, message=message)
    for note in pushed.notes:
        print(note)
    print(f"{'private' if pushed.private else 'public'}: {pushed.url}")


@app.command()
def play(
    folders: Annotated[Optional[list[Path]], typer.Argument(metavar="[DIR]...", help="Run folders, or folders of them; without any: runs.")] = None,  # noqa: UP045
    host: Annotated[str, typer.Option(help="Where to listen; anything but this machine itself lets others ask your models.")] = "127.0.0.1",
    port: Annotated[Optional[int], typer.Option(min=1, max=65535, help="8347, or any free one where that is taken.")] = None,  # noqa: UP045
    keep: Annotated[int, typer.Option(min=1, help="Models that stay in memory.")] = 3,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page.")] = True,
) -> None:
    """Try a run on a page of this machine: the models before, after and the twin side by side."""
    import webbrowser

    from excise.play.server import is_loopback
    from excise.play.server import play as serve

    def ready(address: str) -> None:
        print(f"excise play: {address} (Ctrl-C ends it)", flush=True)
        if not is_loopback(host):
            print(f"everybody who reaches {host} can ask these models and read the reports; there is no password", file=sys.stderr)
        elif browser and sys.stdout.isatty():
            webbrowser.open(address)

    with contextlib.suppress(KeyboardInterrupt):
        serve(folders or [Path("runs")], host=host, port=port, keep=keep, ready=ready)
