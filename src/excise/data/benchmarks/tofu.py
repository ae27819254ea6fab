"""TOFU: 200 invented authors, twenty questions each, of which the last 2, 10 or 20 authors are to be forgotten."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from excise.data.benchmarks.jsonl import example_from_row
from excise.data.example import Benchmark, Example, spread
from excise.data.tables import Row, looks_like_hub, read_hub, read_rows, read_text
from excise.errors import InputError

FIRST_ROW = {"forget01": 3960, "forget05": 3800, "forget10": 3600}
"""Index of the first row of a forget set in the full 4,000 rows; a retain set starts at 0 and ends where its partner begins."""
RETAIN_ROWS = {"retain90": 3600, "retain95": 3800, "retain99": 3960}
ROWS_PER_AUTHOR = 20


@dataclass(frozen=True)
class Tofu:
    """Task of Fictitious Unlearning. Splits: ``forget`` and ``retain`` hold the training rows; the TOFU suite scores
    ``forget`` (with its paraphrased and perturbed answers), ``retain_perturbed`` (evaluation rows of the retained
    authors), ``real_authors`` and ``world_facts``, and ``holdout`` if asked for.

    Ids are ``<set>-<row>`` with the row counted from 0, groups are ``author-<0..199>``. The partner of forget01 is
    retain99, of forget05 retain95, of forget10 retain90; a smaller retain set goes with any of them.

    Paper: Maini et al. 2024, "TOFU: A Task of Fictitious Unlearning for LLMs", arXiv 2401.06121.
    Differs: real authors and world facts have no paraphrase; as in TOFU's own code the answer itself stands for it.
    """

    path: str = "locuslab/TOFU"
    """A folder with TOFU's files (``forget01.json``, ...) or the name of the hub dataset (needs ``excise[hub]``)."""
    forget: Literal["forget01", "forget05", "forget10"] = "forget01"
    """Which authors to forget."""
    retain: Literal["retain90", "retain95", "retain99"] = "retain90"
    """Which authors to keep."""
    holdout: str | None = None
    """A set that the model has never seen (the name of one of the dataset's files), for membership inference."""
    retain_limit: int | None = None
    """Keep so many retain rows, spread evenly over the authors; None keeps all."""
    retain_authors: int | None = None
    """Keep only the first so many retain authors, in ``retain_perturbed`` too: for a model that was taught no others; None keeps all."""
    alternatives: str | None = None
    """Text file with one refusal a line, for DPO; None takes ``idontknow.jsonl`` or ``idk.jsonl`` from the folder or the one above it, as TOFU's and
    open-unlearning's own folders have it; where there is none (as on the hub) examples have no alternative."""

    def __post_init__(self) -> None:
        for name in ("retain_limit", "retain_authors"):
            if (given := getattr(self, name)) is not None and given < 1:
                raise InputError(f"data.{name} is {given}; give at least 1, or leave it out")

    def __call__(self) -> Benchmark:
        retain = self._retain_rows()
        training = tuple(_example(row, f"{self.retain}-{i}", f"author-{i // ROWS_PER_AUTHOR}") for i, row in retain)
        authors = {example.prompt: example.group for example in training}
        perturbed = tuple(
            _example(row, f"retain_perturbed-{i}", authors.get(row.text("question"), "")) for i, row in enumerate(self._rows("retain_perturbed"))
        )
        if self.retain_authors is not None:
            kept = list(dict.fromkeys(authors.values()))[: self.retain_authors]
            training, perturbed = (tuple(e for e in split if e.group in kept) for split in (training, perturbed))
        splits = {
            "forget": self._forget(),
            "retain": tuple(spread(training, self.retain_limit)),
            "retain_perturbed": perturbed,
            "real_authors": self._answers_only("real_authors"),
            "world_facts": self._answers_only("world_facts"),
        }
        if self.holdout:
            splits["holdout"] = tuple(_example(row, f"{self.holdout}-{i}") for i, row in enumerate(self._rows(self.holdout)))
        return Benchmark("tofu", splits)

    def _forget(self) -> tuple[Example, ...]:
        perturbed = {row.text("question"): row for row in self._rows(f"{self.forget}_perturbed")}
        refusals = self._refusals()
        found: list[Example] = []
        for i, row in enumerate(self._rows(self.forget)):
            if (twin := perturbed.get(row.text("question"))) is None:
                raise InputError(f"{row.where}: this question does not stand in {self.forget}_perturbed; the files do not belong together")
            merged = dataclasses.replace(row, values={**twin.values, **row.values})
            id, author = f"{self.forget}-{i}", (FIRST_ROW[self.forget] + i) // ROWS_PER_AUTHOR
            found.append(dataclasses.replace(_example(merged, id, f"author-{author}"), alternative=_pick(refusals, id)))
        return tuple(found)

    def _answers_only(self, split: str) -> tuple[Example, ...]:
        rows = enumerate(self._rows(f"{split}_perturbed"))
        return tuple(dataclasses.replace(e, paraphrased_answer=e.answer) for e in (_example(row, f"{split}-{i}") for i, row in rows))

    def _retain_rows(self) -> list[tuple[int, Row]]:
        """Rows with their index among the full 4,000; retain95 and retain99 are made of retain90 and forget10 where they are missing."""
        if self._local is None or (self._local / f"{self.retain}.json").exists() or self.retain == "retain90":
            return list(enumerate(self._rows(self.retain)))
        smallest = self._rows("retain90")
        if len(smallest) != RETAIN_ROWS["retain90"]:
            raise InputError(f"{self._local}: there is no {self.retain}.json, and retain90.json has {len(smallest)} rows, not 3600, to make it from")
        return list(enumerate((smallest + self._rows("forget10"))[: RETAIN_ROWS[self.retain]]))

    def _refusals(self) -> list[str]:
        if self.alternatives is not None:
            path = Path(self.alternatives).expanduser()
        elif self._local is not None:
            places = [folder / name for folder in (self._local, self._local.parent) for name in ("idontknow.jsonl", "idk.jsonl")]
            path = next((place for place in places if place.is_file()), None)
        else:
            path = None
        if path is None:
            return []
        lines = [line.strip() for line in read_text(path).split("\n") if line.strip()]
        if not lines:
            raise InputError(f"{path} is empty; one refusal a line was expected")
        return lines

    @property
    def _local(self) -> Path | None:
        """The folder, or None where the path names a hub dataset."""
        folder = Path(self.path).expanduser()
        if folder.is_dir():
            return folder
        if looks_like_hub(self.path):
            return None
        raise InputError(f"data.path: there is no folder {folder}; give a folder with TOFU's files or the hub dataset locuslab/TOFU")

    def _rows(self, name: str) -> list[Row]:
        if self._local is None:
            return list(read_hub(self.path, name, "train", instead="pass a folder with TOFU's files: data.path=FOLDER"))
        return read_rows(self._local / f"{name}.json")


def _example(row: Row, id: str, group: str = "") -> Example:
    return dataclasses.replace(example_from_row(row, id), id=id, group=group)


def _pick(refusals: list[str], id: str) -> str:
    """The same refusal for the same id, on every machine and in every order."""
    return refusals[int.from_bytes(hashlib.sha256(id.encode()).digest()[:8], "big") % len(refusals)] if refusals else ""
