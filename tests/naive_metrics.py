"""The metrics once more, in plain float64 loops straight from their equations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from excise.evaluation.records import Record, TextScore


def p(score: TextScore) -> float:
    """The length-normalised probability, as a product of token probabilities to the power 1/n."""
    product = 1.0
    for logp in score.logp:
        product *= math.exp(logp) ** (1.0 / len(score.logp))
    return product


def truth_ratio(true: TextScore, false: Sequence[TextScore], mean: str) -> float:
    if mean == "arithmetic":
        top = sum(p(score) for score in false) / len(false)
    else:
        top = 1.0
        for score in false:
            top *= p(score) ** (1.0 / len(false))
    return top / p(true)


def forget_form(ratio: float) -> float:
    return ratio if ratio < 1 / ratio else 1 / ratio


def utility_form(ratio: float) -> float:
    return 1 - ratio if ratio < 1 else 0.0


def normalised(true: TextScore, false: Sequence[TextScore]) -> float:
    total = p(true)
    for score in false:
        total += p(score)
    return p(true) / total


def exact_memorisation(score: TextScore) -> float:
    right, n = 0, 0
    for i, hit in enumerate(score.hits):
        if score.ended and i == len(score.hits) - 1:
            continue
        right, n = right + int(hit), n + 1
    return right / n


def extraction_strength(score: TextScore) -> float:
    hits = score.hits[:-1] if score.ended else score.hits
    for k in range(len(hits)):
        if all(hits[k:]):
            return 1 - k / len(hits)
    return 0.0


def longest_common(a: Sequence[str], b: Sequence[str]) -> int:
    if not a or not b:
        return 0
    table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            table[i + 1][j + 1] = table[i][j] + 1 if x == y else max(table[i][j + 1], table[i + 1][j])
    return table[-1][-1]


def min_k(score: TextScore, share: float) -> float:
    own = list(score.logp[:-1] if score.ended else score.logp)
    k = max(1, int(share * len(own)))
    lowest: list[float] = []
    for _ in range(k):
        lowest.append(min(own))
        own.remove(lowest[-1])
    return -sum(lowest) / k


def auc(members: Sequence[float], others: Sequence[float]) -> float:
    wins = 0.0
    for a in members:
        for b in others:
            wins += 1.0 if a < b else 0.5 if a == b else 0.0
    return wins / (len(members) * len(others))


def ks_p_value(a: Sequence[float], b: Sequence[float]) -> float:
    """The exact two-sided p-value: the share of orderings of the pooled sample whose distance is at least the one seen."""
    n, m = len(a), len(b)

    def distance(i: int, j: int) -> Fraction:
        return abs(Fraction(i, n) - Fraction(j, m))

    seen = max(distance(sum(x <= t for x in a), sum(y <= t for y in b)) for t in [*a, *b])
    below = [[0] * (m + 1) for _ in range(n + 1)]  # lattice paths that stay below the distance seen
    for i in range(n + 1):
        for j in range(m + 1):
            if distance(i, j) < seen:
                below[i][j] = 1 if i == j == 0 else (below[i - 1][j] if i else 0) + (below[i][j - 1] if j else 0)
    return float(1 - Fraction(below[n][m], math.comb(n + m, n)))


def wilson(successes: int, n: int, z: float) -> tuple[float, float]:
    """The two shares p0 for which the observed share lies exactly z standard errors away, by bisection."""
    share = successes / n

    def off(p0: float) -> float:
        return abs(share - p0) - z * math.sqrt(p0 * (1 - p0) / n)

    def root(low: float, high: float) -> float:
        for _ in range(200):
            middle = (low + high) / 2
            if (off(low) > 0) == (off(middle) > 0):
                low = middle
            else:
                high = middle
        return (low + high) / 2

    return (0.0 if successes == 0 else root(1e-12, share)), (1.0 if successes == n else root(share, 1 - 1e-12))


def perplexity(records: Sequence[Record]) -> float:
    loss, tokens = 0.0, 0
    for record in records:
        assert record.true is not None
        for logp in record.true.logp:
            loss, tokens = loss - logp, tokens + 1
    return math.exp(loss / tokens)


def repetition(text: str) -> float:
    said = text.lower().split()
    seen: list[tuple[str, ...]] = []
    repeated = 0
    for i in range(len(said) - 2):
        triple = tuple(said[i : i + 3])
        repeated += triple in seen
        seen.append(triple)
    return repeated / len(seen) if seen else 0.0


def kappa(first: Sequence[bool], second: Sequence[bool]) -> float:
    """(observed - chance) / (1 - chance), chance = the share of all pairs of an answer of each judge that are alike."""
    n = len(first)
    same = sum(1 for a, b in zip(first, second, strict=True) if a == b)
    pairs = sum(1 for a in first for b in second if a == b)
    return (same / n - pairs / n**2) / (1 - pairs / n**2)


def stands_in(text: Sequence[str], wanted: Sequence[str]) -> bool:
    """Whether the words of ``wanted`` are next to each other in ``text``."""
    for start in range(len(text) - len(wanted) + 1):
        if all(text[start + i] == word for i, word in enumerate(wanted)):
            return len(wanted) > 0
    return False


def fsr_rsr(forget: Sequence[tuple[float | None, bool]], retain: Sequence[tuple[float | None, bool]]) -> float:
    """From (score of the verdict, fluent) of each example: 3 / (1/FSR + 1/RSR + 1/fluency), in percent."""
    forgotten = sum(1 for score, _ in forget if score is not None and score <= 0.5) / len(forget)
    retained = sum(1 for score, _ in retain if score is not None and score > 0.5) / len(retain)
    fluency = sum(1 for _, fluent in [*forget, *retain] if fluent) / (len(forget) + len(retain))
    if min(forgotten, retained, fluency) == 0:
        return 0.0
    return 100 * 3 / (1 / forgotten + 1 / retained + 1 / fluency)
