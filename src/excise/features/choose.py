"""Which of a concept's features are its own: by mass ratio, by a judge who reads their words, or by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from excise import registry
from excise.errors import InputError, did_you_mean
from excise.evaluation.judges import Item, Judge
from excise.features.table import Feature, FeatureTable, NoFeature
from excise.settings import build

ASPECT = "distinctive"
ACCEPT: Mapping[str, float] = {"similarity": 0.25, "model": 0.5, "endpoint": 0.85}
"""Score from which on a judge's word counts; the endpoint's is EMBER's, that of similarity is calibrated (docs/ember.md)."""
WITHOUT = ("ratio", "manual")
SENTENCES = 100
"""Texts of the concept that stand for it where a judge compares meanings."""


@dataclass(frozen=True)
class Choice:
    """How features are chosen: mass ratio first, then a judge who sees the twenty strongest tokens of each.

    Paper: EMBER (arXiv 2606.03695), feature selection: ratio >= 2, then a judge with confidence >= 0.85.
    Differs: the judge is by default a small sentence-embedding model that works offline.
    """

    ratio: float = 2.0
    """Smallest mass ratio."""
    judge: str | Mapping[str, Any] = "similarity"
    """similarity, model, endpoint (or a mapping of ``name`` and its settings), ratio (nobody is asked) or manual (``features``)."""
    accept: float | None = None
    """Score from which on the judge's word counts; None: .25 for similarity, .5 for model, .85 for endpoint."""
    features: tuple[int, ...] | None = None
    """Indexes from the feature table (`excise features`), chosen by hand; ratio and judge are not asked then."""

    def __post_init__(self) -> None:
        if self.features is not None and not self.features:
            raise InputError("features is empty: give indexes from the feature table, or leave it out")
        if self.judge == "manual" and self.features is None:
            raise InputError("judge = manual needs features = [indexes from the feature table]: `excise features` prints it")
        if not self.ratio >= 0:
            raise InputError(f"ratio is {self.ratio}; it must not be negative")
        self.asked()

    @property
    def how(self) -> str:
        """Who chooses, as it stands in a result: the judge's name, ratio or manual."""
        if self.features is not None:
            return "manual"
        return self.judge if isinstance(self.judge, str) else str(self.judge.get("name", ""))

    def asked(self) -> Judge | None:
        """The judge with its settings; None where none is asked."""
        if self.how in WITHOUT:
            return None
        settings = {"name": self.judge} if isinstance(self.judge, str) else dict(self.judge)
        name = str(settings.pop("name", ""))
        able = [known for known in registry.names("judges") if ASPECT in registry.find("judges", known).aspects]
        if name not in able:
            raise InputError(f"judge: {name!r} does not choose features: {did_you_mean(name, [*able, *WITHOUT])}")
        return build(registry.find("judges", name), settings, "judge")

    def require(self, name: str, rank: int) -> None:
        """Refuses what cannot work on a concept of that name (it may be empty) and a factorisation of that rank."""
        wrong = [index for index in self.features or () if not 0 <= index < rank]
        if wrong:
            raise InputError(f"features: there is no feature {wrong[0]}; with rank = {rank} the indexes go from 0 to {rank - 1}")
        if self.how not in (*WITHOUT, "similarity") and not name:
            raise InputError(f"judge = {self.how} must be told what the texts are about: give concept = NAME")


@dataclass(frozen=True)
class Chosen:
    """The features that were chosen, and why."""

    features: tuple[Feature, ...]
    how: str
    """The judge's name, ``ratio`` or ``manual``."""
    scores: Mapping[int, float | None]
    """What the judge said of each feature that it saw; None: undecided."""

    @property
    def indexes(self) -> tuple[int, ...]:
        return tuple(feature.index for feature in self.features)


def choose(choice: Choice, table: FeatureTable, concept: str, texts: Sequence[str]) -> Chosen:
    """Chooses features.

    Args:
        concept: its name, for judges that know what names mean.
        texts: texts about it, for judges that compare meanings.

    Raises:
        NoFeature: nothing passes the ratio, or the judge accepts nothing.
    """
    if choice.features is not None:
        return Chosen(tuple(table.feature(index) for index in choice.features), "manual", {})
    candidates = table.at_least(choice.ratio)
    judge = choice.asked()
    if judge is None:
        return Chosen(candidates, choice.how, {})
    about = "\n".join(" ".join(text.split()) for text in texts[:SENTENCES]) if judge.name == "similarity" else concept
    verdicts = list(judge([Item(ASPECT, "", feature.words, subject=about) for feature in candidates]))
    scores = {feature.index: verdict.score for feature, verdict in zip(candidates, verdicts, strict=True)}
    accept = choice.accept if choice.accept is not None else ACCEPT.get(judge.name, 0.5)
    kept = tuple(feature for feature in candidates if (score := scores[feature.index]) is not None and score >= accept)
    if not kept:
        decided = [score for score in scores.values() if score is not None]
        said = f"its highest score is {max(decided):.2f}, and {accept:g} is needed" if decided else f"undecided: {verdicts[0].reason}"
        raise NoFeature(
            f"the judge {judge.name!r} accepts none of the {len(candidates)} features with a mass ratio of {choice.ratio:g} or more ({said}): "
            "lower accept, choose by hand (features = [...], `excise features` shows them) or set judge = ratio"
        )
    return Chosen(kept, judge.name, scores)
