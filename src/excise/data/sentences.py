"""Sentences and paragraphs from running text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from excise.errors import InputError
from excise.objectives.check import at_least

if TYPE_CHECKING:
    from spacy.language import Language

RULES = "rules"


@dataclass
class Dropped:
    """How many pieces were left out, by reason."""

    counts: dict[str, int] = field(default_factory=dict)

    def add(self, reason: str) -> None:
        self.counts[reason] = self.counts.get(reason, 0) + 1


@dataclass(frozen=True)
class Sentences:
    """Splits text into sentences and keeps those that can stand alone."""

    splitter: str = RULES
    """rules: spaCy's rule-based sentencizer, for any language; else the name of an installed spaCy pipeline, whose parser splits."""
    shortest: int = 5
    """Fewest words."""
    longest: int = 60
    """Most words."""

    def __post_init__(self) -> None:
        at_least("shortest", self.shortest, 1)
        at_least("longest", self.longest, self.shortest)

    def __call__(self, texts: Iterable[str], dropped: Dropped | None = None) -> list[str]:
        """The sentences in order, each once; ``dropped`` receives what was left out and why."""
        dropped = dropped or Dropped()
        found: dict[str, None] = {}
        pipeline = _pipeline(self.splitter)
        for text in texts:
            for sentence in pipeline(" ".join(text.split())).sents:
                words = sentence.text.strip()
                if reason := self._problem(words, found):
                    dropped.add(reason)
                else:
                    found[words] = None
        return list(found)

    def _problem(self, sentence: str, known: Iterable[str]) -> str:
        count = len(sentence.split())
        if count < self.shortest:
            return "too short"
        if count > self.longest:
            return "too long"
        if not re.search(r"[.!?…。！？][\"'”’)\]]*$", sentence):
            return "no full stop (headings, captions)"
        return "twice" if sentence in known else ""


def paragraphs(text: str) -> list[str]:
    """What blank lines separate, each on one line."""
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", text.replace("\r\n", "\n")) if part.strip()]


@cache
def _pipeline(name: str) -> Language:
    try:
        import spacy
    except ImportError:
        raise InputError('splitting sentences needs spaCy: pip install "excise[nouns]"') from None
    if name == RULES:
        rules = spacy.blank("xx")
        rules.add_pipe("sentencizer")
        return rules
    try:
        pipeline = spacy.load(name, exclude=["ner", "lemmatizer", "tagger", "attribute_ruler"])
    except OSError:
        raise InputError(f"--splitter {name}: this spaCy pipeline is not installed; take 'rules', or install it") from None
    if not {"parser", "senter", "sentencizer"} & set(pipeline.pipe_names):
        raise InputError(f"--splitter {name}: this spaCy pipeline does not split sentences; take 'rules'")
    return pipeline
