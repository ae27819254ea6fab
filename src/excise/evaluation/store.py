"""Records on disk: those of a run in DIR/records/<phase>/<split>.jsonl, readable or redacted, and the cache of finished splits."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from excise.data.example import Example
from excise.errors import InputError, did_you_mean
from excise.evaluation.records import Record, Records
from excise.files import read_lines, write_lines

if TYPE_CHECKING:
    from excise.evaluation.plan import Plan
    from excise.subject import Subject

RECORD_VERSION = 1
"""Raise it when what a record holds, or how it is computed, changes: cached records of another version are not read."""

ExampleScores = Mapping[str, Sequence[Mapping[str, float | None]]]
"""Split -> for each example, in order, the metrics' values by name."""

_SECRET = ("prompt", "answer", "group", "span", "generation")


def write_records(
    folder: Path, phase: str, records: Records, redact: bool = False, key: bytes | None = None, scores: ExampleScores | None = None
) -> None:
    """Writes one file per split, each whole or not at all.

    Args:
        folder: the run's folder; the files go to ``folder/records/<phase>/<split>.jsonl``.
        redact: replace prompts, answers, spans, groups and generations by keyed hashes; ids, labels and numbers stay.
        key: for the hashes: who has it can test whether a given text stands in a record. Without one a fresh key is
            drawn and forgotten, so hashes can be compared within this call only.
        scores: per-example values (``suites.per_example``) that are written beside each record; redacted records need
            them, since nothing can be computed from a hash.
    """
    key = secrets.token_bytes(32) if key is None else key
    for split, rows in records.items():
        lines = [_redacted(record.to_json(), key) if redact else record.to_json() for record in rows]
        if scores is not None:
            lines = [{**line, "scores": dict(values)} for line, values in zip(lines, scores[split], strict=True)]
        write_lines(_path(folder, phase, split), lines)


def read_records(folder: Path, phase: str, *, allow_redacted: bool = False) -> dict[str, list[Record]]:
    """The records of a phase, by split.

    Raises:
        InputError: no such phase; a broken line; redacted records, unless ``allow_redacted``: their texts are hashes,
            so only likelihood metrics make sense on them.
    """
    place = folder / "records" / phase
    if not place.is_dir():
        there = [p.name for p in (folder / "records").iterdir()] if (folder / "records").is_dir() else []
        raise InputError(f"{folder} has no records of the phase {phase!r}: {did_you_mean(phase, there)}")
    records = {path.stem: read_file(path, allow_redacted=allow_redacted) for path in sorted(place.glob("*.jsonl"))}
    if not records:
        raise InputError(f"{place} holds no records (*.jsonl)")
    return records


def read_file(path: Path, *, allow_redacted: bool = False) -> list[Record]:
    """The records of one split.

    Raises:
        InputError: see :func:`read_records`; the message names the line.
    """
    rows = read_lines(path)
    if not allow_redacted and any(row.get("redacted") for row in rows):
        raise InputError(f"{path} is redacted (privacy: redact): its texts are gone and cannot be scored again; the scores stand on its lines")
    try:
        return [Record.from_json({name: value for name, value in row.items() if name not in ("scores", "redacted")}) for row in rows]
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _path(folder: Path, phase: str, split: str) -> Path:
    return folder / "records" / phase / f"{split}.jsonl"


def _redacted(row: dict[str, Any], key: bytes) -> dict[str, Any]:
    def hashed(text: str | None) -> str | None:
        return "hmac-sha256:" + hmac.new(key, text.encode(), hashlib.sha256).hexdigest() if text else text

    def text_score(value: dict[str, Any] | None) -> dict[str, Any] | None:
        return None if value is None else {**value, "text": hashed(value["text"])}

    row = {**row, **{name: hashed(row[name]) for name in _SECRET}, "redacted": True}
    row |= {name: text_score(row[name]) for name in ("true", "paraphrase")}
    row["samples"] = [hashed(text) for text in row["samples"]]
    row["verdicts"] = [{**verdict, "reason": ""} for verdict in row["verdicts"]]
    return row | {name: [text_score(value) for value in row[name]] for name in ("false", "options")}


# --- the cache --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cache:
    """Finished splits of one model, by everything that decides what it says. The files hold plain texts."""

    folder: Path
    subject: Subject
    precision: str

    def read(self, plan: Plan, examples: Sequence[Example]) -> list[Record] | None:
        """The records of a finished split, or None where there are none or the file is damaged."""
        place = self._place(plan, examples)
        if not place.exists():
            return None
        try:
            records = [Record.from_json(row) for row in read_lines(place)]
        except InputError:
            return None
        return records if [record.id for record in records] == [example.id for example in examples] else None

    def write(self, plan: Plan, examples: Sequence[Example], records: Sequence[Record]) -> None:
        """Keeps a finished split."""
        write_lines(self._place(plan, examples), (record.to_json() for record in records))

    def _place(self, plan: Plan, examples: Sequence[Example]) -> Path:
        parts = [self._identity, dataclasses.asdict(plan), [dataclasses.asdict(example) for example in examples]]
        return self.folder / f"{_digest(parts)}.jsonl"

    @cached_property
    def _identity(self) -> str:
        from excise.evaluation.generate import stop_ids
        from excise.fingerprint import tokenizer_fingerprint

        subject = self.subject
        model, tokenizer = subject.fingerprint(), tokenizer_fingerprint(subject.tokenizer)
        return _digest([RECORD_VERSION, model, tokenizer, dataclasses.asdict(subject.template), stop_ids(subject), self.precision])


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
