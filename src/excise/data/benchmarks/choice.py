"""Choice questions: any file of them, WMDP, MMLU or ARC."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from pathlib import Path
from typing import Literal

from excise.data.benchmarks.jsonl import gold_index
from excise.data.example import Benchmark, Example, spread
from excise.data.letters import LETTERS, lead_of
from excise.data.tables import FORMATS, Row, read_hub, read_rows
from excise.errors import InputError, did_you_mean

COLUMNS: dict[str, tuple[str, ...]] = {
    "question": ("question", "prompt", "q"),
    "choices": ("choices", "options"),
    "answer": ("answer", "gold", "answer_index", "correct_answer", "answerKey"),
    "subject": ("subject", "label", "category"),
}
"""Our name of a column -> the column names it is looked for under, in this order."""

HUB: dict[str, tuple[str, str]] = {
    "wmdp-bio": ("cais/wmdp", "wmdp-bio"),
    "wmdp-chem": ("cais/wmdp", "wmdp-chem"),
    "wmdp-cyber": ("cais/wmdp", "wmdp-cyber"),
    "mmlu": ("cais/mmlu", "all"),
    "arc-easy": ("allenai/ai2_arc", "ARC-Easy"),
    "arc-challenge": ("allenai/ai2_arc", "ARC-Challenge"),
}
"""Short name -> dataset and configuration on the Hugging Face hub."""

Dataset = Literal["wmdp-bio", "wmdp-chem", "wmdp-cyber", "mmlu", "arc-easy", "arc-challenge"]


@dataclass(frozen=True)
class Choice:
    """Choice questions to measure with: a file or folder of your own, or WMDP, MMLU and ARC from the hub. One split, ``questions``.

    Labels are subjects. The questions of the subjects stand in turn, so that any first N of them are spread evenly. There is
    no forget or retain split, so nothing can be unlearned with this benchmark alone.

    Paper: Hendrycks et al. 2021, MMLU (arXiv 2009.03300); Li et al. 2024, WMDP (arXiv 2403.03218); Clark et al. 2018, ARC
    (arXiv 1803.05457).
    """

    path: str | None = None
    """A table (.jsonl, .json, .csv, .tsv, .parquet) with question, choices, answer and perhaps subject, or a folder of such tables."""
    dataset: Dataset | None = None
    """A dataset of the hub instead of ``path`` (needs ``excise[hub]``)."""
    subjects: tuple[str, ...] = ()
    """Only these subjects; none given takes all."""
    limit: int | None = None
    """Take so many questions of each subject, spread evenly over it."""
    shots: int = 0
    """So many solved examples stand before a question that is asked by letters."""
    examples: str | None = None
    """Where the solved examples come from: a table like ``path``, by subject; for MMLU from the hub its dev split."""
    heading: str = ""
    """What stands before everything where a question is asked by letters; {subject} is the question's subject."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Where your files use other names: our column (question, choices, answer, subject) -> your column."""

    def __post_init__(self) -> None:
        if self.path is not None and self.dataset is not None:
            raise InputError("data.path and data.dataset: give one of them")
        for name, value, least in (("limit", self.limit, 1), ("shots", self.shots, 0)):
            if value is not None and value < least:
                raise InputError(f"data.{name} is {value}; give at least {least}")
        if unknown := sorted(set(self.columns) - set(COLUMNS)):
            raise InputError(f"data.columns.{unknown[0]}: there is no such column: {did_you_mean(unknown[0], COLUMNS)}")

    def __call__(self) -> Benchmark:
        if self.path is None and self.dataset is None:
            raise InputError(f"the benchmark 'choice' needs data.path (--data FILE or FOLDER) or data.dataset ({', '.join(HUB)})")
        questions = self._chosen(self._questions())
        if self.shots or self.heading:
            solved = self._solved()
            questions = [self._led(question, solved) for question in questions]
        return Benchmark("choice", {"questions": tuple(questions)})

    def _questions(self) -> list[Example]:
        if self.dataset is not None:
            return self._from_hub("test")
        return choice_examples(self._tables(Path(str(self.path)).expanduser()), self.columns)

    def _tables(self, path: Path) -> dict[str, list[Row]]:
        """Table by name; a folder's files in the order of their names."""
        if not path.is_dir():
            return {path.stem: read_rows(path)}
        files = sorted(file for file in path.iterdir() if file.suffix.lower() in FORMATS)
        if not files:
            raise InputError(f"the folder {path} has no table ({', '.join(FORMATS)})")
        return {file.stem: read_rows(file) for file in files}

    def _from_hub(self, split: str) -> list[Example]:
        dataset, config = HUB[str(self.dataset)]
        configs = self.subjects if self.dataset == "mmlu" and self.subjects else (config,)
        instead = "pass a table with question, choices and answer: data.path=FILE"
        tables = {name: list(read_hub(dataset, name, split, instead=instead)) for name in configs}
        return choice_examples(
            {f"{self.dataset}-{name}" if len(tables) > 1 else str(self.dataset): rows for name, rows in tables.items()}, self.columns
        )

    def _chosen(self, questions: list[Example]) -> list[Example]:
        """The wanted subjects, each thinned out to the limit, one question of each subject in turn."""
        by_subject: dict[str, list[Example]] = {}
        for question in questions:
            by_subject.setdefault(question.label, []).append(question)
        if unknown := [subject for subject in self.subjects if subject not in by_subject]:
            raise InputError(f"data.subjects: no question has the subject {unknown[0]!r}: {did_you_mean(unknown[0], by_subject)}")
        groups = [spread(by_subject[subject], self.limit) for subject in self.subjects or by_subject]
        return [question for turn in zip_longest(*groups) for question in turn if question is not None]

    def _solved(self) -> dict[str, list[Example]]:
        if not self.shots:
            return {}
        if self.examples is not None:
            found = choice_examples(self._tables(Path(self.examples).expanduser()), self.columns)
        elif self.dataset == "mmlu":
            found = self._from_hub("dev")
        else:
            raise InputError(f"data.shots is {self.shots}, but nothing says where solved examples come from: give data.examples=FILE")
        by_subject: dict[str, list[Example]] = {}
        for example in found:
            by_subject.setdefault(example.label, []).append(example)
        return by_subject

    def _led(self, question: Example, solved: Mapping[str, list[Example]]) -> Example:
        subject = question.label.replace("_", " ")
        shots = solved.get(question.label, solved.get("", []))[: self.shots]
        if len(shots) < self.shots:
            raise InputError(
                f"data.shots is {self.shots}, but {self.examples or self.dataset} has {len(shots)} solved examples of the subject {question.label!r}"
            )
        return dataclasses.replace(question, lead=lead_of(self.heading.replace("{subject}", subject), shots))


def choice_examples(tables: Mapping[str, list[Row]], columns: Mapping[str, str] | None = None) -> list[Example]:
    """The questions of several tables as examples; ids are ``<table>-<row number from 1>``."""
    found = list(chain.from_iterable(_examples(name, rows, columns or {}) for name, rows in tables.items()))
    twice = [id for id, count in Counter(example.id for example in found).items() if count > 1]
    assert not twice, twice
    return found


def _examples(name: str, rows: Iterable[Row], columns: Mapping[str, str]) -> list[Example]:
    questions = [_Question(row, columns) for row in rows]
    words_first = all(question.says_words for question in questions)
    return [question.example(f"{name}-{question.row.number}", words_first) for question in questions]


@dataclass(frozen=True)
class _Question:
    """A row looked at as a choice question."""

    row: Row
    columns: Mapping[str, str]

    def column(self, name: str) -> str | None:
        candidates = (self.columns[name],) if name in self.columns else COLUMNS[name]
        return next((column for column in candidates if self.row.has(column)), None)

    def required(self, name: str) -> str:
        if column := self.column(name):
            return column
        candidates = (self.columns[name],) if name in self.columns else COLUMNS[name]
        if empty := next((column for column in candidates if column in self.row.values), None):
            raise self.row.error(empty, "is empty")
        wanted = " or ".join(map(repr, candidates))
        raise InputError(f"{self.row.where}: no column {wanted}; there are: {self.row.columns}; name yours with data.columns.{name}=...")

    @property
    def options(self) -> tuple[str, ...]:
        """The options; the hub's ARC has them as {"text": [...], "label": [...]}."""
        column = self.required("choices")
        value = self.row.values[column]
        row = dataclasses.replace(self.row, values={**self.row.values, column: value["text"]}) if _is_labelled(value) else self.row
        options = row.texts(column)
        if not 2 <= len(options) <= len(LETTERS):
            raise self.row.error(column, f"has {len(options)} options; a choice question has 2 to {len(LETTERS)}")
        return options

    @property
    def says_words(self) -> bool:
        """Whether the answer is one of the options, word for word."""
        column = self.column("answer")
        value = self.row.values[column] if column else None
        return isinstance(value, str) and value.strip() in self.options

    def example(self, id: str, words_first: bool) -> Example:
        question, column, options = self.row.text(self.required("question")).strip(), self.required("answer"), self.options
        gold = self._by_label(column)
        if gold is None:
            gold = gold_index(self.row, column, options, words_first=words_first)
        subject = self.column("subject")
        label = self.row.text(subject) if subject else ""
        try:
            return Example(id=id, prompt=question, answer=options[gold], options=options, gold=gold, label=label)
        except InputError as error:
            raise InputError(f"{self.row.where}: {error}") from None

    def _by_label(self, column: str) -> int | None:
        """Where the options bring labels of their own (1 to 4, A to D), the place of the one that the answer names."""
        labelled = self.row.values[self.required("choices")]
        if not _is_labelled(labelled):
            return None
        labels, key = [str(label) for label in labelled["label"]], self.row.text(column)
        if key not in labels:
            raise self.row.error(column, f"{key!r} is none of the labels {', '.join(labels)}")
        return labels.index(key)


def _is_labelled(value: object) -> bool:
    return isinstance(value, Mapping) and {"text", "label"} <= set(value)
