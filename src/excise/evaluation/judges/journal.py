"""What judges said before, by content: an append-only file of JSON lines for each judge with its settings."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from excise.evaluation.judges import Item, Judge
from excise.evaluation.records import Verdict
from excise.files import append_line, whole_lines


@dataclass
class Journal:
    """Remembered verdicts of one judge. Each is written as soon as it is there, so a killed judging goes on where it was.

    A line that is not whole (the last one of a killed writer) counts as not written. The file holds hashes of the items,
    scores and reasons; a reason may quote an answer, so leave the journal out where nothing may be kept.
    """

    folder: Path
    judge: Judge
    known: dict[str, Verdict] = field(default_factory=dict)
    """Hash of an item -> its verdict."""

    def __post_init__(self) -> None:
        identity = _digest([self.judge.name, self.judge.identity()])
        self.path = self.folder / f"{self.judge.name}-{identity[:24]}.jsonl"
        self.known.update(found for row in whole_lines(self.path) if (found := _parsed(row, self.judge.name)) is not None)

    def get(self, item: Item) -> Verdict | None:
        """The verdict on this very item."""
        return self.known.get(_digest(dataclasses.asdict(item)))

    def add(self, item: Item, verdict: Verdict) -> None:
        """Remembers a verdict. Undecided ones are not: next time the judge is asked again."""
        if verdict.score is None:
            return
        key = _digest(dataclasses.asdict(item))
        self.known[key] = verdict
        append_line(self.path, {"item": key, "aspect": verdict.aspect, "score": verdict.score, "reason": verdict.reason})


def _parsed(row: Any, judge: str) -> tuple[str, Verdict] | None:
    """The hash of an item and its verdict; None for what is no verdict."""
    try:
        return str(row["item"]), Verdict(judge, str(row["aspect"]), float(row["score"]), str(row["reason"]))
    except (ValueError, KeyError, TypeError):
        return None


def remembered(judge: Judge, items: Sequence[Item], folder: Path | None) -> Iterator[tuple[Item, Verdict]]:
    """Asks a judge about each distinct item once, unless the journal in ``folder`` knows; None keeps and writes nothing.

    Yields:
        each item with its verdict, first those that are known, then the others in the order in which they are decided.
    """
    distinct = list(dict.fromkeys(items))
    if folder is None:
        yield from zip(distinct, judge(distinct), strict=True)
        return
    journal = Journal(folder, judge)
    pending: list[Item] = []
    for item in distinct:
        verdict = journal.get(item)
        if verdict is None:
            pending.append(item)
        else:
            yield item, verdict
    if not pending:
        return
    for item, verdict in zip(pending, judge(pending), strict=True):
        journal.add(item, verdict)
        yield item, verdict


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
