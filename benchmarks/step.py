"""What the reference and the token weights cost: peak memory and time of a training step.

    python -m benchmarks.step [--model embedded:smollm2] [--steps 6] [--json FILE]

Each case runs in a process of its own (peak memory is a property of the process); cases are repeated in turn, and the
best time of each counts, because other work on the machine can only make a step slower.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

CASES: dict[str, dict[str, Any]] = {
    "ga + nll (no reference)": {"name": "graddiff"},
    "npo + kl": {"name": "npo", "retain": "kl"},
    "t_npo + kl, scores remembered": {"name": "t_npo", "retain": "kl"},
    "t_npo + kl, scores at every step": {"name": "t_npo", "retain": "kl", "attribution": {"refresh": "step"}},
}


def measure(model: str, method: dict[str, Any], steps: int) -> dict[str, float]:
    """Seconds per step, seconds of preparation and peak memory of one case, in this process."""
    from excise.data.benchmarks.strangers import Strangers
    from excise.loading import load
    from excise.memory import peak_memory_mb
    from excise.precision import resolve_precision
    from excise.recipe import build_methods
    from excise.stages.state import State

    subject = load(model)
    state = State(subject, Strangers()(), precision=resolve_precision("auto", subject.device))
    loaded = peak_memory_mb(subject.device)
    settings = {"steps": steps, "batch": 8, "lr": 1e-6, "guard": {"every": 0}, "checkpoint_every": 0}
    stages = [s for _, part in build_methods(method["name"], {**settings, **{k: v for k, v in method.items() if k != "name"}}) for s in part]
    begun = time.perf_counter()
    for stage in stages:
        stage.prepare(state)
    prepared = time.perf_counter()
    for stage in stages:
        stage(state)
    done = time.perf_counter()
    return {
        "seconds_per_step": (done - prepared) / steps,
        "seconds_of_preparation": prepared - begun,
        "peak_mb": peak_memory_mb(subject.device),
        "model_mb": loaded,
        "tokens_per_step": state.records[-1]["tokens"] / steps,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default="embedded:smollm2")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--case")
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(measure(arguments.model, CASES[arguments.case], arguments.steps)))
        return
    found: dict[str, dict[str, float]] = {}
    for _ in range(arguments.repeats):
        for case in CASES:
            command = [sys.executable, "-m", "benchmarks.step", "--model", arguments.model, "--steps", str(arguments.steps), "--case", case]
            now = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
            best = found.setdefault(case, dict(now))
            for key, value in now.items():
                best[key] = min(best[key], value)
    first = found["ga + nll (no reference)"]
    npo = found["npo + kl"]
    print(f"{'case':<36}{'s/step':>8}{'prepare s':>11}{'peak MiB':>10}{'x no reference':>16}{'x npo time':>12}")
    for case, row in found.items():
        memory, speed = row["peak_mb"] / first["peak_mb"], row["seconds_per_step"] / npo["seconds_per_step"]
        print(f"{case:<36}{row['seconds_per_step']:>8.2f}{row['seconds_of_preparation']:>11.2f}{row['peak_mb']:>10.0f}{memory:>16.2f}{speed:>12.2f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
