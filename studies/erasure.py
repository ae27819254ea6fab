"""Concepts erased by EMBER, RMU, SNMF, CRISP and their chains, with controls, and how soon relearning brings them back.

    python -m studies.erasure --data FOLDER [--model embedded:smollm2] [--concepts "Ancient Rome" Golf] [--seeds 0] [--methods ember rmu ember+rmu]
                              [--sae FOLDER] [--relearn 50] [--rows docs/results/erasure.jsonl]
    python -m studies.erasure --data FOLDER --retain WIKITEXT --mmlu QUESTIONS --methods rmu t_rmu s_rmu --relearn 0

FOLDER holds EMBER's concept files. EMBER's strength is searched on the train choice questions once for each concept and seed, and carried
unchanged to its chains, to the open questions and to the controls: as many features drawn from those that were not chosen, and random
directions of equal length on the same tokens. ``rmu_half`` and ``ember+rmu_half`` take half the steps. The second line is WMDP's way of working:
a corpus to forget (the concept's sentences), another to keep (``--retain``, any text file), choice questions before and after; t_rmu and s_rmu are
TokenUnlearn's forms of it. Every finished row is appended to the
rows file, and a row that is there is not made again. Prints a table, fractions with 95 % intervals of the questions.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from excise.attacks.relearn import Relearn
from excise.attacks.scene import Scene
from excise.data.benchmarks.concepts import Concepts
from excise.data.benchmarks.text import cut, read_documents
from excise.data.example import Benchmark
from excise.demo import CONCEPT_SETTINGS
from excise.errors import InputError
from excise.evaluation.records import Records
from excise.evaluation.suites import Suite, concepts, evaluate, score
from excise.files import append_line, cache_folder, whole_lines
from excise.loading import load
from excise.precision import resolve_precision
from excise.recipe import build_methods
from excise.run import run_stages
from excise.stages.state import State
from excise.subject import Subject

RMU = CONCEPT_SETTINGS["rmu"]
CRISP: dict[str, Any] = {"k": 10, "epochs": 2, "lr": 5e-4}
KEPT = ("efficacy", "specificity", "coherence", "overall", "efficacy_open", "specificity_open", "overall_open", "efficacy_unclipped",
        "specificity_unclipped", "concept.choice_accuracy", "concept.choice_probability", "concept.choice_margin", "similar.choice_accuracy",
        "similar.choice_probability", "similar.choice_margin", "mmlu.choice_accuracy", "mmlu.choice_margin", "concept_open.contains_truth",
        "forget.probability", "coherence.repetition_rate")  # fmt: skip
METHODS = (
    "rmu",
    "ember",
    "ember+rmu",
    "snmf",
    "ember+snmf",
    "crisp",
    "ember+crisp",
    "random_features",
    "random_directions",
    "rmu_half",
    "ember+rmu_half",
)
TOKEN_FORMS = ("t_rmu", "s_rmu")
"""TokenUnlearn's forms of RMU, which run where they are asked for."""
PASSAGE, PASSAGES = 60, 400
"""Words of a passage of the text to keep, and how many are taken."""
MMLU = 4
"""Questions of each MMLU subject."""
POINTS = (0, 5, 10, 20, 50)
RELEARN_LR = 1e-5


def settings(method: str, rank: int, seed: int, strength: float | str, features: Sequence[int] | None, sae: str) -> tuple[str, dict[str, Any]]:
    """Name and settings of a method for :func:`build_methods`."""
    values: dict[str, Any] = {"checkpoint_every": 0} if method != "ember" and method != "snmf" and method != "ember+snmf" else {}
    parts = method.removesuffix("_half").split("+")
    if "ember" in parts:
        values |= {"rank": rank, "factor_seed": 42 + seed, "strength": strength}
        values |= {} if features is None else {"features": list(features)}
    if parts[-1] in ("rmu", *TOKEN_FORMS):
        values |= {**RMU, "steps": RMU["steps"] // (2 if method.endswith("_half") else 1)}
    if "snmf" in parts:
        values |= {"mlp_seed": 42 + seed, **CONCEPT_SETTINGS["snmf"]}
    if "crisp" in parts:
        values |= {**CRISP, "sae": sae}
    return "+".join(parts), values


def benchmark_of(data: Path, concept: str, retain: Path | None, mmlu: Path | None) -> Benchmark:
    """The concept, with passages of another text to keep where one is given."""
    found = Concepts(path=str(data), concept=concept, mmlu=None if mmlu is None else str(mmlu), mmlu_limit=MMLU)()
    if retain is None:
        return found
    passages = tuple(islice(cut(read_documents(str(retain)), PASSAGE, "words", 100), PASSAGES))
    return Benchmark(found.name, {**found.splits, "retain": passages})


class Bench:
    """One model and one concept, and what the model was before."""

    def __init__(self, model: str, benchmark: Benchmark, sae: str, rank: int, relearn: int) -> None:
        self.model, self.benchmark, self.sae, self.rank, self.relearn = model, benchmark, sae, rank, relearn
        self.suite: Suite = concepts(max_new_tokens=32)
        self.cache = cache_folder() / "records"
        self.baseline: Records = evaluate(load(model), self.benchmark, self.suite, cache=self.cache)[0]
        self.before = score(self.baseline, self.suite, None, self.baseline)

    def row(self, method: str, seed: int, ember: Mapping[str, Any] | None) -> dict[str, Any]:
        """Erases, scores, relearns."""
        subject = load(self.model)
        state = State(subject, self.benchmark, seed=seed, precision=resolve_precision("auto", subject.device))
        begun = time.perf_counter()
        original = cast(Tensor, subject.embedding.weight).detach().clone()
        if method == "random_directions":
            self._run(state, "ember", seed, cast(Mapping[str, Any], ember), None)
            turn(subject, original, seed)
        elif method == "random_features":
            chosen = cast(Mapping[str, Any], ember)["features"]
            others = [index for index in range(self.rank) if index not in chosen]
            drawn = np.random.default_rng(seed).choice(others, size=len(chosen), replace=False)
            self._run(state, "ember", seed, cast(Mapping[str, Any], ember), [int(index) for index in drawn])
        else:
            self._run(state, method, seed, ember, None)
        row: dict[str, Any] = {"seconds": round(time.perf_counter() - begun, 1)}
        edit = next((record["edit"] for record in state.records if record["name"] == "edit_embeddings"), None)
        if edit is not None:
            row["edit"] = {"strength": edit["strength"], "features": [f["index"] for f in edit["features"]], **edit["moved"]}
        _, scores = evaluate(subject, self.benchmark, self.suite, baseline=self.baseline)
        row["scores"] = {name: {"value": scores[name].value, "ci95": scores[name].ci95} for name in KEPT if name in scores}
        if self.relearn and self.benchmark.splits.get("relearn"):
            attack = Relearn(data="relearn", splits=("concept",), steps=self.relearn, batch=4, lr=RELEARN_LR, points=POINTS)
            outcome = attack(Scene(subject, self.benchmark, self.suite, seed))
            row["relearned"] = {name: outcome.scores[name].to_json() for name in KEPT if name in outcome.scores}
            row["curve"] = [dict(point) for point in outcome.curve]
        return row

    def _run(self, state: State, method: str, seed: int, ember: Mapping[str, Any] | None, features: Sequence[int] | None) -> None:
        strength = "search" if ember is None else ember["strength"]
        name, values = settings(method, self.rank, seed, strength, features, self.sae)
        run_stages(state, [stage for _, stages in build_methods(name, values) for stage in stages])


@torch.no_grad()
def turn(subject: Subject, original: Tensor, seed: int) -> None:
    """Gives every moved row a random direction of the same length."""
    weight = cast(Tensor, subject.embedding.weight)
    moved = ((weight - original) != 0).any(dim=1).nonzero()[:, 0]
    length = (weight[moved] - original[moved]).norm(dim=1, keepdim=True)
    direction = torch.randn(len(moved), weight.shape[1], generator=torch.Generator().manual_seed(seed))
    weight[moved] = original[moved] + length * direction / direction.norm(dim=1, keepdim=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", default="embedded:smollm2")
    parser.add_argument("--concepts", nargs="+", default=["Ancient Rome", "Golf", "Baseball", "Culture of Greece", "Harry Potter"])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=(*METHODS, *TOKEN_FORMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--sae", default="", help="a folder of `excise sae train`, for crisp")
    parser.add_argument("--rank", type=int, default=200)
    parser.add_argument("--relearn", type=int, default=50)
    parser.add_argument("--retain", type=Path, help="a text file to keep, in place of the neutral sentences")
    parser.add_argument("--mmlu", type=Path, help="questions that must be answered as before, as the choice benchmark reads them")
    parser.add_argument("--rows", type=Path, default=Path("docs/results/erasure.jsonl"))
    chosen = parser.parse_args()
    chosen.rows.parent.mkdir(parents=True, exist_ok=True)
    for concept in chosen.concepts:
        bench: Bench | None = None
        for seed in chosen.seeds:
            for method in sorted(chosen.methods, key=lambda m: (m != "ember", chosen.methods.index(m))):
                known = {json.dumps(row["config"], sort_keys=True): row for row in whole_lines(chosen.rows)}
                here = {"model": chosen.model, "concept": concept, "seed": seed, "rank": chosen.rank, "relearn": chosen.relearn}
                here |= {name: given.name for name, given in (("retain", chosen.retain), ("mmlu", chosen.mmlu)) if given is not None}
                if json.dumps({**here, "method": method}, sort_keys=True) in known or ("crisp" in method and not chosen.sae):
                    continue
                ember = known.get(json.dumps({**here, "method": "ember"}, sort_keys=True), {}).get("edit")
                if ember is None and method != "ember" and ("ember" in method or "random" in method):
                    print(f"{concept}, {method}: nothing was edited by ember, so there is nothing to add to or to compare with")
                    continue
                if bench is None:
                    benchmark = benchmark_of(chosen.data, concept, chosen.retain, chosen.mmlu)
                    bench = Bench(chosen.model, benchmark, chosen.sae, chosen.rank, chosen.relearn)
                try:
                    row = bench.row(method, seed, ember)
                except InputError as error:
                    row = {"refused": str(error), "scores": {}, "seconds": 0.0}
                before = {name: bench.before[name].value for name in KEPT if name in bench.before}
                append_line(chosen.rows, {"config": {**here, "method": method}, "before": before, **row})
                told = {name: round(row["scores"][name]["value"], 2) for name in KEPT[:4] if row["scores"].get(name, {}).get("value") is not None}
                print(concept, seed, method, told, row.get("refused", ""), f"{row['seconds']} s", flush=True)
    rows = [row for row in whole_lines(chosen.rows) if row["config"]["concept"] in chosen.concepts and row["config"]["model"] == chosen.model]
    if chosen.retain is None:
        print_table([row for row in rows if "retain" not in row["config"]])
    else:
        print_choices([row for row in rows if row["config"].get("retain") == chosen.retain.name])


SHOWN = ("efficacy", "specificity", "coherence", "overall", "efficacy_open", "specificity_open", "concept.choice_probability")


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Means over the seeds, each with the widest interval of one seed."""
    print(f"| concept | method | seeds | {' | '.join(SHOWN)} | relearned probability | vocabulary edited | seconds |\n|" + "---|" * (len(SHOWN) + 6))
    keys = list(dict.fromkeys((row["config"]["concept"], row["config"]["method"]) for row in rows))
    for concept, method in sorted(keys, key=lambda key: (key[0], (*METHODS, *TOKEN_FORMS).index(key[1]))):
        members = [row for row in rows if (row["config"]["concept"], row["config"]["method"]) == (concept, method) and row["scores"]]
        if not members:
            print(f"| {concept} | {method} | 0 |" + " – |" * (len(SHOWN) + 3))
            continue
        cells = [cell([row["scores"].get(name, {}) for row in members]) for name in SHOWN]
        again = cell([row.get("relearned", {}).get("concept.choice_probability", {}) for row in members])
        share = [row["edit"]["share_of_vocabulary"] for row in members if "edit" in row]
        edited = f"{100 * float(np.mean(share)):.2f} %" if share else "–"
        seconds = float(np.mean([row["seconds"] for row in members]))
        print(f"| {concept} | {method} | {len(members)} | {' | '.join(cells)} | {again} | {edited} | {seconds:.0f} |")


CHOICES = tuple(f"{split}.{score}" for split in ("concept", "similar", "mmlu") for score in ("choice_accuracy", "choice_margin"))


def print_choices(rows: Sequence[Mapping[str, Any]]) -> None:
    """Choice accuracy and margin on the concept, its neighbours and MMLU, before and after."""
    print(f"| concept | method | seeds | {' | '.join(CHOICES)} | seconds |\n|" + "---|" * (len(CHOICES) + 4))
    for concept in dict.fromkeys(row["config"]["concept"] for row in rows):
        here = [row for row in rows if row["config"]["concept"] == concept]
        before = " | ".join(f"{here[0]['before'][name]:.2f}" if name in here[0]["before"] else "–" for name in CHOICES)
        print(f"| {concept} | before | – | {before} | – |")
        for method in sorted({row["config"]["method"] for row in here}, key=(*METHODS, *TOKEN_FORMS).index):
            members = [row for row in here if row["config"]["method"] == method]
            seconds = float(np.mean([row["seconds"] for row in members]))
            cells = " | ".join(cell([row["scores"].get(name, {}) for row in members]) for name in CHOICES)
            print(f"| {concept} | {method} | {len(members)} | {cells} | {seconds:.0f} |")


def cell(scores: Sequence[Mapping[str, Any]]) -> str:
    """A mean over runs, and the outermost bounds of their intervals."""
    values = [score["value"] for score in scores if score.get("value") is not None]
    bounds = [score["ci95"] for score in scores if score.get("ci95") is not None]
    if not values:
        return "–"
    text = f"{float(np.mean(values)):.2f}"
    return f"{text} [{min(b[0] for b in bounds):.2f}, {max(b[1] for b in bounds):.2f}]" if bounds else text


if __name__ == "__main__":
    main()
