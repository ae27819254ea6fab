"""Records with the verdicts of a judge on them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from excise.errors import InputError, did_you_mean
from excise.evaluation.judges import Item, Judge, refuse_others
from excise.evaluation.judges.journal import remembered
from excise.evaluation.records import Record, Records, Verdict

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and of how much."""


def judged(
    records: Records,
    judge: Judge,
    aspects: Sequence[str] = ("truth",),
    splits: Sequence[str] | None = None,
    *,
    subject: str = "",
    cache: Path | None = None,
    keep: bool = False,
    progress: Progress | None = None,
) -> dict[str, list[Record]]:
    """The same records with the judge's verdicts on their generations: one for each aspect.

    The truth of a record is its span, the words that carry the fact, where it has one, else its answer. Records without a
    generation stay as they are. A verdict of the same judge on the same aspect that is already there is replaced, since nobody
    knows with which settings it was made.

    Args:
        aspects: what to decide (:data:`excise.evaluation.judges.ASPECTS`).
        splits: only these; None: all.
        subject: what the answers ought to be about, for the aspect ``related``.
        cache: the folder of the journal (``files.cache_folder() / "verdicts"``). None, as ``privacy: redact`` asks for:
            nothing is read, kept or written.
        keep: leave decided verdicts of the same judge on the same aspect as they are.

    Raises:
        InputError: a split that is not there, an aspect that the judge does not decide, a judge that cannot be used.
    """
    for split in splits or ():
        if split not in records:
            raise InputError(f"there are no records of the split {split!r}: {did_you_mean(split, records)}")
    chosen = [split for split in records if splits is None or split in splits]
    wanted: dict[tuple[str, int], list[Item]] = {}
    for split in chosen:
        for index, record in enumerate(records[split]):
            if record.generation is not None:
                known = [v.aspect for v in record.verdicts if v.judge == judge.name and v.score is not None] if keep else []
                wanted[split, index] = [item_of(record, aspect, subject) for aspect in aspects if aspect not in known]
    items = list(dict.fromkeys(item for asked in wanted.values() for item in asked))
    refuse_others(judge, items)
    verdicts: dict[Item, Verdict] = {}
    for item, verdict in remembered(judge, items, cache):
        verdicts[item] = verdict
        if progress is not None:
            progress(f"{judge.name}: judging", len(verdicts), len(items))
    return {
        split: [_with(record, [verdicts[item] for item in wanted.get((split, index), ())]) for index, record in enumerate(rows)]
        for split, rows in records.items()
    }


def item_of(record: Record, aspect: str, subject: str = "") -> Item:
    """What a judge is asked about a record's generation; parts that the aspect does not need are left empty."""
    if record.generation is None:
        raise InputError(f"record {record.id!r} has no generation, so there is nothing to judge")
    if aspect == "truth":
        return Item(aspect, record.prompt, record.generation, truth=record.span or record.answer, label=record.label)
    return Item(aspect, record.prompt if aspect == "related" else "", record.generation, subject=subject if aspect == "related" else "")


def _with(record: Record, verdicts: Sequence[Verdict]) -> Record:
    if not verdicts:
        return record
    new = {(verdict.judge, verdict.aspect) for verdict in verdicts}
    return dataclasses.replace(record, verdicts=(*(v for v in record.verdicts if (v.judge, v.aspect) not in new), *verdicts))
