"""Rows from files (JSON, JSON Lines, CSV, TSV, Parquet) and from hub datasets, each knowing where it stands."""

from __future__ import annotations

import csv
import importlib
import io
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from excise.errors import InputError, did_you_mean

FORMATS = (".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".parquet")


@dataclass(frozen=True)
class Row:
    """One row of a table. ``number`` counts rows from 1; ``line`` is its line in a text file, where that is known."""

    values: Mapping[str, Any]
    source: str
    number: int
    line: int | None = None

    @property
    def where(self) -> str:
        line = f" (line {self.line})" if self.line not in (None, self.number) else ""
        return f"{self.source}, row {self.number}{line}"

    @property
    def columns(self) -> str:
        """The columns that this row has, for an error."""
        return ", ".join(map(repr, self.values)) or "none"

    def has(self, column: str) -> bool:
        """Whether there is something in this column: null, an empty list and empty text count as nothing."""
        value = self.values.get(column)
        return value is not None and value != [] and not (isinstance(value, str) and not value.strip())

    def error(self, column: str, problem: str) -> InputError:
        return InputError(f"{self.where}, column {column!r}: {problem}")

    def text(self, column: str) -> str:
        """The text in a column; numbers are written out, anything else is an error. Nothing is the empty text."""
        return self._as_text(column, self.values[column]) if self.has(column) else ""

    def texts(self, column: str) -> tuple[str, ...]:
        """A list of texts: a real list, a JSON list written as text (CSV), or one text alone."""
        if not self.has(column):
            return ()
        value = self.values[column]
        if isinstance(value, str) and value.lstrip().startswith("["):
            try:
                value = json.loads(value)
            except ValueError:
                raise self.error(column, f'starts with "[" but is not a JSON list like ["one", "two"]: {_short(value)}') from None
        items = value if isinstance(value, list) else [value]
        return tuple(self._as_text(column, item) for item in items)

    def _as_text(self, column: str, value: Any) -> str:
        if isinstance(value, str):
            return value
        if isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value):
            return str(value)
        raise self.error(column, f"expected text, got {type(value).__name__} {_short(value)}")


def read_rows(path: str | Path) -> list[Row]:
    """All rows of a file; the format is that of its name's ending. A ``.json`` may hold a list or one object a line."""
    path = Path(path).expanduser()
    ending = path.suffix.lower()
    if ending not in FORMATS and not path.is_dir():
        hint = "for plain text use data.name=text" if ending == ".txt" else did_you_mean(ending, FORMATS)
        raise InputError(f"{path}: tables are not read from {ending or 'a file without ending'}; {hint}")
    rows = _parquet(path) if ending == ".parquet" else parse_rows(str(path), ending, read_text(path))
    if not rows:
        raise InputError(f"{path} has no rows")
    return rows


def read_text(path: Path) -> str:
    """A UTF-8 text file (a byte-order mark is dropped), with one clear line where it cannot be read."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"there is no file {path}") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder, and a file was expected") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text (byte {error.start}): save it as UTF-8") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None


def parse_rows(source: str, ending: str, text: str) -> list[Row]:
    """The rows of a text in the format of ``ending``; ``source`` is what errors call it."""
    if ending in (".csv", ".tsv"):
        return list(_csv(source, text, "\t" if ending == ".tsv" else _delimiter(text)))
    if text.lstrip().startswith("["):
        return list(_json_list(source, text))
    return list(_json_lines(source, text))


def _json_list(source: str, text: str) -> Iterator[Row]:
    try:
        items = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{source}, line {error.lineno}: not valid JSON ({error.msg})") from None
    for number, item in enumerate(items, start=1):
        if not isinstance(item, dict):
            raise InputError(f"{source}, row {number}: expected an object with columns, got {type(item).__name__} {_short(item)}")
        yield Row(item, source, number)


def _json_lines(source: str, text: str) -> Iterator[Row]:
    number = 0
    # only \n ends a line: str.splitlines would also cut at U+2028 and U+0085, which JSON allows inside a text
    for line, content in enumerate(text.split("\n"), start=1):
        if not content.strip():
            continue
        number += 1
        try:
            item = json.loads(content)
        except json.JSONDecodeError as error:
            hint = "; one object a line, or one list [...] of objects, was expected" if number == 1 else ""
            raise InputError(f"{source}, row {number} (line {line}): not valid JSON ({error.msg}, column {error.colno}){hint}") from None
        if not isinstance(item, dict):
            raise InputError(f"{source}, row {number} (line {line}): expected an object, got {type(item).__name__} {_short(item)}")
        yield Row(item, source, number, line)


def _csv(source: str, text: str, delimiter: str) -> Iterator[Row]:
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    number = 0
    try:
        header = [name.strip() for name in next(reader, [])]
        if twice := [name for name in header if name and header.count(name) > 1]:
            raise InputError(f"{source}: the column {twice[0]!r} occurs twice in the header")
        line = reader.line_num + 1
        for cells in reader:
            here, line = line, reader.line_num + 1
            if not any(cells):
                continue
            number += 1
            if len(cells) != len(header):
                problem = f"has {len(cells)} cells, but the header names {len(header)} columns: {', '.join(map(repr, header))}"
                raise InputError(f'{source}, row {number} (line {here}): {problem} (put text with {delimiter!r} inside into "quotes")')
            yield Row({name: cell for name, cell in zip(header, cells, strict=True) if name}, source, number, here)
    except csv.Error as error:
        raise InputError(f"{source}, row {number + 1} (line {reader.line_num}): {error}") from None


def _delimiter(text: str) -> str:
    """A comma, unless the header shows the semicolons that spreadsheets write in many countries."""
    header = text.split("\n", 1)[0]
    return ";" if ";" in header and "," not in header else ","


def _parquet(path: Path) -> list[Row]:
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise InputError(f'{path}: reading Parquet needs pyarrow: pip install "excise[parquet]"') from None
    try:
        items = parquet.read_table(path).to_pylist()
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is not a readable Parquet file ({_first_line(error)})") from None
    return [Row(item, str(path), number) for number, item in enumerate(items, start=1)]


def read_hub(dataset: str, name: str | None, split: str, *, instead: str, streaming: bool = False) -> Iterator[Row]:
    """The rows of a dataset of the Hugging Face hub.

    ``instead`` says in the errors what to do without the hub. ``streaming`` downloads only as much as is looked at.
    """
    try:
        datasets = importlib.import_module("datasets")
    except ImportError:
        raise InputError(f'{dataset!r} is no folder here, and reading it from the hub needs: pip install "excise[hub]"; or {instead}') from None
    source = f"{dataset} ({name})" if name else dataset
    try:
        for number, values in enumerate(datasets.load_dataset(dataset, name, split=split, streaming=streaming), start=1):
            yield Row(values, source, number)
    except (OSError, ValueError) as error:
        problem = _first_line(error)
        if "gated" in problem.lower():
            page = f"https://huggingface.co/datasets/{dataset}"
            raise InputError(f"{dataset!r} is gated: ask for access at {page} and log in with `hf auth login`; or {instead}") from None
        raise InputError(f"cannot load {source} from the hub ({problem}); or {instead}") from None


def looks_like_hub(path: str) -> bool:
    """Whether a path that does not exist here can be the name of a hub dataset, ``owner/name``."""
    owner, _, name = path.partition("/")
    return bool(owner.strip(".~") and name) and "/" not in name and "\\" not in path and not Path(name).suffix


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
