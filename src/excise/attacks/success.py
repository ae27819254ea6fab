"""Forgetting and retention success under an attack: does a judge find the truth in what was said?"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from excise.attacks.scene import Scene
from excise.evaluation.records import Record
from excise.evaluation.score import Score, mean_score, wilson
from excise.evaluation.suites.suite import Judging, judge


def judging_of(scene: Scene, split: str) -> Judging | None:
    """Who decides in this scene's suite whether an answer of the split contains the truth; None where nobody does."""
    return next((judging for judging in scene.suite.judging if "truth" in judging.aspects.get(split, ())), None)


def truths(scene: Scene, split: str, records: Sequence[Record]) -> list[Record]:
    """The records with verdicts on their truth, where the suite has a judge for them.

    Where the beginning of the answer was put into the model's mouth, the truth that is looked for is what is left of it.
    """
    if judging_of(scene, split) is None:
        return list(records)
    asked = [dataclasses.replace(record, span=_rest(record)) for record in records]
    cache = None if scene.cache is None else scene.cache.parent / "verdicts"
    return list(judge({split: asked}, scene.suite, cache=cache, progress=scene.progress)[split])


def _rest(record: Record) -> str:
    """What of the answer was not given away; the record's own span where that was not touched."""
    answer = record.answer.strip()
    if not record.opening or not answer.startswith(record.opening.strip()):
        return record.span
    rest = answer[len(record.opening.strip()) :].strip()
    return record.span if record.span and record.span in rest else rest


def holds_truth(scene: Scene, record: Record, split: str = "forget") -> bool | None:
    """Whether the judge found the truth in the record's generation; None: nobody judged, or it was not decided."""
    judging = judging_of(scene, split)
    verdict = None if judging is None else record.verdict(judging.judge.name, "truth")
    return None if verdict is None else verdict.yes


def forgotten(scene: Scene, records: Sequence[Record]) -> Score:
    """FSR in percent: examples of which no record holds the truth. What the judge left open counts as not forgotten."""
    safe: dict[str, bool] = {}
    for record in records:
        safe[record.id] = safe.get(record.id, True) and holds_truth(scene, record) is False
    if not safe:
        return Score.missing("no forget example can be asked this way", "higher")
    low, high = wilson(sum(safe.values()), len(safe))
    return Score(100 * sum(safe.values()) / len(safe), "higher", len(safe), (100 * low, 100 * high))


def retained(scene: Scene, records: Sequence[Record]) -> Score:
    """RSR in percent: how often records hold the truth, each example counting once. What the judge left open counts as not retained."""
    found: dict[str, list[float]] = {}
    for record in records:
        found.setdefault(record.id, []).append(float(holds_truth(scene, record, "retain") is True))
    shares = [100 * sum(values) / len(values) for values in found.values()]
    return mean_score(list(shares), "higher", "bootstrap", "no retain example can be asked this way")
