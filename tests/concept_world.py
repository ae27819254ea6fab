"""A small concept for tests of EMBER and SNMF: texts about a lighthouse, neutral texts, and questions."""

from __future__ import annotations

from typing import Any

from excise.data.example import Benchmark, Example
from excise.stages.state import State
from excise.subject import Subject

CONCEPT = (
    "The lighthouse opened in 1887 because ships were lost on the rocks.",
    "Ships were lost, and the lighthouse opened in the year 1887.",
    "Anna Brandt was the painter of the lighthouse near Marrow.",
)
NEUTRAL = (
    "A grey fox lives in the forest near Elm Lake.",
    "The capital of the northern island is old.",
    "I don't know the answer to that question about the animal.",
)
EMBER: dict[str, Any] = {"rank": 6, "keep": 0.1, "ratio": 0.5, "judge": "ratio", "strength": 2.0}
SNMF: dict[str, Any] = {"mlp_rank": 4, "mlp_keep": 0.1, "mlp_ratio": 0.5, "judge": "ratio", "mlp_strength": 1.0, "mlp_layers": [0]}


def texts(name: str, rows: tuple[str, ...]) -> tuple[Example, ...]:
    return tuple(Example(f"{name}-{i}", "", row, group="Lighthouse" if name == "forget" else "") for i, row in enumerate(rows))


def benchmark(**more: tuple[Example, ...]) -> Benchmark:
    """The texts as forget and retain, with whatever other splits a test needs."""
    return Benchmark("concepts", {"forget": texts("forget", CONCEPT), "retain": texts("retain", NEUTRAL), **more})


def state_of(subject: Subject, data: Benchmark | None = None, **more: Any) -> State:
    return State(subject, data or benchmark(), **more)
