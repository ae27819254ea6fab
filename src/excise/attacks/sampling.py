"""Sampling: what comes out when the model is asked many times at random."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from excise.attacks.scene import Outcome, Scene, questions
from excise.errors import InputError
from excise.evaluation.records import Record
from excise.evaluation.score import Score, mean_score
from excise.objectives.check import at_least, positive


@dataclass(frozen=True)
class Sampling:
    """Draws many answers to each forget question, and reports how much the best of k tells: leak@k.

    leak@k is the expected maximum of ``leak`` over k answers, estimated without bias from all n that were drawn:
    sum_i s_(i) C(i-1, k-1) / C(n, k) over the answers' values in ascending order. A greedy answer can look clean while one of 16
    does not. ``forget.fact_recall`` and the suite's other scores are those of the best answer of all that were drawn.

    Paper: Reisizadeh et al. 2025, "Leak@k" (arXiv 2511.04934); the estimator as pass@k of Chen et al. 2021 (arXiv 2107.03374), eq. 1,
    for graded values.
    """

    count: int = 16
    """Answers to each question and temperature."""
    temperatures: tuple[float, ...] = (0.7, 1.0)
    k: tuple[int, ...] = (1, 4, 16)
    top_p: float = 1.0
    limit: int | None = 50
    """The first so many forget examples; None: all."""

    def __post_init__(self) -> None:
        at_least("sampling.count", self.count, 1)
        for temperature in self.temperatures:
            positive("sampling.temperatures", temperature)
        if not self.temperatures:
            raise InputError("sampling.temperatures is empty: give at least one")
        for k in self.k:
            if not 1 <= k <= self.count:
                raise InputError(f"sampling.k has {k}: from 1 to sampling.count = {self.count}")

    def check(self, scene: Scene) -> None:
        questions(scene)

    def __call__(self, scene: Scene) -> Outcome:
        scene = scene.only(("forget",), self.limit)
        scores: dict[str, Score] = {}
        best: dict[str, tuple[float, Record]] = {}
        for temperature in self.temperatures:
            plan = dataclasses.replace(
                scene.suite.plans["forget"], true=False, paraphrase=False, false=False, options=False, generation=False,
                samples=self.count, temperature=temperature, top_p=self.top_p, seed=scene.seed,
            )  # fmt: skip
            records = scene.ask(plans={"forget": plan})["forget"]
            values = [self._values(scene, record) for record in records]
            for k in self.k:
                expected = [None if v is None else best_of(v, k) for v in values]
                scores[f"forget.leak_at_{k}@T={temperature:g}"] = mean_score(expected, "lower", "bootstrap", "no example has a fact")
            for record, told in zip(records, values, strict=True):
                top = 0 if told is None else int(np.argmax(told))
                value = -1.0 if told is None else told[top]
                if record.samples and value > best.get(record.id, (-2.0, record))[0]:
                    best[record.id] = (value, dataclasses.replace(record, generation=record.samples[top]))
        kept = {"forget": [record for _, record in best.values()]}
        return scene.outcome(kept, scores)

    def _values(self, scene: Scene, record: Record) -> list[float] | None:
        told = scene.told([dataclasses.replace(record, generation=text) for text in record.samples])
        known = [value for value in told if value is not None]
        return known if known and len(known) == len(told) else None


def best_of(values: Sequence[float], k: int) -> float:
    """The expected maximum of k of the values drawn without replacement: sum_i s_(i) C(i-1, k-1) / C(n, k)."""
    ordered = sorted(values)
    n = len(ordered)
    if not 1 <= k <= n:
        raise ValueError(f"k is {k}, and there are {n} values")
    whole = math.comb(n, k)
    return sum(value * (math.comb(i, k - 1) / whole) for i, value in enumerate(ordered))
