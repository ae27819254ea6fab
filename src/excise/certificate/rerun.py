"""Asking a certified model again, and comparing some of the scores."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from excise.attacks.scene import narrowed
from excise.certificate.asked import KEY, matches
from excise.certificate.check import Checked
from excise.errors import InputError
from excise.evaluation.collect import Progress
from excise.evaluation.judges.contains import Contains
from excise.evaluation.judges.similarity import Similarity
from excise.evaluation.records import Records
from excise.evaluation.score import ExampleMetric, Score
from excise.evaluation.store import read_records
from excise.evaluation.suites import Suite, evaluate
from excise.loading import load
from excise.recipe import Recipe
from excise.subject import Subject

PHASE = "after"
TOLERANCE = 0.02
"""How far a repeated score may be from the certified one: this much, or this share of it where it is above 1."""
LOCAL = (Contains, Similarity)
"""Judges that need neither another model nor a server of somebody's."""


@dataclass(frozen=True)
class Repeated:
    """One score, as certified and as measured now."""

    name: str
    certified: float
    now: float | None

    def agrees(self, tolerance: float) -> bool:
        return self.now is not None and abs(self.now - self.certified) <= tolerance * max(1.0, abs(self.certified))


def subject_of(checked: Checked) -> Subject:
    """The certified model, loaded in the number format that it was saved in.

    Raises:
        InputError: with its base (an adapter's lies elsewhere) it is not the model that the certificate names.
    """
    stated = checked.body["model"]
    subject = load(str(checked.model), dtype=stated["dtype"])
    if (found := subject.fingerprint()) != stated["after"]:
        base = f"; its base {stated['base']} is another one than it was" if stated["kind"] == "adapter" else ""
        raise InputError(
            f"{checked.model}: the loaded model has the fingerprint {found[:16]}…, and the certificate names {stated['after'][:16]}…{base}"
        )
    return subject


def rerun(checked: Checked, count: int, subject: Subject | None = None, *, progress: Progress | None = None) -> list[Repeated]:
    """Measures ``count`` of the certified scores again: always the same ones for a certificate, and none that its issuer could choose.

    Raises:
        InputError: the data cannot be read or is not the certified one; nothing can be repeated.
    """
    recipe = Recipe.parse(checked.body["recipe"])
    suite: Suite = recipe.suite()
    benchmark = recipe.benchmark_loader()()
    stated = str(checked.body["asked"].get("data", {}).get("fingerprint", ""))
    same = matches(benchmark, stated)
    if same is None:
        raise InputError(f"the certificate holds a keyed fingerprint of the data: set ${KEY} to the key of the run, so that the data can be compared")
    if not same:
        raise InputError(
            f"the data that the recipe names is not the certified one (fingerprint {benchmark.fingerprint[:16]}…, certified {stated[:16]}…)"
        )
    others = {phase: _others(checked, phase) for phase in ("retrained", "before")}
    certified = {name: row["value"] for name, row in checked.body["scores"][PHASE][suite.name].items() if row["value"] is not None}
    whole = all(phase not in checked.body["scores"] or records is not None for phase, records in others.items())
    splits = {name: needed for name in certified if (needed := _splits(suite, name, whole)) is not None}
    chosen = sorted(splits, key=lambda name: hashlib.sha256(f"{checked.digest}:{name}".encode()).digest())[:count]
    if not chosen:
        raise InputError("none of the certified scores can be repeated here: they rest on other models' answers or on a judge that is not here")
    scores = _measure(
        subject or subject_of(checked), recipe, benchmark, suite, sorted({s for n in chosen for s in splits[n]}), others, checked, progress
    )
    return [Repeated(name, certified[name], scores[name].value if name in scores else None) for name in chosen]


def _measure(
    subject: Subject,
    recipe: Recipe,
    benchmark: Any,
    suite: Suite,
    splits: list[str],
    others: Mapping[str, Records | None],
    checked: Checked,
    progress: Progress | None,
) -> dict[str, Score]:
    _, scores = evaluate(
        subject,
        benchmark,
        dataclasses.replace(narrowed(suite, splits), live=()),
        retrained=others["retrained"],
        baseline=others["before"],
        precision=checked.body["environment"].get("precision", "auto"),
        generate_batch=recipe.evaluation.batch,
        limit=recipe.evaluation.limit,
        progress=progress,
    )
    return scores


def _splits(suite: Suite, name: str, whole: bool) -> tuple[str, ...] | None:
    """The splits that a score needs; None where it cannot be repeated."""
    base = name.partition("@")[0]
    judged_elsewhere = any(not isinstance(judging.judge, LOCAL) for judging in suite.judging)
    for measure in suite.measures:
        needs_judge = any(field.name == "judge" for field in dataclasses.fields(measure.metric))  # pyright: ignore[reportArgumentType]
        if needs_judge and judged_elsewhere:
            continue
        if not isinstance(measure.metric, ExampleMetric):
            if measure.name == base and whole:
                return tuple(suite.plans)
        elif split := next((split for split in measure.splits if f"{split}.{measure.name}" == base), None):
            return (split,)
    return None


def _others(checked: Checked, phase: str) -> Records | None:
    """The records of another model that some scores compare with, where the run folder has them in words."""
    place: Path | None = checked.run
    if place is None or not (place / "records" / phase).is_dir():
        return None
    try:
        return read_records(place, phase)
    except InputError:
        return None
