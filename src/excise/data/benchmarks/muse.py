"""MUSE: news articles or books to forget, with questions about them and passages of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

from excise.data.benchmarks.text import Unit, check_sizes, cut, read_documents
from excise.data.example import Benchmark, Example
from excise.data.tables import Row, looks_like_hub, read_hub, read_rows
from excise.errors import InputError
from excise.files import read_json

SHARD = "-00000-of-00001"
"""How the hub calls a table that is one file."""
HUB = {"news": "muse-bench/MUSE-News", "books": "muse-bench/MUSE-Books"}


@dataclass(frozen=True)
class Muse:
    """Machine Unlearning Six-way Evaluation. What a folder lacks has no split; only the questions are needed.

    * ``knowledge_forget``, ``knowledge_retain``: questions, after solved examples, as a text to be continued.
    * ``verbatim_forget``: the beginning of a passage, to be continued.
    * ``forget``, ``retain``: what is trained on, passages (``train: texts``) or question and answer (``train: questions``).
    * ``privleak_forget``, ``holdout``: passages that were and that were not trained on, for membership inference.

    Paper: Shi et al. 2024, MUSE (arXiv 2407.06460).
    Differs: no space stands behind the last "Answer:", since a space belongs to the next word's token; the true continuation is cut by words.
    """

    path: str | None = None
    """A folder with MUSE's files, in the authors' folders (knowmem/forget_qa.json) or side by side (news_forget_qa.json), or a snapshot of the hub
    dataset (knowmem/forget_qa-00000-of-00001.parquet); none: the hub."""
    corpus: Literal["news", "books"] = "news"
    train: Literal["texts", "questions"] = "texts"
    """What the splits ``forget`` and ``retain`` hold."""
    shots: int | None = None
    """Solved examples before a question; None takes all there are (10)."""
    answer_words: int = 96
    """Where the true continuation of a passage is cut; 128 tokens are about 96 words."""
    chunk: int = 200
    """The longest passage of ``forget``, ``retain`` and for membership inference, in ``unit``."""
    unit: Unit = "words"
    """What ``chunk`` counts."""
    limit: int | None = 2000
    """Take only the first so many passages of each text; null takes all."""

    def __post_init__(self) -> None:
        check_sizes(self.chunk, self.limit)
        if self.answer_words < 1:
            raise InputError(f"data.answer_words is {self.answer_words}; give at least 1")
        if self.shots is not None and self.shots < 0:
            raise InputError(f"data.shots is {self.shots}; give at least 0")

    def __call__(self) -> Benchmark:
        splits = {
            "knowledge_forget": self._knowledge("forget", ("forget_qa",)),
            "knowledge_retain": self._knowledge("retain", ("retain_qa", "retain2_qa")),
            "verbatim_forget": self._verbatim(),
            "privleak_forget": self._passages("privleak", ("forget",)),
            "holdout": self._passages("privleak", ("holdout",)) or self._passages("raw", ("holdout",)),
        }
        if self.train == "questions":
            splits["forget"], splits["retain"] = self._questions("forget", ("forget_qa",)), self._questions("retain", ("retain_qa", "retain2_qa"))
        else:
            splits["forget"], splits["retain"] = self._passages("raw", ("forget",)), self._passages("raw", ("retain1", "retain"))
        return Benchmark("muse", {name: examples for name, examples in splits.items() if examples})

    # --- splits -------------------------------------------------------------------------------------------------------

    def _knowledge(self, side: str, names: tuple[str, ...]) -> tuple[Example, ...]:
        shots = [] if self.shots == 0 else self._rows("knowmem", tuple(f"{name}_icl" for name in names))
        if self.shots is not None and len(shots) < self.shots:
            raise InputError(f"data.shots is {self.shots}, but there are {len(shots)} solved examples for {side} ({names[-1]}_icl)")
        lead = "".join(f"Question: {question}\nAnswer: {answer}\n\n" for question, answer in map(_pair, shots[: self.shots]))
        pairs = map(_pair, self._needed("knowmem", names))
        return tuple(
            Example(f"knowledge_{side}-{n}", f"{lead}Question: {question}\nAnswer:", answer, bare=True)
            for n, (question, answer) in enumerate(pairs, 1)
        )

    def _questions(self, side: str, names: tuple[str, ...]) -> tuple[Example, ...]:
        pairs = map(_pair, self._needed("knowmem", names))
        return tuple(Example(f"{side}-{n}", question, answer) for n, (question, answer) in enumerate(pairs, start=1))

    def _verbatim(self) -> tuple[Example, ...]:
        rows = self._rows("verbmem", ("forget",))
        pairs = [(_text(row, "prompt"), _text(row, "gt")) for row in rows]
        return tuple(
            Example(f"verbatim_forget-{n}", prompt.rstrip(), " ".join(text.split()[: self.answer_words]), bare=True)
            for n, (prompt, text) in enumerate(pairs, start=1)
        )

    def _passages(self, kind: str, names: tuple[str, ...]) -> tuple[Example, ...]:
        return tuple(islice(cut(self._documents(kind, names), self.chunk, self.unit, 50), self.limit))

    # --- files --------------------------------------------------------------------------------------------------------

    def _documents(self, kind: str, names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        place = self._find(kind, names)
        label = f"{kind}-{names[0]}"
        if place is None:
            yield from ((label, row.text("text")) for row in self._rows(kind, names))
        elif place.suffix == ".parquet":
            yield from ((label, row.text("text")) for row in read_rows(place))
        elif place.suffix == ".json" and isinstance(texts := read_json(place), list) and all(isinstance(text, str) for text in texts):
            yield from ((label, text) for text in texts)
        else:
            yield from ((label, text) for _, text in read_documents(str(place)))

    def _needed(self, kind: str, names: tuple[str, ...]) -> list[Row]:
        rows = self._rows(kind, names)
        if not rows:
            raise InputError(f"{self.path} has no {kind}/{names[0]}.json (or {self.corpus}_{names[-1]}.json): the questions of MUSE are needed")
        return rows

    def _rows(self, kind: str, names: tuple[str, ...]) -> list[Row]:
        """The rows of a table, from the folder or the hub; empty where the folder has no such file."""
        if self._folder is None:
            dataset = self.path or HUB[self.corpus]
            instead = "pass a folder with MUSE's files: data.path=FOLDER"
            return list(read_hub(dataset, kind, names[0], instead=instead))
        place = self._find(kind, names)
        return [] if place is None else read_rows(place)

    def _find(self, kind: str, names: tuple[str, ...]) -> Path | None:
        if self._folder is None:
            return None
        forms = ("{kind}/{name}", "{corpus}_{kind}_{name}", *(("{corpus}_{name}",) if kind == "knowmem" else ()))
        places = [form.format(kind=kind, name=name, corpus=self.corpus) for name in names for form in forms]
        files = [self._folder / f"{place}{ending}" for place in places for ending in (".json", ".jsonl", ".txt", ".parquet", f"{SHARD}.parquet")]
        return next((file for file in files if file.is_file()), None)

    @property
    def _folder(self) -> Path | None:
        """The folder, or None for the hub."""
        if self.path is None:
            return None
        folder = Path(self.path).expanduser()
        if folder.is_dir():
            return folder
        if looks_like_hub(self.path):
            return None
        raise InputError(
            f"data.path: there is no folder {folder}; give one with MUSE's files, or leave it out for the hub dataset {HUB[self.corpus]}"
        )


def _pair(row: Row) -> tuple[str, str]:
    return _text(row, "question"), _text(row, "answer")


def _text(row: Row, column: str) -> str:
    if text := row.text(column).strip():
        return text
    if column in row.values:
        raise row.error(column, "is empty")
    raise InputError(f"{row.where}: no column {column!r}; there are: {row.columns}")
