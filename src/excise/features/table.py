"""A table of features that a person can read: their tokens, their mass ratio, and which class of tokens they live on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from excise.errors import InputError
from excise.features.classes import Kind

TOP = 20
"""Tokens of a feature that are shown, and that a judge sees."""


class NoFeature(InputError):
    """No feature of a table passes."""


@dataclass(frozen=True)
class Token:
    """One token (or one place in a text) of a feature."""

    id: int
    text: str
    coefficient: float
    kind: Kind


@dataclass(frozen=True)
class Feature:
    """One feature and its strongest tokens."""

    index: int
    ratio: float
    """Mass ratio: how much stronger it is on the concept's own tokens than on neutral ones."""
    shares: Mapping[Kind, float]
    """Share of the feature's mass on each class of tokens."""
    tokens: tuple[Token, ...]
    """By falling size of the coefficient."""

    @property
    def words(self) -> str:
        """The tokens as a list of different words, which is what a judge reads."""
        words: dict[str, str] = {}
        for token in self.tokens:
            word = token.text.strip()
            if word:
                words.setdefault(word.casefold(), word)
        return ", ".join(words.values())

    def to_json(self) -> dict[str, Any]:
        tokens = [{"id": t.id, "text": t.text, "coefficient": t.coefficient, "class": t.kind} for t in self.tokens]
        return {"index": self.index, "ratio": self.ratio, "shares": dict(self.shares), "tokens": tokens}


@dataclass(frozen=True)
class FeatureTable:
    """Every feature of a factorisation, by falling mass ratio."""

    n: int
    """Tokens that were factorised."""
    counts: Mapping[Kind, int]
    loss: float
    iterations: int
    features: tuple[Feature, ...]
    rank: int
    seed: int

    def feature(self, index: int) -> Feature:
        """The feature of that index."""
        found = next((feature for feature in self.features if feature.index == index), None)
        if found is None:
            raise InputError(f"there is no feature {index}: the factorisation has rank {self.rank}, so indexes go from 0 to {self.rank - 1}")
        return found

    def at_least(self, ratio: float) -> tuple[Feature, ...]:
        """The features whose mass ratio is at least that.

        Raises:
            NoFeature: there is none.
        """
        found = tuple(feature for feature in self.features if feature.ratio >= ratio)
        if not found:
            highest = max((feature.ratio for feature in self.features), default=0.0)
            raise NoFeature(
                f"no feature has a mass ratio of {ratio:g} or more (the highest of {len(self.features)} is {highest:.2f}): "
                "lower the ratio, raise the rank, or give more texts about the concept"
            )
        return found

    def to_json(self) -> dict[str, Any]:
        """The table as the command line writes it."""
        return {
            "n": self.n,
            "counts": dict(self.counts),
            "loss": self.loss,
            "iterations": self.iterations,
            "rank": self.rank,
            "seed": self.seed,
            "features": [feature.to_json() for feature in self.features],
        }
