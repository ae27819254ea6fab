"""Two sides that share no question, no answer and no subject, with as many rows of each class as asked for."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from excise.data.benchmarks.fivew import same
from excise.evaluation.judges.wording import normal_words
from excise.fivew.alike import similar_pairs
from excise.fivew.clean import ALIKE_ANSWERS, Item, may_be_same
from excise.fivew.names import with_last_words

SIDES = ("forget", "retain")


@dataclass(frozen=True)
class Links:
    """Which items must stand on the same side."""

    families: tuple[tuple[int, ...], ...]
    """Indices of items that hang together, directly or through others; in the items' order."""
    settings: tuple[tuple[str, int], ...]
    """Names that are in too many questions to be what they are about, and in how many."""
    hubs: tuple[tuple[str, int], ...]
    """The names that link most items, and how many."""
    nameless: int
    """Items whose question has no name: of these only question and answer are compared."""


@dataclass(frozen=True)
class Placed:
    """Indices of the items of each side, and of what had no place."""

    forget: tuple[int, ...]
    retain: tuple[int, ...]
    unused: tuple[int, ...]


def linked(items: Sequence[Item], near: float, common: float) -> Links:
    """Items that share a question (nearly), an answer or a subject, as families.

    * Question: the same text as the question or a rephrasing of the other, or nearly the same (see :func:`nearly_asked`).
    * Answer: the same words, however dates and numbers are written; long ones from half of their shingles on.
    * Subject: a name in the question; that a short answer is such a name; what the row's own column says.

    Args:
        common: names in a larger share of the items than this are no subjects.
    """
    often = Counter(name for item in items for name in set(item.names))
    most = common * len(items)
    settings = {name: count for name, count in often.items() if count > most}
    alone = frozenset(name for name in often if " " not in name and name not in settings)
    parent = list(range(len(items)))
    first: dict[tuple[str, str], int] = {}
    for place, item in enumerate(items):
        for key in _keys(item, settings, alone):
            _join(parent, place, first.setdefault(key, place))
    told = [replace(item, names=tuple(name for name in item.names if name not in settings)) for item in items]
    for i, j in nearly_asked(told, near):
        _join(parent, i, j)
    long = [i for i, item in enumerate(items) if item.is_long]
    for a, b in similar_pairs([items[i].answer for i in long], ALIKE_ANSWERS):
        _join(parent, long[a], long[b])
    families: dict[int, list[int]] = {}
    for place in range(len(items)):
        families.setdefault(_root(parent, place), []).append(place)
    hubs = sorted(((name, count) for name, count in often.items() if name not in settings and count > 1), key=lambda pair: (-pair[1], pair[0]))
    return Links(
        tuple(map(tuple, families.values())),
        tuple(sorted(settings.items(), key=lambda pair: (-pair[1], pair[0]))),
        tuple(hubs[:10]),
        sum(not item.names and not item.pair.subject for item in items),
    )


def nearly_asked(items: Sequence[Item], near: float) -> list[tuple[int, int]]:
    """Pairs of different items of which a question or rephrasing of one is as similar to one of the other as ``near`` says, and nothing (a
    number, another name) tells the questions apart."""
    holders: dict[str, list[int]] = {}
    for place, item in enumerate(items):
        for text in dict.fromkeys([item.question, *map(same, item.pair.rephrasings)]):
            holders.setdefault(text, []).append(place)
    texts = list(holders)
    found = {(min(i, j), max(i, j)) for a, b in similar_pairs(texts, near) for i in holders[texts[a]] for j in holders[texts[b]]}
    return sorted((i, j) for i, j in found if i != j and may_be_same(items[i], items[j]))


def _keys(item: Item, settings: Mapping[str, int], alone: frozenset[str]) -> list[tuple[str, str]]:
    keys = [("question", text) for text in dict.fromkeys([item.question, *map(same, item.pair.rephrasings)])]
    keys.append(("answer", item.answer))
    names = [name for name in item.names if name not in settings]
    if not item.is_long and item.answer not in settings and not item.answer.isdigit():
        names.append(same(item.pair.answer).removeprefix("the "))
    keys += [("name", part) for name in names if name for part in with_last_words(name, alone)]
    if item.pair.subject:
        keys.append(("subject", " ".join(normal_words(item.pair.subject))))
    return keys


def _root(parent: list[int], place: int) -> int:
    while parent[place] != place:
        parent[place] = parent[parent[place]]
        place = parent[place]
    return place


def _join(parent: list[int], a: int, b: int) -> None:
    first, second = sorted((_root(parent, a), _root(parent, b)))
    parent[second] = first


def needs(per_class: int, share: float) -> tuple[int, int]:
    """How many rows of a class each side gets: at least one."""
    forget = min(max(1, round(per_class * share)), per_class - 1)
    return forget, per_class - forget


def place(items: Sequence[Item], links: Links, classes: Sequence[str], per_class: int, share: float, seed: int) -> Placed | None:
    """A split in which each class has its rows on both sides; None where the families do not allow it.

    Families go whole, in a random order, to the side that lacks the larger part of what they have to give; where that does not work
    out, large ones go first.
    """
    order = list(range(len(links.families)))
    random.Random(seed).shuffle(order)
    by_size = sorted(order, key=lambda i: -len(links.families[i]))
    for chosen in (order, by_size):
        placed = _placed(items, [links.families[i] for i in chosen], classes, needs(per_class, share))
        if placed is not None:
            return placed
    return None


def _placed(items: Sequence[Item], families: Sequence[Sequence[int]], classes: Sequence[str], wanted: tuple[int, int]) -> Placed | None:
    lacking = [dict.fromkeys(classes, count) for count in wanted]
    sides: list[list[int]] = [[], []]
    unused: list[int] = []
    for family in families:
        has = Counter(items[i].w for i in family)
        gain = [sum(min(has[w], lacks[w]) / count for w in classes) for lacks, count in zip(lacking, wanted, strict=True)]
        side = 0 if gain[0] > gain[1] else 1
        for i in family:
            if lacking[side][items[i].w] > 0:
                lacking[side][items[i].w] -= 1
                sides[side].append(i)
            else:
                unused.append(i)
    if any(count for lacks in lacking for count in lacks.values()):
        return None
    return Placed(tuple(sorted(sides[0])), tuple(sorted(sides[1])), tuple(sorted(unused)))


def largest(items: Sequence[Item], links: Links, classes: Sequence[str], share: float, seed: int) -> tuple[int, Placed | None]:
    """The most rows of each class for which :func:`place` finds a split, and that split; None where there is none at all."""
    have = Counter(item.w for item in items)
    low, high = 1, min(have[w] for w in classes)
    best: Placed | None = None
    while low < high:
        middle = (low + high + 1) // 2
        found = place(items, links, classes, middle, share, seed)
        if found is None:
            high = middle - 1
        else:
            best, low = found, middle
    return (low if best else 0), best
