"""Which tokens the attribution hides, and which answer tokens repeat the question."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from excise.data.encode import Encoded
from excise.data.nouns import Nouns, occurrences


@dataclass(frozen=True)
class Masking:
    """How the knowledge-bearing words of a prompt are hidden."""

    nouns: Nouns = field(default_factory=Nouns)
    mask: Literal["attention", "token", "names"] = "attention"
    mask_token: str | None = None
    hide: Literal["prompt", "mentions"] = "prompt"

    def hidden(self, text: Encoded) -> list[int]:
        """Indices of the tokens of which any character belongs to a hidden word. Never the first token."""
        spans = self._nouns_of(text)
        if self.hide == "mentions":
            spans += self._mentions(text)
        return sorted({i for start, end in spans for i in text.tokens_within(start, end) if i > 0})

    def stand_ins(self, text: Encoded, pool: Sequence[int]) -> list[int]:
        """For each hidden token a piece of an invented name, the same for the same token; drawn from ``pool``, by the text alone."""
        hidden = [text.ids[i] for i in self.hidden(text)]
        different = sorted(set(hidden))
        free = [piece for piece in pool if piece not in different]
        drawn = dict(zip(different, random.Random(str(different)).choices(free, k=len(different)), strict=True))
        return [drawn[token] for token in hidden]

    def copies(self, text: Encoded) -> list[bool]:
        """For each scored token, whether it repeats a noun of the question (of the text before it, for plain text)."""
        repeated = {i for start, end in self._mentions(text) for i in text.tokens_within(start, end)}
        return [i in repeated for i in range(text.start, len(text))]

    def _nouns_of(self, text: Encoded) -> list[tuple[int, int]]:
        begin, end = self._tagged_range(text)
        return [(begin + a, begin + b) for a, b in self.nouns(text.text[begin:end])]

    def _mentions(self, text: Encoded) -> list[tuple[int, int]]:
        if text.question == (0, 0):
            return self._repeats(text)
        words = tuple({text.text[a:b] for a, b in self._nouns_of(text)})
        begin, end = text.answer
        return [(begin + a, begin + b) for a, b in occurrences(text.text[begin:end], words)]

    def _repeats(self, text: Encoded) -> list[tuple[int, int]]:
        seen: set[str] = set()
        repeats: list[tuple[int, int]] = []
        for a, b in self._nouns_of(text):
            word = text.text[a:b].casefold()
            if word in seen:
                repeats.append((a, b))
            seen.add(word)
        return repeats

    @staticmethod
    def _tagged_range(text: Encoded) -> tuple[int, int]:
        """Only the question's text is tagged (never a system turn); plain text is tagged as a whole."""
        return text.answer if text.question == (0, 0) else text.question
