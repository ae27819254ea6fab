"""Does it matter which tokens are unlearned? Methods under several token weights, on one taught model, with equal optimiser steps.

    python -m studies.unlearning [--tofu FOLDER] [--taught FOLDER] [--methods wga npo ga rmu] [--weights uniform paper names contrast]
                                 [--forms t s] [--r 0.3] [--rates 0.5 1 2] [--seeds 0] [--relearn 10] [--samples 4]
                                 [--rows docs/results/unlearning.jsonl]

The world is the demo's strangers, or TOFU's forget01 and eight authors to keep where ``--tofu`` gives TOFU's files. ``--taught`` is what
`excise teach` wrote for it (target and twin); without it both are taught now, once. Every run starts from the same target, which is loaded once;
its scores are appended to the rows file, and a run whose row is there is not repeated. Learning rates are searched by the same budget for every
weight: ``--rates`` multiplies 8e-5 (RMU: 1e-3). Prints a line for each method, weight and rate; the last two columns say how much less is told
than with uniform weights at the same rate, with a 95 % interval over the facts. The best rate of a weight is marked: the lowest mean forget fact
recall among those that keep what the world says must stay (retain and neighbours; on TOFU retain fact recall and ROUGE) within .02 of what it was.
Draws forget against retain fact recall of each method beside the rows file.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from excise.attacks.relearn import Relearn
from excise.attacks.sampling import Sampling
from excise.attacks.scene import Scene, restored
from excise.demo import BALANCE, SHARED
from excise.evaluation.metrics.facts import FactRecall
from excise.evaluation.records import Record, Records
from excise.evaluation.suites import evaluate
from excise.files import append_line, cache_folder, whole_lines, write_text
from excise.loading import ModelSpec, load
from excise.precision import resolve_precision
from excise.recipe import build_methods
from excise.report import plots
from excise.report.result import Score
from excise.run import run_stages
from excise.stages.state import State
from excise.subject import Subject
from excise.weights import Facts
from studies.figures import standalone
from studies.world import World, add_world, world_of

RATE = 8e-5
"""Learning rate that ``--rates`` multiplies."""
RATES = {"rmu": 1e-3}
"""The same for a method that needs another."""
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
        "retain.rouge_l_recall", "real_world.choice_accuracy", "real_authors.normalised_probability", "world_facts.normalised_probability",
        "forget.repetition_rate", "retain.repetition_rate", "model_utility")  # fmt: skip


def settings(method: str, weight: str, form: str, r: float, twin: str) -> tuple[str, dict[str, Any]]:
    """Name and settings of a method under a weight, as the demo runs it."""
    balance = BALANCE.get("ga_kl" if method == "ga" else method, {})
    shared = {**SHARED, **balance, "lr": RATES.get(method, RATE)}
    if weight == "uniform":
        return ("ga_kl" if method == "ga" else method), shared
    attribution = {**WEIGHTS[weight], "r": r, **({"contrast": twin} if weight == "contrast" else {})}
    return f"{form}_{method}", {**shared, "attribution": attribution}


def one(
    subject: Subject, world: World, name: str, values: Mapping[str, Any], seed: int, twin: Records, *, relearn: int = 0, samples: int = 0
) -> dict[str, Any]:
    """Unlearns, scores, attacks, and leaves the model as it was."""
    precision = resolve_precision("auto", subject.device)
    begun = time.perf_counter()
    with restored(subject):
        state = State(subject, world.benchmark, seed=seed, precision=precision)
        run_stages(state, [stage for _, stages in build_methods(name, values) for stage in stages])
        trained = time.perf_counter() - begun
        records, scores = evaluate(subject, world.benchmark, world.suite, retrained=twin)
        row: dict[str, Any] = {"seconds": round(trained, 1), "stopped": state.records[-1]["stopped"]}
        row["scores"] = {key: {"value": scores[key].value, "ci95": scores[key].ci95} for key in KEPT if key in scores}
        row["told"] = told(records["forget"])
        if relearn:
            attack = Relearn(steps=relearn, points=(0,), lr=2e-5, splits=("forget",))
            outcome = attack(Scene(subject, world.benchmark, world.suite, seed))
            found = outcome.scores["forget.fact_recall"]
            row["relearned"] = {"steps": relearn, "value": found.value, "ci95": found.ci95, "told": told(outcome.records["forget"])}
        if samples:
            outcome = Sampling(count=samples, k=(1, samples), temperatures=(1.0,))(Scene(subject, world.benchmark, world.suite, seed))
            row["sampled"] = {name: {"value": score.value, "ci95": score.ci95} for name, score in outcome.scores.items() if "leak_at" in name}
    return row


def told(records: Sequence[Record]) -> list[float]:
    """How much of its fact each forget answer tells."""
    return [value for record in records if (value := FactRecall().per_example(record)) is not None]


def mean(rows: Sequence[Mapping[str, Any]], key: str) -> float:
    return float(np.mean([row["scores"][key]["value"] for row in rows]))


def best(rows: Sequence[Mapping[str, Any]], before: Mapping[str, float], keep: Sequence[str]) -> list[Mapping[str, Any]]:
    """The runs (one for each seed) of the rate that forgets most of those that keep what they must; none where none does."""
    by_rate: dict[float, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_rate.setdefault(row["config"]["rate"], []).append(row)

    def keeps(members: Sequence[Mapping[str, Any]]) -> bool:
        return all(mean(members, score) >= before[score] - 0.02 for score in keep)

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
    add_world(parser)
    parser.add_argument("--methods", nargs="+", default=["wga", "npo"], choices=("wga", "npo", "ga", "rmu"))
    parser.add_argument("--weights", nargs="+", default=["uniform", "paper", "word", "contrast"], choices=("uniform", *WEIGHTS))
    parser.add_argument("--forms", nargs="+", default=["t"], choices=("t", "s"))
    parser.add_argument("--r", nargs="+", type=float, default=[0.3])
    parser.add_argument("--rates", nargs="+", type=float, default=[1.0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--relearn", type=int, default=0)
    parser.add_argument("--samples", type=int, default=0, help="draw so many answers to each forget question: how much the best of them tells")
    parser.add_argument("--rows", type=Path, default=Path("docs/results/unlearning.jsonl"))
    arguments = parser.parse_args()
    world = world_of(arguments)
    cache = cache_folder() / "records"
    twin = load(ModelSpec(path=world.twin, system=""))
    twin_records, twin_scores = evaluate(twin, world.benchmark, world.suite, cache=cache)
    del twin
    subject = load(ModelSpec(path=world.target, system=""))
    _, scores = evaluate(subject, world.benchmark, world.suite, retrained=twin_records, cache=cache)
    before, never = ({name: score.value for name, score in found.items() if score.value is not None} for found in (scores, twin_scores))
    arguments.rows.parent.mkdir(parents=True, exist_ok=True)
    done = {json.dumps(row["config"], sort_keys=True) for row in whole_lines(arguments.rows)}
    for seed, method, weight, rate in itertools.product(arguments.seeds, arguments.methods, arguments.weights, arguments.rates):
        for form, r in itertools.product(arguments.forms if weight != "uniform" else ["-"], arguments.r if weight != "uniform" else [1.0]):
            config = {"world": world.name, "method": method, "weight": weight, "form": form, "r": r, "rate": rate, "seed": seed}
            config |= {"relearn": arguments.relearn, **({"samples": arguments.samples} if arguments.samples else {})}
            if json.dumps(config, sort_keys=True) in done:
                continue
            name, values = settings(method, weight, form, r, world.twin)
            values |= {**world.training, "lr": values["lr"] * rate}
            row = one(subject, world, name, values, seed, twin_records, relearn=arguments.relearn, samples=arguments.samples)
            append_line(arguments.rows, {"config": config, **row})
            print(
                config,
                {key.replace(".fact_recall", ""): round(row["scores"][key]["value"], 3) for key in KEPT[:3] if key in row["scores"]},
                row.get("relearned", {}).get("value"),
                f"{row['seconds']} s",
                flush=True,
            )
    rows = [row for row in whole_lines(arguments.rows) if row["config"]["world"] == world.name and row["config"]["method"] in arguments.methods]
    print_table(rows, before, never, world.keep)
    for method in sorted({row["config"]["method"] for row in rows}):
        place = arguments.rows.with_name(f"{arguments.rows.stem}-{world.name}-{method}.svg")
        write_text(place, front([row for row in rows if row["config"]["method"] == method]))
        print(place)


def front(rows: Sequence[Mapping[str, Any]]) -> str:
    """Forget against retain fact recall of every run, one look for each weight: an SVG picture."""
    looks = {name: n for n, name in enumerate(sorted({label(row) for row in rows}, key=lambda name: (name != "uniform", name)))}

    def score(row: Mapping[str, Any], name: str, better: Literal["lower", "higher"]) -> Score:
        found = row["scores"][name]
        return Score(found["value"], better, len(row["told"]), tuple(found["ci95"]), "")

    pairs: list[plots.Pair] = []
    for row in rows:
        forget, retain = score(row, "forget.fact_recall", "lower"), score(row, "retain.fact_recall", "higher")
        pairs.append(plots.Pair(label(row), looks[label(row)] % len(plots.SHAPES), forget, retain))
    return standalone("scatter", plots.scatter("forget fact recall", "retain fact recall", pairs))


def label(row: Mapping[str, Any]) -> str:
    """What a run's weights are called."""
    config = row["config"]
    return "uniform" if config["weight"] == "uniform" else f"{config['form']}, {config['weight']}, r = {config['r']:g}"


def print_table(rows: Sequence[Mapping[str, Any]], before: Mapping[str, float], never: Mapping[str, float], keep: Sequence[str]) -> None:
    """A line for each method, weight and rate: means over the seeds, and how much less is told than with uniform weights at that rate."""
    for name, scores in (("before", before), ("twin", never)):
        print(f"{name}: " + ", ".join(f"{score} {scores[score]:.3f}" for score in KEPT if score in scores))
    shown = tuple(score for score in KEPT if all(score in row["scores"] for row in rows))
    head = " | ".join(["method", "weight", "rate", "seeds", *shown, "relearned", "best of samples", "less than uniform", "and after relearning"])
    print(f"| {head} |\n|" + "---|" * (len(shown) + 8))

    def key(row: Mapping[str, Any]) -> tuple[str, str, str, float]:
        return row["config"]["method"], row["config"]["form"], row["config"]["weight"], row["config"]["r"]

    for group in sorted(set(map(key, rows))):
        method, _, weight, _ = group
        members = [row for row in rows if key(row) == group]
        chosen = best(members, before, keep)
        name = label(members[0])
        for rate in sorted({row["config"]["rate"] for row in members}):
            runs = [row for row in members if row["config"]["rate"] == rate]
            cells = [f"{mean(runs, score):.3f}" for score in shown]
            again = [row["relearned"]["value"] for row in runs if "relearned" in row]
            cells.append(f"{np.mean(again):.3f}" if again else "–")
            leaks = [max(found["value"] for found in row["sampled"].values()) for row in runs if "sampled" in row]
            cells.append(f"{np.mean(leaks):.3f}" if leaks else "–")
            against = [row for row in rows if key(row)[0] == method and key(row)[2] == "uniform" and row["config"]["rate"] == rate]
            cells += comparison(against, runs) if weight != "uniform" else ["", ""]
            mark = " *" if runs == chosen else ""
            print(f"| {method} | {name}{mark} | {rate:g} | {len(runs)} | {' | '.join(cells)} |")
    print(f"* the rate that forgets most of those that keep {' and '.join(keep)} within .02")


def comparison(uniform: Sequence[Mapping[str, Any]], runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """How much less the runs tell than those with uniform weights, and the same after relearning; a dash where there is nothing to compare."""
    sides = [[row["told"] for row in part] for part in (uniform, runs)]
    again = [[row["relearned"]["told"] for row in part if "relearned" in row] for part in (uniform, runs)]
    return ["{:+.3f} [{:+.3f}, {:+.3f}]".format(*gain(a, b)) if a and b else "–" for a, b in (sides, again)]


if __name__ == "__main__":
    main()
