"""Writing a certificate: the file that is checked, and the page that is read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from excise.certificate.content import body
from excise.certificate.signing import Signer, digest
from excise.errors import InputError
from excise.files import write_text
from excise.report import names
from excise.report.html import page_environment

NAME = "certificate.json"
PAGE = "certificate.html"


@dataclass(frozen=True)
class Issued:
    """Where a certificate was written, and who signed it."""

    certificate: Path
    page: Path
    public_key: str | None


def certify(folder: Path, signer: Signer | None = None, *, include_text: bool = False, overwrite: bool = False) -> Issued:
    """Writes certificate.json and certificate.html into a finished run folder; without a signer they are unsigned and say so.

    Args:
        include_text: show the forget examples in words, not only as hashes.

    Raises:
        InputError: no finished run with a model; a certificate is there already; texts of a redacted run.
    """
    folder = Path(folder)
    if (folder / NAME).exists() and not overwrite:
        raise InputError(f"{folder / NAME} exists: pass --overwrite to replace it")
    content = body(folder, include_text=include_text)
    certificate = {"body": content, "digest": digest(content), "signature": None if signer is None else signer.sign(content)}
    text = as_text(certificate)
    write_text(folder / NAME, text)
    write_text(folder / PAGE, page(json.loads(text)))
    return Issued(folder / NAME, folder / PAGE, None if signer is None else signer.public)


def as_text(certificate: Mapping[str, Any]) -> str:
    """The one form in which a certificate is written; any other is refused."""
    return json.dumps(certificate, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


def page(certificate: Mapping[str, Any]) -> str:
    """The certificate for a reader: one file, no scripts, no network, every text escaped."""
    content = certificate["body"]
    suites = list(dict.fromkeys(suite for phase in content["scores"].values() for suite in phase if suite != "curve"))
    tables = [(suite, *_table(content["scores"], suite)) for suite in suites]
    template = page_environment(Path(__file__).parent / "templates").get_template("certificate.html.j2")
    return template.render(certificate=certificate, content=content, tables=tables)


def _table(scores: Mapping[str, Any], suite: str) -> tuple[list[str], list[tuple[str, list[Any]]]]:
    """Phases, and for each score its cells."""
    phases = names.phase_order([phase for phase in scores if suite in scores[phase]])
    rows = names.score_order(name for phase in phases for name in scores[phase][suite] if "@" not in name)
    return phases, [(name, [scores[phase][suite].get(name) for phase in phases]) for name in rows]
