"""The data of a deletion request, as `excise forget` wrote it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from excise.data.example import Benchmark, Example
from excise.errors import InputError
from excise.files import read_lines, write_lines

NESTED = ("paraphrased_prompts", "false_answers", "options")


@dataclass(frozen=True)
class Request:
    """What `excise forget` built for a deletion request: a folder with a file of examples for each split.

    forget, retain, and to be measured: rephrased, controls, neighbours, neutral (`excise show request` for the suite says what they are).
    """

    path: str
    """The folder ``data`` of a run of `excise forget`."""

    def __call__(self) -> Benchmark:
        folder = Path(self.path).expanduser()
        if not folder.is_dir():
            raise InputError(f"there is no folder {folder} with the data of a request: it was not kept, or lies elsewhere (data.path)")
        files = sorted(folder.glob("*.jsonl"))
        if not files:
            raise InputError(f"{folder} holds no examples (*.jsonl)")
        return Benchmark("request", {file.stem: tuple(_example(row, file) for row in read_lines(file)) for file in files})


def write(benchmark: Benchmark, folder: Path) -> None:
    """Writes every split, to the last field."""
    for split, examples in benchmark.splits.items():
        write_lines(folder / f"{split}.jsonl", [dataclasses.asdict(example) for example in examples])


def _example(row: dict[str, Any], file: Path) -> Example:
    try:
        values: dict[str, Any] = {**row, **{name: tuple(row.get(name, ())) for name in NESTED}}
        return Example(**{**values, "history": tuple((role, text) for role, text in row.get("history", ()))})
    except (TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{file}: a line is no example ({' '.join(str(error).split())})") from None
