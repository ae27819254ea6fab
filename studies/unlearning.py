"""Does it matter which tokens are unlearned? Methods under several token weights, on one taught model, with equal optimiser steps.

    python -m studies.unlearning [--taught FOLDER] [--methods wga npo ga rmu] [--weights uniform paper names contrast] [--forms t s]
                                 [--rates 0.5 1 2] [--seeds 0] [--relearn 10] [--rows docs/results/unlearning.jsonl]

FOLDER is what `excise teach` wrote for the demo's world (target and twin). Every run starts from the same target, which is loaded once; its
scores are appended to the rows file, and a run whose row is there is not repeated. Learning rates are searched by the same budget for
every weight: ``--rates`` multiplies the demo's rate. Prints a line for each method, weight and rate; the last two columns say how much less is told
than with uniform weights at the same rate, with a 95 % interval over the facts. The best rate of a weight is marked: the lowest mean forget fact
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

import numpy as np

from excise.attacks.relearn import Relearn
from excise.attacks.scene import Scene, restored
from excise.data.benchmarks.strangers import Strangers
from excise.demo import BALANCE, SHARED
from excise.evaluation.metrics.facts import FactRecall
from excise.evaluation.records import Record, Records
from excise.evaluation.suites import evaluate
from excise.evaluation.suites.strangers import strangers
from excise.files import append_line, cache_folder, whole_lines
from excise.recipe import build_methods
from excise.run import run_stages
from excise.stages.state import State
from excise.subject import ModelSpec, Subject, load
from excise.tokens import resolve_precision
from excise.weights import Facts
from studies.world import add_taught, folder

WEIGHTS: dict[str, dict[str, Any]] = {
    "paper": {},
    "drop": {"copies": "drop"},
    "mentions": {"hide": "mentions", "copies": "drop"},
    "word": {"copies": "drop", "unit": "word"},
    "entropy": {name: getattr(Facts(), name) for name in ("alpha", "copies", "unit")},
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
        records, scores = evaluate(subject, benchmark, strangers(), retrained=twin)
        row: dict[str, Any] = {"seconds": round(trained, 1), "stopped": state.records[-1]["stopped"]}
        row["scores"] = {key: {"value": scores[key].value, "ci95": scores[key].ci95} for key in KEPT if key in scores}
        row["told"] = told(records["forget"])
        if relearn:
            attack = Relearn(steps=relearn, points=(0,), lr=2e-5, splits=("forget",))
            outcome = attack(Scene(subject, benchmark, strangers(), seed))
            found = outcome.scores["forget.fact_recall"]
            row["relearned"] = {"steps": relearn, "value": found.value, "ci95": found.ci95, "told": told(outcome.records["forget"])}
    return row


def told(records: Sequence[Record]) -> list[float]:
    """How much of its fact each forget answer tells."""
    return [value for record in records if (value := FactRecall().per_example(record)) is not None]


def mean(rows: Sequence[Mapping[str, Any]], key: str) -> float:
    return float(np.mean([row["scores"][key]["value"] for row in rows]))


def best(rows: Sequence[Mapping[str, Any]], before: Mapping[str, float]) -> list[Mapping[str, Any]]:
    """The runs (one for each seed) of the rate that forgets most of those that keep what they must; none where none does."""
    by_rate: dict[float, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_rate.setdefault(row["config"]["rate"], []).append(row)

    def keeps(members: Sequence[Mapping[str, Any]]) -> bool:
        return all(mean(members, f"{side}.fact_recall") >= before[f"{side}.fact_recall"] - 0.02 for side in ("retain", "neighbours"))

    fitting = [members for members in by_rate.values() if keeps(members)]
    return min(fitting, key=lambda members: mean(members, "forget.fact_recall"), default=[])


def gain(uniform: Sequence[Sequence[float]], other: Sequence[Sequence[float]], resamples: int = 2000) -> tuple[float, float, float]:
    """How much less the other runs tell than the uniform ones: mean over seeds and facts, with a 95 % bootstrap interval over the facts."""
    difference = np.mean(uniform, axis=0) - np.mean(other, axis=0)
    drawn = np.random.default_rng(0).integers(0, len(difference), size=(resamples, len(difference)))
    low, high = np.percentile(difference[drawn].mean(axis=1), [2.5, 97.5])
    return float(difference.mean()), float(low), float(high)


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
            print(
                config,
                {key.replace(".fact_recall", ""): round(row["scores"][key]["value"], 3) for key in KEPT[:3]},
                row.get("relearned", {}).get("value"),
                f"{row['seconds']} s",
                flush=True,
            )
    print_table([row for row in whole_lines(arguments.rows) if row["config"]["method"] in arguments.methods], before)


def print_table(rows: Sequence[Mapping[str, Any]], before: Mapping[str, float]) -> None:
    """A line for each method, weight and rate: means over the seeds, and how much less is told than with uniform weights at that rate."""
    print("\nbefore: " + ", ".join(f"{side} {before[f'{side}.fact_recall']:.3f}" for side in ("forget", "retain", "neighbours")))
    head = "method | weight | rate | seeds | forget | retain | neighbours | truth ratio | forget quality | ROUGE | repetition | relearned"
    print(f"| {head} | less than uniform | and after relearning |\n|" + "---|" * 14)
    shown = (*KEPT[:6], "forget.repetition_rate")

    def key(row: Mapping[str, Any]) -> tuple[str, str, str, float]:
        return row["config"]["method"], row["config"]["form"], row["config"]["weight"], row["config"]["r"]

    for group in sorted(set(map(key, rows))):
        method, form, weight, r = group
        members = [row for row in rows if key(row) == group]
        chosen = best(members, before)
        name = weight if weight == "uniform" else f"{form}, {weight}, r = {r:g}"
        for rate in sorted({row["config"]["rate"] for row in members}):
            runs = [row for row in members if row["config"]["rate"] == rate]
            cells = [f"{mean(runs, score):.3f}" if all(row["scores"].get(score) for row in runs) else "–" for score in shown]
            again = [row["relearned"]["value"] for row in runs if "relearned" in row]
            cells.append(f"{np.mean(again):.3f}" if again else "–")
            against = [row for row in rows if key(row)[0] == method and key(row)[2] == "uniform" and row["config"]["rate"] == rate]
            cells += comparison(against, runs) if weight != "uniform" else ["", ""]
            mark = " *" if runs == chosen else ""
            print(f"| {method} | {name}{mark} | {rate:g} | {len(runs)} | {' | '.join(cells)} |")
    print("* the rate that forgets most of those that keep retain and neighbours within .02")


def comparison(uniform: Sequence[Mapping[str, Any]], runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """How much less the runs tell than those with uniform weights, and the same after relearning; a dash where there is nothing to compare."""
    sides = [[row["told"] for row in part] for part in (uniform, runs)]
    again = [[row["relearned"]["told"] for row in part if "relearned" in row] for part in (uniform, runs)]
    return ["{:+.3f} [{:+.3f}, {:+.3f}]".format(*gain(a, b)) if a and b else "–" for a, b in (sides, again)]


if __name__ == "__main__":
    main()
