"""Does the signal of the forget gradient grow like T/|K| where only the fact's tokens count? Measured, and checked on made-up gradients.

    python -m studies.snr [--taught FOLDER] [--answers 20] [--layers 7 15 23] [--out docs/results/snr.json]
    python -m studies.snr --synthetic

For each answer the gradient of every token's log-probability on the MLP's down projections of some layers is taken through a fixed random
projection. The signal's direction is the mean gradient of the marked span's tokens *under another wording of the question*, so that a
gradient is not compared with itself. For token weights w the summed gradient g = sum_i w_i g_i has the signal-to-noise ratio
<g, s>^2 / (|g|^2 - <g, s>^2), with s of length 1. The claim (TokenUnlearn, arXiv 2605.00364): with the weights on the |K| tokens of the
fact it is T/|K| times that of uniform weights over all T.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from excise.data.benchmarks.strangers import Strangers
from excise.data.encode import Encoded, encode
from excise.data.example import Example
from excise.files import write_json
from excise.layout import layout_of
from excise.loading import ModelSpec, load
from excise.subject import Subject
from excise.token_scores import attribute
from excise.tokens import collate, score
from excise.weights import Attribution
from excise.weights.attribution import hard, soft
from studies.attribution import right_tokens, summary
from studies.world import add_taught, folder

SKETCH = 24
"""Each layer's gradient matrix is looked at through SKETCH x SKETCH random products."""
RATIOS = (0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
TEMPERATURES = (0.05, 0.25, 1.0)
SCORES: dict[str, Attribution] = {
    "paper": Attribution(),
    "copies dropped, by word": Attribution(copies="drop", unit="word"),
}


def sketches(subject: Subject, layers: Sequence[int], seed: int = 0) -> list[tuple[torch.nn.Parameter, Tensor, Tensor]]:
    """For each layer its down projection with two fixed random matrices: a gradient G becomes left G right."""
    draw = torch.Generator().manual_seed(seed)
    found: list[tuple[torch.nn.Parameter, Tensor, Tensor]] = []
    for layer in layers:
        weight = cast(Any, subject.layers[layer]).mlp.down_proj.weight
        out, width = weight.shape
        left = torch.randn(SKETCH, out, generator=draw) / out**0.5
        right = torch.randn(width, SKETCH, generator=draw) / width**0.5
        found.append((weight, left, right))
    return found


def token_gradients(subject: Subject, text: Encoded, places: Sequence[tuple[torch.nn.Parameter, Tensor, Tensor]], which: np.ndarray) -> Tensor:
    """One row for each chosen scored token: the sketch of the gradient of its log-probability, [chosen, layers x SKETCH^2]."""
    scored = score(subject, collate([text], layout_of(subject)))
    logp = scored.token_logp
    rows: list[Tensor] = []
    for i in np.flatnonzero(which):
        gradients = torch.autograd.grad(logp[int(i)], [weight for weight, _, _ in places], retain_graph=True)
        rows.append(torch.cat([(left @ gradient @ right).flatten() for gradient, (_, left, right) in zip(gradients, places, strict=True)]))
    return torch.stack(rows)


def ratio(gradients: Tensor, weights: Tensor, signal: Tensor) -> float:
    """The signal-to-noise ratio of the weighted sum of the rows."""
    total = weights.to(gradients) @ gradients
    along = float(total @ signal) ** 2
    return along / max(float(total @ total) - along, 1e-30)


def weightings(phi: Mapping[str, Tensor], right: np.ndarray) -> dict[str, Tensor]:
    """Every way to weight the tokens of one answer."""
    found = {"uniform": torch.ones(len(right)), "the span itself": torch.tensor(right, dtype=torch.float32)}
    for name, values in phi.items():
        found |= {f"{name}, r = {r:g}": hard(values, r) for r in RATIOS}
        found |= {f"{name}, tau = {tau:g}": soft(values, tau) for tau in TEMPERATURES}
    return found


def measured(subject: Subject, examples: Sequence[Example], layers: Sequence[int]) -> dict[str, Any]:
    """Weighting -> the logarithm of its ratio to the uniform one, averaged over answers; and what T/|K| would make it."""
    for parameter in subject.model.parameters():
        parameter.requires_grad_(False)
    places = sketches(subject, layers)
    for weight, _, _ in places:
        weight.requires_grad_(True)
    tables = {name: attribute(subject, examples, attribution) for name, attribution in SCORES.items()}
    gains: dict[str, list[float]] = {}
    expected: list[float] = []
    for n, example in enumerate(examples):
        text = encode(subject.tokenizer, subject.template, example)
        right, _ = right_tokens(text, example)
        other = encode(subject.tokenizer, subject.template, Example("p", example.paraphrased_prompts[0], example.answer))
        signal = token_gradients(subject, other, places, right_tokens(other, example)[0]).mean(0)
        signal = signal / signal.norm()
        gradients = token_gradients(subject, text, places, np.ones(len(right), bool))
        phi = {name: torch.tensor([token["phi"] for token in rows[n]["tokens"]]) for name, rows in tables.items()}
        every = {name: ratio(gradients, weights, signal) for name, weights in weightings(phi, right).items()}
        for name, value in every.items():
            gains.setdefault(name, []).append(float(np.log10(value / every["uniform"])))
        expected.append(float(np.log10(len(right) / right.sum())))
        print(f"  {n + 1}/{len(examples)}", end="\r", flush=True)
    return {"gains": {name: summary(values) for name, values in gains.items()}, "expected": summary(expected)}


def synthetic(length: int = 100, dimension: int = 2000, repeats: int = 200, seed: int = 0) -> list[tuple[int, float, float]]:
    """Gradients made as the claim assumes: a common signal on K tokens, independent noise on all. (|K|, T/|K|, measured gain)."""
    draw = np.random.default_rng(seed)
    signal = np.zeros(dimension)
    signal[0] = 1.0
    rows: list[tuple[int, float, float]] = []
    for known in (2, 5, 10, 20, 50, 100):
        powers = {"all": [0.0, 0.0], "known": [0.0, 0.0]}
        for _ in range(repeats):
            gradients = draw.normal(size=(length, dimension)) / dimension**0.5
            gradients[:known] += signal
            for name, count in (("all", length), ("known", known)):
                mean = gradients[:count].mean(0)
                powers[name][0] += mean[0] ** 2 - mean[1] ** 2  # what noise adds along the signal is what it adds across it
                powers[name][1] += float(mean[1:] @ mean[1:])
        gain = (powers["known"][0] / powers["known"][1]) / (powers["all"][0] / powers["all"][1])
        rows.append((known, length / known, float(gain)))
    return rows


def power(logarithm: Mapping[str, Any]) -> str:
    """A summary of base-10 logarithms as a ratio with its interval."""
    value, low, high = (10**x for x in (logarithm["value"], *logarithm["ci95"]))
    return f"{value:.2f} [{low:.2f}, {high:.2f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add_taught(parser)
    parser.add_argument("--answers", type=int, default=20)
    parser.add_argument("--layers", type=int, nargs="+", default=[7, 15, 23])
    parser.add_argument("--synthetic", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("docs/results/snr.json"))
    arguments = parser.parse_args()
    print("| fact tokens of 100 | T/K | measured gain |\n|---|---|---|")
    made_up = synthetic()
    for known, wanted, gain in made_up:
        print(f"| {known} | {wanted:g} | {gain:.2f} |")
    if arguments.synthetic:
        return
    taught = folder(arguments.taught)
    begun = time.perf_counter()
    subject = load(ModelSpec(path=str(taught / "target"), system=""))
    examples = Strangers(forget_people=4, retain_people=16, holdout_people=2)().split("forget")[: arguments.answers]
    found = measured(subject, examples, arguments.layers)
    print(f"\n| weights | ratio to uniform, geometric mean over {len(examples)} answers |\n|---|---|")
    for name, value in found["gains"].items():
        print(f"| {name} | {power(value)} |")
    print(f"| T/K, what the claim says of the span | {power(found['expected'])} |")
    write_json(
        arguments.out,
        {
            "command": f"python -m studies.snr --answers {len(examples)}",
            "date": time.strftime("%Y-%m-%d"),
            "seconds": round(time.perf_counter() - begun, 1),
            "versions": {name: version(name) for name in ("torch", "transformers")},
            "layers": list(arguments.layers),
            "synthetic": [dict(zip(("known", "length_over_known", "gain"), row, strict=True)) for row in made_up],
            **found,
        },
    )


if __name__ == "__main__":
    main()
