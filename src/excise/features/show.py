"""`excise features`: a concept's features in a model, as lines, JSON and a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from excise.data.benchmarks.concepts import Concepts, concept_names
from excise.errors import InputError, did_you_mean
from excise.factorise.sparse_mf import SparseMF
from excise.features.classes import plain_texts, token_classes
from excise.features.embedding import localise
from excise.features.page import page
from excise.features.table import FeatureTable
from excise.files import write_json, write_text

if TYPE_CHECKING:
    from excise.stages.state import Narrator

MOST = 40
"""Features that are printed."""
MARKS = {"concept_only": "", "both": "*", "neutral_only": "°"}
"""What stands behind a token that neutral texts have too."""


@dataclass(frozen=True)
class ConceptFeatures:
    """The features of one concept in one model."""

    model: str
    concept: str
    table: FeatureTable


def concept_features(model: str, folder: str, name: str, rank: int, seed: int, narrator: Narrator | None = None) -> ConceptFeatures:
    """Loads a model and a concept, and factorises.

    Raises:
        InputError: the folder holds several concepts and none was named; no token is the concept's own; the model cannot be used.
    """
    from excise.loading import load

    factorisation = SparseMF(rank=rank, seed=seed)
    benchmark = Concepts(folder, name or _only(folder))()
    concept, neutral = plain_texts(benchmark.forget), plain_texts(benchmark.retain)
    subject = load(model)
    token_classes(subject.tokenizer, concept, neutral)
    return ConceptFeatures(model, name or _only(folder), localise(subject, concept, neutral, factorisation, narrator).table)


def _only(folder: str) -> str:
    names = concept_names(folder)
    if len(names) != 1:
        raise InputError(f"{folder} holds {len(names)} concepts, so say which one with --name: {did_you_mean('', names)}")
    return names[0]


def require_new(places: Sequence[Path | None], overwrite: bool) -> None:
    """Refuses, before anything is computed, places that cannot be written."""
    for place in places:
        if place is not None and place.is_dir():
            raise InputError(f"cannot write {place}: it is a folder, and a file was expected")
        if place is not None and place.exists() and not overwrite:
            raise InputError(f"{place} exists: choose another name or pass --overwrite")


def feature_lines(found: ConceptFeatures, ratio: float) -> list[str]:
    """What a person reads: one line for each feature from that mass ratio on."""
    table = found.table
    counts = table.counts
    lines = [
        f"{found.concept}: {table.n} tokens, {counts['concept_only']} only in its texts, {counts['both']} in both, "
        f"{counts['neutral_only']} only in neutral ones; {table.rank} features, loss {table.loss:.2f} after {table.iterations} iterations",
        f"* also in neutral texts, ° only there; own: share of the feature on the concept's own tokens; ratio at least {ratio:g}",
        "feature  ratio   own  strongest tokens",
    ]
    passing = [feature for feature in table.features if feature.ratio >= ratio]
    for feature in passing[:MOST]:
        tokens = " ".join(f"{_visible(token.text)}{MARKS[token.kind]}" for token in feature.tokens)
        lines.append(f"{feature.index:7d} {feature.ratio:6.2f} {100 * feature.shares['concept_only']:4.0f} %  {tokens}")
    if len(passing) > MOST:
        lines.append(f"and {len(passing) - MOST} more: see --json or --html")
    if not passing:
        highest = max(feature.ratio for feature in table.features)
        lines.append(f"no feature has a ratio of {ratio:g} or more; the highest is {highest:.2f}")
    return lines


def _visible(text: str) -> str:
    return repr(text.strip())[1:-1] or repr(text)[1:-1]


def write_table(place: Path, found: ConceptFeatures) -> None:
    """All features as JSON."""
    write_json(place, {"model": found.model, "concept": found.concept, **found.table.to_json()})


def write_page(place: Path, found: ConceptFeatures, ratio: float) -> None:
    """All features as a page that opens offline."""
    write_text(place, page(found.table, f"{found.concept} in {found.model}", ratio))
