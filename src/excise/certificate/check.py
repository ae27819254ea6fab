"""Checking a certificate: its signature, the model's files, the run's files. Whatever differs is refused in one line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from excise.certificate.content import CARD, SCHEMA, derived, model_files, run_files
from excise.certificate.issue import PAGE, as_text, page
from excise.certificate.signing import digest, genuine
from excise.data.tables import read_text
from excise.environment import version
from excise.errors import InputError
from excise.files import read_json


@dataclass(frozen=True)
class Checked:
    """A certificate that holds, and what exactly was checked."""

    body: Mapping[str, Any]
    digest: str
    lines: tuple[str, ...]
    run: Path | None
    """The run folder, where it is there."""
    model: Path


def verify(certificate: Path, model: Path, key: str | None = None) -> Checked:
    """Checks a certificate against a model folder, and against the run folder that it lies in (or that holds the model).

    Args:
        model: the model folder, or the run folder that holds it.
        key: the public key (hexadecimal) that must have signed; None: the one that the certificate names.

    Raises:
        InputError: something differs; the message says what.
    """
    content, lines = _signed(certificate, key)
    folder = model / "model" if (model / "model" / "excise.json").is_file() else model
    lines += [_model(content["model"], folder)]
    run = next((place for place in (certificate.parent, folder.parent) if (place / "result.json").is_file()), None)
    if run is None:
        lines.append("NOT CHECKED: the run's other files, result.json among them, are not beside the certificate or the model.")
    else:
        lines.append(_run(content, run))
    lines += _page(certificate)
    return Checked(content, digest(content), tuple(lines), run, folder)


def _signed(file: Path, key: str | None) -> tuple[dict[str, Any], list[str]]:
    text = read_text(file)
    certificate = _parsed(file, text)
    content, signature = certificate["body"], certificate["signature"]
    if certificate["digest"] != digest(content):
        raise InputError(f"{file} was changed: its content does not have the digest that it states{_where(content, file.parent)}")
    if signature is not None:
        try:
            valid = genuine(content, signature)
        except InputError as error:
            raise InputError(f"{file}: {error}") from None
        if not valid:
            raise InputError(
                f"{file} was changed after signing, or is signed by another key: the signature does not fit{_where(content, file.parent)}"
            )
        if key is not None and signature["public_key"] != key:
            raise InputError(f"{file} is signed by the key {signature['public_key']}, not by the one that was given, {key}")
    elif key is not None:
        raise InputError(f"{file} is not signed, and a signature by {key} was expected")
    if as_text(certificate) != text:
        raise InputError(f"{file} was changed: it says the same, but not in the form in which excise writes it")
    if content["certificate"] != SCHEMA:
        raise InputError(f"{file} has the version {content['certificate']!r}, and this excise reads {SCHEMA}: upgrade with `pip install -U excise`")
    if signature is None:
        return content, ["NOT SIGNED: the certificate is whole, but anybody could have written it."]
    whose = "the key that was given" if key is not None else "a key that you must know to be the issuer's (--public-key FILE compares it)"
    return content, [f"signature: valid, by {signature['public_key']}, {whose}."]


def _parsed(file: Path, text: str) -> dict[str, Any]:
    try:
        certificate = json.loads(text)
    except (ValueError, RecursionError):
        raise InputError(f"{file} is no certificate, or it was changed: it is not valid JSON") from None
    if not isinstance(certificate, dict) or set(certificate) != {"body", "digest", "signature"}:
        raise InputError(f"{file} is no certificate, or it was changed: it must have exactly body, digest and signature")
    needed = {"certificate": int, "model": dict, "files": dict, "recipe": dict, "scores": dict, "asked": dict, "environment": dict}
    content, signature = certificate["body"], certificate["signature"]
    lacking = [name for name, kind in needed.items() if not isinstance(content, dict) or not isinstance(content.get(name), kind)]
    if lacking or not (signature is None or isinstance(signature, dict)):
        raise InputError(f"{file} is no certificate, or it was changed: {lacking[0] if lacking else 'signature'} is missing or of another kind")
    return certificate


def _where(content: Mapping[str, Any], folder: Path) -> str:
    """The first place at which a changed certificate differs from the result beside it, for the error."""
    try:
        honest = derived(read_json(folder / "result.json"))
    except (InputError, KeyError, TypeError, AttributeError):
        return ""
    for name, value in honest.items():
        if difference := next(_differences(content.get(name), value, name), None):
            return f" (against result.json it differs at {difference})"
    return ""


def _differences(given: Any, expected: Any, place: str) -> Iterator[str]:
    if isinstance(given, dict) and isinstance(expected, dict):
        for name in {**expected, **given}:
            yield from _differences(given.get(name), expected.get(name), f"{place}.{name}")
    elif given != expected or type(given) is not type(expected):
        yield place


def _model(stated: Mapping[str, Any], folder: Path) -> str:
    if not (folder / "excise.json").is_file():
        raise InputError(f"{folder} is not the certified model: it is no model folder that excise saved (no excise.json)")
    _same_files(stated["files"], model_files(folder), folder, "the model")
    return f"model: {len(stated['files'])} files as certified ({CARD} and hidden files are not covered); fingerprint {stated['after'][:16]}…"


def _run(content: Mapping[str, Any], run: Path) -> str:
    _same_files(content["files"], run_files(run), run, "the run")
    return f"run: {len(content['files'])} files as certified, result.json among them."


def _same_files(stated: Mapping[str, Any], there: Mapping[str, Any], folder: Path, whose: str) -> None:
    for name, entry in stated.items():
        if name not in there:
            raise InputError(f"{folder / name} is missing, and the certificate lists it among the files of {whose}")
        if there[name] != entry:
            found, certified = (str(row.get("sha256"))[:16] for row in (there[name], entry))
            raise InputError(f"{folder / name} differs from the certified file of {whose}: SHA-256 {found}… in place of {certified}…")
    if more := sorted(there.keys() - stated.keys()):
        raise InputError(f"{folder / more[0]} is not among the files of {whose} that the certificate lists")


def _page(certificate: Path) -> list[str]:
    place = certificate.with_name(PAGE)
    content = read_json(certificate)
    if not place.is_file() or content["body"].get("excise") != version("excise"):
        return []
    if place.read_text(encoding="utf-8") != page(content):
        raise InputError(f"{place} was changed: it does not show what {certificate.name} says")
    return [f"page: {PAGE} shows what the certificate says."]
