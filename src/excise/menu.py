"""After a run in a terminal: what one may want to do with the result."""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from excise.errors import InputError

if TYPE_CHECKING:
    from excise.subject import Subject

CHAT_TOKENS = 400
"""Where an answer in the chat is cut."""


def interactive(wanted: bool = True) -> bool:
    """Whether a person sits there: input and output are a terminal, and nobody said otherwise (--no-menu, $CI, TERM=dumb)."""
    return wanted and sys.stdin.isatty() and sys.stdout.isatty() and not os.environ.get("CI") and os.environ.get("TERM") != "dumb"


def offer(folder: Path) -> None:
    """Shows the menu until the person leaves it. What goes wrong is said in a line, and the menu goes on."""
    actions: dict[str, tuple[str, Callable[[Path], None]]] = {
        "r": ("open the report", report),
        "c": ("chat with the model", chat),
        "m": ("save merged", merge),
        "g": ("export GGUF", gguf),
        "p": ("push to the hub", push),
    }
    shown = "   ".join(f"[{key}] {label}" for key, (label, _) in actions.items()) + "   [q] quit"
    while True:
        print(f"\n{shown}")
        key = _ask("> ").lower()[:1]
        if key in ("q", ""):
            return
        if key not in actions:
            print(f"please type one of {', '.join(actions)} or q")
            continue
        try:
            actions[key][1](folder)
        except InputError as error:
            print(" ".join(str(error).split()))
        except KeyboardInterrupt:
            print()


def report(folder: Path) -> None:
    """Opens the report in the browser, and says where it is for those who have none."""
    place = (folder / "report.html").resolve()
    print(place)
    if not webbrowser.open(place.as_uri()):
        print("no browser was found: open that file by hand")


def chat(folder: Path) -> None:
    """A conversation with the unlearned model; an empty line ends it. Nothing of it is kept."""
    from excise.loading import load

    print("loading the model ... (an empty line goes back to the menu)")
    subject = load(folder / "model")
    history: tuple[tuple[str, str], ...] = ()
    while question := _ask("you> "):
        history += (("user", question), ("assistant", _answer(subject, question, history)))


def _answer(subject: Subject, question: str, history: tuple[tuple[str, str], ...]) -> str:
    from excise.data.encode import encode_prompt
    from excise.talk import stream

    said: list[str] = []
    for piece in stream(subject, encode_prompt(subject.tokenizer, subject.template, question, history=history), CHAT_TOKENS):
        print(piece, end="", flush=True)
        said.append(piece)
    print()
    return "".join(said)


def merge(folder: Path) -> None:
    """Saves an adapter merged into its base; a whole model is one already."""
    from excise.files import read_json
    from excise.loading import load
    from excise.saving import save

    record = read_json(folder / "model" / "excise.json")
    if record["kind"] != "adapter":
        print(f"{folder / 'model'} is a whole model already, not an adapter")
        return
    place = Path(_ask(f"folder [{folder / 'merged'}]: ") or folder / "merged").expanduser()
    known = ("method", "recipe", "data_fingerprint", "model_fingerprint_before", "versions", "seed")
    save(load(folder / "model"), place, provenance={name: record[name] for name in known if name in record}, merge=True)
    print(f"merged: {place}")


def gguf(folder: Path) -> None:
    """Writes a file for llama.cpp."""
    from excise.export import export

    place = Path(_ask(f"file [{folder / 'model.gguf'}]: ") or folder / "model.gguf").expanduser()
    kind = _ask("number format, f32, f16, bf16, q8_0 or q4_0 [f16]: ") or "f16"
    for line in export(str(folder / "model"), place, kind=kind).lines():
        print(line)


def push(folder: Path) -> None:
    """Uploads the model, private."""
    from excise.push import push as push_model

    repository = _ask("repository, owner/name (it will be private): ")
    if not repository:
        return
    pushed = push_model(folder, repository)
    for note in pushed.notes:
        print(note)
    print(f"{'private' if pushed.private else 'public'}: {pushed.url}")


def _ask(prompt: str) -> str:
    """A line from the person; the end of the input is an empty one."""
    try:
        return input(prompt).strip()
    except EOFError:
        print()
        return ""
