"""Writing without ever leaving something half-written, and reading JSON lines with useful errors."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from excise.errors import InputError


def cache_folder() -> Path:
    """Where excise keeps what can be made again: ``$EXCISE_CACHE``, else ``$XDG_CACHE_HOME/excise``, else ~/.cache/excise."""
    if chosen := os.environ.get("EXCISE_CACHE"):
        return Path(chosen)
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "excise"


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turns what the file system says (full, read-only, a file in the way) into one clear line."""
    reasons_for_full = "the disk is full: free some space or choose another place"
    try:
        yield
    except OSError as error:
        reasons = {
            errno.ENOSPC: reasons_for_full,
            errno.EDQUOT: "your disk quota is used up: free some space or choose another place",
            errno.ENOTDIR: "a part of this path is a file, not a folder: choose another place",
            errno.EEXIST: "a file of this name is in the way: choose another place",
            errno.EACCES: "no permission to write here: choose another place",
            errno.EROFS: "this file system is read-only: choose another place",
        }
        reason = reasons.get(error.errno or 0)
        if reason is None:
            raise
        raise InputError(f"cannot write {path}: {reason}") from error
    except SafetensorError as error:
        # safetensors wraps the operating system's error in its own type and keeps only the text
        if "No space left on device" in str(error) or "os error 28" in str(error):
            raise InputError(f"cannot write {path}: {reasons_for_full}") from error
        raise


@contextmanager
def folder_beside(final: Path, overwrite: bool = False) -> Iterator[Path]:
    """A new folder beside ``final`` that takes its place when the block ends well, and vanishes when it does not.

    An existing non-empty ``final`` is refused unless ``overwrite``; then it is replaced only at the very end.
    """
    if final.exists() and not final.is_dir():
        raise InputError(f"cannot write {final}: it is a file, and a folder was expected")
    if final.is_dir() and any(final.iterdir()) and not overwrite:
        raise InputError(f"{final} exists and is not empty: choose another place or pass --overwrite")
    with explained(final):
        final.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f".{final.name}.part-", dir=final.parent))
    try:
        with explained(final):
            yield part
            part.chmod(0o755)
            put_in_place(part, final)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


@contextmanager
def file_beside(final: Path, overwrite: bool = False) -> Iterator[Path]:
    """A name for a new file beside ``final``, with the same ending; what was written there takes its place when the block ends well."""
    if final.is_dir():
        raise InputError(f"cannot write {final}: it is a folder, and a file was expected")
    if final.exists() and not overwrite:
        raise InputError(f"{final} exists: choose another name or pass --overwrite")
    with explained(final):
        final.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{final.stem}.part-", suffix=final.suffix, dir=final.parent)
        os.close(handle)
    part = Path(name)
    try:
        with explained(final):
            yield part
            with part.open("rb+") as file:
                os.fsync(file.fileno())
            part.chmod(0o644)
            os.replace(part, final)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def put_in_place(part: Path, final: Path) -> None:
    """Renames a finished folder to its name; what stood there before goes only once the new one is in place."""
    if not final.exists():
        part.rename(final)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{final.name}.old-", dir=final.parent))
    final.rename(old / "was")
    part.rename(final)
    shutil.rmtree(old, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Writes a file whole or not at all."""
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, 0o644)
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def write_json(path: Path, value: Any) -> None:
    """Pretty JSON, whole or not at all. NaN and infinity are refused: JSON has no such numbers."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_lines(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """JSON lines, whole or not at all."""
    write_text(path, "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows))


def append_line(path: Path, row: Any) -> None:
    """Adds one JSON line to a file in a single write, so that two processes may share it.

    A line that a killed writer left unfinished is ended first, so that it cannot swallow this one.
    """
    line = json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            if os.fstat(file).st_size:
                os.lseek(file, -1, os.SEEK_END)
                line = line if os.read(file, 1) == b"\n" else f"\n{line}"
            os.write(file, line.encode())
        finally:
            os.close(file)


def whole_lines(path: Path) -> Iterator[Any]:
    """The values of a file of :func:`append_line`, without those that were cut short; none where there is no file."""
    if not path.exists():
        return
    with explained(path):
        lines = path.read_bytes().split(b"\n")
    for line in lines:
        with suppress(ValueError):
            yield json.loads(line)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file; a broken line is an error that names its number."""
    rows: list[dict[str, Any]] = []
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"there is no file {path}") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder, and a JSON-lines file was expected") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text (byte {error.start})") from None
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise InputError(f"{path}, line {number}: not valid JSON ({error})") from None
        if not isinstance(row, dict):
            raise InputError(f"{path}, line {number}: expected an object, got {type(row).__name__}")
        rows.append(row)
    return rows


def read_json(path: Path) -> Any:
    """A JSON file, with one clear line where it is missing or broken."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"there is no file {path}") from None
    except (ValueError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not valid JSON ({error})") from None
