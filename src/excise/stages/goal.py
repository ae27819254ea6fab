"""When a training stage has done enough, and what it may cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from excise.errors import InputError
from excise.evaluation.score import Score
from excise.objectives.check import at_least

Verdict = Literal["reached", "held", "broken"]


@dataclass(frozen=True)
class Goal:
    """Bounds on scores, looked at with every evaluation on the way (``evaluate_every``).

    Training ends as soon as every score of ``at_most`` has come down to its bound. Where a score of ``at_least`` falls below its own,
    the last state in which all of them held is put back, and training goes on from there at half the learning rate, as often as
    ``patience`` says; then it ends.
    """

    at_most: Mapping[str, float] = field(default_factory=dict)
    """Score -> what it must come down to."""
    at_least: Mapping[str, float] = field(default_factory=dict)
    """Score -> what it must not fall below."""
    patience: int = 0
    """How often training goes back and on at half the rate."""

    def __post_init__(self) -> None:
        if not self.at_most:
            raise InputError("goal.at_most is empty: give at least one score and what it must come down to")
        at_least("goal.patience", self.patience, 0)

    @property
    def splits(self) -> frozenset[str]:
        """The splits whose scores are looked at."""
        return frozenset(name.split(".")[0] for name in (*self.at_most, *self.at_least) if "." in name)

    def judge(self, scores: Mapping[str, Score]) -> tuple[Verdict, str]:
        """Where a state of the model stands, and why.

        Raises:
            InputError: a score that the suite does not have, or that has no value.
        """
        for name, bound in self.at_least.items():
            if (value := _value(scores, name)) < bound:
                return "broken", f"{name} fell to {value:.3g}, below {bound:.3g}"
        for name, bound in self.at_most.items():
            if (value := _value(scores, name)) > bound:
                return "held", f"{name} is {value:.3g}, above {bound:.3g}"
        return "reached", ", ".join(f"{name} came down to {_value(scores, name):.3g}" for name in self.at_most)


def _value(scores: Mapping[str, Score], name: str) -> float:
    if name not in scores:
        raise InputError(f"goal: there is no score {name!r} in this suite")
    value = scores[name].value
    if value is None:
        raise InputError(f"goal: {name} is unavailable ({scores[name].unavailable})")
    return value
