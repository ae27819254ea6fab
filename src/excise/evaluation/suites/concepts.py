"""The suite of a concept to be erased."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from excise.evaluation.metrics.choice import ChoiceAccuracy, LetterAccuracy
from excise.evaluation.metrics.erasure import Coherence, Efficacy, KeepsToSubject, Kept, Overall, Related, Specificity
from excise.evaluation.metrics.fluency import Perplexity
from excise.evaluation.metrics.judged import ContainsTruth, Fluency
from excise.evaluation.plan import Plan
from excise.evaluation.score import ExampleMetric
from excise.evaluation.suites.choice import ANSWERS, LETTERS
from excise.evaluation.suites.suite import Judging, Measure, Suite, judge_of, measures

CHOICES = ("concept", "similar", "mmlu")
OPEN = ("concept_open", "similar_open")
TEXTS = ("others", "similar", "mmlu")


def concepts(
    judge: str | Mapping[str, Any] = "contains",
    related: str | Mapping[str, Any] | None = None,
    letters: bool = False,
    max_new_tokens: int = 64,
) -> Suite:
    """A concept to be erased: EMBER's efficacy, specificity, coherence and their harmonic mean, relative to the model before.

    ``efficacy``, ``specificity``, ``overall`` rest on choice questions by answer likelihood, their ``_open`` forms on open questions
    that ``judge`` decides, their ``_letters`` forms on letters where ``letters`` asks for them; ``..._unclipped`` shows what clipping
    hides. Accuracy, margin and probability of every set of questions stand beside them, with the perplexity of what should stay.
    ``related`` names a judge of relatedness; none takes the rule ``keeps_to_subject``. Without a baseline the relative scores are
    unavailable. On models under 1B parameters read the margin: accuracies move within their noise.

    Paper: EMBER (arXiv 2606.03695), evaluation.
    """
    decides = judge_of(judge)
    relates = None if related is None else judge_of(related, "suite.related")
    keeps: ExampleMetric = KeepsToSubject() if relates is None else Related(relates.name)
    wanted = [
        *_relative(ChoiceAccuracy(), keeps, "", "options", ("concept", ("mmlu", "similar"))),
        *_relative(ContainsTruth(decides.name), keeps, "_open", "none", ("concept_open", ("mmlu", "similar_open"))),
        *(_relative(LetterAccuracy(), keeps, "_letters", "options", ("concept", ("mmlu", "similar"))) if letters else []),
        *measures(CHOICES, *ANSWERS, *(LETTERS if letters else ())),
        Measure("contains_truth", ContainsTruth(decides.name), OPEN),
        Measure("related", keeps, ("coherence",)),
        *measures(("coherence", *OPEN), "fluency", "repetition_rate"),
        *measures(("forget",), "probability"),
        *(Measure(f"{split}.perplexity", Perplexity(split)) for split in (*TEXTS, "retain")),
    ]
    said = Plan(generation=True, max_new_tokens=max_new_tokens)
    asked = Plan(options=True, letters=letters)
    plans = {
        **dict.fromkeys(CHOICES, asked),
        **dict.fromkeys(OPEN, said),
        "coherence": dataclasses.replace(said, true=False),
        **dict.fromkeys(("others", "forget", "retain"), Plan()),
    }
    judging = [Judging(decides, dict.fromkeys(OPEN, ("truth",)))]
    if relates is not None:
        judging.append(Judging(relates, {"coherence": ("related",)}))
    return Suite(
        "concepts",
        MappingProxyType(plans),
        tuple(wanted),
        optional=tuple(split for split in plans if split != "concept"),
        forgotten=("concept", "concept_open", "forget"),
        controls=(),
        instead={"concept": "forget", "similar": "neighbours", "concept_open": "forget", "similar_open": "neighbours", "mmlu": "real_world"},
        judging=tuple(judging),
    )


def _relative(metric: ExampleMetric, keeps: ExampleMetric, form: str, chance: Any, splits: tuple[str, tuple[str, str]]) -> list[Measure]:
    """The four scores in one form, clipped and not."""
    concept, (general, similar) = splits
    erased = Kept(concept, metric, chance)
    specific = (Kept(general, LetterAccuracy() if form == "_letters" else ChoiceAccuracy()), Kept(similar, metric, chance))
    coherent = (Kept("coherence", keeps, "none"), Kept("coherence", Fluency(), "none"))
    found: list[Measure] = []
    for clip, suffix in ((True, ""), (False, "_unclipped")):
        found += [
            Measure(f"efficacy{form}{suffix}", Efficacy(erased, clip)),
            Measure(f"specificity{form}{suffix}", Specificity(specific, clip)),
            *([] if form else [Measure(f"coherence{suffix}", Coherence(coherent, clip))]),
            Measure(f"overall{form}{suffix}", Overall(erased, specific, coherent, clip)),
        ]
    return found
