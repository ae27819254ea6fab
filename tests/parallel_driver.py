"""What two processes do that test_parallel compares with one: started by torchrun, writes JSON and tensors into a folder.

    torchrun --standalone --nproc-per-node 2 parallel_driver.py FOLDER

FOLDER holds a ``model``. ``cases`` and ``run_case`` are also what the test itself runs, in its one process.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from torch import Tensor

import contract
from excise import cli, registry
from excise.data.example import Benchmark
from excise.errors import InputError
from excise.evaluation.collect import collect
from excise.evaluation.plan import Plan
from excise.parallel import ranks
from excise.recipe import Recipe, build_methods
from excise.run import run_stages, unlearn
from excise.stages import loop
from excise.stages.state import State

Mode = Literal["copies", "shards"]
ONE_STEP: dict[str, Any] = {"steps": 1, "batch": 3, "lr": 0.5, "optimiser": "sgd", "clip": None, "warmup": 0.0, "guard": {"every": 0}}
NOUNS = {"nouns": {"words": [contract.NOUN]}}
TERMS = [
    {"objective": "npo", "data": "forget"},
    {"objective": "hidden_mse", "data": "retain"},
    {"objective": {"name": "rmu", "layer": 1}, "data": "forget"},
]
SPECIAL: dict[str, dict[str, Any]] = {"compose": {"terms": TERMS}, "crisp": {"sae": "none"}}
"""Settings that a method needs to be built at all; one that needs none is not named here."""
WHOLE = ("maat",)
"""Methods without the settings of one step: several processes refuse them before anything is asked of the model."""


def cases() -> Iterator[tuple[str, str, dict[str, Any], Mode]]:
    """Name, method, settings and mode of everything that takes one step: every method of the registry in both modes, and some ways to divide."""
    for name in registry.names("methods"):
        trains = "training" in inspect.signature(registry.find("methods", name)).parameters
        own = {
            **(ONE_STEP if trains and name not in WHOLE else {}),
            **SPECIAL.get(name, {}),
            **({"attribution": NOUNS} if name[:2] in ("t_", "s_", "f_") else {}),
        }
        yield f"{name}, full", name, own, "copies"
        yield f"{name}, shards", name, own, "shards"
    more: dict[str, dict[str, Any]] = {
        "one example for two processes": {"batch": 1},
        "more parts than examples": {"accumulate": 4},
        "clipped": {"clip": 0.01},
        "recomputed": {"checkpointing": True},
        "lora": {"lora": {"r": 2}},
        "one layer": {"layers": [1]},
    }
    for name, changes in more.items():
        for mode in ("copies", "shards"):
            yield f"npo, {name}, {mode}", "npo", {**ONE_STEP, **changes}, mode


def run_case(method: str, settings: Mapping[str, Any], mode: Mode, seen: dict[str, Any] | None = None) -> dict[str, Tensor]:
    """What one step changes, by parameter. ``seen`` is told the types of what is trained."""
    subject = contract.small_subject()
    before = {name: p.detach().clone() for name, p in subject.model.named_parameters()}
    stages = [s for _, part in build_methods(method, settings) for s in part]
    state = State(subject, contract.small_benchmark(), seed=5, parallel=mode)
    clip = loop.Loop._clip

    def watching(self: loop.Loop) -> float:
        if seen is not None:
            seen["types"] = sorted({type(p).__name__ for p in self.trained})
            seen["classes"] = type(self.session.state.subject.base).__name__
        return clip(self)

    loop.Loop._clip = watching
    try:
        run_stages(state, stages)
    finally:
        loop.Loop._clip = clip
    now = {name: p.detach().clone() for name, p in state.subject.model.named_parameters()}
    return {name: value - before[name] if name in before else value for name, value in now.items()}


def records() -> dict[str, Any]:
    """A sharded evaluation: what is said of eleven examples, in order."""
    small = contract.small_benchmark()
    data = Benchmark("contract", {"forget": small.forget, "retain": (*small.retain[:5],)})
    plan = Plan(generation=True, max_new_tokens=3)
    found = collect(contract.small_subject(), data, {"forget": plan, "retain": plan}, precision="float32")
    return {split: [record.to_json() for record in rows] for split, rows in found.items()}


RECIPE = """
model: {model}
data: {{name: strangers, forget_people: 1, retain_people: 1, holdout_people: 1}}
method: {{name: npo, lr: 1.0e-3, steps: 6, batch: 3, checkpoint_every: 2, guard: {{every: 2, degenerate: 1.0, rise: 50}}}}
evaluation: {{limit: 3, max_new_tokens: 2}}
precision: float32
parallel: {parallel}
"""
KILLED_AFTER = 4


class Killed(BaseException):
    """Ends a run as a kill would: what it has written so far stays."""


def recipe(folder: Path, parallel: str) -> Path:
    """A recipe file on the folder's model."""
    place = folder / f"{parallel}.yaml"
    if ranks.is_main():
        place.write_text(RECIPE.format(model=folder / "model", parallel=parallel))
    ranks.wait()
    return place


def killed_run(folder: Path, parallel: Mode) -> None:
    """A run that ends after a few steps as if it had been killed."""
    one = loop.Loop._one_step

    def stepping(self: loop.Loop) -> None:
        one(self)
        if self.step == KILLED_AFTER:
            raise Killed

    loop.Loop._one_step = stepping
    try:
        unlearn(Recipe.load(recipe(folder, parallel)), folder / f"run-{parallel}")
    except Killed:
        ranks.wait()
    finally:
        loop.Loop._one_step = one


def main() -> None:
    torch.set_num_threads(1)
    ranks.start()
    folder = Path(sys.argv[1])
    told: dict[str, Any] = {"world": ranks.world(), "cases": {}}
    for name, method, settings, mode in cases():
        seen: dict[str, Any] = {}
        try:
            step = run_case(method, settings, mode, seen)
        except InputError as error:
            told["cases"][name] = {"refused": str(error)}
            continue
        if ranks.is_main():
            save_file({key: value.contiguous() for key, value in step.items()}, folder / f"{name}.safetensors")
        same = ranks.gather([float(value.double().sum()) for value in step.values()])
        told["cases"][name] = {**seen, "same": all(part == same[0] for part in same)}
    told["records"] = records()
    told["sums"] = ranks.add_values({"a": 1.0 + ranks.rank()}, ["a", "b"], torch.device("cpu"))
    told["gathered"] = ranks.gather({"rank": ranks.rank(), "text": "ä" * ranks.rank()})
    told["stretches"] = ranks.gather(list(ranks.own_stretch(range(7))))
    if ranks.is_main():
        (folder / "told.json").write_text(json.dumps(told))
    for parallel in ("copies", "shards"):
        killed_run(folder, parallel)
    sys.argv = ["excise", "run", str(recipe(folder, "auto")), "--out", str(folder / "command")]
    cli.main()  # leaves the other processes at its end


if __name__ == "__main__":
    main()
