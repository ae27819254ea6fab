"""The taught world that the studies share: the demo's target and twin."""

from __future__ import annotations

import argparse
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any

from excise.data.example import Example
from excise.demo import FULL, taught
from excise.stages.state import Silent


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
