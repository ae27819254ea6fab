"""Questions with answers, from whatever table they stand in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from excise.data.tables import Row, read_rows
from excise.errors import InputError
from excise.fivew.asking import WS

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "question": ("question", "questions", "prompt", "query"),
    "answer": ("answer", "answers", "ground_truth", "evidence_answer", "claim_answer", "target"),
    "rephrasings": ("rephrases", "rephrase_prompt", "rephrase", "paraphrased_questions", "paraphrased_question", "paraphrased_prompts"),
    "false answers": ("pred_answer", "target_new", "false_answers", "perturbed_answer"),
    "label": ("label",),
    "subject": ("group", "subject", "author"),
}
"""What a row holds -> the columns in which it is looked for, in this order."""
FACTIFY = ("claim_answer", "evidence_answer")
"""Columns of Factify-5WQA: lists beside the list of questions."""


@dataclass(frozen=True)
class Pair:
    """One question with its answer, and where it stood."""

    id: str
    """``file:row``, counted from 1; ``file:row.n`` for the n-th question of a row that holds several."""
    question: str
    """Empty where the row has none."""
    answer: str
    """The first answer; empty where the row has none."""
    rephrasings: tuple[str, ...] = ()
    false_answers: tuple[str, ...] = ()
    other_answers: tuple[str, ...] = ()
    """Other true answers."""
    given: str = ""
    """The label that the row brings, where it is one of the five."""
    subject: str = ""
    """What the row says that it is about."""


def read_pairs(files: Sequence[str | Path], columns: Mapping[str, str] | None = None) -> list[Pair]:
    """The pairs of all files, in order. A row may hold one question, or lists of questions and answers (Factify-5WQA's records).

    Args:
        columns: our name (a key of :data:`COLUMNS`) -> the column of your files.

    Raises:
        InputError: a file that cannot be read, or without a column of questions or answers.
    """
    for ours in columns or {}:
        if ours not in COLUMNS:
            raise InputError(f"--column {ours}=...: there is no such part of a row; allowed: {', '.join(COLUMNS)}")
    named = {part: (columns[part],) if columns and part in columns else names for part, names in COLUMNS.items()}
    called = _called(files)
    return [pair for file in files for pair in _of_file(Path(file), called[str(file)], named)]


def _called(files: Sequence[str | Path]) -> dict[str, str]:
    """File -> what ids call it: its name, with folders where two have the same."""
    names = [Path(file).name for file in files]
    if len({str(file) for file in files}) < len(files):
        twice = next(file for i, file in enumerate(files) if str(file) in map(str, files[:i]))
        raise InputError(f"{twice} is given twice")
    return {str(file): name if names.count(name) == 1 else str(file) for file, name in zip(files, names, strict=True)}


def _of_file(file: Path, name: str, columns: Mapping[str, tuple[str, ...]]) -> Iterator[Pair]:
    rows = read_rows(file)
    present = {column for row in rows for column in row.values}
    for part in ("question", "answer"):
        if not present & set(columns[part]):
            wanted = " or ".join(map(repr, columns[part]))
            there = ", ".join(map(repr, sorted(map(str, present)))) or "none"
            raise InputError(f"{file}: no column of {part}s ({wanted}); there are: {there}; name yours with --column {part}=NAME")
    for row in rows:
        yield from _pairs(row, f"{name}:{row.number}", columns)


def _pairs(row: Row, id: str, columns: Mapping[str, tuple[str, ...]]) -> Iterator[Pair]:
    questions = _texts(row, columns["question"])
    if _is_list(row, columns["question"]) and len(questions) > 1:
        yield from _several(row, id, questions, columns)
        return
    answers = _texts(row, columns["answer"])
    label = " ".join(_texts(row, columns["label"])[:1]).strip().casefold() if _plain(row, "label", columns) else ""
    yield Pair(
        id=id,
        question=questions[0] if questions else "",
        answer=answers[0] if answers else "",
        rephrasings=_all(row, columns["rephrasings"]),
        false_answers=_all(row, columns["false answers"]),
        other_answers=answers[1:],
        given=label if label in WS else "",
        subject=" ".join(_texts(row, columns["subject"])[:1]).strip() if _plain(row, "subject", columns) else "",
    )


def _several(row: Row, id: str, questions: Sequence[str], columns: Mapping[str, tuple[str, ...]]) -> Iterator[Pair]:
    """One pair for each question of a row. Of Factify-5WQA's two answers that of the evidence counts; where the claim is refuted, its
    own answer is a false one."""
    answers = {column: _aligned(row, column, len(questions)) for column in (*columns["answer"], *FACTIFY) if row.values.get(column)}
    refuted = str(row.values.get("label", "")).strip().casefold() in ("refute", "refuted", "false")
    for number, question in enumerate(questions):
        found = [texts[number] for texts in answers.values() if texts[number]]
        evidence, claim = (answers.get(column, {number: ""})[number] for column in reversed(FACTIFY))
        false = (claim,) if refuted and evidence and claim and evidence.casefold() != claim.casefold() else ()
        yield Pair(f"{id}.{number + 1}", question, evidence or (found[0] if found else ""), false_answers=false)


def _aligned(row: Row, column: str, count: int) -> dict[int, str]:
    value = row.values[column]
    items = value if isinstance(value, list) else [value]
    if len(items) != count:
        raise row.error(column, f"has {len(items)} answers for {count} questions")
    texts = [_answer_texts(row, column, item) for item in items]
    return {i: found[0] if found else "" for i, found in enumerate(texts)}


def _is_list(row: Row, names: Sequence[str]) -> bool:
    return any(isinstance(row.values.get(name), list) for name in names)


def _plain(row: Row, part: str, columns: Mapping[str, tuple[str, ...]]) -> bool:
    """Whether an optional part is text here: other files use the same names for something else."""
    return any(isinstance(row.values.get(name), str) for name in columns[part])


def _texts(row: Row, names: Sequence[str]) -> tuple[str, ...]:
    """The texts of the first of these columns that holds something."""
    for name in names:
        if row.has(name):
            return tuple(text.strip() for text in _answer_texts(row, name, row.values[name]) if text.strip())
    return ()


def _all(row: Row, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text.strip() for name in names for text in row.texts(name) if text.strip()))


def _answer_texts(row: Row, column: str, value: Any) -> tuple[str, ...]:
    """Texts in the shapes of common data sets: a text, a list, SQuAD's ``{"text": [...]}``, TriviaQA's ``{"value": ...}``."""
    if isinstance(value, Mapping):
        inner = next((value[key] for key in ("text", "value") if value.get(key) is not None), None)
        if inner is None:
            raise row.error(column, f"expected text, or an object with 'text' or 'value', got keys {', '.join(map(repr, value)) or 'none'}")
        return _answer_texts(row, column, inner)
    if isinstance(value, list):
        return tuple(text for item in value if item is not None for text in _answer_texts(row, column, item))
    return Row({column: value}, row.source, row.number, row.line).texts(column)
