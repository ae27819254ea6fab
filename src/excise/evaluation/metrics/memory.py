"""How much of an answer the model still knows by heart: probability, overlap, truth ratio, memorisation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal

from excise.evaluation.records import Record, TextScore
from excise.evaluation.score import Direction

if TYPE_CHECKING:
    from rouge_score.rouge_scorer import RougeScorer

Interval = Literal["bootstrap", "wilson"]


def without_end(score: TextScore) -> tuple[tuple[float, ...], tuple[bool, ...]]:
    """Log-probabilities and hits of the answer's own tokens, the end of the turn left out."""
    n = len(score.logp) - 1 if score.ended and len(score.logp) > 1 else len(score.logp)
    return score.logp[:n], score.hits[:n]


@dataclass(frozen=True)
class Probability:
    """Length-normalised probability of the true answer: p = exp(mean_i log p_i), over its tokens and the end of the turn.

    Lower is better on what is to be forgotten, higher elsewhere.

    Paper: Maini et al. 2024, TOFU (arXiv 2401.06121), section 2.2.
    """

    better: ClassVar[Direction] = "knowledge"
    interval: ClassVar[Interval] = "bootstrap"
    needs: ClassVar[str] = "a scored true answer"

    def per_example(self, record: Record) -> float | None:
        return None if record.true is None else math.exp(record.true.mean_logp)


@dataclass(frozen=True)
class RougeLRecall:
    """ROUGE-L recall: longest common subsequence of words (Porter-stemmed), over the words of the gold answer.

    Lower is better on what is to be forgotten, higher elsewhere. It rewards the frame of a sentence too; read it
    beside ``fact_recall``.

    Paper: Lin 2004, ROUGE; used so by Maini et al. 2024, TOFU (arXiv 2401.06121), section 2.2.
    """

    better: ClassVar[Direction] = "knowledge"
    interval: ClassVar[Interval] = "bootstrap"
    needs: ClassVar[str] = "a generation"

    def per_example(self, record: Record) -> float | None:
        return None if record.generation is None else rouge("rougeL", record.answer, record.generation).recall


@dataclass(frozen=True)
class RougeLF1:
    """ROUGE-L F1: 2PR/(P+R), where P and R divide the longest common subsequence of stemmed words by each length.

    Lower is better on what is to be forgotten, higher elsewhere.

    Paper: Lin 2004, ROUGE; MUSE's VerbMem and KnowMem, Shi et al. 2024 (arXiv 2407.06460).
    """

    stem: bool = True
    """Whether words are compared by their Porter stems; MUSE does not."""
    until: tuple[str, ...] = ()
    """Only what stands before the first of these is scored: a model that goes on with another question is not punished for it."""

    better: ClassVar[Direction] = "knowledge"
    interval: ClassVar[Interval] = "bootstrap"
    needs: ClassVar[str] = "a generation"

    def per_example(self, record: Record) -> float | None:
        if record.generation is None:
            return None
        said = record.generation
        for mark in self.until:
            said = said.split(mark)[0]
        return rouge("rougeL", record.answer, said, self.stem).fmeasure


@dataclass(frozen=True)
class Rouge1Recall:
    """ROUGE-1 recall: share of the gold answer's stemmed words (with repetition) that the generation contains.

    Lower is better on what is to be forgotten, higher elsewhere.

    Paper: Lin 2004, ROUGE; reported by Maini et al. 2024, TOFU (arXiv 2401.06121).
    """

    better: ClassVar[Direction] = "knowledge"
    interval: ClassVar[Interval] = "bootstrap"
    needs: ClassVar[str] = "a generation"

    def per_example(self, record: Record) -> float | None:
        return None if record.generation is None else rouge("rouge1", record.answer, record.generation).recall


@dataclass(frozen=True)
class RougeScore:
    """Precision, recall and F1 of one ROUGE kind, each in [0, 1]."""

    precision: float
    recall: float
    fmeasure: float


def rouge(kind: Literal["rouge1", "rougeL"], gold: str, generated: str, stem: bool = True) -> RougeScore:
    """ROUGE, with Porter stemming unless told otherwise, as Google's rouge_score computes it."""
    found = _scorer(kind, stem).score(gold, generated)[kind]
    return RougeScore(float(found.precision), float(found.recall), float(found.fmeasure))


@cache
def _scorer(kind: str, stem: bool) -> RougeScorer:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer([kind], use_stemmer=stem)


@dataclass(frozen=True)
class TruthRatio:
    """How much likelier false answers are than the true one: R = p(false) / p(true), p = exp(mean_i log p_i).

    On the forget split the score is mean min(R, 1/R), on the others mean max(0, 1 - R); higher is better for both.
    R of a model that never learned the fact is about 1.

    Paper: Maini et al. 2024, TOFU (arXiv 2401.06121), equation 1; the geometric mean as in open-unlearning
    (Dorna et al. 2025, arXiv 2506.12618).
    Differs: the paper writes the arithmetic mean over the false answers (``mean: arithmetic``).
    """

    form: Literal["forget", "utility"] = "forget"
    mean: Literal["geometric", "arithmetic"] = "geometric"
    """geometric: exp(mean of log p_false). arithmetic: mean of p_false."""
    correct: Literal["paraphrase", "answer"] = "paraphrase"
    """What stands for the true answer; TOFU's real authors and world facts have no paraphrase and take the answer."""

    better: ClassVar[Direction] = "higher"
    interval: ClassVar[Interval] = "bootstrap"
    needs: ClassVar[str] = "scored false answers and the scored true one (its paraphrase, or correct=answer)"

    def log_ratio(self, record: Record) -> float | None:
        """log R; None where the record lacks false answers or the true one."""
        true = record.paraphrase if self.correct == "paraphrase" else record.true
        if true is None or not record.false:
            return None
        false = [score.mean_logp for score in record.false]
        if self.mean == "geometric":
            return sum(false) / len(false) - true.mean_logp
        top = max(false)
        return top + math.log(sum(math.exp(x - top) for x in false) / len(false)) - true.mean_logp

    def per_example(self, record: Record) -> float | None:
        log_ratio = self.log_ratio(record)
        if log_ratio is None:
            return None
        if self.form == "forget":
            return math.exp(-abs(log_ratio))
        return max(0.0, -math.expm1(min(log_ratio, 0.0)))


@dataclass(frozen=True)
class ExactMemorisation:
    """Share of the answer's tokens that are the arg-max prediction when the gold text stands before them (end of turn left out).

    Lower is better on what is to be forgotten, higher elsewhere.

    Paper: Tirumala et al. 2022 (arXiv 2205.10770); as used by open-unlearning (arXiv 2506.12618).
    """

    better: ClassVar[Direction] = "knowledge"
    interval: ClassVar[Interval] = "bootstrap"
    needs: ClassVar[str] = "a scored true answer"

    def per_example(self, record: Record) -> float | None:
        if record.true is None:
            return None
        hits = without_end(record.true)[1]
        return sum(hits) / len(hits)


@dataclass(frozen=True)
class ExtractionStrength:
    """1 - k/n, where k is the shortest answer prefix after which every arg-max prediction is right (end of turn left out).

    Lower is better on what is to be forgotten, higher elsewhere.

    Paper: Carlini et al. 2021 (arXiv 2012.07805); as used by Wang et al. 2025 (arXiv 2411.07820).
    Differs: where even the last token is wrong the value is 0; open-unlearning gives 1/n.
    """

    better: ClassVar[Direction] = "knowledge"
    interval: ClassVar[Interval] = "bootstrap"
    needs: ClassVar[str] = "a scored true answer"

    def per_example(self, record: Record) -> float | None:
        if record.true is None:
            return None
        hits = without_end(record.true)[1]
        right = next((i for i, hit in enumerate(reversed(hits)) if not hit), len(hits))
        return right / len(hits)
