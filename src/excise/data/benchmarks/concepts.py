"""One concept to erase: questions about it and about its neighbours, texts about it, and texts about other things."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from excise.data.benchmarks.choice import Choice
from excise.data.concept_sets import SHIPPED, key_in
from excise.data.example import Benchmark, Example, spread
from excise.errors import InputError
from excise.files import read_json

QUESTIONS = {"concept": "QA", "similar": "SimdomQA"}
"""Split -> the beginning of its key in the question files."""


@dataclass(frozen=True)
class Concepts:
    """A concept in the layout of EMBER's data: a folder with the files below, each about several concepts.

    ============================  ===================================================================
    concept_sentences.json        list of {concept, sentences}          split ``forget`` (plain text)
    neutral_sentences.json        list of {sentence}                    split ``retain`` (plain text)
    mc_questions.json             concept -> QA_<part>, SimdomQA_<part>: {q, correct_answer, options}
    open_questions.json           the same keys: {q, a}
    coherency_prompts.json        concept -> texts to be continued      split ``coherence``
    relearn_paragraphs.json       concept -> RelearnParagraphs          split ``relearn`` (plain text)
    ============================  ===================================================================

    Choice questions become ``concept`` and ``similar``, open ones ``concept_open`` and ``similar_open``, the sentences of the other
    concepts ``others``, and MMLU questions ``mmlu``; the train choice questions are ``tuning_concept`` and ``tuning_similar`` too, which
    no suite reports. Only the two sentence files are needed; what is not there has no split. The right option stands first in most of
    EMBER's rows, so the options are put into an order that a hash of their words decides.

    Paper: EMBER (arXiv 2606.03695).
    """

    path: str | None = None
    """The folder; null takes the concepts that come with excise."""
    concept: str = ""
    """Which concept is to be erased. May be left out where the folder has only one that there are questions about."""
    part: Literal["train", "test"] = "test"
    """Which questions are reported; a search for settings always takes the train questions (``tuning_concept``, ``tuning_similar``)."""
    mmlu: str | None = None
    """A table or folder of MMLU questions, as the ``choice`` benchmark reads them."""
    mmlu_limit: int | None = None
    """Take so many MMLU questions of each subject."""
    others_limit: int | None = 20
    """Take so many sentences of each other concept, spread evenly; null takes all."""

    def __post_init__(self) -> None:
        for name, value in (("mmlu_limit", self.mmlu_limit), ("others_limit", self.others_limit)):
            if value is not None and value < 1:
                raise InputError(f"data.{name} is {value}; give at least 1")

    def __call__(self) -> Benchmark:
        self._check_folder()
        found = key_in(self._folder, self.concept)
        return self._read_splits() if found == self.concept else replace(self, concept=found)()

    def _read_splits(self) -> Benchmark:
        splits: dict[str, Sequence[Example]] = {
            "forget": _texts("concept", self._sentences[self.concept], self.concept),
            "retain": _texts("neutral", self._neutral()),
        }
        for split in QUESTIONS:
            splits[split] = self._choice(split, self.part)
            splits[f"tuning_{split}"] = self._choice(split, "train", "tuning_")
            splits[f"{split}_open"] = self._open(split)
        splits["coherence"] = self._prompts()
        splits["relearn"] = _texts("relearn", self._of_concept("relearn_paragraphs.json", "RelearnParagraphs"), self.concept)
        splits["others"] = self._others()
        if self.mmlu is not None:
            splits["mmlu"] = Choice(path=self.mmlu, limit=self.mmlu_limit)().split("questions")
        return Benchmark("concepts", {name: tuple(examples) for name, examples in splits.items() if examples})

    # --- the files ----------------------------------------------------------------------------------------------------

    @cached_property
    def _sentences(self) -> dict[str, list[str]]:
        rows = _list(self._read("concept_sentences.json", needed=True), self._place("concept_sentences.json"))
        found: dict[str, list[str]] = {}
        for number, row in enumerate(rows, start=1):
            where = f"{self._place('concept_sentences.json')}, row {number}"
            found[_text(row, "concept", where)] = _strings(_value(row, "sentences", where), f"{where}, sentences")
        return found

    def _neutral(self) -> list[str]:
        place = self._place("neutral_sentences.json")
        rows = _list(self._read("neutral_sentences.json", needed=True), place)
        return [row if isinstance(row, str) else _text(row, "sentence", f"{place}, row {number}") for number, row in enumerate(rows, start=1)]

    def _others(self) -> list[Example]:
        limit = self.others_limit
        texts = {name: _texts(f"others-{name}", sentences, name) for name, sentences in self._sentences.items() if name != self.concept}
        return [example for examples in texts.values() for example in spread(examples, limit)]

    def _choice(self, split: str, part: str, prefix: str = "") -> list[Example]:
        rows, where = self._questions("mc_questions.json", split, part)
        return [_choice(row, f"{prefix}{split}-{number}", f"{where}, question {number}", self.concept) for number, row in enumerate(rows, start=1)]

    def _open(self, split: str) -> list[Example]:
        rows, where = self._questions("open_questions.json", split, self.part)
        found: list[Example] = []
        for number, row in enumerate(rows, start=1):
            place = f"{where}, question {number}"
            id = f"{split}_open-{number}"
            found.append(Example(id, _text(row, "q", place), _text(row, "a", place), group=self.concept))
        return found

    def _prompts(self) -> list[Example]:
        """Texts to be continued; no answer is the right one, so the concept stands in its place."""
        texts = self._of_concept("coherency_prompts.json", None)
        return [Example(f"coherence-{n}", text, self.concept, bare=True, group=self.concept) for n, text in enumerate(texts, start=1)]

    def _questions(self, file: str, split: str, part: str) -> tuple[list[Any], str]:
        key = f"{QUESTIONS[split]}_{part}"
        where = f"{self._place(file)}, {self.concept}, {key}"
        about = _mapping(self._read(file), self._place(file)).get(self.concept, {})
        return _list(_mapping(about, f"{self._place(file)}, {self.concept}").get(key, []), where), where

    def _of_concept(self, file: str, key: str | None) -> list[str]:
        about = _mapping(self._read(file), self._place(file)).get(self.concept, [] if key is None else {})
        where = f"{self._place(file)}, {self.concept}"
        return _strings(about if key is None else _mapping(about, where).get(key, []), where if key is None else f"{where}, {key}")

    def _read(self, file: str, needed: bool = False) -> Any:
        place = self._place(file)
        return read_json(place) if needed or place.exists() else {}

    def _check_folder(self) -> None:
        if not self._folder.is_dir():
            raise InputError(f"data.path: there is no folder {self.path}; give one with concept_sentences.json, neutral_sentences.json, ...")

    @property
    def _folder(self) -> Path:
        return SHIPPED if self.path is None else Path(self.path).expanduser()

    def _place(self, file: str) -> Path:
        return self._folder / file


def concept_names(path: str) -> list[str]:
    """The concepts that a folder holds sentences of."""
    return list(Concepts(path, "")._sentences)


def shuffled(question: str, options: Sequence[str]) -> tuple[str, ...]:
    """The options in an order that depends on nothing but the words of the question and of the options."""
    return tuple(sorted(options, key=lambda option: hashlib.sha256(f"{question}\n{option}".encode()).digest()))


def _choice(row: Any, id: str, where: str, concept: str) -> Example:
    question, right = _text(row, "q", where), _text(row, "correct_answer", where)
    options = _strings(_value(row, "options", where), f"{where}, options")
    if options.count(right) != 1:
        raise InputError(f"{where}: the correct answer {right!r} must be exactly one of the options {options}")
    mixed = shuffled(question, options)
    return Example(id, question, right, options=mixed, gold=mixed.index(right), group=concept)


def _texts(name: str, texts: Sequence[str], concept: str = "") -> list[Example]:
    return [Example(f"{name}-{n}", "", text, label=concept, group=concept) for n, text in enumerate(texts, start=1)]


def _mapping(value: Any, where: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError(f"{where}: expected an object, got {type(value).__name__}")
    return value


def _list(value: Any, where: object) -> list[Any]:
    if not isinstance(value, list):
        raise InputError(f"{where}: expected a list, got {type(value).__name__}")
    return value


def _strings(value: Any, where: object) -> list[str]:
    for number, text in enumerate(_list(value, where), start=1):
        if not isinstance(text, str) or not text.strip():
            raise InputError(f"{where}: number {number} is {text!r}, and a text was expected")
    return value


def _value(row: Any, name: str, where: str) -> Any:
    found = _mapping(row, where)
    if name not in found:
        raise InputError(f"{where}: no {name!r}; there are: {', '.join(map(repr, found)) or 'none'}")
    return found[name]


def _text(row: Any, name: str, where: str) -> str:
    value = _value(row, name, where)
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{where}: {name!r} is {value!r}, and a text was expected")
    return value
