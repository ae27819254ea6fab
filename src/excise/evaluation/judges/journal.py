"""What judges said before, by content: an append-only file of JSON lines for each judge with its settings."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from excise.evaluation.judges import Item, Judge
from excise.evaluation.records import Verdict
from excise.files import explained


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
        self._file: int | None = None
        self.known.update(_read(self.path, self.judge.name))

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def get(self, item: Item) -> Verdict | None:
        """The verdict on this very item."""
        return self.known.get(_digest(dataclasses.asdict(item)))

    def add(self, item: Item, verdict: Verdict) -> None:
        """Remembers a verdict. Undecided ones are not: next time the judge is asked again."""
        if verdict.score is None:
            return
        key = _digest(dataclasses.asdict(item))
        self.known[key] = verdict
        row = {"item": key, "aspect": verdict.aspect, "score": verdict.score, "reason": verdict.reason}
        self._write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")

    def _write(self, line: str) -> None:
        with explained(self.path):
            if self._file is None:
                self.folder.mkdir(parents=True, exist_ok=True)
                self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
                line = _ending(self._file) + line
            os.write(self._file, line.encode())  # one write of one line: two processes may share the file


def _ending(file: int) -> str:
    """A newline where the last line of the file lacks its own."""
    if not os.fstat(file).st_size:
        return ""
    os.lseek(file, -1, os.SEEK_END)
    return "" if os.read(file, 1) == b"\n" else "\n"


def _read(path: Path, judge: str) -> Iterator[tuple[str, Verdict]]:
    if not path.exists():
        return
    for line in path.read_bytes().split(b"\n"):
        if (found := _parsed(line, judge)) is not None:
            yield found


def _parsed(line: bytes, judge: str) -> tuple[str, Verdict] | None:
    """The hash of an item and its verdict; None for a part of a line."""
    try:
        row = json.loads(line)
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
    with Journal(folder, judge) as journal:
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
