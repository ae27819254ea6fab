"""WMDP: hazardous-knowledge corpora to forget, and choice questions that measure what is left."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

from excise.data.benchmarks.jsonl import example_from_row
from excise.data.benchmarks.text import Unit, check_sizes, cut, read_documents
from excise.data.example import Benchmark, Example
from excise.data.tables import FORMATS, Row, looks_like_hub, read_hub, read_rows
from excise.errors import InputError

OTHER_NAMES = {"bio-forget-corpus": "bio_remove_dataset"}
"""The name under which the authors hand out a corpus that is not on the hub."""
OWN_DATASET = {"bio-forget-corpus": "cais/wmdp-bio-forget-corpus"}
"""Corpora with a (gated) dataset of their own beside ``cais/wmdp-corpora``."""


@dataclass(frozen=True)
class Wmdp:
    """Weapons of Mass Destruction Proxy. Splits: ``forget`` and ``retain`` (passages), ``choice_<subset>`` (choice questions).

    The corpora come from the hub (``excise[hub]``; the bio forget corpus is gated) or from a folder that holds
    ``<subset>-forget-corpus`` and ``<subset>-retain-corpus`` as .jsonl, .json, .csv, .parquet or .txt, or as folders of
    such files. Any other text can take their place through ``forget`` and ``retain``.

    Paper: Li et al. 2024, "The WMDP Benchmark", arXiv 2403.03218.
    Differs: texts are cut into passages of at most ``chunk`` words; the authors cut tokens at the model's maximum length.
    """

    path: str = "cais/wmdp-corpora"
    """A folder with the corpora, or the hub dataset."""
    subset: Literal["bio", "cyber"] = "bio"
    """Which knowledge."""
    forget: str | None = None
    """A text source of your own instead of the forget corpus (as in the ``text`` benchmark)."""
    retain: str | None = None
    """A text source of your own instead of the retain corpus; the paper retains WikiText."""
    questions: str | None = "cais/wmdp"
    """Choice questions: a table with question, choices and answer (0 to 3), or the hub dataset; null for none."""
    chunk: int = 200
    """The longest passage, in ``unit``."""
    unit: Unit = "words"
    """What ``chunk`` counts."""
    shortest: int = 50
    """Passages with fewer characters are left out."""
    limit: int | None = 2000
    """Take only the first so many passages of each corpus, and download no more than that; null takes all."""

    def __post_init__(self) -> None:
        check_sizes(self.chunk, self.limit)

    def __call__(self) -> Benchmark:
        splits = {split: self._passages(split, own) for split, own in (("forget", self.forget), ("retain", self.retain))}
        if self.questions:
            splits[f"choice_{self.subset}"] = self._choices(self.questions)
        return Benchmark("wmdp", splits)

    def _passages(self, split: str, own: str | None) -> tuple[Example, ...]:
        documents = read_documents(own) if own else self._corpus(f"{self.subset}-{split}-corpus")
        return tuple(islice(cut(documents, self.chunk, self.unit, self.shortest), self.limit))

    def _corpus(self, name: str) -> Iterator[tuple[str, str]]:
        folder = Path(self.path).expanduser()
        if folder.is_dir():
            for file in _files(folder, name):
                yield from ((name, text) for _, text in read_documents(str(file)))
            return
        if not looks_like_hub(self.path):
            raise InputError(f"data.path: there is no folder {folder}; give a folder with the corpora or the hub dataset cais/wmdp-corpora")
        own = OWN_DATASET.get(name) if self.path == "cais/wmdp-corpora" else None
        dataset, config = (own, None) if own else (self.path, name)
        instead = f"pass a folder with {name}.jsonl: data.path=FOLDER"
        for row in read_hub(dataset, config, "train", instead=instead, streaming=self.limit is not None):
            yield name, row.text("text")

    def _choices(self, questions: str) -> tuple[Example, ...]:
        name = f"wmdp-{self.subset}"
        rows: list[Row]
        if Path(questions).expanduser().exists() or not looks_like_hub(questions):
            rows = read_rows(questions)
        else:
            rows = list(read_hub(questions, name, "test", instead="pass a table: data.questions=FILE (or null for none)"))
        found = tuple(dataclasses.replace(example_from_row(row, ""), id=f"{name}-{i}", label=self.subset) for i, row in enumerate(rows))
        if bare := next((row for row, example in zip(rows, found, strict=True) if not example.options), None):
            raise InputError(f"{bare.where}: no column 'choices'; there are: {bare.columns}")
        return found


def _files(folder: Path, name: str) -> list[Path]:
    """The files of a corpus: one file, or a folder of parts as in a copy of the hub's repository."""
    endings = (*FORMATS, ".txt")
    for stem in (name, OTHER_NAMES.get(name, name)):
        if found := [folder / f"{stem}{ending}" for ending in endings if (folder / f"{stem}{ending}").is_file()]:
            return found[:1]
        if found := sorted(file for file in folder.glob(f"{stem}/*") if file.suffix in endings):
            return found
    raise InputError(f"the folder {folder} has no {name}: put {name}.jsonl there (one object with a text a line), or set data.forget / data.retain")
