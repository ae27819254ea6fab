"""EasyEdit's and KnowEdit's files: a fact to edit, and what must not change with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from excise.data.benchmarks.fivew import same
from excise.data.benchmarks.jsonl import examples
from excise.data.example import Benchmark, Example
from excise.data.tables import Row, read_rows
from excise.errors import InputError

PROMPT = ("prompt", "src", "text")
TRUTH = ("ground_truth", "answers", "target_true")
NEW = ("target_new", "alt", "labels")
REPHRASED = ("rephrase_prompt", "rephrase", "rephrases")
LOCAL = (("loc", "loc_ans"), ("locality_prompt", "locality_ground_truth"))
"""Columns of a single question that must not change, with its answer."""


@dataclass(frozen=True)
class EasyEdit:
    """A file of edits as EasyEdit and KnowEdit write them, read for unlearning: what they edit is to be forgotten.

    ``forget`` holds each ``prompt`` (or ``src``) with its ``ground_truth`` (or ``answers``); ``target_new`` (``alt``) becomes the alternative, and a
    false answer; ``rephrase_prompt`` (``rephrase``) the paraphrase; ``subject`` the group. ``retain`` holds the questions of
    ``locality`` (or ``loc`` and ``loc_ans``, ``locality_prompt`` and ``locality_ground_truth``), each once and none that is to be forgotten, and
    the rows of the file ``retain``. Portability questions are left out.

    Paper: Wang et al. 2023, EasyEdit (arXiv 2308.07269); Zhang et al. 2024, KnowEdit (arXiv 2401.01286).
    Differs: there a fact is replaced; here it is to go.
    """

    path: str
    """The file (.json, .jsonl, ...)."""
    retain: str | None = None
    """A table of more questions to keep (``question``, ``answer``), for files without locality questions."""
    wanted: Literal["ground_truth", "target_new"] = "ground_truth"
    """Which answer is to be forgotten: the one before the edit, or the new one (of a model that was edited already)."""
    cloze: Literal["continue", "ask"] = "continue"
    """What becomes of prompts without a question mark (``The mother tongue of Anna Brandt is``): a text to be continued without template, or
    a question in the model's template."""
    limit: int | None = None
    """Take only the first so many rows."""

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise InputError(f"data.limit is {self.limit}; give at least 1, or leave it out")

    def __call__(self) -> Benchmark:
        rows = read_rows(self.path)[: self.limit]
        notes: list[str] = []
        forget: dict[str, Example] = {}
        for row in rows:
            example = self._forgotten(row)
            forget.setdefault(same(example.prompt), example)
        if left := len(rows) - len(forget):
            notes.append(f"{left} of {len(rows)} rows are left out because their question stood there before.")
        kept: dict[str, Example] = {}
        both = 0
        for row in rows:
            for number, (prompt, answer) in enumerate(_locality(row), start=1):
                if same(prompt) in forget:
                    both += 1
                    continue
                kept.setdefault(same(prompt), self._example(f"locality-{row.number}-{number}", prompt, answer))
        if both:
            notes.append(f"{both} locality questions are left out because the file edits them too.")
        more = examples(read_rows(self.retain), "retain", {}) if self.retain is not None else ()
        retain = (*kept.values(), *more)
        if not retain:
            raise InputError(f"{self.path} has no locality questions, so there is nothing to retain: give a table of questions with data.retain=FILE")
        return Benchmark("easyedit", {"forget": tuple(forget.values()), "retain": retain}, tuple(notes))

    def _forgotten(self, row: Row) -> Example:
        prompt, answer = _needed(row, PROMPT), _needed(row, TRUTH if self.wanted == "ground_truth" else NEW)
        other = _first(row, NEW if self.wanted == "ground_truth" else TRUTH)
        rephrased = tuple(text for column in REPHRASED for text in row.texts(column))
        subject = row.text("subject") if isinstance(row.values.get("subject"), str) else ""
        return self._example(f"edit-{row.number}", prompt, answer, rephrased, other, subject)

    def _example(self, id: str, prompt: str, answer: str, rephrased: tuple[str, ...] = (), other: str = "", subject: str = "") -> Example:
        return Example(
            id=id,
            prompt=prompt.strip(),
            answer=answer.strip(),
            span=answer.strip(),
            paraphrased_prompts=rephrased,
            false_answers=(other,) if other else (),
            alternative=other,
            group=subject,
            bare=self.cloze == "continue" and not prompt.rstrip().endswith(("?", "？")),
        )


def _needed(row: Row, columns: tuple[str, ...]) -> str:
    if text := _first(row, columns):
        return text
    raise InputError(f"{row.where}: no column {' or '.join(map(repr, columns))} with something in it; there are: {row.columns}")


def _first(row: Row, columns: tuple[str, ...]) -> str:
    """The first text in the first of these columns that has one."""
    return next((text for column in columns if row.has(column) for text in _texts(row, column, row.values[column])), "")


def _texts(row: Row, column: str, value: Any) -> Iterator[str]:
    """Every text of a value, however deep its lists are (KnowEdit writes ``[["one", "another wording"]]``)."""
    if isinstance(value, list):
        for inner in value:
            yield from _texts(row, column, inner)
    elif isinstance(value, dict) and "str" in value:  # CounterFact: {"str": "...", "id": "..."}
        yield from _texts(row, column, value["str"])
    elif isinstance(value, str):
        if value.strip():
            yield value
    elif value is not None:
        raise row.error(column, f"expected text, or a list of texts, got {type(value).__name__}")


def _locality(row: Row) -> Iterator[tuple[str, str]]:
    """Questions that must not change, with their answers."""
    for question, answer in LOCAL:
        if row.has(question) and row.has(answer):
            yield _needed(row, (question,)), _needed(row, (answer,))
    value = row.values.get("locality")
    if value is None:
        return
    if not isinstance(value, dict):
        raise row.error("locality", f"expected an object of kinds, got {type(value).__name__}")
    for kind, questions in value.items():
        for item in _items(row, f"locality.{kind}", questions):
            prompts, truths = (list(_texts(row, f"locality.{kind}", item.get(key))) for key in ("prompt", "ground_truth"))
            if prompts and truths:
                yield prompts[0], truths[0]


def _items(row: Row, column: str, value: Any) -> Iterator[dict[str, Any]]:
    """Single questions: a list of objects, or one object of lists of equal length."""
    if isinstance(value, dict) and isinstance(value.get("prompt"), list):
        truths = value.get("ground_truth")
        if not isinstance(truths, list) or len(truths) != len(value["prompt"]):
            raise row.error(column, "prompt and ground_truth must be lists of the same length")
        yield from ({"prompt": prompt, "ground_truth": truth} for prompt, truth in zip(value["prompt"], truths, strict=True))
        return
    for item in value if isinstance(value, list) else [value]:
        if not isinstance(item, dict):
            raise row.error(column, f"expected objects with prompt and ground_truth, got {type(item).__name__}")
        yield item
