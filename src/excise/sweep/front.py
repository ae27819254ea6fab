"""Which trials are best: the Pareto front, and one of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from excise.sweep.space import Objective

Values = Mapping[str, float]
"""Objective's name -> value."""


def dominates(a: Values, b: Values, objectives: Sequence[Objective]) -> bool:
    """Whether ``a`` is nowhere worse than ``b`` and somewhere better."""
    pairs = [(_cost(a, o), _cost(b, o)) for o in objectives]
    return all(x <= y for x, y in pairs) and any(x < y for x, y in pairs)


def front(found: Mapping[int, Values], objectives: Sequence[Objective]) -> tuple[int, ...]:
    """The numbers of the trials that no other one dominates, in order."""
    return tuple(n for n, values in sorted(found.items()) if not any(dominates(other, values, objectives) for other in found.values()))


def best(found: Mapping[int, Values], objectives: Sequence[Objective], before: Values) -> int | None:
    """The trial of the front nearest to the ideal among those that hold every objective's bound; None where none does.

    Each objective is scaled to 0 (the best of the front) ... 1 (its worst); distances are Euclidean, weighted. Ties go to what has no
    weight (cost), then to the earlier trial.
    """
    members = front(found, objectives)
    scales = {o.name: ([_cost(found[n], o) for n in members], o.share) for o in objectives}

    def distance(n: int) -> tuple[float, float, int]:
        told = tied = 0.0
        for objective in objectives:
            costs, share = scales[objective.name]
            low, high = min(costs), max(costs)
            at = (_cost(found[n], objective) - low) / (high - low) if high > low else 0.0
            told += share * at * at
            tied += at if share == 0 else 0.0
        return round(math.sqrt(told), 12), tied, n

    holding = [n for n in members if not any(o.bound.broken(o.name, found[n][o.name], before.get(o.name)) for o in objectives)]
    return min(holding, key=distance, default=None)


def _cost(values: Values, objective: Objective) -> float:
    return values[objective.name] if objective.better == "lower" else -values[objective.name]
