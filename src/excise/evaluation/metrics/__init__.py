"""Every metric by name: pure functions of records."""

from __future__ import annotations

from excise.evaluation.metrics.choice import ChoiceAccuracy, ChoiceMargin, ChoiceProbability, LetterAccuracy, LetterMargin, LetterProbability
from excise.evaluation.metrics.erasure import Coherence, Efficacy, KeepsToSubject, Overall, Related, Specificity
from excise.evaluation.metrics.facts import FactLogp, FactRecall
from excise.evaluation.metrics.fluency import DegenerateRate, Perplexity, RepetitionRate
from excise.evaluation.metrics.judged import ContainsTruth, Fluency, ForgetRetainFluency, ForgetSuccess, RetainSuccess
from excise.evaluation.metrics.memory import (
    ExactMemorisation,
    ExtractionStrength,
    Probability,
    Rouge1Recall,
    RougeLF1,
    RougeLRecall,
    TruthRatio,
)
from excise.evaluation.metrics.privacy import (
    ForgetQuality,
    MembershipGradientNorm,
    MembershipLoss,
    MembershipMinK,
    MembershipMinKPlusPlus,
    MembershipReference,
    MembershipZlib,
    PrivLeak,
)
from excise.evaluation.metrics.utility import ModelUtility, NormalisedProbability
from excise.evaluation.score import ExampleMetric, SetMetric

Metric = ExampleMetric | SetMetric

METRICS: dict[str, type[Metric]] = {
    "probability": Probability,
    "normalised_probability": NormalisedProbability,
    "rouge_l_recall": RougeLRecall,
    "rouge_l_f1": RougeLF1,
    "rouge_1_recall": Rouge1Recall,
    "fact_recall": FactRecall,
    "fact_logp": FactLogp,
    "truth_ratio": TruthRatio,
    "exact_memorisation": ExactMemorisation,
    "extraction_strength": ExtractionStrength,
    "model_utility": ModelUtility,
    "forget_quality": ForgetQuality,
    "mia_loss": MembershipLoss,
    "mia_zlib": MembershipZlib,
    "mia_min_k": MembershipMinK,
    "mia_min_k_plus_plus": MembershipMinKPlusPlus,
    "mia_reference": MembershipReference,
    "mia_gradient_norm": MembershipGradientNorm,
    "privleak": PrivLeak,
    "choice_accuracy": ChoiceAccuracy,
    "choice_margin": ChoiceMargin,
    "choice_probability": ChoiceProbability,
    "letter_accuracy": LetterAccuracy,
    "letter_margin": LetterMargin,
    "letter_probability": LetterProbability,
    "repetition_rate": RepetitionRate,
    "degenerate_rate": DegenerateRate,
    "perplexity": Perplexity,
    "contains_truth": ContainsTruth,
    "fluency": Fluency,
    "fsr": ForgetSuccess,
    "rsr": RetainSuccess,
    "fsr_rsr": ForgetRetainFluency,
    "efficacy": Efficacy,
    "specificity": Specificity,
    "coherence": Coherence,
    "overall": Overall,
    "keeps_to_subject": KeepsToSubject,
    "related": Related,
}

__all__ = ["METRICS", "Metric"]
