"""`excise judge-agreement`: the records it reads, the judges it builds, and what it prints."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from excise import registry
from excise.errors import InputError, did_you_mean
from excise.evaluation.judges import Judge
from excise.evaluation.judges.agreement import Agreement, Pair
from excise.evaluation.records import Record
from excise.evaluation.store import read_file, read_records
from excise.settings import build, overridden, refuse_unknown

SHOWN = 20
"""Disagreements that are printed; the JSON file has all."""


def build_judges(names: Sequence[str], assignments: Sequence[str]) -> list[Judge]:
    """Judges by name, with settings such as ``judges.endpoint.model=...``.

    Raises:
        InputError: an unknown judge or setting, or a value that it cannot have.
    """
    settings = overridden({}, assignments)
    refuse_unknown(settings, ["judges"], "")
    chosen: Any = settings.get("judges", {})
    if not isinstance(chosen, dict):
        raise InputError(f"judges: settings of a judge are given as judges.NAME.field=value (got {chosen!r})")
    kinds = {name: registry.find("judges", name) for name in names}
    refuse_unknown(chosen, list(names), "judges")
    return [cast(Judge, build(kinds[name], chosen.get(name) or {}, f"judges.{name}")) for name in names]


def gather(place: Path, phase: str | None, splits: Sequence[str], limit: int | None) -> list[Record]:
    """The records of a file, or of a phase of a run: those of the given splits, or forget and retain, or whatever there is.

    Raises:
        InputError: nothing there, redacted or damaged records, an unknown phase or split.
    """
    if limit is not None and limit < 1:
        raise InputError(f"--limit is {limit}: at least one record is needed")
    if not place.exists():
        raise InputError(f"there is no file or run folder {place}")
    if not place.is_dir():
        if phase is not None or splits:
            raise InputError(f"{place} is a file of records: --phase and --split go with a run folder")
        return read_file(place)[:limit]
    found = read_records(place, phase if phase is not None else _phase(place))
    for split in splits:
        if split not in found:
            raise InputError(f"{place} has no records of the split {split!r}: {did_you_mean(split, found)}")
    chosen = list(splits) or [split for split in ("forget", "retain") if split in found] or list(found)
    return list(itertools.chain.from_iterable(found[split][:limit] for split in chosen))


def _phase(place: Path) -> str:
    """What is judged where no phase is named: the model after unlearning, or the only one there is."""
    there = sorted(path.name for path in (place / "records").iterdir() if path.is_dir()) if (place / "records").is_dir() else []
    return there[0] if len(there) == 1 else "after"


def lines(found: Agreement) -> list[str]:
    """The comparison as a person reads it."""
    first, second = found.judges
    numbers = found.to_json()
    open_ = found.undecided
    yes, no = found.confusion()
    width = max(len(first), len(second)) + 4
    text = [
        f"{first} and {second} on {found.aspect!r}: n = {numbers['n']} decided by both"
        + (f" ({found.repeated} repeated ones left out)" if found.repeated else ""),
        f"agreement  {_number(numbers['agreement'], numbers['agreement_ci95'])}",
        f"kappa      {_number(numbers['kappa'], numbers['kappa_ci95'])}{numbers['kappa_unavailable']}",
        f"undecided  {first} {open_['first']}, {second} {open_['second']}, both {open_['both']}",
        "",
        f"{'':{width}}  {second} yes   {second} no",
        f"{first + ' yes':{width}}  {yes[0]:>{len(second) + 4}}   {yes[1]:>{len(second) + 3}}",
        f"{first + ' no':{width}}  {no[0]:>{len(second) + 4}}   {no[1]:>{len(second) + 3}}",
    ]
    shown = found.disagreements[:SHOWN]
    if shown:
        text += ["", f"{len(found.disagreements)} disagreements" + (f", the first {SHOWN}:" if len(found.disagreements) > SHOWN else ":")]
        for pair in shown:
            text += ["", *_disagreement(pair)]
    return text


def _number(value: float | None, interval: Sequence[float] | None) -> str:
    if value is None:
        return "unavailable: " if interval is None else ""
    return f"{value:.3f}" + (f"  [{interval[0]:.3f}, {interval[1]:.3f}]" if interval else "")


def _disagreement(pair: Pair) -> list[str]:
    parts = [("question", pair.item.prompt), ("truth", pair.item.truth), ("answer", pair.item.answer)]
    verdicts = [(v.judge, f"{'yes' if v.yes else 'no'}  ({v.score:.2f}{', ' + v.reason if v.reason else ''})") for v in (pair.first, pair.second)]
    return [f"  {name:<10} {' '.join(text.split())}" for name, text in [*parts, *verdicts]]
