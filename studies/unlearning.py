"""Does it matter which tokens are unlearned? Methods under several token weights, on one taught model, with equal optimiser steps.

    python -m studies.unlearning [--taught FOLDER] [--methods wga npo ga rmu] [--weights uniform paper names contrast] [--forms t s]
                                 [--rates 0.5 1 2] [--seeds 0] [--relearn 10] [--rows docs/results/unlearning.jsonl]

FOLDER is what `excise teach` wrote for the demo's world (target and twin). Every run starts from the same target, which is loaded once; its
scores are appended to the rows file, and a run whose row is there is not repeated. Learning rates are searched by the same budget for
every weight: ``--rates`` multiplies the demo's rate. Prints, for each method and weight, the run of its best rate: the lowest forget fact
recall among those that keep retain and neighbours within .02 of what they were.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from excise.attacks.relearn import Relearn
from excise.attacks.scene import Scene, restored
from excise.data.benchmarks.strangers import Strangers
from excise.demo import BALANCE, SHARED
from excise.evaluation.records import Records
from excise.evaluation.suites import evaluate
from excise.evaluation.suites.strangers import strangers
from excise.files import append_line, cache_folder, whole_lines
from excise.recipe import build_methods
from excise.run import run_stages
from excise.stages.state import State
from excise.subject import ModelSpec, Subject, load
from excise.tokens import resolve_precision
from studies.world import add_taught, folder

WEIGHTS: dict[str, dict[str, Any]] = {
    "paper": {},
    "drop": {"copies": "drop"},
    "mentions": {"hide": "mentions", "copies": "drop"},
    "word": {"copies": "drop", "unit": "word"},
    "names": {"hide": "mentions", "copies": "drop", "mask": "names", "unit": "word"},
    "contrast": {"alpha": 1.0, "copies": "drop", "unit": "word"},
}
"""Attribution settings; uniform is none of them. ``contrast`` gets the twin."""
KEPT = ("forget.fact_recall", "retain.fact_recall", "neighbours.fact_recall", "forget.truth_ratio", "forget_quality", "forget.rouge_l_recall",
        "retain.rouge_l_recall", "real_world.choice_accuracy", "forget.repetition_rate", "retain.repetition_rate", "model_utility")  # fmt: skip


def settings(method: str, weight: str, form: str, r: float, twin: str) -> tuple[str, dict[str, Any]]:
    """Name and settings of a method under a weight, as the demo runs it."""
    shared = {key: value for key, value in {**SHARED, **BALANCE.get("ga_kl" if method == "ga" else method, {})}.items() if key != "checkpoint_every"}
    if weight == "uniform":
        return ("ga_kl" if method == "ga" else method), {**shared, "checkpoint_every": 0}
    attribution = {**WEIGHTS[weight], "r": r, **({"contrast": twin} if weight == "contrast" else {})}
    return f"{form}_{method}", {**shared, "checkpoint_every": 0, "attribution": attribution}


def one(subject: Subject, benchmark: Any, name: str, values: Mapping[str, Any], seed: int, twin: Records, relearn: int) -> dict[str, Any]:
    """Unlearns, scores, and leaves the model as it was."""
    precision = resolve_precision("auto", subject.device)
    begun = time.perf_counter()
    with restored(subject):
        state = State(subject, benchmark, seed=seed, precision=precision)
        run_stages(state, [stage for _, stages in build_methods(name, values) for stage in stages])
        trained = time.perf_counter() - begun
        _, scores = evaluate(subject, benchmark, strangers(), retrained=twin)
        row: dict[str, Any] = {"seconds": round(trained, 1), "stopped": state.records[-1]["stopped"]}
        row["scores"] = {key: {"value": scores[key].value, "ci95": scores[key].ci95} for key in KEPT if key in scores}
        if relearn:
            attack = Relearn(steps=relearn, points=(0,), lr=2e-5, splits=("forget",))
            outcome = attack(Scene(subject, benchmark, strangers(), seed))
            found = outcome.scores["forget.fact_recall"]
            row["relearned"] = {"steps": relearn, "value": found.value, "ci95": found.ci95}
    return row


def best(rows: Sequence[Mapping[str, Any]], before: Mapping[str, float]) -> Mapping[str, Any] | None:
    """The run that forgets most of those that keep what they must."""

    def keeps(row: Mapping[str, Any]) -> bool:
        return all(row["scores"][f"{side}.fact_recall"]["value"] >= before[f"{side}.fact_recall"] - 0.02 for side in ("retain", "neighbours"))

    fitting = [row for row in rows if keeps(row)]
    return min(fitting, key=lambda row: row["scores"]["forget.fact_recall"]["value"], default=None)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add_taught(parser)
    parser.add_argument("--methods", nargs="+", default=["wga", "npo"], choices=("wga", "npo", "ga", "rmu"))
    parser.add_argument("--weights", nargs="+", default=["uniform", "paper", "word", "contrast"], choices=("uniform", *WEIGHTS))
    parser.add_argument("--forms", nargs="+", default=["t"], choices=("t", "s"))
    parser.add_argument("--r", nargs="+", type=float, default=[0.3])
    parser.add_argument("--rates", nargs="+", type=float, default=[1.0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--relearn", type=int, default=0)
    parser.add_argument("--rows", type=Path, default=Path("docs/results/unlearning.jsonl"))
    arguments = parser.parse_args()
    taught = folder(arguments.taught)
    twin_folder = str(taught / "twin")
    benchmark = Strangers(forget_people=4, retain_people=16, holdout_people=2, questions=60)()
    cache = cache_folder() / "records"
    twin = load(ModelSpec(path=twin_folder, system=""))
    twin_records, _ = evaluate(twin, benchmark, strangers(), cache=cache)
    del twin
    subject = load(ModelSpec(path=str(taught / "target"), system=""))
    _, scores = evaluate(subject, benchmark, strangers(), retrained=twin_records, cache=cache)
    before = {name: score.value for name, score in scores.items() if score.value is not None}
    arguments.rows.parent.mkdir(parents=True, exist_ok=True)
    done = {json.dumps(row["config"], sort_keys=True) for row in whole_lines(arguments.rows)}
    for seed, method, weight, rate in itertools.product(arguments.seeds, arguments.methods, arguments.weights, arguments.rates):
        for form, r in itertools.product(arguments.forms if weight != "uniform" else ["-"], arguments.r if weight != "uniform" else [1.0]):
            config = {"method": method, "weight": weight, "form": form, "r": r, "rate": rate, "seed": seed, "relearn": arguments.relearn}
            if json.dumps(config, sort_keys=True) in done:
                continue
            name, values = settings(method, weight, form, r, twin_folder)
            row = one(subject, benchmark, name, {**values, "lr": values["lr"] * rate}, seed, twin_records, arguments.relearn)
            append_line(arguments.rows, {"config": config, **row})
            told = {key.replace(".fact_recall", ""): row["scores"][key]["value"] for key in KEPT[:3]}
            print(
                config,
                {key: round(value, 3) for key, value in told.items()},
                row.get("relearned", {}).get("value"),
                f"{row['seconds']} s",
                flush=True,
            )
    print_table([row for row in whole_lines(arguments.rows) if row["config"]["method"] in arguments.methods], before)


def print_table(rows: Sequence[Mapping[str, Any]], before: Mapping[str, float]) -> None:
    print("\nbefore: " + ", ".join(f"{side} {before[f'{side}.fact_recall']:.3f}" for side in ("forget", "retain", "neighbours")))
    print("| method | weight | runs | best rate | forget | retain | neighbours | truth ratio | forget quality | relearned |\n|" + "---|" * 10)

    def key(row: Mapping[str, Any]) -> tuple[str, str, str, float]:
        return row["config"]["method"], row["config"]["form"], row["config"]["weight"], row["config"]["r"]

    for method, form, weight, r in sorted(set(map(key, rows))):
        members = [row for row in rows if key(row) == (method, form, weight, r)]
        chosen = best(members, before)
        name = weight if weight == "uniform" else f"{form}, {weight}, r = {r:g}"
        if chosen is None:
            print(f"| {method} | {name} | {len(members)} | none keeps what it must | | | | | | |")
            continue
        values = [chosen["scores"][key]["value"] for key in KEPT[:5]]
        again = chosen.get("relearned", {}).get("value")
        cells = [f"{value:.3f}" if value is not None else "–" for value in (*values, again)]
        print(f"| {method} | {name} | {len(members)} | {chosen['config']['rate']:g} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
