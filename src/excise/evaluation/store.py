"""Records on disk: those of a run in DIR/records/<phase>/<split>.jsonl, readable or redacted, and what a model said already."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from excise.errors import InputError, did_you_mean
from excise.evaluation.records import Record, Records
from excise.files import append_line, read_lines, whole_lines, write_lines

if TYPE_CHECKING:
    from excise.subject import Subject

RECORD_VERSION = 4
"""Raise it when what a model is asked, or how an answer is computed, changes: what was kept by another version is not read."""

ExampleScores = Mapping[str, Sequence[Mapping[str, float | None]]]
"""Split -> for each example, in order, the metrics' values by name."""

_SECRET = ("prompt", "answer", "group", "opening", "span", "generation")


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


# --- what a model said already ----------------------------------------------------------------------------------------

Key = str
"""A digest of everything that decides an answer of one model."""


class Journal:
    """What one model said, by text and settings: a file to which every finished batch is appended.

    A line is a batch, so a run that is killed loses the one that it was working on and no more. The file holds generations and
    numbers, and prompts only as digests.
    """

    def __init__(self, place: Path | None) -> None:
        self.place = place
        self.values: dict[Key, Any] = {}
        for batch in () if place is None else whole_lines(place):
            self.values |= {key: {name: tuple(v) for name, v in value.items()} if isinstance(value, dict) else value for key, value in batch.items()}

    @staticmethod
    def of(folder: Path, subject: Subject, precision: str) -> Journal:
        """The journal of a model, with its template and precision."""
        return Journal(folder / f"{_digest([RECORD_VERSION, answering(subject), precision])}.jsonl")

    @staticmethod
    def key(*parts: object) -> Key:
        """The key of something to ask."""
        return _digest(parts)[:32]

    def __contains__(self, key: Key) -> bool:
        return key in self.values

    def __getitem__(self, key: Key) -> Any:
        return self.values[key]

    def add(self, found: Iterable[tuple[int, Any]], keys: Sequence[Key]) -> None:
        """Keeps the values of a finished batch: pairs of an index into ``keys`` and a value."""
        new = {keys[i]: value for i, value in found}
        self.values |= new
        if self.place is not None and new:
            append_line(self.place, new)


def answering(subject: Subject) -> str:
    """A digest of everything but question and precision that decides what a model says.

    Weights, configuration, the settings of its adapters, tokenizer, template and stop tokens.
    """
    from excise.evaluation.generate import stop_ids
    from excise.fingerprint import config_fingerprint, tokenizer_fingerprint

    parts = [subject.fingerprint(), config_fingerprint(subject.model), tokenizer_fingerprint(subject.tokenizer)]
    return _digest([*parts, dataclasses.asdict(subject.template), stop_ids(subject)])


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
