"""The judge that needs no model: the words of the truth stand in the answer, or they do not."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from excise.errors import InputError
from excise.evaluation.judges import Item, refuse_others, settled
from excise.evaluation.judges.wording import contains, normal_words
from excise.evaluation.metrics.memory import rouge
from excise.evaluation.records import Verdict

VERSION = 1
"""Raise it when the rule changes: verdicts remembered under another version are not used."""


@dataclass(frozen=True)
class Contains:
    """A deterministic rule: the words of a short truth stand in the answer one after the other, those of a long one mostly and in order.

    * A degenerate answer (empty, mostly signs, a loop, a word over 30 characters) never contains the truth, and is not fluent.
    * A short truth: its words, in a form that ignores case, accents, punctuation, articles, possessives and the way numbers and
      dates are written, stand in the answer in one piece.
    * The truth of a "why" question, and any truth as long as those: ROUGE-L recall of the same words, stemmed, of at least ``recall``.

    It reads no meaning: "It was not Paris" contains Paris, and "the French capital" does not.

    Paper: ours, for the FSR and RSR of MAAT (arXiv 2605.30514), whose own judge is a large model; ROUGE by Lin 2004.
    """

    recall: float = 0.6
    """Share of a long truth's words that the answer must have, in order."""
    long_words: int = 11
    """A truth of so many words is long, whatever its label (the shortest "why" of 5WBENCH has 11, 95 % of its other answers under 10)."""

    name: ClassVar[str] = "contains"
    aspects: ClassVar[tuple[str, ...]] = ("truth", "fluent")

    def __post_init__(self) -> None:
        if not 0 < self.recall <= 1:
            raise InputError(f"judges.contains.recall is {self.recall}: a share above 0 and at most 1 is needed")
        if self.long_words < 1:
            raise InputError(f"judges.contains.long_words is {self.long_words}: at least 1 is needed")

    def identity(self) -> Mapping[str, Any]:
        return {"version": VERSION, **dataclasses.asdict(self)}

    def __call__(self, items: Sequence[Item]) -> Iterator[Verdict]:
        refuse_others(self, items)
        for item in items:
            yield settled(self, item) or (self._truth(item) if item.aspect == "truth" else Verdict(self.name, item.aspect, 1.0))

    def _truth(self, item: Item) -> Verdict:
        words = normal_words(item.truth)
        if not words:
            return Verdict(self.name, "truth", None, "the truth has no word to look for")
        if item.label.casefold() != "why" and len(item.truth.split()) < self.long_words:
            found = contains(item.answer, item.truth)
            return Verdict(self.name, "truth", float(found), "its words stand there" if found else "its words do not stand there")
        if not any(c.isascii() and c.isalnum() for word in words for c in word):
            return Verdict(self.name, "truth", None, "a long truth is compared by ROUGE, which reads Latin letters and digits only")
        recall = rouge("rougeL", " ".join(words), " ".join(normal_words(item.answer))).recall
        return Verdict(self.name, "truth", float(recall >= self.recall), f"ROUGE-L recall {recall:.2f}")
