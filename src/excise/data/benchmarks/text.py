"""Plain text to forget and to keep, cut into passages."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

from excise.data.example import Benchmark, Example
from excise.data.tables import read_rows, read_text
from excise.errors import InputError

Unit = Literal["words", "characters"]
TEXTS = (".txt", ".md", ".markdown", ".rst", ".text")
"""Endings of files that are read as plain text."""


@dataclass(frozen=True)
class Corpus:
    """Plain text. Each source is a text file, a folder of them, or a table (.jsonl, .json, .csv, .parquet) with a text column.

    A folder is read with everything below it: .txt, .md, .markdown, .rst and .text; hidden files and folders are left out.
    Paragraphs (what blank lines separate) become passages; long ones are cut at white space. Ids are ``<file>-<n>``, from 0.
    """

    forget: str
    """Text with what is to be forgotten."""
    retain: str
    """Text with what must be kept."""
    chunk: int = 200
    """The longest passage, in ``unit``."""
    unit: Unit = "words"
    """What ``chunk`` counts."""
    shortest: int = 50
    """Passages with fewer characters (headings, stray lines) are left out."""
    limit: int | None = None
    """Take only the first so many passages of each source; None takes all."""
    column: str = "text"
    """The column of a table that holds the text."""
    wikitext: bool = False
    """The sources are in WikiText's tokenised form (``@-@``, ``<unk>``): write them as ordinary text first."""

    def __post_init__(self) -> None:
        check_sizes(self.chunk, self.limit)

    def __call__(self) -> Benchmark:
        notes = tuple(note for source in (self.forget, self.retain) for note in unread(source))
        return Benchmark("text", {"forget": self._passages(self.forget), "retain": self._passages(self.retain)}, notes)

    def _passages(self, source: str) -> tuple[Example, ...]:
        documents = read_documents(source, self.column)
        if self.wikitext:
            documents = ((name, detokenise_wikitext(text)) for name, text in documents)
        found = tuple(islice(cut(documents, self.chunk, self.unit, self.shortest), self.limit))
        if not found:
            raise InputError(f"{source} has no passage of at least {self.shortest} characters: lower data.shortest")
        return found


def check_sizes(chunk: int, limit: int | None) -> None:
    if chunk < 1:
        raise InputError(f"data.chunk is {chunk}; give at least 1")
    if limit is not None and limit < 1:
        raise InputError(f"data.limit is {limit}; give at least 1, or leave it out")


def read_documents(source: str, column: str = "text") -> Iterator[tuple[str, str]]:
    """Name of the file and text, for every text of a source."""
    path = Path(source).expanduser()
    if path.is_dir():
        files = [file for file in _files(path) if file.suffix.lower() in TEXTS]
        if not files:
            raise InputError(f"the folder {path} has no .txt file, nor any other text ({', '.join(TEXTS[1:])})")
        yield from ((file.relative_to(path).with_suffix("").as_posix(), read_text(file)) for file in files)
    elif path.suffix.lower() in TEXTS:
        yield path.stem, read_text(path)
    else:
        for row in read_rows(path):
            if column not in row.values:
                raise InputError(f"{row.where}: no column {column!r}; there are: {row.columns}; name yours with data.column=...")
            yield path.stem, row.text(column)


def unread(source: str) -> list[str]:
    """A sentence about the files of a folder that are no plain text; none where all are read."""
    folder = Path(source).expanduser()
    others = [file for file in _files(folder) if file.suffix.lower() not in TEXTS] if folder.is_dir() else []
    if not others:
        return []
    kinds = sorted({file.suffix.lower() or "no ending" for file in others})
    return [f"{len(others)} files in {folder} are not plain text and were left out ({', '.join(kinds)}): convert them to .txt if they count."]


def _files(folder: Path) -> list[Path]:
    """The files of a folder and of those below it, without hidden ones, in order."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts))


def cut(documents: Iterable[tuple[str, str]], chunk: int, unit: Unit, shortest: int) -> Iterator[Example]:
    """Passages of documents as examples without a prompt, numbered within each file."""
    counts: Counter[str] = Counter()
    for name, text in documents:
        for passage in passages(text, chunk, unit):
            if len(passage) >= shortest:
                yield Example(id=f"{name}-{counts[name]}", prompt="", answer=passage)
                counts[name] += 1


def passages(text: str, chunk: int, unit: Unit = "words") -> Iterator[str]:
    """Each paragraph, cut into pieces of at most ``chunk`` words or characters; white space inside a piece stays as it is.

    Only a single word longer than ``chunk`` characters is itself cut.
    """
    for paragraph in re.split(r"\n\s*\n", text.replace("\r\n", "\n")):
        start = end = words = 0
        for match in re.finditer(r"\S+" if unit == "words" else rf"\S{{1,{chunk}}}", paragraph):
            fits = words < chunk if unit == "words" else match.end() - start <= chunk
            if words and not fits:
                yield paragraph[start:end]
                words = 0
            if not words:
                start = match.start()
            end = match.end()
            words += 1
        if words:
            yield paragraph[start:end]


def detokenise_wikitext(text: str) -> str:
    """Ordinary text from WikiText's tokenised form, paragraphs separated by blank lines.

    Headings go, and so does every sentence with ``<unk>``: its word is lost, and the mark is a special token for many
    tokenizers. Of WikiText-2's words about a fifth remain.
    """
    paragraphs = (_join(_known_sentences(line.strip())) for line in text.split("\n") if line.strip() and not re.fullmatch(r" *=.*= *", line))
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph)


def _known_sentences(line: str) -> str:
    """The sentences without ``<unk>``. A sentence ends at a full stop that stands alone, outside of quotation marks."""
    if "<unk>" not in line:
        return line
    sentences: list[str] = []
    open_quote = False
    for piece in re.split(r"(?<= [.?!]) ", line):
        if open_quote:
            sentences[-1] += f" {piece}"
        else:
            sentences.append(piece)
        open_quote = sentences[-1].count('"') % 2 == 1
    return " ".join(sentence for sentence in sentences if "<unk>" not in sentence)


def _join(line: str) -> str:
    line = re.sub(r" @([-,.])@ ", r"\1", line)
    line = re.sub(r'" ([^"]*?) "', r'"\1"', line)
    line = re.sub(r"(?<=\w) '(?=(?:s|t|d|m|re|ve|ll)\b)", "'", line)
    line = re.sub(r"(?<=s)(?<!\bis)(?<!\bas)(?<!\bwas)(?<!\bhas) ' (?=\w)", "' ", line)
    line = re.sub(r"(?<!\S)' ([^']*?) '(?!\S)", r"'\1'", line)
    line = re.sub(r"(?<!\S)' (?=\w)", "'", line)
    line = re.sub(r" (?=[.,;:!?%)\]])", "", line)
    line = re.sub(r"(?<=[(\[]) ", "", line)
    return re.sub(r"(?<=[$£€]) (?=\d)", "", line).strip()
