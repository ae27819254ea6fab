"""The concept sets that come with excise, in the layout of the ``concepts`` benchmark, and how a concept is found by name."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from excise.errors import InputError, did_you_mean
from excise.files import read_json

SHIPPED = Path(__file__).parent / "shipped"
"""The folder with all of them; its neutral sentences are what `excise build-concept` uses."""
SENTENCES, NEUTRAL = "concept_sentences.json", "neutral_sentences.json"


@cache
def names() -> tuple[str, ...]:
    """The concepts that come with excise."""
    return tuple(row["concept"] for row in read_json(SHIPPED / SENTENCES))


def folder_of(name: str) -> Path:
    """The folder of a shipped concept.

    Raises:
        InputError: no such concept; the message suggests one.
    """
    key_in(SHIPPED, name)
    return SHIPPED


def resolve(given: str, concept: str = "") -> tuple[Path, str]:
    """Folder and concept from what a person names: a shipped concept, or a folder (with ``concept`` where it has several).

    Raises:
        InputError: neither a folder nor a shipped concept, or a folder without that concept.
    """
    folder = Path(given).expanduser()
    if folder.is_dir():
        return folder, key_in(folder, concept)
    if _plain(given) not in map(_plain, names()):
        raise InputError(f"there is no concept folder {given}, and no concept of that name comes with excise: {did_you_mean(given, names())}")
    return SHIPPED, key_in(SHIPPED, given)


def key_in(folder: Path, concept: str) -> str:
    """The name of a concept as its folder spells it; without a name, the only concept that there are questions about, or the only one.

    Raises:
        InputError: no such concept, or several to choose from.
    """
    place = folder / SENTENCES
    rows = read_json(place)
    if not isinstance(rows, list):
        raise InputError(f"{place}: expected a list, got {type(rows).__name__}")
    there = [str(row["concept"]) for row in rows if isinstance(row, dict) and "concept" in row]
    if concept:
        found = [name for name in there if _plain(name) == _plain(concept)]
        if not found:
            raise InputError(f"data.concept: {place} has no concept {concept!r}: {did_you_mean(concept, there)}")
        return concept if concept in found else found[0]
    asked = [name for name in _asked_about(folder) if name in there] or there
    if len(asked) != 1:
        raise InputError(f"data.concept: {place} has several concepts; name one of: {', '.join(sorted(asked))}")
    return asked[0]


def _asked_about(folder: Path) -> list[str]:
    """The concepts with questions of either kind."""
    found: dict[str, None] = {}
    for file in ("mc_questions.json", "open_questions.json"):
        about = read_json(folder / file) if (folder / file).exists() else {}
        found |= dict.fromkeys(about if isinstance(about, dict) else ())
    return list(found)


def _plain(name: str) -> str:
    """A name without capitals, blanks, dashes and a leading article, to compare by."""
    return re.sub(r"^the", "", re.sub(r"[\W_]+", "", name.lower()))
