"""What the model can still do: the true answer among false ones, and TOFU's model utility."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from excise.evaluation.metrics.memory import Interval, Probability, RougeLRecall, TruthRatio
from excise.evaluation.records import Record, Records
from excise.evaluation.score import ALONE, Direction, ExampleMetric, Others, Score, harmonic_mean_score, required


@dataclass(frozen=True)
class NormalisedProbability:
    """p_true / (p_true + sum p_false), with length-normalised probabilities p = exp(mean_i log p_i).

    Lower is better on what is to be forgotten, higher elsewhere; 1/(1 + number of false answers) is chance.

    Paper: Maini et al. 2024, TOFU (arXiv 2401.06121), section 2.2 (real authors, world facts).
    """

    better: ClassVar[Direction] = "knowledge"
    interval: ClassVar[Interval] = "bootstrap"
    needs: ClassVar[str] = "a scored true answer and scored false ones"

    def per_example(self, record: Record) -> float | None:
        if record.true is None or not record.false:
            return None
        false = [score.mean_logp for score in record.false]
        top = max(record.true.mean_logp, *false)
        true = math.exp(record.true.mean_logp - top)
        return true / (true + sum(math.exp(x - top) for x in false))


@dataclass(frozen=True)
class Part:
    """One mean that enters the model utility."""

    split: str
    metric: ExampleMetric


def _tofu_parts() -> tuple[Part, ...]:
    overlap = RougeLRecall()
    parts = [Part("retain", Probability()), Part("retain", overlap), Part("retain", TruthRatio(form="utility"))]
    for split in ("real_authors", "world_facts"):
        truth = TruthRatio(form="utility", correct="answer")
        parts += [Part(split, NormalisedProbability()), Part(split, overlap), Part(split, truth)]
    return tuple(parts)


@dataclass(frozen=True)
class ModelUtility:
    """Harmonic mean of the means of its parts; 0 as soon as one part is 0. Higher is better.

    By default TOFU's nine: probability, ROUGE-L recall and truth ratio on retain, real authors and world facts, where
    the probability is normalised over the false answers on the last two.

    Paper: Maini et al. 2024, TOFU (arXiv 2401.06121), section 2.2.2.
    """

    parts: tuple[Part, ...] = _tofu_parts()

    better: ClassVar[Direction] = "higher"

    def __call__(self, records: Records, others: Others = ALONE) -> Score:
        columns = [(part.split, [part.metric.per_example(record) for record in required(records, part.split)]) for part in self.parts]
        return harmonic_mean_score(columns, "higher")
