"""A 5W benchmark out of files of questions and answers: forget.jsonl, retain.jsonl, easyedit.json, report.json."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import excise
from excise.errors import InputError, did_you_mean
from excise.files import folder_beside, write_json, write_lines
from excise.fivew.asking import WS
from excise.fivew.clean import Dropped, Item, clean, tidy
from excise.fivew.profile import SHOWN, Tokens, profile
from excise.fivew.rows import Pair, read_pairs
from excise.fivew.split import Links, Placed, largest, linked, place
from excise.settings import plain
from excise.stages.state import Narrator, Silent

SCHEMA = 1


@dataclass(frozen=True)
class Build:
    """How a benchmark is made. The same settings, files and seed give the same bytes.

    Paper: 5WBENCH of MAAT (arXiv 2605.30514), which balances the five classes.
    Differs: near duplicates go, and the split shares no question, answer or subject (5WBENCH: 1,946 distinct questions in 5,000 rows).
    """

    per_w: int | None = None
    """Rows of each class, both sides together; None: as many as there can be."""
    forget_share: float = 0.5
    """Share of them that is to be forgotten."""
    w: tuple[str, ...] = WS
    """Classes of the benchmark."""
    seed: int = 0
    near: float = 0.5
    """Jaccard similarity of two questions' shingles from which on they may be nearly the same."""
    common: float = 0.5
    """A name in a larger share of the questions than this is a setting, and no subject that must stand on one side."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Our name of a column (question, answer, ...) -> yours."""

    def __post_init__(self) -> None:
        if self.per_w is not None and self.per_w < 2:
            raise InputError(f"--per-w is {self.per_w}: each class needs at least 2 rows, one for each side")
        if not 0 < self.forget_share < 1:
            raise InputError(f"--forget-share is {self.forget_share}: it must be above 0 and below 1")
        for name, value in (("--near", self.near), ("--common", self.common)):
            if not 0 < value <= 1:
                raise InputError(f"{name} is {value}: it must be above 0 and at most 1")
        if unknown := [w for w in self.w if w not in WS]:
            raise InputError(f"--w {unknown[0]!r}: {did_you_mean(unknown[0], WS)}")
        if not self.w or len(set(self.w)) < len(self.w):
            raise InputError("--w names no class, or one twice")


@dataclass(frozen=True)
class Built:
    """The two sides, and what became of everything else."""

    forget: tuple[Item, ...]
    retain: tuple[Item, ...]
    report: dict[str, Any]


def build(pairs: Sequence[Pair], settings: Build, tokens: Tokens | None = None, narrator: Narrator | None = None) -> Built:
    """Chooses the rows of a benchmark.

    Raises:
        InputError: a class without a row, fewer rows than asked for, or a split that would leak.
    """
    say = (narrator or Silent()).say
    say(f"Reading {len(pairs):,} questions: class, repetitions ...")
    counts: dict[str, int] = {}
    dropped = Dropped()
    items = [replace(item, pair=tidy(item.pair, counts)) for item in clean(pairs, settings.w, settings.near, dropped)]
    have = _require(items, dropped, settings)
    say(f"{len(items):,} are distinct and usable; looking for what they share ...")
    links = linked(items, settings.near, settings.common)
    per_class, placed = _placed(items, links, have, settings)
    for i in placed.unused:
        dropped.add("not needed", items[i].pair.id)
    sides = {"forget": [items[i] for i in placed.forget], "retain": [items[i] for i in placed.retain]}
    report = {
        "schema": SCHEMA,
        "excise": excise.__version__,
        "settings": plain(settings),
        "rows": len(pairs),
        "per_class": per_class,
        "kept": {side: {w: sum(item.w == w for item in rows) for w in settings.w} for side, rows in sides.items()},
        "dropped": dropped.to_json(SHOWN),
        "usable": {w: have[w] for w in settings.w},
        "tidied": counts,
        "links": _links(links, items),
        "profile": profile(pairs, settings.near, tokens=tokens),
    }
    return Built(tuple(sides["forget"]), tuple(sides["retain"]), report)


def _require(items: Sequence[Item], dropped: Dropped, settings: Build) -> Counter[str]:
    """How many usable rows each class has."""
    have = Counter(item.w for item in items)
    why = ", ".join(f"{len(ids)} {reason}" for reason, ids in dropped.ids.items()) or "nothing was dropped"
    for w in settings.w:
        if not have[w]:
            others = ",".join(other for other in settings.w if have[other])
            remedy = f"add such questions, or leave the class out with --w {others}" if others else "give files with such questions"
            raise InputError(f"the class {w!r} is empty: no usable question asks {w} ({why}); {remedy}")
        if have[w] < (settings.per_w or 2):
            remedy = f"take at most --per-w {min(have[c] for c in settings.w)}" if min(have[c] for c in settings.w) >= 2 else "add such questions"
            raise InputError(f"the class {w!r} has {have[w]} usable rows, fewer than the {settings.per_w or 2} needed ({why}); {remedy}")
    return have


def _placed(items: Sequence[Item], links: Links, have: Counter[str], settings: Build) -> tuple[int, Placed]:
    if settings.per_w is not None:
        found = place(items, links, settings.w, settings.per_w, settings.forget_share, settings.seed)
        if found is not None:
            return settings.per_w, found
    most, best = largest(items, links, settings.w, settings.forget_share, settings.seed)
    if settings.per_w is None and best is not None:
        return most, best
    biggest = max(map(len, links.families))
    names = ", ".join(f"{name} ({count})" for name, count in links.hubs[:3]) or "none"
    most_text = f"at most --per-w {most} can" if most else "no number can"
    raise InputError(
        f"no split of {settings.per_w or 2} rows a class keeps questions, answers and subjects apart ({most_text}): {biggest} of {len(items)} rows "
        f"hang together, most by the names {names}; take fewer rows or a smaller --forget-share, or a lower --common to count such names as settings"
    )


def _links(links: Links, items: Sequence[Item]) -> dict[str, Any]:
    sizes = sorted((len(family) for family in links.families), reverse=True)
    return {
        "families": len(sizes),
        "largest": sizes[:5],
        "alone": sizes.count(1),
        "settings": [{"name": name, "rows": count} for name, count in links.settings],
        "names_in_most_rows": [{"name": name, "rows": count} for name, count in links.hubs],
        "questions_without_a_name": links.nameless,
        "usable_rows": len(items),
    }


def write(
    files: Sequence[str | Path],
    out: Path,
    settings: Build,
    *,
    overwrite: bool = False,
    tokens: Tokens | None = None,
    narrator: Narrator | None = None,
) -> dict[str, Any]:
    """Makes a benchmark of files and writes its folder, whole or not at all.

    Returns:
        what stands in report.json.
    """
    with folder_beside(out, overwrite) as folder:
        built = build(read_pairs(files, settings.columns), settings, tokens, narrator)
        report = {**built.report, "sources": sources(files)}
        draw = random.Random(settings.seed + 1)
        borrowed = 0
        for side, items in (("forget", built.forget), ("retain", built.retain)):
            false, more = false_answers(items, draw)
            borrowed += more
            numbered = enumerate(zip(items, false, strict=True), start=1)
            write_lines(folder / f"{side}.jsonl", [row(item, f"{side}-{number}", answers) for number, (item, answers) in numbered])
            if side == "forget":
                write_json(folder / "easyedit.json", [easyedit(item, answers) for item, answers in zip(items, false, strict=True)])
        report["tidied"]["false answers taken from another row"] = borrowed
        report["tidied"]["forget rows without a rephrasing"] = sum(not item.pair.rephrasings for item in built.forget)
        write_json(folder / "report.json", report)
    return report


def sources(files: Sequence[str | Path]) -> list[dict[str, str]]:
    """What was read: names and SHA-256."""
    return [{"file": Path(file).name, "sha256": hashlib.sha256(Path(file).expanduser().read_bytes()).hexdigest()} for file in files]


def row(item: Item, id: str, false: Sequence[str]) -> dict[str, Any]:
    """A row as data.name=fivew and data.name=jsonl read it."""
    return {
        "id": id,
        "question": item.pair.question,
        "answer": item.pair.answer,
        "label": item.w,
        "false_answers": list(false),
        "alternative": false[0],
        "paraphrased_questions": list(item.pair.rephrasings),
        "source": item.pair.id,
    }


def easyedit(item: Item, false: Sequence[str]) -> dict[str, str]:
    """A row as EasyEdit reads it; where there is no rephrasing the question stands in its place, since EasyEdit wants one for each row."""
    return {
        "prompt": item.pair.question,
        "ground_truth": item.pair.answer,
        "target_new": false[0],
        "rephrase_prompt": (item.pair.rephrasings or (item.pair.question,))[0],
    }


def false_answers(items: Sequence[Item], draw: random.Random) -> tuple[list[tuple[str, ...]], int]:
    """The false answers of each item; one that has none takes the answer of another item of its class and side. And how many did."""
    found: list[tuple[str, ...]] = []
    borrowed = 0
    for item in items:
        if item.pair.false_answers:
            found.append(item.pair.false_answers)
            continue
        others = [other.pair.answer for other in items if other.w == item.w and other.answer != item.answer]
        others = others or [other.pair.answer for other in items if other.answer != item.answer] or ["I don't know."]
        found.append((draw.choice(others),))
        borrowed += 1
    return found, borrowed
