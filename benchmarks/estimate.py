"""What `excise check` estimates against what is then measured, and the table for models that do not fit here.

    python -m benchmarks.estimate [--only NAME,NAME] [--steps 3] [--json FILE]    estimates against measured
    python -m benchmarks.estimate --list                                          the configurations
    python -m benchmarks.estimate --table                                         1B, 8B and 70B on some machines

Models have random weights in the shape that is named, with SmolLM2's tokenizer (a model folder is written for each). Each measurement
runs in a process of its own, since peak memory is a property of the process. Estimates are calibrated.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2},
    "small": {"hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 12, "num_attention_heads": 6, "num_key_value_heads": 2},
    "smollm2": {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3},
    "half a billion": {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16, "num_key_value_heads": 4},
}
COMMON: dict[str, Any] = {"guard": {"every": 0}, "checkpoint_every": 0, "lr": 1e-6, "batch": 8}
LORA = {"r": 16}
CONFIGURATIONS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "tiny, npo": ("tiny", {"name": "npo"}, {}),
    "small, ga_kl": ("small", {"name": "ga_kl"}, {}),
    "small, npo, float32": ("small", {"name": "npo"}, {"precision": "float32"}),
    "small, rmu": ("small", {"name": "rmu"}, {}),
    "small, npo, recomputed": ("small", {"name": "npo", "batch": 32, "checkpointing": True}, {}),
    "smollm2, npo": ("smollm2", {"name": "npo"}, {}),
    "smollm2, ga, float32": ("smollm2", {"name": "ga"}, {"precision": "float32"}),
    "smollm2, t_npo, lora": ("smollm2", {"name": "t_npo", "lora": LORA}, {}),
    "smollm2, graddiff, batch of 32": ("smollm2", {"name": "graddiff", "batch": 32}, {}),
    "smollm2, npo, sgd, 4 parts": ("smollm2", {"name": "npo", "batch": 16, "accumulate": 4, "optimiser": "sgd"}, {}),
    "half a billion, npo, lora": ("half a billion", {"name": "npo", "lora": LORA}, {}),
}
"""Name -> shape, method, and other settings of the recipe."""


def recipe_of(name: str, folder: Path, steps: int) -> Any:
    """The recipe of a configuration."""
    from excise.recipe import Recipe

    shape, method, more = CONFIGURATIONS[name]
    values = {
        "model": {"path": str(folder / shape), "dtype": "float32"},
        "data": {"name": "strangers"},
        "method": {**COMMON, **method, "steps": steps},
    }
    return Recipe.parse({**values, **more})


def write_model(shape: str, folder: Path) -> None:
    """A random model of that shape with SmolLM2's tokenizer and vocabulary."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    from excise.embedded import folder_of

    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=49152, max_position_embeddings=2048, tie_word_embeddings=True, bos_token_id=1, eos_token_id=2, **SHAPES[shape])
    LlamaForCausalLM(config).save_pretrained(folder / shape)
    AutoTokenizer.from_pretrained(folder_of("smollm2")).save_pretrained(folder / shape)


def measure(name: str, folder: Path, steps: int) -> dict[str, float]:
    """Peak memory and seconds per step of a configuration, in this process.

    The step that is estimated is the first. It does not count itself; those after it do that have as many tokens (an epoch ends with fewer).
    """
    from excise.files import read_lines
    from excise.loading import load
    from excise.memory import peak_memory_mb
    from excise.precision import resolve_precision
    from excise.stages.state import State

    recipe = recipe_of(name, folder, steps + 1)
    subject = load(recipe.model_spec())
    with tempfile.TemporaryDirectory() as place:
        state = State(subject, recipe.benchmark_loader()(), precision=resolve_precision(recipe.precision, subject.device), folder=Path(place))
        loaded = peak_memory_mb(subject.device)
        stages = [stage for _, part in recipe.methods() for stage in part]
        for stage in stages:
            stage.prepare(state)
        for stage in stages:
            stage(state)
        first, *later = read_lines(Path(place) / "train.jsonl")
    like = [row["seconds"] for row in later if abs(row["tokens"] / first["tokens"] - 1) < 0.1]
    return {"peak_mb": peak_memory_mb(subject.device), "loaded_mb": loaded, "seconds_per_step": min(like)}


def compare(name: str, folder: Path, steps: int) -> dict[str, Any]:
    """Estimate and measurement of one configuration, each in a process of its own."""
    found: dict[str, Any] = {}
    for what in ("estimate", "measure"):
        command = [sys.executable, "-m", "benchmarks.estimate", "--folder", str(folder), "--steps", str(steps), "--one", name, "--what", what]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found[what] = json.loads(done.stdout.splitlines()[-1])
    estimated, measured = found["estimate"], found["measure"]
    memory = max(estimated["training_mb"], measured["loaded_mb"]) / measured["peak_mb"]
    return {**found, "memory_ratio": memory, "time_ratio": estimated["seconds_per_step"] / measured["seconds_per_step"]}


def table() -> list[str]:
    """Memory and time for models of 1, 8 and 70 billion parameters, by the estimate's formulas and data sheets."""
    from excise.estimate.hardware import TABLE
    from excise.estimate.needs import Rates, needs
    from excise.estimate.shape import Shape
    from excise.estimate.work import Side, Work

    shapes = {
        "1B": Shape(16, 2048, 8192, 128256, 2048, 512),
        "8B": Shape(32, 4096, 14336, 128256, 4096, 1024, tied=False),
        "70B": Shape(80, 8192, 28672, 128256, 8192, 1024, tied=False),
    }
    side = Side(32 * 60, 32 * 30, True, 0.0, 80)
    sides = (side, Side(side.tokens, side.scored, True, 1.0, 80))
    rows = ["| model | what is trained | machine | GiB while training | GiB to load | it has | a step |", "|---|---|---|---|---|---|---|"]
    for name, shape in shapes.items():
        ranks = 16 * 7 * shape.depth * 3 * shape.width
        for how, size, trained, processes, machine in (
            ("all weights", 2.0, shape.parameters, 1, "h100"),
            ("all weights, 8 shards", 2.0, shape.parameters, 8, "h100"),
            ("all weights, 32 shards", 2.0, shape.parameters, 32, "h100"),
            ("LoRA r=16", 2.0, ranks, 1, "h100"),
            ("LoRA r=16 on 4 bits", 0.56, ranks, 1, "rtx4090"),
        ):
            adapter = how.startswith("LoRA")
            work = Work(sides, 1, trained, (0, shape.depth), 0.0 if adapter else 1.0, adapter, not adapter, "adamw", True, True, "logits")
            own = TABLE[machine]
            found = needs(shape, work, size, own, Rates.of(own, True), processes=processes, shards=processes > 1)
            fits = "" if found.fits else " (not enough)"
            count = f"{processes} x {machine}" if processes > 1 else machine
            memory = f"{found.training_mb / 1024:.0f} | {found.load_mb / 1024:.0f} | {own.memory_gib:.0f}{fits}"
            rows.append(f"| {name} | {how} | {count} | {memory} | {found.seconds_per_step:.2g} s |")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", help="configurations by name, separated by semicolons")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--one")
    parser.add_argument("--what")
    given = parser.parse_args()
    if given.list:
        print("\n".join(CONFIGURATIONS))
        return
    if given.table:
        print("\n".join(table()))
        return
    if given.one:
        if given.what == "measure":
            print(json.dumps(measure(given.one, given.folder, given.steps)))
            return
        from excise.estimate import estimate

        print(json.dumps(estimate(recipe_of(given.one, given.folder, given.steps), calibrate=True).to_json()))
        return
    names = given.only.split(";") if given.only else list(CONFIGURATIONS)
    if unknown := [name for name in names if name not in CONFIGURATIONS]:
        raise SystemExit(f"there is no configuration {unknown[0]!r}: see --list")
    found: dict[str, Any] = {}
    print("| configuration | memory estimated | measured | ratio | step estimated | measured | ratio |")
    print("|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as place:
        folder = given.folder or Path(place)
        for name in names:
            if not (folder / CONFIGURATIONS[name][0]).exists():
                write_model(CONFIGURATIONS[name][0], folder)
            row = found[name] = compare(name, folder, given.steps)
            e, m = row["estimate"], row["measure"]
            print(
                f"| {name} | {e['training_mb']:,.0f} MiB | {m['peak_mb']:,.0f} MiB | {row['memory_ratio']:.2f} | "
                f"{e['seconds_per_step']:.3g} s | {m['seconds_per_step']:.3g} s | {row['time_ratio']:.2f} |",
                flush=True,
            )
    within = [0.75 <= r["memory_ratio"] <= 1.25 for r in found.values()], [0.5 <= r["time_ratio"] <= 1.5 for r in found.values()]
    print(f"\nmemory within 25 %: {sum(within[0])} of {len(found)}; time within 50 %: {sum(within[1])} of {len(found)}")
    if given.json:
        given.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
