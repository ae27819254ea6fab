"""How good are the judges on a model's own answers? Those of a strangers run, whose facts are marked.

    python -m benchmarks.judges_on_strangers RUN [--answers 200] [--judges contains similarity model] [--set judges.model.path=FOLDER ...]

Answers of the taught, the unlearned and the twin model, in turn: on the forget questions, then on retain questions until there are enough. An
answer is right where it holds every content word of the marked fact, wrong where it holds none; one that holds some is neither, and
is left out and counted. Prints each judge against that truth, then the judges against each other.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np

from excise.evaluation.judges import Item, Judge
from excise.evaluation.judges.agreement import kappas
from excise.evaluation.judges.compare import build_judges
from excise.evaluation.metrics.facts import FactRecall
from excise.evaluation.store import read_records

PHASES = {"before": "taught", "after": "unlearned", "retrained": "twin"}
SPLITS = ("forget", "retain")


@dataclass(frozen=True)
class Answer:
    phase: str
    item: Item
    right: bool


def answers(run: Path, count: int) -> tuple[list[Answer], int]:
    """The answers, and how many were left out because they are neither right nor wrong."""
    found: list[Answer] = []
    partly = 0
    columns = [[(phase, record) for split in SPLITS for record in records[split]] for phase in PHASES for records in [read_records(run, phase)]]
    for phase, record in (row for rows in zip(*columns, strict=True) for row in rows):
        if len(found) == count:
            break
        recall = FactRecall().per_example(record)
        if recall is None or record.generation is None or 0.0 < recall < 1.0:
            partly += 1
            continue
        item = Item("truth", record.prompt, record.generation, record.answer, record.label)
        found.append(Answer(phase, item, recall == 1.0))
    return found, partly


def agreement(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """Share of equal verdicts, and Cohen's kappa."""
    pairs = np.stack([a, b], axis=1).astype(np.float64)
    return float((a == b).mean()), float(kappas(np.ones((1, len(pairs))), pairs)[0])


def said(judge: Judge, items: list[Item]) -> tuple[np.ndarray, int, float]:
    """Its yes or no for each item (undecided counts as no), how many were undecided, milliseconds an item."""
    begun = time.perf_counter()
    verdicts = list(judge(items))
    seconds = time.perf_counter() - begun
    return np.array([bool(v.yes) for v in verdicts]), sum(v.score is None for v in verdicts), 1000 * seconds / len(items)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--answers", type=int, default=200)
    parser.add_argument("--judges", nargs="+", default=["contains", "similarity", "model"])
    parser.add_argument("--set", action="append", default=[], dest="settings")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    found, partly = answers(chosen.run, chosen.answers)
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "rouge-score"))
    print(f"{len(found)} answers of {', '.join(PHASES.values())} models, {partly} left out; {platform.machine()}, {versions}")
    truth = np.array([answer.right for answer in found])
    why = np.array([answer.item.label == "why" for answer in found])
    print(f"{'judge':<12}{'all':>16}{'why':>16}{'other':>16}{'taught':>9}{'unlearned':>11}{'twin':>7}{'undecided':>11}{'ms':>7}")
    verdicts: dict[str, np.ndarray] = {}
    rows: dict[str, object] = {"answers": len(found), "left_out": partly}
    for judge in build_judges(chosen.judges, chosen.settings):
        mine, undecided, cost = said(judge, [answer.item for answer in found])
        verdicts[judge.name] = mine
        cells = [agreement(mine[part], truth[part]) for part in (np.ones_like(why), why, ~why)]
        by_phase = [float((mine == truth)[[a.phase == phase for a in found]].mean()) for phase in PHASES]
        rows[judge.name] = {"agreement_kappa": cells, "by_phase": by_phase, "undecided": undecided}
        text = "".join(f"{f'{a:.3f} / {k:.2f}':>16}" for a, k in cells)
        print(f"{judge.name:<12}{text}{by_phase[0]:>9.3f}{by_phase[1]:>11.3f}{by_phase[2]:>7.3f}{undecided:>11}{cost:>7.0f}", flush=True)
    for a, b in itertools.combinations(verdicts, 2):
        share, kappa = agreement(verdicts[a], verdicts[b])
        rows[f"{a} and {b}"] = [share, kappa]
        print(f"{a} and {b}: {share:.3f} / {kappa:.2f}")
    if chosen.json:
        chosen.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
