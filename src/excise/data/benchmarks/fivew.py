"""5WBENCH: who, what, when, where and why questions with a true and a false answer."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from excise.data.example import Benchmark, Example, spread
from excise.data.tables import FORMATS, Row, read_rows
from excise.errors import InputError

LABELS = ("who", "what", "when", "where", "why")

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "question": ("question", "prompt"),
    "answer": ("answer", "ground_truth"),
    "false answer": ("pred_answer", "target_new", "false_answers"),
    "rephrasings": ("rephrases", "rephrase_prompt", "rephrase", "paraphrased_questions"),
}
"""What a row holds -> the columns of 5WBENCH, of EasyEdit, and of `excise build-5w`."""


@dataclass(frozen=True)
class FiveW:
    """5WBENCH, or any rows like it: question, answer, pred_answer (a false answer), label and rephrases, in 5WBENCH's, EasyEdit's or our names.

    A folder that `excise build-5w` wrote is read as it is.

    Splits ``forget`` and ``retain``. The label is who, what, when, where or why; EasyEdit's rows have none, and there the first of these
    words in the question stands for it. A question that occurs again in its split is left out, and so is a retain question that the forget
    split asks too (``overlap``); what was left out is said at the start of a run.

    Paper: 5WBENCH of MAAT (arXiv 2605.30514), built on Factify-5WQA (Rani et al. 2023, arXiv 2305.04329).
    """

    path: str | None = None
    """A folder with one table whose name begins with ``forget`` and one whose name begins with ``retain``."""
    forget: str | None = None
    """The table with what is to be forgotten, in place of the folder's."""
    retain: str | None = None
    """The table with what must be kept, in place of the folder's."""
    limit: int | None = None
    """Take so many questions of each label and split, spread evenly over it."""
    overlap: Literal["drop", "refuse"] = "drop"
    """What becomes of retain questions that the forget split asks too, in the same words: left out, or an error."""

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise InputError(f"data.limit is {self.limit}; give at least 1, or leave it out")

    def __call__(self) -> Benchmark:
        notes: list[str] = []
        forget = _distinct("forget", self._examples("forget", self.forget), notes)
        retain = _distinct("retain", self._examples("retain", self.retain), notes)
        asked = {same(example.prompt): example for example in forget}
        both = [example for example in retain if same(example.prompt) in asked]
        if both and self.overlap == "refuse":
            other = asked[same(both[0].prompt)]
            raise InputError(
                f"{len(both)} retain questions stand in forget too, the first: {both[0].prompt!r} ({both[0].id} and {other.id}); "
                "remove them from one of the files, or leave them out of retain with data.overlap=drop"
            )
        if both:
            notes.append(f"{len(both)} retain questions are left out because the forget split asks them too (the first: {both[0].id}).")
        kept = [example for example in retain if same(example.prompt) not in asked]
        splits = {"forget": self._thinned(forget), "retain": self._thinned(kept)}
        return Benchmark("fivew", splits, tuple(notes))

    def _examples(self, split: str, file: str | None) -> list[Example]:
        return [_example(row, f"{split}-{row.number}") for row in read_rows(file if file is not None else self._find(split))]

    def _find(self, split: str) -> Path:
        if self.path is None:
            raise InputError(f"the benchmark 'fivew' needs data.path (a folder with forget... and retain... tables) or data.{split}")
        folder = Path(self.path).expanduser()
        if not folder.is_dir():
            raise InputError(f"data.path: there is no folder {folder}; give one with a forget... and a retain... table")
        found = sorted(file for file in folder.iterdir() if file.name.startswith(split) and file.suffix.lower() in FORMATS)
        if len(found) != 1:
            there = "none" if not found else ", ".join(file.name for file in found)
            raise InputError(f"{folder} must have one table called {split}... (it has: {there}): name it with data.{split}=FILE")
        return found[0]

    def _thinned(self, examples: Sequence[Example]) -> tuple[Example, ...]:
        if self.limit is None:
            return tuple(examples)
        chosen = {example.id for label in LABELS for example in spread([e for e in examples if e.label == label], self.limit)}
        return tuple(example for example in examples if example.id in chosen)


def same(text: str) -> str:
    """What two questions have in common that are the same but for case, punctuation and spaces."""
    return " ".join(re.findall(r"\w+", text.casefold()))


def _distinct(split: str, examples: Sequence[Example], notes: list[str]) -> list[Example]:
    """The first example of each question."""
    times = Counter(same(example.prompt) for example in examples)
    first: dict[str, Example] = {}
    for example in examples:
        first.setdefault(same(example.prompt), example)
    if left_out := len(examples) - len(first):
        words, most = times.most_common(1)[0]
        notes.append(
            f"{left_out} of {len(examples)} {split} rows are left out because their question stood there before "
            f"(most often, {most} times, that of {first[words].id})."
        )
    return list(first.values())


def _example(row: Row, id: str) -> Example:
    answers = row.texts(_column(row, "answer"))
    false = [text for column in COLUMNS["false answer"] for text in row.texts(column)]
    rephrased = [text for column in COLUMNS["rephrasings"] for text in row.texts(column)]
    question = row.text(_column(row, "question"))
    return Example(
        id=id,
        prompt=question,
        answer=answers[0],
        paraphrased_prompts=tuple(rephrased),
        false_answers=tuple(false),
        alternative=false[0] if false else "",
        label=_label(row, question),
    )


def _column(row: Row, name: str) -> str:
    if column := next((column for column in COLUMNS[name] if row.has(column)), None):
        return column
    if empty := next((column for column in COLUMNS[name] if column in row.values), None):
        raise row.error(empty, "is empty")
    raise InputError(f"{row.where}: no column {' or '.join(map(repr, COLUMNS[name]))}; there are: {row.columns}")


def _label(row: Row, question: str) -> str:
    allowed = ", ".join(LABELS)
    if row.has("label"):
        label = row.text("label").strip().casefold()
        if label not in LABELS:
            raise row.error("label", f"{row.text('label')!r} is none of {allowed}")
        return label
    asked = next((word for word in re.findall(r"\w+", question.casefold()) if word in LABELS), None)
    if asked is None:
        raise InputError(f"{row.where}: no column 'label', and the question has none of the words {allowed}: {question!r}")
    return asked
