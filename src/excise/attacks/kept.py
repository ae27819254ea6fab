"""Outcomes of attacks, kept between runs: a twin that was attacked for one run need not be attacked again for the next."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import excise
from excise.attacks.scene import Attack, Outcome, Scene
from excise.errors import InputError
from excise.evaluation.records import Record
from excise.evaluation.score import Score
from excise.files import read_json, write_json
from excise.settings import plain


def place(attack: Attack, scene: Scene, model: str) -> Path | None:
    """Where the outcome of this attack lies, named by all that decides it; None where nothing may be kept.

    All that decides it: the attack and its settings, the model's weights, tokenizer, template and precision, the data, the suite,
    the seed, and excise's own code.

    Args:
        model: :func:`excise.evaluation.store.answering` of the scene's model.
    """
    if scene.cache is None:
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
    """Keeps an outcome."""
    if path is not None:
        records = {split: [record.to_json() for record in rows] for split, rows in outcome.records.items()}
        scores = {name: score.to_json() for name, score in outcome.scores.items()}
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"seconds": seconds, "scores": scores, "curve": [dict(point) for point in outcome.curve], "records": records})


@cache
def code_fingerprint() -> str:
    """SHA-256 over excise's own source: what another version of the code found out is not read."""
    root = Path(excise.__file__).parent
    digest = hashlib.sha256()
    for source in sorted(root.rglob("*.py")):
        digest.update(f"{source.relative_to(root)}\0".encode() + source.read_bytes())
    return digest.hexdigest()
