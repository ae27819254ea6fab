"""What the model said before and after, beside the truth: rows for the page, from the records of a run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from excise.files import read_lines
from excise.report.names import phase_order, split_rank
from excise.report.result import PHASES

SMALL_WORDS = {"a", "an", "and", "as", "at", "by", "for", "from", "in", "is", "of", "on", "or", "the", "to", "was", "were", "with"}


@dataclass(frozen=True)
class Piece:
    """Some text, and whether it belongs to the words that carry the fact."""

    text: str
    marked: bool


@dataclass(frozen=True)
class Answered:
    """One example: the question, the truth, and what was said in each phase (None: nothing was recorded)."""

    id: str
    label: str
    question: str
    truth: tuple[Piece, ...]
    generations: tuple[tuple[Piece, ...] | None, ...]


@dataclass(frozen=True)
class Answers:
    """The first examples of one split."""

    split: str
    phases: tuple[str, ...]
    rows: tuple[Answered, ...]
    total: int


def load_answers(folder: Path, limit: int) -> tuple[Answers, ...]:
    """The splits that have generations, forget first; empty where the run kept none."""
    records = folder / "records"
    phases = phase_order(phase for phase in PHASES if (records / phase).is_dir())
    splits = {path.stem for phase in phases for path in (records / phase).glob("*.jsonl")}
    tables: list[Answers] = []
    for split in sorted(splits, key=lambda name: (split_rank(name), name)):
        paths = {phase: records / phase / f"{split}.jsonl" for phase in phases}
        by_phase = {phase: {str(row.get("id")): row for row in read_lines(path)} for phase, path in paths.items() if path.is_file()}
        if any(row.get("generation") for rows in by_phase.values() for row in rows.values()):
            tables.append(_answers(split, by_phase, limit))
    return tuple(tables)


def _answers(split: str, by_phase: Mapping[str, Mapping[str, Mapping[str, Any]]], limit: int) -> Answers:
    ids = list(dict.fromkeys(id for rows in by_phase.values() for id in rows))
    rows: list[Answered] = []
    for id in ids[:limit]:
        first = next(found[id] for found in by_phase.values() if id in found)
        span = str(first.get("span") or "")
        said = [found.get(id, {}).get("generation") for found in by_phase.values()]
        rows.append(
            Answered(
                id=id,
                label=str(first.get("label") or ""),
                question=str(first.get("prompt") or ""),
                truth=marked(str(first.get("answer") or ""), span),
                generations=tuple(None if text is None else marked(str(text), span) for text in said),
            )
        )
    return Answers(split, tuple(by_phase), tuple(rows), len(ids))


def marked(text: str, span: str) -> tuple[Piece, ...]:
    """``text`` in pieces, with the words of ``span`` marked wherever they stand, whatever their case."""
    words = sorted(set(re.findall(r"\w+", span.casefold())))
    telling = [word for word in words if word not in SMALL_WORDS]
    if not telling:
        return (Piece(text, False),) if text else ()
    one = rf"\b(?:{'|'.join(map(re.escape, telling))})\b"
    inside = rf"\b(?:{'|'.join(map(re.escape, words))})\b"
    pattern = re.compile(rf"({one}(?:(?:\s+{inside})*\s+{one})?)", re.IGNORECASE)
    parts = pattern.split(text)
    return tuple(Piece(part, index % 2 == 1) for index, part in enumerate(parts) if part)
