"""Which pairs are fit for a benchmark, and why the others are not."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from excise.data.benchmarks.fivew import same
from excise.evaluation.judges.wording import contains, normal_words
from excise.fivew.alike import jaccard, similar_pairs
from excise.fivew.asking import asked
from excise.fivew.names import Names
from excise.fivew.rows import Pair

LONG_ANSWER = 8
"""Words from which on an answer is compared by its shingles, and is not looked for in its question."""
ALIKE_ANSWERS = 0.5
"""Jaccard similarity from which on two long answers say the same."""


@dataclass(frozen=True)
class Item:
    """A pair that is kept, with its class and what it is about."""

    pair: Pair
    w: str
    names: tuple[str, ...]
    """Normalised names in the question."""

    @cached_property
    def question(self) -> str:
        return same(self.pair.question)

    @cached_property
    def answer(self) -> str:
        """The answer in a form that does not depend on case, articles, and the way dates and numbers are written."""
        return " ".join(normal_words(self.pair.answer)) or same(self.pair.answer)

    @cached_property
    def numbers(self) -> frozenset[str]:
        """The words of the question that have a digit."""
        return frozenset(word for word in self.question.split() if any(letter.isdigit() for letter in word))

    @property
    def is_long(self) -> bool:
        return len(self.answer.split()) >= LONG_ANSWER


REASONS: Mapping[str, str] = {
    "no question": "the row has no question",
    "no answer": "the row has no answer",
    "none of the five": "the question asks none of who, what, when, where, why (how of manner, yes or no, no question word)",
    "class not wanted": "the question's class was left out by --w",
    "answer in the question": "the answer stands in its own question",
    "same question, same answer": "the question stood there before, but for case, punctuation and spaces, with the same answer",
    "same question, another answer": "the question stood there before with another answer: one of the two is wrong, the first is kept",
    "nearly the same question": "a question of the same class with the same names and numbers and as good as the same answer stood there before",
    "not needed": "its class has enough rows, or those that it shares an answer or a subject with stand on the side that has enough",
}
"""Why a pair is dropped."""


@dataclass
class Dropped:
    """What was dropped: for each reason the ids, with the id that was kept instead where there is one."""

    ids: dict[str, list[tuple[str, str]]] = field(default_factory=dict)

    def add(self, reason: str, id: str, instead: str = "") -> None:
        assert reason in REASONS, reason
        self.ids.setdefault(reason, []).append((id, instead))

    def count(self) -> int:
        return sum(map(len, self.ids.values()))

    def to_json(self, shown: int) -> dict[str, object]:
        """Reason -> what it means, how many, and the first of them by id."""
        return {
            reason: {
                "count": len(self.ids[reason]),
                "why": why,
                "first": [{"id": id, **({"instead": instead} if instead else {})} for id, instead in self.ids[reason][:shown]],
            }
            for reason, why in REASONS.items()
            if reason in self.ids
        }


def clean(pairs: Sequence[Pair], classes: Sequence[str], near: float, dropped: Dropped, names: Names | None = None) -> list[Item]:
    """The pairs that a benchmark can use: one of the wanted classes, not given away, each question once.

    Args:
        near: Jaccard similarity of the questions' shingles from which on two may be nearly the same.
        names: knows names already; None: learns them from these pairs.
    """
    knows = names or names_of(pairs)
    classed = _distinct(list(_usable(pairs, classes, dropped)), dropped)
    return _not_near([Item(pair, w, knows(pair.question)) for pair, w in classed], near, dropped)


def names_of(pairs: Iterable[Pair]) -> Names:
    """What knows the names in these pairs' questions and short answers."""
    pairs = list(pairs)
    short = (f"It is {pair.answer}" for pair in pairs if len(pair.answer.split()) < LONG_ANSWER)
    return Names.of([*(pair.question for pair in pairs), *short])


def _usable(pairs: Sequence[Pair], classes: Sequence[str], dropped: Dropped) -> Iterator[tuple[Pair, str]]:
    for pair in pairs:
        if not same(pair.question):
            dropped.add("no question", pair.id)
        elif not pair.answer.strip():
            dropped.add("no answer", pair.id)
        elif (w := asked(pair.question).w) is None:
            dropped.add("none of the five", pair.id)
        elif w not in classes:
            dropped.add("class not wanted", pair.id)
        elif given_away(pair.question, pair.answer):
            dropped.add("answer in the question", pair.id)
        else:
            yield pair, w


@lru_cache(maxsize=100_000)
def given_away(question: str, answer: str) -> bool:
    """Whether a short answer stands in the question."""
    return len(normal_words(answer)) < LONG_ANSWER and contains(question, answer)


def _distinct(classed: Sequence[tuple[Pair, str]], dropped: Dropped) -> list[tuple[Pair, str]]:
    first: dict[str, tuple[Pair, str]] = {}
    for found in classed:
        pair, before = found[0], first.setdefault(same(found[0].question), found)[0]
        if before is not pair:
            alike = "same" if normal_words(before.answer) == normal_words(pair.answer) else "another"
            dropped.add(f"same question, {alike} answer", pair.id, before.id)
    return list(first.values())


def _not_near(items: Sequence[Item], near: float, dropped: Dropped) -> list[Item]:
    """Without the items that repeat a kept one: of two near ones the later goes, and what is gone repeats nothing."""
    earlier: dict[int, list[int]] = {}
    for i, j in similar_pairs([item.question for item in items], near):
        if items[i].w == items[j].w and may_be_same(items[i], items[j]) and same_answer(items[i], items[j]):
            earlier.setdefault(j, []).append(i)
    gone: set[int] = set()
    for j in range(len(items)):
        kept = next((i for i in earlier.get(j, ()) if i not in gone), None)
        if kept is not None:
            gone.add(j)
            dropped.add("nearly the same question", items[j].pair.id, items[kept].pair.id)
    return [item for j, item in enumerate(items) if j not in gone]


def may_be_same(a: Item, b: Item) -> bool:
    """Whether nothing tells two similar questions apart: the same numbers, and names that do not contradict each other."""
    return a.numbers == b.numbers and (not a.names or not b.names or not set(a.names).isdisjoint(b.names))


def same_answer(a: Item, b: Item) -> bool:
    """The same words, one answer inside the other, or long answers that share half of their shingles."""
    if a.answer == b.answer:
        return True
    if a.is_long and b.is_long:
        return jaccard(a.answer, b.answer) >= ALIKE_ANSWERS
    return contains(a.pair.answer, b.pair.answer) or contains(b.pair.answer, a.pair.answer)


def tidy(pair: Pair, counts: dict[str, int]) -> Pair:
    """Without rephrasings that repeat the question or give the answer away, and without false answers that are true; ``counts`` says how many."""
    true = {" ".join(normal_words(text)) for text in (pair.answer, *pair.other_answers)}
    rephrasings: dict[str, str] = {}
    for text in pair.rephrasings:
        if same(text) == same(pair.question):
            counts["rephrasings that repeat the question"] = counts.get("rephrasings that repeat the question", 0) + 1
        elif given_away(text, pair.answer):
            counts["rephrasings that give the answer away"] = counts.get("rephrasings that give the answer away", 0) + 1
        else:
            rephrasings.setdefault(same(text), text)
    false = [text for text in pair.false_answers if " ".join(normal_words(text)) not in true]
    if wrong := len(pair.false_answers) - len(false):
        counts["false answers that are true"] = counts.get("false answers that are true", 0) + wrong
    return dataclasses.replace(pair, rephrasings=tuple(rephrasings.values()), false_answers=tuple(false))
