"""Outcomes of attacks, kept between runs: a twin that was attacked for one run need not be attacked again for the next."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from excise.attacks.scene import Attack, Outcome, Scene
from excise.errors import InputError
from excise.evaluation.records import Record
from excise.evaluation.score import Score
from excise.files import read_json, write_json
from excise.fingerprint import code_fingerprint
from excise.settings import plain


def place(attack: Attack, scene: Scene, model: str) -> Path | None:
    """Where the outcome of this attack lies, named by all that decides it; None where nothing may be kept.

    All that decides it: the attack and its settings, the model's weights, tokenizer, template and precision, the data, the suite,
    the seed, and excise's own code. What lies in a file may change without a sign, so an attack that reads one is not kept.

    Args:
        model: :func:`excise.evaluation.store.answering` of the scene's model.
    """
    if scene.cache is None or any(_is_file(value) for value in _texts(plain(attack))):
        return None
    suite = repr((scene.suite, scene.leak))
    if " at 0x" in suite:  # something without a description of its own: two of them could not be told apart
        return None
    parts: list[Any] = [
        [type(attack).__qualname__, plain(attack)],
        [model, str(scene.subject.device)],
        [scene.benchmark.fingerprint, suite, scene.seed, scene.precision, scene.generate_batch],
        code_fingerprint(),
    ]
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()
    return scene.cache.parent / "attacks" / f"{digest}.json"


def read(path: Path | None) -> tuple[Outcome, float] | None:
    """A kept outcome, and the seconds that it took; None where there is none, or none that can be read."""
    if path is None or not path.exists():
        return None
    try:
        row = read_json(path)
        scores = {name: Score.from_json(value) for name, value in row["scores"].items()}
        records = {split: [Record.from_json(record) for record in rows] for split, rows in row["records"].items()}
        return Outcome(scores, records, tuple(row["curve"])), float(row["seconds"])
    except (InputError, KeyError, TypeError, ValueError, AttributeError):
        return None


def write(path: Path | None, outcome: Outcome, seconds: float) -> None:
    """Keeps an outcome, unless a judge left something undecided: next time it may decide."""
    if path is None or any(verdict.score is None for rows in outcome.records.values() for record in rows for verdict in record.verdicts):
        return
    records = {split: [record.to_json() for record in rows] for split, rows in outcome.records.items()}
    scores = {name: score.to_json() for name, score in outcome.scores.items()}
    write_json(path, {"seconds": seconds, "scores": scores, "curve": [dict(point) for point in outcome.curve], "records": records})


def _texts(value: Any) -> Iterator[str]:
    """Every text in a setting."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | Sequence):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(part)


def _is_file(text: str) -> bool:
    try:
        return Path(text).expanduser().exists()
    except (OSError, RuntimeError, ValueError):
        return False
