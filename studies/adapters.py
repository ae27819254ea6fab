"""MAAT and its baselines on an adapter that was taught 5WBENCH items, each with its settings searched under one budget; ablations; dilution.

    python -m studies.adapters --taught FOLDER --data FIVEWBENCH [--methods maat ga ...] [--seeds 0 1 2] [--trials 8] [--rows FILE]
    python -m studies.adapters --taught FOLDER --data FIVEWBENCH --ablations [--seeds 0]
    python -m studies.adapters --taught FOLDER --data FIVEWBENCH --dilution [--out docs/results/dilution]

FOLDER is what `excise teach recipes/teach-fivew.yaml` wrote. The search tries ``--trials`` settings of each method on the proxy, 30 + 30 items
(six of each W); the best harmonic mean of FSR, RSR and fluency wins and is run on 100 + 100 items with each seed. Rows are appended to the
file, and what is there is not repeated. Prints the table with 95 % intervals, by W, and who is on the Pareto front.
``--dilution`` writes, for each forget answer, the norm of its gradient on the adapter and how concentrated it is, by W and length.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from excise.data.benchmarks.fivew import LABELS, FiveW
from excise.data.encode import encode
from excise.data.example import Benchmark
from excise.evaluation.suites import evaluate, fivew
from excise.files import append_line, whole_lines, write_json
from excise.loading import ModelSpec, load
from excise.precision import resolve_precision
from excise.recipe import build_methods
from excise.run import run_stages
from excise.stages.state import State
from excise.subject import Subject
from excise.sweep.front import front
from excise.sweep.space import Objective
from excise.tokens import collate, score


def grid(**choices: Sequence[Any]) -> list[dict[str, Any]]:
    """Every combination, the last setting running fastest; a name with a dot is a setting of a phase."""
    rows: list[dict[str, Any]] = [{}]
    for name, values in choices.items():
        rows = [{**row, name: value} for row in rows for value in values]
    return rows


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """{"repair.lr": 1} as {"repair": {"lr": 1}}."""
    found: dict[str, Any] = {}
    for name, value in flat.items():
        outer, _, inner = name.partition(".")
        if inner:
            found.setdefault(outer, {})[inner] = value
        else:
            found[outer] = value
    return found


MAAT = {"ascent.steps": 1, "ascent.lr": 1e-4, "negate.strength": 0.7, "repair.steps": 200, "repair.lr": 5e-4}


def _maat(**others: Any) -> tuple[str, list[dict[str, Any]]]:
    tried = {"ascent.lr": [1e-4, 2e-4], "negate.strength": [0.5, 0.7], "repair.lr": [5e-4, 1e-3]}
    return "maat", grid(**{**{name: [setting] for name, setting in {**MAAT, **others}.items()}, **tried})


SPACES: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "maat": _maat(),
    "maat_contrast": _maat(**{"prune.rank_by": "contrast", "negate.rank_by": "contrast"}),
    "maat_tokens": _maat(weight={"name": "attribution", "copies": "drop", "unit": "word", "r": 0.5}),
    "ga": ("ga", grid(lr=[5e-5, 1e-4, 2e-4, 3e-4], epochs=[1, 2])),
    "ga_kl": ("ga_kl", grid(lr=[1e-4, 3e-4], epochs=[2, 4], retain_scale=[1.0, 5.0])),
    "npo": ("npo", grid(lr=[1e-4, 3e-4], epochs=[3, 6], retain=["nll"], retain_scale=[1.0, 10.0])),
    "simnpo": ("simnpo", grid(lr=[1e-4, 3e-4], epochs=[3, 6], retain=["nll"], retain_scale=[1.0, 10.0])),
    "adapter_negation": ("adapter_negation", grid(strength=[0.25, 0.4, 0.5, 0.7], lr=[1e-3, 2e-3], epochs=[6], warmup=[0.1], schedule=["cosine"])),
    "retain_only": ("retain_only", grid(lr=[1e-4, 3e-4, 1e-3, 2e-3], epochs=[2, 4])),
}  # fmt: skip
"""Row of the table -> method and the eight settings that its search tries."""
ABLATIONS: dict[str, dict[str, Any]] = {
    "A: repair by KL only, no negation": {"negate": None, "repair.hidden": 0.0, "repair.entropy": 0.0, "repair.task_vector": 0.0},
    "B: full repair, no negation": {"negate": None},
    "C: attention pruned too, no negation": {"negate": None, "prune.modules": ["q", "k", "v", "o", "gate", "up", "down"]},
    "D: all phases": {},
    "D without projection": {"ascent.project": False},
    "D without entropy": {"repair.entropy": 0.0},
    "D without ascent": {"ascent": None},
    "D without repair": {"repair": None},
}
SIZE, PROXY = 20, 6
"""Items of each W and side, in the table and in the search."""


class Bench:
    """The taught adapter, and the benchmark in two sizes."""

    def __init__(self, taught: Path, data: Path, new_tokens: int) -> None:
        self.target = taught / "target"
        self.data, self.new_tokens = data, new_tokens

    def benchmark(self, size: int) -> Benchmark:
        return FiveW(path=str(self.data), limit=size)()

    def run(self, name: str, flat: Mapping[str, Any], size: int, seed: int) -> dict[str, Any]:
        """Unlearns on so many items of each W, and scores those."""
        subject = self.load()
        benchmark = self.benchmark(size)
        state = State(subject, benchmark, seed=seed, precision=resolve_precision("auto", subject.device))
        begun = time.perf_counter()
        values = {**nested(flat), **({} if name == "maat" else {"checkpoint_every": 0})}
        run_stages(state, [stage for _, stages in build_methods(name, values) for stage in stages])
        seconds = time.perf_counter() - begun
        peak = max((record.get("peak_memory_mb") or 0.0) for record in state.records)
        return {"seconds": round(seconds, 1), "peak_mb": peak, "scores": self.scores(subject, benchmark)}

    def load(self) -> Subject:
        return load(ModelSpec(path=str(self.target), system=""))

    def scores(self, subject: Subject, benchmark: Benchmark) -> dict[str, Any]:
        _, found = evaluate(subject, benchmark, fivew(max_new_tokens=self.new_tokens))
        return {key: {"value": s.value, "ci95": s.ci95} for key, s in found.items() if s.value is not None}


def value(row: Mapping[str, Any], key: str) -> float:
    return float(row["scores"][key]["value"])


def searched(bench: Bench, label: str, trials: int, rows: Path) -> dict[str, Any]:
    """The settings with the best joint score on the proxy."""
    name, space = SPACES[label]
    found: list[tuple[float, dict[str, Any]]] = []
    for settings in space[:trials]:
        row = kept(rows, {"part": "search", "label": label, "settings": settings}, lambda s=settings: bench.run(name, s, PROXY, 0))
        found.append((value(row, "fsr_rsr"), settings))
    return max(found, key=lambda pair: pair[0])[1]


def kept(rows: Path, config: Mapping[str, Any], make: Any) -> dict[str, Any]:
    """The row of this configuration; made and appended where it is not there yet."""
    key = json.dumps(config, sort_keys=True)
    for row in whole_lines(rows):
        if json.dumps(row["config"], sort_keys=True) == key:
            return row
    row = {"config": config, **make()}
    append_line(rows, row)
    print(key[:150], {k: round(value(row, k), 1) for k in ("fsr", "rsr", "fsr_rsr")}, f"{row['seconds']} s", flush=True)
    return row


def table(rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Means over the seeds with the outermost bounds of their intervals; * marks the Pareto front of FSR and RSR."""
    means = {n: {key: float(np.mean([value(row, key) for row in members])) for key in ("fsr", "rsr")} for n, members in enumerate(rows.values())}
    best = {list(rows)[n] for n in front(means, [Objective(score="fsr", better="higher"), Objective(score="rsr", better="higher")])}
    print(
        f"| method | seeds | FSR | RSR | joint | {' | '.join(f'FSR/RSR {w}' for w in LABELS)} | repetition (retain) | seconds | peak MB |\n|"
        + "---|" * 13
    )
    for label, members in rows.items():
        cells = []
        for key in ("fsr", "rsr", "fsr_rsr"):
            bounds = [row["scores"][key]["ci95"] for row in members if row["scores"][key].get("ci95")]
            text = f"{float(np.mean([value(row, key) for row in members])):.0f}"
            cells.append(f"{text} [{min(b[0] for b in bounds):.0f}, {max(b[1] for b in bounds):.0f}]" if bounds else text)
        each = ["/".join(f"{np.mean([value(row, f'{k}@{w}') for row in members]):.0f}" for k in ("fsr", "rsr")) for w in LABELS]
        repeats = float(np.mean([value(row, "retain.repetition_rate") for row in members]))
        seconds, peak = (float(np.mean([row[key] for row in members])) for key in ("seconds", "peak_mb"))
        mark = " *" if label in best else ""
        print(f"| {label}{mark} | {len(members)} | {' | '.join(cells)} | {' | '.join(each)} | {repeats:.2f} | {seconds:.0f} | {peak:.0f} |")


def dilution(bench: Bench) -> list[dict[str, Any]]:
    """For each forget answer: W, scored tokens, gradient norm of its mean loss on the adapter, share of that norm's square in the top 1 %."""
    subject, found = bench.load(), []
    adapter = [p for n, p in subject.model.named_parameters() if "lora_" in n]
    for parameter in subject.model.parameters():
        parameter.requires_grad_(False)
    for parameter in adapter:
        parameter.requires_grad_(True)
    for example in bench.benchmark(SIZE).forget:
        text = encode(subject.tokenizer, subject.template, example)
        scored = score(subject, collate([text], "padded"))
        gradients = torch.autograd.grad(-scored.mean(scored.token_logp), adapter)
        flat = torch.cat([g.flatten() for g in gradients]).square()
        top = flat.topk(len(flat) // 100).values.sum() / flat.sum()
        found.append({"label": example.label, "tokens": text.scored, "norm": float(flat.sum().sqrt()), "top_percent": float(top)})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--taught", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--methods", nargs="+", default=list(SPACES), choices=SPACES)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--new-tokens", type=int, default=48)
    parser.add_argument("--ablations", action="store_true")
    parser.add_argument("--dilution", action="store_true")
    parser.add_argument("--rows", type=Path, default=Path("docs/results/adapters.jsonl"))
    parser.add_argument("--out", type=Path, default=Path("docs/results/dilution"))
    chosen = parser.parse_args()
    bench = Bench(chosen.taught, chosen.data, chosen.new_tokens)
    if chosen.dilution:
        found = dilution(bench)
        write_json(chosen.out.with_suffix(".json"), {"answers": found})
        print("| W | answers | scored tokens | gradient norm | share of the top 1 % |\n|---|---|---|---|---|")
        for label in LABELS:
            part = [row for row in found if row["label"] == label]
            middle = {key: float(np.median([row[key] for row in part])) for key in ("tokens", "norm", "top_percent")}
            print(f"| {label} | {len(part)} | {middle['tokens']:.0f} | {middle['norm']:.2f} | {middle['top_percent']:.2f} |")
        return
    chosen.rows.parent.mkdir(parents=True, exist_ok=True)
    shown: dict[str, list[dict[str, Any]]] = {}
    start = kept(
        chosen.rows, {"part": "start"}, lambda: {"seconds": 0.0, "peak_mb": 0.0, "scores": bench.scores(bench.load(), bench.benchmark(SIZE))}
    )
    shown["target"] = [start]
    best = searched(bench, "maat", chosen.trials, chosen.rows) if chosen.ablations else {}
    for label, seed in [(label, seed) for label in (ABLATIONS if chosen.ablations else chosen.methods) for seed in chosen.seeds]:
        if chosen.ablations:
            changed = ABLATIONS[label]
            off = {key for key, setting in changed.items() if setting is None}
            name, settings = "maat", {k: v for k, v in {**best, **changed}.items() if k in off or k.partition(".")[0] not in off}
        else:
            name, settings = SPACES[label][0], searched(bench, label, chosen.trials, chosen.rows)
        config = {"part": "table", "label": label, "settings": settings, "seed": seed}
        row = kept(chosen.rows, config, lambda n=name, s=settings, seed=seed: bench.run(n, s, SIZE, seed))
        shown.setdefault(label, []).append(row)
    table(shown)


if __name__ == "__main__":
    main()
