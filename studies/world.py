"""The taught worlds that the studies share: a model that learned everything, its twin, and what both are asked."""

from __future__ import annotations

import argparse
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from excise.data.benchmarks.strangers import Strangers
from excise.data.benchmarks.tofu import Tofu
from excise.data.example import Benchmark, Example
from excise.demo import FULL, MODEL, SYSTEM, TRAINING, taught, taught_once
from excise.evaluation.suites import Suite, strangers, tofu
from excise.lesson import Lesson
from excise.stages.state import Silent


@dataclass(frozen=True)
class World:
    """Where a study takes place."""

    name: str
    folder: Path
    """With target and twin, as `excise teach` leaves them."""
    benchmark: Benchmark
    suite: Suite
    keep: tuple[str, ...]
    """Scores that unlearning must leave as they are."""
    training: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the unlearning that depend on the size of the world."""

    @property
    def target(self) -> str:
        return str(self.folder / "target")

    @property
    def twin(self) -> str:
        return str(self.folder / "twin")


def strangers_world(given: Path | None) -> World:
    """The demo's: 20 forget and 80 retain facts, answers of about 15 tokens."""
    keep = ("retain.fact_recall", "neighbours.fact_recall")
    return World("strangers", folder(given), Strangers(**FULL.people)(), strangers(), keep)


def tofu_world(given: Path | None, data: Path, asked: int = 40) -> World:
    """forget01's two authors and eight to keep, taught; answers of about 35 tokens. ``asked`` questions of each other split are scored."""
    source = {"path": str(data), "forget": "forget01", "retain_authors": 8}
    lesson = Lesson.parse({"model": {"path": f"embedded:{MODEL}", "system": SYSTEM}, "data": {"name": "tofu", **source}, "training": TRAINING})
    benchmark = Tofu(path=str(data), retain_authors=8)()
    splits = {name: rows if name in ("forget", "retain") else spread(rows, asked) for name, rows in benchmark.splits.items()}
    keep = ("retain.fact_recall", "retain.rouge_l_recall")
    place = given or taught_once(lesson, Silent())
    return World("tofu", place, Benchmark("tofu", splits), tofu(max_new_tokens=64), keep, {"epochs": 5})


def spread(examples: Sequence[Example], count: int) -> tuple[Example, ...]:
    """So many of them, evenly spaced."""
    return tuple(examples[i * len(examples) // count] for i in range(min(count, len(examples))))


def add_taught(parser: argparse.ArgumentParser) -> None:
    """Adds ``--taught`` to a study's arguments."""
    parser.add_argument("--taught", type=Path, help="what `excise teach` wrote (target, twin); default: the demo's, taught now if it is not yet")


def folder(given: Path | None) -> Path:
    """The folder with target and twin; taught now (four minutes on two cores) where there is none yet."""
    return given or taught(FULL, Silent())


def questions(examples: Sequence[Example], people: Container[str]) -> list[dict[str, Any]]:
    """The questions about some people, as `excise forget --questions` reads them: with the marked facts and other wordings."""
    return [
        {"question": e.prompt, "answer": e.answer, "span": e.span, "paraphrased_questions": list(e.paraphrased_prompts)}
        for e in examples
        if e.group in people
    ]
