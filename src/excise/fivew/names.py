"""What a question is about: the names in it, found by their capitals and, in text without capitals, by those found elsewhere."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from excise.data.benchmarks.fivew import same
from excise.evaluation.metrics.facts import STOP_WORDS
from excise.fivew.nouns import listed

WORD = re.compile(r"[^\W_]+(?:[-'’.&][^\W_]+)*(?:(?<=s)['’](?!\w))?")
QUOTED = re.compile(r"[\"“]([^\"“”]{2,80})[\"”]|(?<!\w)['‘]([^'‘’]{2,80})['’](?!\w)")
INSIDE = listed("of the de la le du des da do dos di del von van der den el al bin ibn for")
"""Small words that may stand inside a name."""
NO_NAME = listed(
    "january february march april may june july august september october november december monday tuesday wednesday thursday friday saturday "
    "sunday according claim evidence regarding mr mrs ms dr sir name identify give please"
)
ADJECTIVE = re.compile(r"(?:ian|ean|can|ish|ese|nch|tch|stani|aeli|reek|wiss|rman|rwegian|raqi)$")
"""Endings of words such as American and French, which say where somebody is from and name no subject."""
OWNER = re.compile(r"['’]s?$")
"""The end of a name that owns what follows it ("Ada's")."""
LONGEST = 6


@dataclass(frozen=True)
class Names:
    """Knows which words of some texts are names; calling it gives those of one text."""

    ordinary: frozenset[str]
    """Words that mostly stand without a capital."""
    known: frozenset[str]
    """Normalised names of several words, and of one word where it never stands without a capital."""

    @staticmethod
    def of(texts: Iterable[str]) -> Names:
        """Learns from texts, all at once."""
        texts = list(texts)
        small: Counter[str] = Counter()
        capital: Counter[str] = Counter()
        for text in texts:
            if _has_case(text):
                words = WORD.findall(text)
                small.update(word.casefold() for word in words if word[0].islower())
                capital.update(word.casefold() for word in words[1:] if word[0].isupper())
        ordinary = frozenset(word for word, count in small.items() if count >= capital[word])
        learning = Names(ordinary, frozenset())
        return Names(ordinary, frozenset(name for text in texts for name in learning(text)))

    def __call__(self, text: str) -> tuple[str, ...]:
        """The normalised names of a text, without what an article or a possessive adds."""
        found = self._by_capitals(text) if _has_case(text) else self._by_memory(text)
        return tuple(dict.fromkeys(found))

    def _by_capitals(self, text: str) -> list[str]:
        names = [same(a or b) for a, b in QUOTED.findall(text)]
        rest = QUOTED.sub(" ; ", text)
        for sentence in re.split(r"(?<=[.!?])\s+(?=[^\W\d_])", rest):
            names += [name for run in self._runs(sentence) if (name := _normal(run)) and not self._means_nothing(name)]
        return [name for name in names if name]

    def _runs(self, sentence: str) -> list[list[str]]:
        """Words with capitals next to each other, small words inside included."""
        runs: list[list[str]] = []
        run: list[str] = []
        end = 0
        for place, match in enumerate(WORD.finditer(sentence)):
            word, gap = match.group(), sentence[end : match.start()]
            end = match.end()
            is_capital = word[0].isupper() and not (place == 0 and (word.casefold() in self.ordinary or word.casefold() in STOP_WORDS))
            if run and gap.strip(". ") == "" and (is_capital or word in INSIDE or (word.isdigit() and run)):
                run.append(word)
                if not OWNER.search(word):
                    continue
                is_capital, word = False, ""
            if run:
                runs.append(run)
            run = [word] if is_capital else []
        return [*runs, run] if run else runs

    def _means_nothing(self, name: str) -> bool:
        words = name.split()
        if all(word in STOP_WORDS or word in NO_NAME or word.isdigit() for word in words):
            return True
        return len(words) == 1 and (bool(ADJECTIVE.search(name)) or name in self.ordinary)

    def _by_memory(self, text: str) -> list[str]:
        words = same(text).split()
        return [
            " ".join(words[i : i + length])
            for i in range(len(words))
            for length in range(min(LONGEST, len(words) - i), 0, -1)
            if " ".join(words[i : i + length]) in self.known
        ]


def with_last_words(name: str, alone: frozenset[str]) -> tuple[str, ...]:
    """A name, and its last word where that also stands alone as a name ("Marie Curie", "Curie")."""
    last = name.split()[-1]
    return (name, last) if last != name and last in alone else (name,)


def _normal(run: Sequence[str]) -> str:
    words = list(run)
    while words and words[-1] in INSIDE:
        words = words[:-1]
    words = [re.sub(r"['’]s$|['’]$", "", word) for word in words]
    found = same(" ".join(words)).split()
    while found and found[0] in ("the", "a", "an"):
        found = found[1:]
    while found and found[-1].isdigit() and len(found) > 3:
        found = found[:-1]
    return " ".join(found)


def _has_case(text: str) -> bool:
    """Whether capitals mean something here: some words have one, and some have none."""
    words = WORD.findall(text)[1:]
    letters = [word for word in words if word[0].isalpha()]
    return any(word[0].isupper() for word in letters) and any(word[0].islower() for word in letters)
