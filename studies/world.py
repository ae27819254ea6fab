"""The taught worlds that the studies share: a model that learned everything, its twin, and what both are asked."""

from __future__ import annotations

import argparse
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from excise.data.benchmarks.strangers import Strangers
from excise.data.example import Benchmark, Example, spread
from excise.demo import FULL, MODEL, SYSTEM, TRAINING, taught, taught_once
from excise.evaluation.suites import Suite, strangers, tofu
from excise.lesson import Lesson
from excise.stages.state import Silent

ASKED = 40
"""Questions of each of TOFU's evaluation splits that are asked, spread evenly."""


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


def tofu_world(given: Path | None, data: Path) -> World:
    """forget01's two authors and eight to keep, taught; answers of about 35 tokens."""
    source = {"path": str(data), "forget": "forget01", "retain_authors": 8}
    lesson = Lesson.parse({"model": {"path": f"embedded:{MODEL}", "system": SYSTEM}, "data": {"name": "tofu", **source}, "training": TRAINING})
    whole = lesson.loader()()
    splits = {name: rows if name in ("forget", "retain") else tuple(spread(rows, ASKED)) for name, rows in whole.splits.items()}
    keep = ("retain.fact_recall", "retain.rouge_l_recall")
    return World("tofu", given or taught_once(lesson, Silent()), Benchmark(whole.name, splits), tofu(max_new_tokens=64), keep, {"epochs": 5})


def add_world(parser: argparse.ArgumentParser) -> None:
    """Adds ``--taught`` and ``--tofu`` to the arguments of a study that runs in either world."""
    add_taught(parser)
    parser.add_argument("--tofu", type=Path, help="a folder with TOFU's files: the study on forget01 and eight authors to keep")


def world_of(arguments: argparse.Namespace) -> World:
    """The world that was asked for."""
    return strangers_world(arguments.taught) if arguments.tofu is None else tofu_world(arguments.taught, arguments.tofu)


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
