"""How time and memory grow with the number of tokens.

    python -m benchmarks.growth [--rows 6 19 60] [--repeats 5] [--json FILE] [--svg FILE]

Time: texts of one length, a growing number of them; a training step (NPO with a KL term) and the likelihood part of an evaluation of SmolLM2,
in bf16 where the processor has it and else in float32, best of the repeats, which go round all sizes in turn. The slope of log time against
log tokens is 1 where costs are linear.
Memory: the peak of a training step on models with a vocabulary of 49,152 and of 262,144, each case in a process of its own, against the
scored tokens. A loop that keeps the logits of all scored tokens needs 4 V bytes for each of them, and as much again for each copy.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LOG = "the harbour master wrote down which boats came in with the tide and which of them had been damaged by the storm of that night"
WORDS = LOG.split(" ")
VOCABULARIES = {"smollm2": 49152, "256k": 262144}


def texts(count: int) -> tuple[Any, ...]:
    """Questions and answers of one length, each different."""
    from excise.data.example import Example

    return tuple(
        Example(f"{i}", f"What does entry {100 + i} of the log say?", f"It says {100 + i} that " + " ".join(WORDS[i % 7 : i % 7 + 16]) + ".")
        for i in range(count)
    )


class Step:
    """A training step over so many forget and as many retain texts, which can be taken again and again."""

    def __init__(self, subject: Any, rows: int) -> None:
        from excise.data.example import Benchmark
        from excise.precision import resolve_precision
        from excise.stages.state import State

        examples = texts(2 * rows)
        self.benchmark = Benchmark("log", {"forget": examples[:rows], "retain": examples[rows:]})
        self.rows = rows
        precision = resolve_precision("auto", subject.device)
        self.state = lambda folder: State(subject, self.benchmark, seed=0, precision=precision, folder=folder)

    def seconds(self, steps: int) -> tuple[float, int, int]:
        """Best seconds of a step, its tokens, its scored tokens."""
        from excise.files import read_lines
        from excise.recipe import build_methods

        values = {"steps": steps, "batch": self.rows, "lr": 1e-6, "warmup": 0.0, "schedule": "constant", "checkpoint_every": 0, "retain": "kl"}
        with tempfile.TemporaryDirectory() as folder:
            state = self.state(Path(folder))
            stages = [stage for _, part in build_methods("npo", {**values, "guard": {"every": 0}}) for stage in part]
            for stage in stages:
                stage.prepare(state)
            for stage in stages:
                stage(state)
            rows = read_lines(Path(folder) / "train.jsonl")
        return min(row["seconds"] for row in rows[1:] or rows), int(rows[0]["tokens"]), self.scored(state.subject)

    def scored(self, subject: Any) -> int:
        from excise.data.encode import encode

        return sum(encode(subject.tokenizer, subject.template, e).scored for split in self.benchmark.splits.values() for e in split)


def evaluated(subject: Any, rows: int) -> tuple[float, int]:
    """Seconds of the likelihood part over so many texts, and its tokens."""
    from excise.data.encode import encode
    from excise.data.example import Benchmark
    from excise.evaluation.collect import collect
    from excise.evaluation.plan import Plan
    from excise.precision import resolve_precision

    examples = texts(rows)
    begun = time.perf_counter()
    collect(subject, Benchmark("log", {"forget": examples}), {"forget": Plan()}, precision=resolve_precision("auto", subject.device))
    return time.perf_counter() - begun, sum(len(encode(subject.tokenizer, subject.template, e)) for e in examples)


def times(rows: Sequence[int], repeats: int) -> dict[str, list[dict[str, float]]]:
    """Training and evaluation, every size in turn, the best of each."""
    from benchmarks.training import subject_of

    subject = subject_of("smollm2")
    best: dict[tuple[str, int], tuple[float, int]] = {}
    for _ in range(repeats):
        for count in rows:
            seconds, tokens, _ = Step(subject, count).seconds(2)
            best["training", count] = min(best.get(("training", count), (seconds, tokens)), (seconds, tokens))
            found = evaluated(subject, 4 * count)
            best["evaluation", count] = min(best.get(("evaluation", count), found), found)
    return {side: [{"tokens": best[side, count][1], "seconds": best[side, count][0]} for count in rows] for side in ("training", "evaluation")}


def slope(points: Sequence[dict[str, float]]) -> float:
    """Of log seconds against log tokens."""
    import numpy as np

    return float(np.polyfit(np.log([p["tokens"] for p in points]), np.log([p["seconds"] for p in points]), 1)[0])


def memory(model: str, rows: int) -> dict[str, float]:
    """Peak of a process that takes two steps, without what it needed before it loaded the model."""
    from benchmarks.training import subject_of
    from excise.memory import peak_memory_mb

    empty = peak_memory_mb()
    subject = subject_of(model)
    loaded = peak_memory_mb()
    _, tokens, scored = Step(subject, rows).seconds(2)
    return {"tokens": tokens, "scored": scored, "loaded_mb": loaded - empty, "peak_mb": peak_memory_mb() - empty}


def picture(cases: dict[str, list[dict[str, float]]]) -> str:
    """Peak memory against scored tokens, a line for each vocabulary, and what logits in float32 would add."""
    from xml.sax.saxutils import escape

    width, height, left, bottom = 640, 320, 70, 40
    dashed = {name: [(p["scored"], points[0]["peak_mb"] + (p["scored"] - points[0]["scored"]) * 4 * VOCABULARIES[name] / 2**20) for p in points]
              for name, points in cases.items()}  # fmt: skip
    solid = {name: [(p["scored"], p["peak_mb"]) for p in points] for name, points in cases.items()}
    most = max(y for line in (*solid.values(), *dashed.values()) for _, y in line) * 1.05
    last = max(x for line in solid.values() for x, _ in line)

    def at(x: float, y: float) -> str:
        return f"{left + x / last * (width - left - 20):.1f},{height - bottom - y / most * (height - bottom - 20):.1f}"

    parts = []
    for colour, name in zip(("#1f77b4", "#d62728"), cases, strict=True):
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{" ".join(at(*p) for p in solid[name])}"/>')
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-dasharray="5 4" points="{" ".join(at(*p) for p in dashed[name])}"/>')
        x, y = at(*solid[name][-1]).split(",")
        parts.append(f'<text x="{x}" y="{float(y) - 8}" text-anchor="end" fill="{colour}">{escape(f"V = {VOCABULARIES[name]:,}")}</text>')
    for share in (0, 0.5, 1):
        x, y = at(0, share * most).split(",")
        parts.append(f'<text x="{left - 8}" y="{y}" text-anchor="end">{share * most / 1000:.1f} GB</text>')
        parts.append(f'<text x="{at(share * last, 0).split(",")[0]}" y="{height - 18}" text-anchor="middle">{share * last:.0f}</text>')
    title = "Peak memory of a training step against scored tokens; dashed: with the logits of all scored tokens kept once"
    parts.append(f'<text x="{left}" y="14">{title}</text>')
    begin = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11" fill="#333">'
    return begin + "".join(parts) + "</svg>\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[6, 19, 60])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--svg", type=Path)
    parser.add_argument("--memory", nargs=2, metavar=("MODEL", "ROWS"), help="measure this one case, and print it as JSON")
    arguments = parser.parse_args()
    if arguments.memory:
        print(json.dumps(memory(arguments.memory[0], int(arguments.memory[1]))))
        return
    found = times(arguments.rows, arguments.repeats)
    slopes = {side: slope(points) for side, points in found.items()}
    for side, points in found.items():
        print(f"{side}: " + ", ".join(f"{p['tokens']:.0f} tokens {p['seconds']:.2f} s" for p in points) + f"; slope {slopes[side]:.2f}", flush=True)
    cases: dict[str, list[dict[str, float]]] = {}
    for model in VOCABULARIES:
        cases[model] = []
        for rows in arguments.rows:
            command = [sys.executable, "-m", "benchmarks.growth", "--memory", model, str(rows)]
            cases[model].append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]))
        first, last = cases[model][0], cases[model][-1]
        growth = (last["peak_mb"] - first["peak_mb"]) * 2**20 / (last["scored"] - first["scored"])
        kept = 4 * VOCABULARIES[model]
        print(
            f"V = {VOCABULARIES[model]}: {growth / 1024:.0f} KiB for each scored token (its float32 logits alone: {kept / 1024:.0f} KiB)", flush=True
        )
    if arguments.json:
        arguments.json.write_text(json.dumps({"slopes": slopes, "times": found, "memory": cases}, indent=1) + "\n")
    if arguments.svg:
        arguments.svg.write_text(picture(cases))


if __name__ == "__main__":
    main()
