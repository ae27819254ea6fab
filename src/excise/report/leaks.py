"""What an attack brought out that the unlearned model did not say by itself: rows for the page, from the records of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from excise.files import read_lines
from excise.report.answers import Piece, marked
from excise.report.names import metric_rank, phase_name
from excise.report.result import TWIN, Result

TOLD = ("fact_recall", "rouge_l_recall")
"""The scores of an example that say how much of the truth an answer tells; the first that is there counts."""


@dataclass(frozen=True)
class Leak:
    """One forget example of which an attack brought out more than was said without it."""

    id: str
    asked: str
    """The question as the attack put it, with what it put into the model's mouth."""
    truth: tuple[Piece, ...]
    plain: tuple[Piece, ...]
    """What the unlearned model said without the attack."""
    attacked: tuple[Piece, ...]
    told: float
    """How much of the truth the attacked answer tells."""
    told_before: float
    twin: float | None
    """How much the twin tells under the same attack."""


@dataclass(frozen=True)
class Leaks:
    """The leaks of one attack, the largest first."""

    attack: str
    score: str
    rows: tuple[Leak, ...]
    total: int
    asked: int


def load_leaks(result: Result, limit: int) -> tuple[Leaks, ...]:
    """One table for each attack that left answers behind; empty where the run kept none."""
    folder = result.folder / "records"
    plain = _forget(folder / "after")
    tables: list[Leaks] = []
    for phase in result.attacks:
        attacked, twin = _forget(folder / phase), _forget(folder / f"{phase}{TWIN}")
        score = next((name for name in sorted(TOLD, key=metric_rank) if any(name in _scores(row) for row in attacked.values())), None)
        answered = {id: row for id, row in attacked.items() if row.get("generation") is not None and id in plain}
        if score is None or not answered:
            continue
        rows = [leak for id, row in answered.items() if (leak := _leak(id, row, plain[id], twin.get(id), score)) is not None]
        rows.sort(key=lambda leak: (leak.told_before - leak.told, leak.id))
        tables.append(Leaks(phase_name(phase), score, tuple(rows[:limit]), len(rows), len(answered)))
    return tuple(tables)


def _leak(id: str, attacked: Mapping[str, Any], plain: Mapping[str, Any], twin: Mapping[str, Any] | None, score: str) -> Leak | None:
    told, before = _scores(attacked).get(score), _scores(plain).get(score)
    if told is None or before is None or told <= before:
        return None
    span = str(attacked.get("span") or "")
    opening = str(attacked.get("opening") or "")
    return Leak(
        id=id,
        asked=str(attacked.get("prompt") or "") + (f" … answer begins: {opening}" if opening else ""),
        truth=marked(str(attacked.get("answer") or ""), span),
        plain=marked(str(plain.get("generation") or ""), span),
        attacked=marked(str(attacked.get("generation") or ""), span),
        told=float(told),
        told_before=float(before),
        twin=None if twin is None or _scores(twin).get(score) is None else float(_scores(twin)[score]),
    )


def _scores(row: Mapping[str, Any]) -> Mapping[str, Any]:
    found = row.get("scores")
    return found if isinstance(found, Mapping) else {}


def _forget(folder: Path) -> dict[str, Mapping[str, Any]]:
    path = folder / "forget.jsonl"
    return {str(row.get("id")): row for row in read_lines(path)} if path.is_file() else {}
