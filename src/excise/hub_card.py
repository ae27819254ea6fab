"""The model card of a model that is given away: what was done, what was measured, whose licence holds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from excise.embedded import EMBEDDED
from excise.errors import InputError
from excise.files import read_json
from excise.report.names import phase_name, phase_order, readable
from excise.report.result import Result
from excise.report.tables import headline
from excise.report.verdict import verdict
from excise.saving import RECORD

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
LICENCE_IDS = {"Apache-2.0": "apache-2.0", "MIT": "mit", "the Gemma Terms of Use": "gemma"}
"""What our records call a licence -> what the hub calls it."""
DEEPEST = 8
"""Models that were made from one another, before we stop looking for the first."""


@dataclass(frozen=True)
class Origin:
    """Where a model comes from in the end."""

    name: str
    """A hub id, embedded:NAME, or the last part of a local path."""
    licence: str
    """As the hub names it; empty: it is not known."""
    terms: str
    """In words, for a reader."""
    files: tuple[Path, ...] = ()
    """Licence files that lie beside the base and go with every copy."""


def origin(base: str) -> Origin:
    """Follows what a model was made from to the first one of it, and reads its licence there."""
    files: list[Path] = []
    for _ in range(DEEPEST):
        if base.startswith("embedded:"):
            known = EMBEDDED.get(base.removeprefix("embedded:"))
            terms = known.licence if known else ""
            return Origin(base, LICENCE_IDS.get(terms, "other" if terms else ""), known.notice if known else "", tuple(files))
        folder = Path(base).expanduser()
        if not folder.is_dir():
            return Origin(base if HUB_ID.fullmatch(base) else folder.name, "", "", tuple(files))
        files += sorted(path for path in folder.iterdir() if path.is_file() and re.match(r"(LICEN[CS]E|NOTICE|COPYING)", path.name, re.I))
        record = read_json(folder / RECORD) if (folder / RECORD).is_file() else {}
        if licence := record.get("licence") or _front(folder / "README.md").get("license"):
            terms = str(licence)
            return Origin(
                str(record.get("base") or folder.name), LICENCE_IDS.get(terms, terms if terms == terms.lower() else "other"), terms, tuple(files)
            )
        further = str(record.get("base") or "")
        if not further or further == base:
            return Origin(folder.name, "", "", tuple(files))
        base = further
    return Origin(Path(base).name, "", "", tuple(files))


def _front(card: Path) -> Mapping[str, Any]:
    """The YAML at the head of a model card."""
    if not card.is_file():
        return {}
    match = re.match(r"---\n(.*?)\n---\n", card.read_text(encoding="utf-8", errors="replace"), re.S)
    try:
        value = yaml.safe_load(match[1]) if match else {}
    except yaml.YAMLError:
        raise InputError(f"{card}: the lines between --- are not valid YAML") from None
    return value if isinstance(value, dict) else {}


def hub_card(record: Mapping[str, Any], from_: Origin, result: Result | None, *, certified: bool) -> str:
    """The card's text. It shows no prompt and no answer.

    Args:
        record: the model's excise.json.
        result: of the run that made it, where there is one.
        certified: whether a certificate goes with it.
    """
    adapter = record["kind"] == "adapter"
    head: dict[str, Any] = {
        "library_name": "peft" if adapter else "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["unlearning", "excise"],
    }
    if HUB_ID.fullmatch(from_.name):
        head["base_model"] = from_.name
    if from_.licence:
        head["license"] = from_.licence
    what = "An adapter for" if adapter else "A version of"
    method = f", from which chosen knowledge was removed with `{record['method']}`" if record.get("method") else ""
    lines = [
        f"---\n{yaml.safe_dump(head, sort_keys=False).strip()}\n---",
        "",
        "# Model card",
        "",
        f"{what} `{from_.name}`{method} (excise {record['excise']}).",
        "",
    ]
    lines += [f"* fingerprint: {record['fingerprint']}", f"* number format: {record['dtype']}", f"* prompt template: {record['template']['style']}"]
    if certified:
        lines.append("* `certificate.json` says what was asked, done, measured and not tested; check it with `excise verify certificate.json FOLDER`")
    if note := record.get("note"):
        lines += ["", str(note)]
    if result is not None:
        lines += ["", "## What was measured", "", *(f"* {line}" for line in verdict(result)), *_tables(result)]
    lines += ["", "## Licence", "", from_.terms or f"The licence of `{from_.name}` applies to these weights as well.", ""]
    return "\n".join(lines)


def _tables(result: Result) -> list[str]:
    """The headline scores of every phase, attacks included, with their 95 % intervals."""
    lines: list[str] = []
    for suite in dict.fromkeys(suite for evaluation in result.evaluations.values() for suite in evaluation.suites):
        phases = phase_order(phase for phase, evaluation in result.evaluations.items() if suite in evaluation.suites)
        names = headline(name for phase in phases for name in result.evaluations[phase].suites[suite])
        head = ["score", *(phase_name(phase) for phase in phases)]
        lines += ["", f"### {suite}", "", f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
        for name in names:
            cells = [_cell(result.score(phase, suite, name)) for phase in phases]
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def _cell(score: Any) -> str:
    if score is None:
        return ""
    if score.value is None:
        return "not available"
    interval = f" ({readable(score.interval[0])} to {readable(score.interval[1])})" if score.interval else ""
    return f"{readable(score.value)}{interval}"
