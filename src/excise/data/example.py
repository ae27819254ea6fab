"""What every benchmark is made of: examples, in named splits."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from excise.errors import InputError, did_you_mean

T = TypeVar("T")


def spread(items: Sequence[T], limit: int | None) -> list[T]:
    """``limit`` of the items at even distances, so that every part stays represented; None, or more than there are: all."""
    if limit is None or limit >= len(items):
        return list(items)
    return [items[i * len(items) // limit] for i in range(limit)]


@dataclass(frozen=True)
class Example:
    """One question with its answer, or one piece of plain text (then ``prompt`` is empty).

    Everything beyond ``id``, ``prompt`` and ``answer`` is optional: a metric that needs a part which an example
    lacks leaves the example out and counts it.
    """

    id: str
    prompt: str
    """The question as a person would type it, without template. Empty for plain text."""
    answer: str
    """The answer that the model was taught, or the plain text itself."""
    span: str = ""
    """The words of ``answer`` that carry the fact; ``answer`` contains them literally. Empty: not known."""
    paraphrased_prompts: tuple[str, ...] = ()
    """The same question in other words."""
    paraphrased_answer: str = ""
    """The same answer in other words (the truth ratio compares it with the false answers)."""
    false_answers: tuple[str, ...] = ()
    """Wrong answers of the same form as ``paraphrased_answer``."""
    alternative: str = ""
    """What the model should say instead (a refusal or a false answer), for DPO."""
    options: tuple[str, ...] = ()
    """Choices of a multiple-choice question."""
    gold: int | None = None
    """Index of the right option."""
    opening: str = ""
    """The start of the answer, put into the model's mouth when it is asked (attacks do that)."""
    label: str = ""
    """who, what, when, where, why; or the subject of a choice question."""
    group: str = ""
    """What the fact is about: examples of one group stand or fall together (a person, an author, a document)."""
    lead: str = ""
    """What stands before a choice question where it is asked by letters: a heading, solved examples."""
    bare: bool = False
    """Whether ``prompt`` is the very text that is to be continued: no template, and no end of turn after the answer."""
    history: tuple[tuple[str, str], ...] = ()
    """The turns of a conversation before ``prompt``, each with its role (system, user, assistant); ``prompt`` is the last user turn."""

    def __post_init__(self) -> None:
        if not self.answer.strip():
            raise InputError(f"example {self.id!r} has an empty answer")
        if self.span and self.span not in self.answer:
            raise InputError(f"example {self.id!r}: the span {self.span!r} does not stand in the answer {self.answer!r}")
        if self.history and (self.bare or not self.prompt):
            raise InputError(f"example {self.id!r}: a conversation needs a last question and a template (prompt is empty, or bare is set)")
        if self.options and (self.gold is None or not 0 <= self.gold < len(self.options)):
            raise InputError(f"example {self.id!r}: gold is {self.gold}, but there are {len(self.options)} options (0-based)")


@dataclass(frozen=True)
class Benchmark:
    """Named splits of examples.

    ``forget`` and ``retain``, where they are there, are not empty and share no example. A benchmark without them can be
    measured but not unlearned; :meth:`require` says so.
    """

    name: str
    splits: Mapping[str, tuple[Example, ...]]
    notes: tuple[str, ...] = ()
    """What the loader left out and why, one sentence each; a run says them aloud."""

    def __post_init__(self) -> None:
        for needed in ("forget", "retain"):
            if needed in self.splits and not self.splits[needed]:
                raise InputError(f"benchmark {self.name!r}: the {needed} split is empty")
        for split, examples in self.splits.items():
            seen: set[str] = set()
            for example in examples:
                if example.id in seen:
                    raise InputError(f"benchmark {self.name!r}, split {split!r}: the id {example.id!r} occurs twice")
                seen.add(example.id)
        retain = {(e.history, e.prompt, e.answer): e.id for e in self.splits.get("retain", ())}
        for e in self.splits.get("forget", ()):
            if (e.history, e.prompt, e.answer) in retain:
                other = retain[e.history, e.prompt, e.answer]
                raise InputError(
                    f"benchmark {self.name!r}: forget example {e.id!r} also stands in retain (as {other!r}); "
                    "what is to be forgotten must not be retained, remove it from one of them"
                )

    @property
    def forget(self) -> tuple[Example, ...]:
        """What is to be forgotten; an error where the benchmark is only there to measure."""
        self.require("forget")
        return self.splits["forget"]

    @property
    def retain(self) -> tuple[Example, ...]:
        """What must be kept; an error where the benchmark is only there to measure."""
        self.require("retain")
        return self.splits["retain"]

    def first(self, limit: int | None) -> Benchmark:
        """The same with the first so many examples of each split; None: all."""
        return dataclasses.replace(self, splits={name: examples[:limit] for name, examples in self.splits.items()})

    def require(self, *splits: str) -> None:
        """An error for the first of these splits that training needs and the benchmark lacks."""
        for split in splits:
            if split not in self.splits:
                there = ", ".join(sorted(self.splits)) or "nothing"
                raise InputError(
                    f"benchmark {self.name!r} has no {split} split, so it can be measured but nothing can be unlearned or taught with it "
                    f"(it has: {there}); give examples of your own with data.name=jsonl or data.name=text"
                )

    def split(self, name: str) -> tuple[Example, ...]:
        """The examples of a split; an unknown or empty one is an error that names what there is."""
        if name not in self.splits:
            raise InputError(f"benchmark {self.name!r} has no split {name!r}: {did_you_mean(name, self.splits)}")
        if not self.splits[name]:
            raise InputError(f"the split {name!r} of benchmark {self.name!r} is empty: no row of the data belongs to it")
        return self.splits[name]

    @property
    def fingerprint(self) -> str:
        """SHA-256 over every field of every example, in order; of ``history`` only where there is one."""
        digest = hashlib.sha256()
        for split in sorted(self.splits):
            for example in self.splits[split]:
                fields = dataclasses.asdict(example)
                if not example.history:
                    del fields["history"]
                digest.update(json.dumps([split, fields], sort_keys=True).encode())
        return digest.hexdigest()
