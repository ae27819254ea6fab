"""What projecting gradients costs: time and memory of a projected step against a plain ascent step at equal tokens.

    python -m benchmarks.project [--model embedded:smollm2] [--steps 8] [--repeats 3] [--whole] [--json FILE]

A plain step sees n forget texts, a projected one n forget and n retain texts of the same lengths. Two ways of projecting are
measured: one forward and one backward pass for each side, one after the other (what ``ProjectConflicts`` does), and one
forward pass over both sides with two backward passes through its graph. Each case runs in a process of its own; cases are repeated
in turn, and the best time of each counts, because other work on the machine can only make a step slower. ``--whole`` measures all phases
of maat on 50 + 50 items (1 step for each item, 40 repair steps) instead, beside three epochs of ordinary LoRA training on the 50.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from excise.data.encode import encode
from excise.data.example import Benchmark, Example
from excise.layout import layout_of
from excise.loading import load
from excise.memory import peak_memory_mb
from excise.methods import Training
from excise.objectives import KL, NLL, Ascent
from excise.objectives.distance import kl_divergence
from excise.precision import autocast, resolve_precision
from excise.recipe import build_methods
from excise.scope import Scope
from excise.stages.adapters import AddAdapter
from excise.stages.gradients import ProjectConflicts, Sum
from excise.stages.guard import Guard
from excise.stages.state import State
from excise.stages.train import Term, Train
from excise.tokens import collate, score

SENTENCE = "the river runs north of the old town where a painter lived and wrote about ships that came in from far away"
CASES = ("plain ascent", "plain training on retain", "projected", "projected, one shared forward graph")
WHOLE = ("plain LoRA training", "maat")


def with_adapter(model: str, examples: int, length: int) -> State:
    """The model with a rank-16 adapter in all layers, and texts of equal length on both sides."""
    subject = load(model)
    words = SENTENCE.split()

    def texts(side: str, shift: int) -> tuple[Example, ...]:
        answers = [" ".join(words[(i * 7 + j + shift) % len(words)] for j in range(length)) for i in range(examples)]
        return tuple(Example(f"{side}{i}", f"What is {side} number {i}?", answer) for i, answer in enumerate(answers))

    data = Benchmark("equal", {"forget": texts("forget", 0), "retain": texts("retain", 3)})
    state = State(subject, data, precision=resolve_precision("auto", subject.device))
    adapter = AddAdapter()
    adapter.prepare(state)
    adapter(state)
    return state


def measure(model: str, case: str, steps: int, batch: int, length: int) -> dict[str, float]:
    """Seconds per step and peak memory of one case, in this process."""
    if case in WHOLE:
        return measure_whole(model, case)
    state = with_adapter(model, 4 * batch, length)
    terms = {
        "plain ascent": (Term(Ascent(), "forget"),),
        "plain training on retain": (Term(NLL(), "retain"),),
    }.get(case, (Term(Ascent(), "forget"), Term(KL(0.7), "retain", 0.0)))
    training = Training(steps=steps, batch=batch, lr=1e-6, guard=Guard(every=0), checkpoint_every=0)
    (stage,) = training.stages(*terms, scope=Scope(adapter="only"))
    assert isinstance(stage, Train)
    if case == "projected, one shared forward graph":
        return _shared(state, stage, steps)
    stage = replace(stage, gradients=ProjectConflicts() if case == "projected" else Sum())
    stage.prepare(state)
    begun = time.perf_counter()
    stage(state)
    seconds = (time.perf_counter() - begun) / steps
    return {"seconds_per_step": seconds, "peak_mb": peak_memory_mb(state.subject.device), "tokens_per_step": state.records[-1]["tokens"] / steps}


def measure_whole(model: str, case: str) -> dict[str, float]:
    """Seconds of each phase of maat on 50 + 50 items (1 step for each, 40 repair steps), or of three epochs of ordinary LoRA training."""
    state = with_adapter(model, 50, 12)
    settings: dict[str, Any] = {"ascent": {"steps": 1}, "repair": {"steps": 40}} if case == "maat" else {"epochs": 3, "guard": {"every": 0}}
    stages = [stage for _, part in build_methods("maat" if case == "maat" else "retain_only", settings) for stage in part]
    begun = time.perf_counter()
    for stage in stages:
        stage.prepare(state)
    for stage in stages:
        stage(state)
    found = {"seconds": time.perf_counter() - begun, "peak_mb": peak_memory_mb(state.subject.device)}
    return {**found, **{record["name"]: record["seconds"] for record in state.records}}


def _shared(state: State, stage: Train, steps: int) -> dict[str, float]:
    """The same steps with both sides packed into one line, and two backward passes through one graph."""
    subject, precision = state.subject, state.precision
    sides = {s: [encode(subject.tokenizer, subject.template, e) for e in state.side(s)] for s in ("forget", "retain")}
    layout = layout_of(subject)
    tokens = 0
    with stage.scope.trainable(subject) as parameters:
        trained = list(parameters.values())
        optimiser = stage.optimiser.resolved(1, True).build(trained)
        drawn = [stage.batches.draw(step, len(sides["forget"]), len(sides["retain"]), 0) for step in range(steps)]
        both = [([sides["forget"][i] for i in d.forget], [sides["retain"][i] for i in d.retain]) for d in drawn]
        known = []
        with torch.no_grad(), autocast(precision, subject.device):
            for _, retain in both:
                known.append(score(subject, collate(retain, layout)).logits.to(torch.bfloat16))
        begun = time.perf_counter()
        for (forget, retain), reference in zip(both, known, strict=True):
            with autocast(precision, subject.device):
                scored = score(subject, collate([*forget, *retain], layout))
                first = scored.row < len(forget)
                _ = scored.logits
            one = scored.token_logp[first].mean()
            two = kl_divergence(reference, scored.logits[~first], 0.7).mean()
            g = torch.autograd.grad(one, trained, retain_graph=True)
            r = torch.autograd.grad(two, trained)
            for parameter, a, b in zip(trained, g, r, strict=True):
                dot = (a * b).sum()
                parameter.grad = a - torch.where(dot < 0, dot / (b.square().sum() + 1e-12), torch.zeros_like(dot)) * b
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            tokens += sum(map(len, forget)) + sum(map(len, retain))
        seconds = (time.perf_counter() - begun) / steps
    return {"seconds_per_step": seconds, "peak_mb": peak_memory_mb(subject.device), "tokens_per_step": tokens / steps}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default="embedded:smollm2")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=40, help="words of each answer")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--case")
    arguments = parser.parse_args()
    shape = [str(v) for v in ("--model", arguments.model, "--steps", arguments.steps, "--batch", arguments.batch, "--length", arguments.length)]
    if arguments.case:
        print(json.dumps(measure(arguments.model, arguments.case, arguments.steps, arguments.batch, arguments.length)))
        return
    found: dict[str, dict[str, float]] = {}
    for _ in range(arguments.repeats):
        for case in WHOLE if arguments.whole else CASES:
            command = [sys.executable, "-m", "benchmarks.project", *shape, "--case", case]
            now = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
            best = found.setdefault(case, dict(now))
            for key, value in now.items():
                best[key] = min(best[key], value)
    if arguments.whole:
        for case, row in found.items():
            phases = ", ".join(f"{name} {row[name]:.0f} s" for name in row if name not in ("seconds", "peak_mb"))
            print(f"{case}: {row['seconds']:.0f} s, {row['peak_mb']:.0f} MiB ({phases})")
        print(f"memory of maat x {found['maat']['peak_mb'] / found[WHOLE[0]]['peak_mb']:.2f} of plain LoRA training")
    else:
        plain = found["plain ascent"]
        print(f"{'case':<38}{'s/step':>8}{'tokens':>8}{'x plain':>9}{'peak MiB':>10}{'x plain':>9}")
        for case, row in found.items():
            speed, memory = row["seconds_per_step"] / plain["seconds_per_step"], row["peak_mb"] / plain["peak_mb"]
            print(f"{case:<38}{row['seconds_per_step']:>8.2f}{row['tokens_per_step']:>8.0f}{speed:>9.2f}{row['peak_mb']:>10.0f}{memory:>9.2f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
