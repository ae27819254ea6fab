"""Your own questions or texts, from JSON Lines, JSON, CSV, TSV or Parquet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from excise.data.conversations import conversation, every_answer
from excise.data.example import Benchmark, Example
from excise.data.tables import Row, read_rows
from excise.errors import InputError, did_you_mean

COLUMNS: dict[str, tuple[str, ...]] = {
    "id": ("id",),
    "question": ("question", "prompt"),
    "answer": ("answer",),
    "text": ("text",),
    "messages": ("messages", "conversations", "conversation"),
    "span": ("span",),
    "paraphrased_questions": ("paraphrased_questions", "paraphrased_question", "paraphrased_prompts"),
    "paraphrased_answer": ("paraphrased_answer",),
    "false_answers": ("false_answers", "perturbed_answer"),
    "alternative": ("alternative",),
    "options": ("options", "choices"),
    "gold": ("gold", "answer_index"),
    "label": ("label",),
    "group": ("group",),
}
"""Our name of a column -> the column names it is looked for under, in this order."""


@dataclass(frozen=True)
class Jsonl:
    """Your own data: one file for each split, the format by its ending (.jsonl, .json, .csv, .tsv, .parquet).

    A row is a question with its ``answer``; or a conversation in ``messages``, whose last answer is meant; or a choice
    question with ``options`` and the right one in ``gold`` (0-based number, letter, or the option itself; ``answer`` may hold
    it too); or plain ``text``. Other columns are ignored.
    """

    forget: str
    """File with what is to be forgotten."""
    retain: str
    """File with what must be kept."""
    holdout: str | None = None
    """File with examples that the model has never seen (for membership inference)."""
    splits: Mapping[str, str] = field(default_factory=dict)
    """More splits to evaluate: name of the split -> file."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Where your files use other names: our column -> your column."""
    turns: Literal["last", "all"] = "last"
    """Of a conversation: only its last answer, or an example for each answer (ids then end in ``-1``, ``-2``, ...)."""

    def __call__(self) -> Benchmark:
        own = {"forget": self.forget, "retain": self.retain, "holdout": self.holdout}
        if twice := own.keys() & self.splits.keys():
            raise InputError(f"data.splits.{min(twice)}: this split has its own field, data.{min(twice)}")
        tables = {split: read_rows(file) for split, file in {**own, **self.splits}.items() if file is not None}
        self._check_columns(tables)
        return Benchmark("jsonl", {split: examples(rows, split, self.columns, self.turns) for split, rows in tables.items()})

    def _check_columns(self, tables: Mapping[str, list[Row]]) -> None:
        present = {column for rows in tables.values() for row in rows for column in row.values}
        for ours, theirs in self.columns.items():
            if ours not in COLUMNS:
                raise InputError(f"data.columns.{ours}: there is no such column: {did_you_mean(ours, COLUMNS)}")
            if theirs not in present:
                raise InputError(f"data.columns.{ours}={theirs}: no file has a column {theirs!r}: {did_you_mean(theirs, present)}")


def examples(rows: list[Row], split: str, columns: Mapping[str, str], turns: Literal["last", "all"] = "last") -> tuple[Example, ...]:
    """The examples of a table. A row without an id is called ``<split>-<row number>``."""
    found: dict[str, Example] = {}
    where: dict[str, Row] = {}
    for row in rows:
        example = example_from_row(row, f"{split}-{row.number}", columns)
        for one in every_answer(example) if turns == "all" and example.history else (example,):
            if one.id in found:
                raise InputError(f"{row.where}: the id {one.id!r} already belongs to row {where[one.id].number}")
            found[one.id], where[one.id] = one, row
    return tuple(found.values())


def example_from_row(row: Row, default_id: str, columns: Mapping[str, str] | None = None) -> Example:
    """One row as an example; every error names file, row and column."""
    named = _Named(row, columns or {})
    id = named.text("id") or default_id
    label, group = named.text("label"), named.text("group")
    if not named.column("question") and (column := named.column("messages")):
        return conversation(row, column, Example(id=id, prompt="?", answer="?", label=label, group=group), named.text("span"))
    if not named.column("question") and named.column("text"):
        return Example(id=id, prompt="", answer=named.text("text"), label=label, group=group)
    question = named.required("question")
    options, gold, answer = _choice(named)
    try:
        return Example(
            id=id,
            prompt=question,
            answer=answer,
            span=named.text("span"),
            paraphrased_prompts=named.texts("paraphrased_questions"),
            paraphrased_answer=named.text("paraphrased_answer"),
            false_answers=named.texts("false_answers"),
            alternative=named.text("alternative"),
            options=options,
            gold=gold,
            label=label,
            group=group,
        )
    except InputError as error:
        raise InputError(f"{row.where}: {error}") from None


@dataclass(frozen=True)
class _Named:
    """A row looked at through our names of its columns."""

    row: Row
    columns: Mapping[str, str]

    def candidates(self, name: str) -> tuple[str, ...]:
        return (self.columns[name],) if name in self.columns else COLUMNS[name]

    def column(self, name: str) -> str | None:
        """The row's own name for one of our columns, if there is something in it."""
        return next((column for column in self.candidates(name) if self.row.has(column)), None)

    def text(self, name: str) -> str:
        column = self.column(name)
        return self.row.text(column) if column else ""

    def texts(self, name: str) -> tuple[str, ...]:
        column = self.column(name)
        return self.row.texts(column) if column else ()

    def required(self, name: str) -> str:
        """Our column's text; where there is none, an error that tells how to name the column."""
        if text := self.text(name):
            return text
        raise self.lacks(name)

    def lacks(self, name: str) -> InputError:
        if empty := [column for column in self.candidates(name) if column in self.row.values]:
            hint = '; for plain text use a "text" column' if name == "question" else ""
            return self.row.error(empty[0], f"is empty{hint}")
        wanted = " or ".join(map(repr, self.candidates(name)))
        return InputError(f"{self.row.where}: no column {wanted}; there are: {self.row.columns}; name yours with data.columns.{name}=...")


def _choice(named: _Named) -> tuple[tuple[str, ...], int | None, str]:
    """Options, the right one, and the answer in words (the right option where no words are given)."""
    options = named.texts("options")
    if not options:
        return (), None, named.required("answer")
    if column := named.column("gold"):
        gold = gold_index(named.row, column, options, words_first=False)
        return options, gold, named.text("answer") or options[gold]
    if column := named.column("answer"):
        gold = gold_index(named.row, column, options, words_first=True)
        return options, gold, options[gold]
    raise named.lacks("gold")


def gold_index(row: Row, column: str, options: tuple[str, ...], words_first: bool) -> int:
    """Which option a column names as the right one: by number (0-based), by letter, or by its words."""
    value = row.values[column]
    words = value.strip() if isinstance(value, str) else None
    by_words = options.index(words) if words in options else None
    by_name = _index(value if words is None else words)
    gold = by_words if by_name is None or (words_first and by_words is not None) else by_name
    if gold is None or gold >= len(options):
        last = len(options) - 1
        raise row.error(
            column, f"{value!r} is none of the {len(options)} options: give 0 to {last}, A to {chr(ord('A') + last)}, or an option itself"
        )
    return gold


def _index(value: object) -> int | None:
    """What a number or a letter says: 2, 2.0, "2" and "C" are the third option."""
    if isinstance(value, str):
        if value.isascii() and value.isdigit():
            return int(value)
        return ord(value.upper()) - ord("A") if len(value) == 1 and value.isascii() and value.isalpha() else None
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0 and value == int(value):
        return int(value)
    return None
