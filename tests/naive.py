"""Every objective and every token weight again: float64, one loop per sum, straight from the equations.

Nothing here looks at excise. A batch is a list of answers; ``frozen`` is the batch that a stop-gradient looks at, so
that a finite difference over ``batch`` alone is the gradient that the equation asks for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


@dataclass
class Answer:
    """One answer: logits [n, vocab] and hidden states [n, width] of now and of the model as it was, targets, weights."""

    logits: Array
    reference: Array
    target: list[int]
    weight: Array
    hidden: Array
    hidden_reference: Array
    alternative: Answer | None = None


Batch = Sequence[Answer]


def log_probability(row: Array, token: int) -> float:
    """log softmax(row)[token]."""
    top = max(float(z) for z in row)
    return float(row[token]) - top - math.log(sum(math.exp(float(z) - top) for z in row))


def distribution(row: Array) -> list[float]:
    return [math.exp(log_probability(row, v)) for v in range(len(row))]


def sigmoid_log(x: float) -> float:
    """log sigmoid(x)."""
    return min(x, 0.0) - math.log1p(math.exp(-abs(x)))


def tokens(batch: Batch) -> int:
    return sum(len(answer.target) for answer in batch)


# --- objectives -----------------------------------------------------------------------------------------------------


def ascent(batch: Batch) -> float:
    """(1/N) sum_i w_i log p_i."""
    total = 0.0
    for answer in batch:
        for i, y in enumerate(answer.target):
            total += float(answer.weight[i]) * log_probability(answer.logits[i], y)
    return total / tokens(batch)


def capped_ascent(batch: Batch, cap: float) -> float:
    """(1/N) sum_answers n max((1/n) sum_i w_i log p_i, -cap)."""
    total = 0.0
    for answer in batch:
        mean = sum(float(answer.weight[i]) * log_probability(answer.logits[i], y) for i, y in enumerate(answer.target)) / len(answer.target)
        total += len(answer.target) * max(mean, -cap)
    return total / tokens(batch)


def nll(batch: Batch) -> float:
    return -ascent(batch)


def satimp(batch: Batch, beta1: float, beta2: float, frozen: Batch | None = None) -> float:
    """(1/N) sum_i w_i sg(p_i^beta1 (1 - p_i)^beta2) log p_i."""
    total = 0.0
    for answer, still in zip(batch, frozen or batch, strict=True):
        for i, y in enumerate(answer.target):
            p = math.exp(log_probability(still.logits[i], y))
            total += float(answer.weight[i]) * p**beta1 * (1 - p) ** beta2 * log_probability(answer.logits[i], y)
    return total / tokens(batch)


def wga(batch: Batch, beta: float, frozen: Batch | None = None) -> float:
    """(1/N) sum_i w_i sg(p_i^beta) log p_i."""
    return satimp(batch, beta, 0.0, frozen)


def kl(batch: Batch, temperature: float = 1.0) -> float:
    """(1/N) sum_i w_i sum_v p_ref (log p_ref - log p)."""
    total = 0.0
    for answer in batch:
        for i in range(len(answer.target)):
            for v in range(answer.logits.shape[1]):
                then = log_probability(answer.reference[i] / temperature, v)
                now = log_probability(answer.logits[i] / temperature, v)
                total += float(answer.weight[i]) * math.exp(then) * (then - now)
    return total / tokens(batch)


def kl_per_sequence(batch: Batch, temperature: float) -> float:
    """(1/B) sum over sequences of sum_i w_i sum_v p_ref (log p_ref - log p)."""
    return kl(batch, temperature) * tokens(batch) / len(batch)


def undial(batch: Batch, beta: float) -> float:
    """(1/N) sum_i w_i CE(softmax(z_ref,i - beta onehot(y_i)), p_i)."""
    total = 0.0
    for answer in batch:
        for i, y in enumerate(answer.target):
            lowered = answer.reference[i].copy()
            lowered[y] -= beta
            teacher = distribution(lowered)
            for v, share in enumerate(teacher):
                total -= float(answer.weight[i]) * share * log_probability(answer.logits[i], v)
    return total / tokens(batch)


def ceu(batch: Batch, skip: int, frozen: Batch | None = None) -> float:
    """CE(sg(p without y, renormalised), p) over the tokens after the first ``skip`` of each answer."""
    total, count = 0.0, 0
    for answer, still in zip(batch, frozen or batch, strict=True):
        for i, y in enumerate(answer.target):
            if i < skip:
                continue
            count += 1
            others = distribution(still.logits[i])
            rest = sum(share for v, share in enumerate(others) if v != y)
            for v, share in enumerate(others):
                if v != y:
                    total -= float(answer.weight[i]) * share / rest * log_probability(answer.logits[i], v)
    return total / max(count, 1)


def entropy_objective(batch: Batch, sign: int, skip: int = 0) -> float:
    total, count = 0.0, 0
    for answer in batch:
        for i in range(skip, len(answer.target)):
            total += sign * float(answer.weight[i]) * entropy(answer.logits[i])
            count += 1
    return total / max(count, 1)


def log_ratio(answer: Answer, weighted: bool = True) -> float:
    """sum_i w_i (log p_i - log p_ref,i)."""
    total = 0.0
    for i, y in enumerate(answer.target):
        weight = float(answer.weight[i]) if weighted else 1.0
        total += weight * (log_probability(answer.logits[i], y) - log_probability(answer.reference[i], y))
    return total


def npo(batch: Batch, beta: float) -> float:
    """-(2/beta) mean_seq log sigmoid(-beta log ratio)."""
    return sum(-2 / beta * sigmoid_log(-beta * log_ratio(answer)) for answer in batch) / len(batch)


def simnpo(batch: Batch, beta: float, gamma: float) -> float:
    """-(2/beta) mean_seq log sigmoid(beta (sum_i w_i CE_i / |y| - gamma))."""
    total = 0.0
    for answer in batch:
        loss = 0.0
        for i, y in enumerate(answer.target):
            loss -= float(answer.weight[i]) * log_probability(answer.logits[i], y)
        total += -2 / beta * sigmoid_log(beta * (loss / len(answer.target) - gamma))
    return total / len(batch)


def dpo(batch: Batch, beta: float) -> float:
    """-(2/beta) mean_seq log sigmoid(beta (log ratio of the alternative - log ratio of the true answer))."""
    total = 0.0
    for answer in batch:
        assert answer.alternative is not None
        total += -2 / beta * sigmoid_log(beta * (log_ratio(answer.alternative, weighted=False) - log_ratio(answer)))
    return total / len(batch)


def to_point(batch: Batch, goal: Callable[[Answer, int], Array]) -> float:
    """mean_seq mean_i w_i mean_d (h_i - goal_i)^2."""
    total = 0.0
    for answer in batch:
        inside = 0.0
        for i in range(len(answer.target)):
            wanted = goal(answer, i)
            squares = [(float(h) - float(c)) ** 2 for h, c in zip(answer.hidden[i], wanted, strict=True)]
            inside += float(answer.weight[i]) * sum(squares) / len(squares)
        total += inside / len(answer.target)
    return total / len(batch)


def rmu(batch: Batch, control: Array) -> float:
    return to_point(batch, lambda answer, i: control)


def hidden_mse(batch: Batch) -> float:
    return to_point(batch, lambda answer, i: answer.hidden_reference[i])


def hidden_cosine(batch: Batch) -> float:
    """mean_seq 1 - cos(mean_i w_i h_i, mean_i w_i h_ref,i)."""
    total = 0.0
    for answer in batch:
        sums = [[0.0] * answer.hidden.shape[1] for _ in range(2)]
        for i in range(len(answer.target)):
            for d in range(answer.hidden.shape[1]):
                sums[0][d] += float(answer.weight[i]) * float(answer.hidden[i][d])
                sums[1][d] += float(answer.weight[i]) * float(answer.hidden_reference[i][d])
        dot = sum(x * y for x, y in zip(*sums, strict=True))
        total += 1 - dot / math.sqrt(sum(x * x for x in sums[0]) * sum(y * y for y in sums[1]))
    return total / len(batch)


# --- adapter surgery (MAAT) -----------------------------------------------------------------------------------------


def projected(forget: Array, retain: Array, epsilon: float = 1e-12) -> Array:
    """g_f - <g_f, g_r> / (||g_r||^2 + eps) g_r if <g_f, g_r> > 0, else g_f: for one tensor, with g_f the gradient of the cross-entropy."""
    dot = squared = 0.0
    for f, r in zip(forget.ravel(), retain.ravel(), strict=True):
        dot += float(f) * float(r)
        squared += float(r) * float(r)
    return forget - dot / (squared + epsilon) * retain if dot > 0 else forget.copy()


def column_norms(gradients: Sequence[Array]) -> list[float]:
    """sum over texts of ||column k of dL/dB||."""
    totals = [0.0] * gradients[0].shape[1]
    for gradient in gradients:
        for k in range(gradient.shape[1]):
            totals[k] += math.sqrt(sum(float(x) ** 2 for x in gradient[:, k]))
    return totals


def top(scores: Sequence[float], share: float) -> list[int]:
    """The floor(share r) >= 1 highest, of equal ones the first, ascending."""
    count = max(1, int(share * len(scores) + 1e-9))
    return sorted(sorted(range(len(scores)), key=lambda k: (-scores[k], k))[:count])


# --- token weights (TokenUnlearn) -----------------------------------------------------------------------------------


def entropy(row: Array) -> float:
    """-sum_v p log p, nats."""
    return -sum(math.exp(lp) * lp for lp in (log_probability(row, v) for v in range(len(row))))


def delta(original: Array, masked: Array, target: list[int]) -> list[float]:
    """|log p(y_i | z_orig) - log p(y_i | z_mask)|."""
    return [abs(log_probability(original[i], y) - log_probability(masked[i], y)) for i, y in enumerate(target)]


def contrast(original: Array, other: Array, target: list[int]) -> list[float]:
    """max(0, log p_model(y_i) - log p_contrast(y_i))."""
    return [max(0.0, log_probability(original[i], y) - log_probability(other[i], y)) for i, y in enumerate(target)]


def normalised(values: list[float], how: str) -> list[float]:
    n, low, high = len(values), min(values), max(values)
    if how == "none":
        return list(values)
    if high == low:
        return [0.0] * n
    if how == "minmax":
        return [(v - low) / (high - low) for v in values]
    if how == "zscore":
        mean = sum(values) / n
        spread = math.sqrt(sum((v - mean) ** 2 for v in values) / n)
        return [(v - mean) / spread for v in values]
    assert how == "rank"
    below = [sum(1 for j, other in enumerate(values) if (other, j) < (v, i)) for i, v in enumerate(values)]
    return [count / (n - 1) for count in below]


def phi(deltas: list[float], entropies: list[float], alpha: float, how: str) -> list[float]:
    """alpha norm(delta) + (1 - alpha) norm(H)."""
    return [alpha * d + (1 - alpha) * h for d, h in zip(normalised(deltas, how), normalised(entropies, how), strict=True)]


def hard(scores: list[float], r: float) -> list[float]:
    """n/|K| on the ceil(r n) highest scores (at least one, ties by position), zero elsewhere."""
    n = len(scores)
    count = next(k for k in range(1, n + 1) if k >= r * n - 1e-9)
    chosen: list[int] = []
    for _ in range(count):
        best = -1
        for i, score in enumerate(scores):
            if i not in chosen and (best < 0 or score > scores[best]):
                best = i
        chosen.append(best)
    return [n / count if i in chosen else 0.0 for i in range(n)]


def soft(scores: list[float], tau: float) -> list[float]:
    """n softmax(phi / tau)."""
    top = max(scores)
    parts = [math.exp((score - top) / tau) for score in scores]
    return [len(scores) * part / sum(parts) for part in parts]
