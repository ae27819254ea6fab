"""Training steps against a plain Transformers + PEFT loop of the same mathematics.

    python -m benchmarks.training [--models smollm2 0.5b 256k] [--methods ga_kl npo t_npo rmu] [--forms full lora]
                                  [--precisions bfloat16 float32] [--steps 5] [--repeats 2] [--json FILE]

The plain loop is what the field's tools do, written with care: padded batches, logits of every position, a second model as the
reference, autocast for bf16, fused AdamW, clipping. Both sides see the same batches. Every case runs in a process of its own
(peak memory is a property of the process; what the process needs before it loads a model is subtracted); the sides run in turn, and
the best step of each counts, because other work on the machine can only make a step slower. ``limit`` is the share of a step of ours
that the same matrix products need in isolation. The losses of both must be equal: to 1e-4 in float32, to 2e-2 in bf16, where rounding moves
them by more from step to step; there it is also enough that ours are as near to the float32 losses as the plain loop's.

Models: smollm2 (the embedded one); 0.5b and 256k are random models of the same family, one larger, one with a vocabulary of 262,144.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

MODELS: dict[str, dict[str, int]] = {
    "smollm2": {},
    "0.5b": {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 32, "num_attention_heads": 16, "num_key_value_heads": 4},
    "256k": {"vocab_size": 262144, "num_hidden_layers": 12},
}
METHODS: dict[str, dict[str, Any]] = {
    "ga_kl": {"name": "ga_kl", "retain": "kl"},
    "npo": {"name": "npo", "retain": "kl"},
    "t_npo": {"name": "t_npo", "retain": "kl"},
    "rmu": {"name": "rmu", "layer": 7, "coefficient": 100.0},
}
BATCH = 8
RATE = 1e-5
SEED = 0
LORA = {"r": 16, "alpha": 32}


def subject_of(name: str) -> Any:
    """The model, as a subject of ours."""
    import torch
    from transformers import LlamaForCausalLM

    from excise.loading import load
    from excise.subject import Subject

    subject = load("embedded:smollm2", system="")
    if not MODELS[name]:
        return subject
    config: Any = copy.deepcopy(subject.base.config)
    for key, value in {"head_dim": 64, **MODELS[name]}.items():
        setattr(config, key, value)
    torch.manual_seed(0)
    return Subject(model=LlamaForCausalLM(config), tokenizer=subject.tokenizer, template=subject.template, source=name)


def ours(subject: Any, method: dict[str, Any], form: str, precision: Any, steps: int) -> list[dict[str, float]]:
    """One row for each step: seconds, tokens, loss; what train.jsonl says of a run."""
    from excise.data.benchmarks.strangers import Strangers
    from excise.files import read_lines
    from excise.recipe import build_methods
    from excise.stages.state import State

    settings: dict[str, Any] = {"steps": steps, "batch": BATCH, "lr": RATE, "warmup": 0.0, "schedule": "constant", "guard": {"every": 0}}
    if form == "lora":
        settings["lora"] = LORA
    with tempfile.TemporaryDirectory() as folder:
        state = State(subject, Strangers()(), seed=SEED, precision=precision, folder=Path(folder))
        settings |= {"checkpoint_every": 0, **{k: v for k, v in method.items() if k != "name"}}
        stages = [stage for _, part in build_methods(method["name"], settings) for stage in part]
        for stage in stages:
            stage.prepare(state)
        for stage in stages:
            stage(state)
        return [{"seconds": row["seconds"], "tokens": row["tokens"], "loss": row["loss"]} for row in read_lines(Path(folder) / "train.jsonl")]


def plain(subject: Any, method: dict[str, Any], form: str, precision: Any, steps: int) -> Iterator[dict[str, float]]:
    """The same by a plain loop."""
    import torch
    from peft import LoraConfig, get_peft_model
    from torch.nn.functional import kl_div, log_softmax, logsigmoid

    from excise.data.batches import Paired
    from excise.data.benchmarks.strangers import Strangers
    from excise.data.encode import encode
    from excise.objectives.steering import control_vector
    from excise.weights import Attribution

    benchmark = Strangers()()
    texts = {s: [encode(subject.tokenizer, subject.template, e) for e in benchmark.split(s)] for s in ("forget", "retain")}
    weights = _weights(subject, texts["forget"], Attribution(select="hard"), precision) if method["name"] == "t_npo" else None
    model: Any = subject.base
    reference = copy.deepcopy(model).eval().requires_grad_(False)
    steering = method["name"] == "rmu"
    layer = method.get("layer", 0)
    window = range(layer - 2, layer + 1)
    if form == "lora":
        names = ["down_proj"] if steering else ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        torch.manual_seed(SEED)
        model = get_peft_model(
            model,
            LoraConfig(r=LORA["r"], lora_alpha=LORA["alpha"], target_modules=names, layers_to_transform=list(window) if steering else None),
        )
    elif steering:
        model.requires_grad_(False)
        for index in window:
            model.model.layers[index].mlp.down_proj.weight.requires_grad_(True)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=RATE, weight_decay=0.0, fused=True)
    model.train()

    def batch(side: str, rows: tuple[int, ...]) -> tuple[Any, Any, Any]:
        members = [texts[side][i] for i in rows]
        width = max(map(len, members))
        ids = torch.tensor([[*m.ids, *[0] * (width - len(m))] for m in members])
        mask = torch.tensor([[1] * len(m) + [0] * (width - len(m)) for m in members])
        labels = torch.tensor([[-100] * m.start + list(m.ids[m.start :]) + [-100] * (width - len(m)) for m in members])
        return ids, mask, labels

    def logits_of(model: Any, ids: Any, mask: Any) -> Any:
        return model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, :-1].float()

    def token_logp(logits: Any, labels: Any) -> Any:
        shifted = labels[:, 1:]
        picked = log_softmax(logits, -1).gather(-1, shifted.clamp_min(0)[..., None])[..., 0]
        return picked * (shifted != -100)

    def by_layer(model: Any, ids: Any, mask: Any) -> Any:
        return model(input_ids=ids, attention_mask=mask, use_cache=False, output_hidden_states=True).hidden_states[layer + 1].float()

    def mean_rows(values: Any, labels: Any) -> Any:
        counted = labels != -100
        return ((values * counted).sum(-1) / counted.sum(-1)).mean()

    draws = Paired(BATCH)
    for step in range(steps):
        draw = draws.draw(step, len(texts["forget"]), len(texts["retain"]), SEED)
        begun = time.perf_counter()
        (ids, mask, labels), (kept, kept_mask, kept_labels) = batch("forget", draw.forget), batch("retain", draw.retain)
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
            if steering:
                hidden = by_layer(model, ids, mask)
                control = control_vector(hidden.shape[-1], method["coefficient"], 42)
                with torch.no_grad():
                    wanted = by_layer(reference, kept, kept_mask)
                loss = mean_rows((hidden - control).square().mean(-1), labels)
                loss = loss + mean_rows((by_layer(model, kept, kept_mask) - wanted).square().mean(-1), kept_labels)
            else:
                logp = token_logp(logits_of(model, ids, mask), labels)
                if method["name"] == "ga_kl":
                    loss = logp.sum() / (labels != -100).sum()
                else:
                    with torch.no_grad():
                        before = token_logp(logits_of(reference, ids, mask), labels)
                    ratio = logp - before
                    if weights is not None:
                        for line, index in enumerate(draw.forget):
                            start = texts["forget"][index].start
                            ratio[line, start - 1 : start - 1 + len(weights[index])] *= weights[index]
                    loss = -2 / 0.1 * logsigmoid(-0.1 * ratio.sum(-1)).mean()
                with torch.no_grad():
                    known = log_softmax(logits_of(reference, kept, kept_mask), -1)
                now = log_softmax(logits_of(model, kept, kept_mask), -1)
                divergence = kl_div(now, known, reduction="none", log_target=True).sum(-1)
                counted = kept_labels[:, 1:] != -100
                loss = loss + (divergence * counted).sum() / counted.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimiser.step()
        optimiser.zero_grad()
        tokens = int(mask.sum() + kept_mask.sum())
        yield {"seconds": time.perf_counter() - begun, "tokens": tokens, "loss": float(loss.detach())}


def _weights(subject: Any, texts: Any, attribution: Any, precision: Any) -> list[Any]:
    """The token weights, which both sides take from the same place: they are computed once."""
    from excise.reference import key_of
    from excise.stages.views import Views, Weigher

    weigher = Weigher(attribution, Views(subject, precision, masking=attribution.masking))
    weigher.remember(texts)
    return [weigher.known[key_of(text)] for text in texts]


def products(subject: Any, tokens: int, precision: Any, trained: bool, repeats: int = 3) -> float:
    """Seconds of the matrix products of one step over so many tokens: forward, and backward to inputs (and to weights)."""
    import torch
    from torch import nn

    kind = torch.bfloat16 if precision == "bfloat16" else torch.float32
    shapes: dict[tuple[int, int], int] = {}
    for module in subject.base.get_decoder().modules():
        if isinstance(module, nn.Linear):
            shape = (module.in_features, module.out_features)
            shapes[shape] = shapes.get(shape, 0) + 1
    total = 0.0
    for (width, out), count in shapes.items():
        x, w, g = torch.randn(tokens, width, dtype=kind), torch.randn(out, width, dtype=kind), torch.randn(tokens, out, dtype=kind)
        runs: list[Callable[[], Any]] = [lambda x=x, w=w: x @ w.T, lambda g=g, w=w: g @ w]
        if trained:
            runs.append(lambda g=g, x=x: g.T @ x)
        for run in runs:
            run()
            best = min(_timed(run) for _ in range(repeats))
            total += count * best
    return total


def _timed(run: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def worker(arguments: argparse.Namespace) -> dict[str, Any]:
    import peft  # noqa: F401  (counted with the process, not with the model)
    import torch
    import transformers  # noqa: F401

    from excise.memory import peak_memory_mb

    model, method, form, precision = arguments.case
    empty = peak_memory_mb()
    subject = subject_of(model)
    side = {"excise": ours, "plain": plain}[arguments.side]
    rows = list(side(subject, METHODS[method], form, precision, arguments.steps))
    peak = peak_memory_mb() - empty
    later = rows[1:] or rows
    best = min(later, key=lambda row: row["seconds"] / row["tokens"])
    found = {
        "seconds": best["seconds"],
        "tokens": best["tokens"],
        "peak_mb": peak,
        "losses": [row["loss"] for row in rows],
        "torch": torch.__version__,
        "cpu": f"{torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}",
    }
    if arguments.side == "excise" and method != "rmu":
        found["limit"] = products(subject, int(best["tokens"]), precision, trained=form == "full") / best["seconds"]
    return found


def asked(arguments: argparse.Namespace, case: tuple[str, ...], side: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.training", "--steps", str(arguments.steps), "--side", side, "--case", *case]
    pages = {"THP_MEM_ALLOC_ENABLE": "0"} if side == "plain" else {}  # large pages are something that excise asks for
    done = subprocess.run(command, check=False, capture_output=True, text=True, env={**os.environ, **pages})
    if done.returncode:
        raise SystemExit(f"{side} {' '.join(case)} failed: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def compare(arguments: argparse.Namespace, case: tuple[str, ...]) -> dict[str, Any]:
    """Both sides in turn."""
    best: dict[str, dict[str, Any]] = {}
    for _ in range(arguments.repeats):
        for side in ("plain", "excise"):
            now = asked(arguments, case, side)
            if side not in best or now["seconds"] / now["tokens"] < best[side]["seconds"] / best[side]["tokens"]:
                best[side] = now
    a, b = best["plain"], best["excise"]
    return {
        "case": list(case),
        "plain": a,
        "excise": b,
        "speed": (a["seconds"] / a["tokens"]) / (b["seconds"] / b["tokens"]),
        "memory": b["peak_mb"] / a["peak_mb"],
        "difference": max(abs(x - y) / max(1.0, abs(x)) for x, y in zip(a["losses"], b["losses"], strict=True)),
    }


def is_equal(row: dict[str, Any], exact: list[float] | None) -> bool:
    """Whether both sides have the same losses: to 1e-4 in float32; in bf16 to 2e-2, or ours are as near to those of float32 as the plain loop's."""
    if row["difference"] < (1e-4 if row["case"][3] == "float32" else 2e-2):
        return True
    if row["case"][3] == "float32" or exact is None:
        return False
    ours, theirs = (max(abs(a - b) for a, b in zip(row[side]["losses"], exact, strict=True)) for side in ("excise", "plain"))
    return ours <= theirs


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--models", nargs="+", default=["smollm2"], choices=MODELS)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--forms", nargs="+", default=["full", "lora"], choices=("full", "lora"))
    parser.add_argument("--precisions", nargs="+", default=["bfloat16", "float32"], choices=("bfloat16", "float32"))
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--case", nargs=4)
    parser.add_argument("--side", choices=("excise", "plain"))
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(worker(arguments)))
        return
    print(f"{'model':<9}{'method':<7}{'form':<6}{'precision':<10}{'plain s':>9}{'ours s':>8}{'speed':>7}{'tok/s':>7}{'limit':>7}", end="")
    print(f"{'plain MB':>10}{'ours MB':>9}{'memory':>8}{'loss differs':>14}")
    rows: list[dict[str, Any]] = []
    for case in product(arguments.models, arguments.methods, arguments.forms, arguments.precisions):
        row = compare(arguments, case)
        rows.append(row)
        a, b = row["plain"], row["excise"]
        limit = f"{b['limit']:.0%}" if "limit" in b else ""
        print(f"{case[0]:<9}{case[1]:<7}{case[2]:<6}{case[3]:<10}{a['seconds']:>9.2f}{b['seconds']:>8.2f}{row['speed']:>7.2f}", end="")
        print(
            f"{b['tokens'] / b['seconds']:>7.0f}{limit:>7}{a['peak_mb']:>10.0f}{b['peak_mb']:>9.0f}{row['memory']:>8.2f}{row['difference']:>14.1e}",
            flush=True,
        )
        if arguments.json:
            arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    exact = {tuple(row["case"][:3]): row["excise"]["losses"] for row in rows if row["case"][3] == "float32"}
    wrong = [row["case"] for row in rows if not is_equal(row, exact.get(tuple(row["case"][:3])))]
    if wrong:
        raise SystemExit(f"the losses of the two sides differ: {wrong}")


if __name__ == "__main__":
    main()
