"""Deletion requests one after the other on the demo's taught model, and one of them undone: does each hold, and what do they cost together?

    python -m studies.ledger --out DIR [--taught FOLDER] [--requests 5] [--undo 3] [--budget 0.1] [--set epochs=12]

Each request is the five questions about one taught person. Prints, after every step, the fact recall of every request so far (R: refused
within the budget, so not applied), the utility that is left of the start, and the time; then the same after one request was undone.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from excise.data.benchmarks.strangers import Strangers
from excise.files import write_lines
from excise.loading import ModelSpec
from excise.requests.build import Asked
from excise.requests.forget import Settings
from excise.requests.ledger import ACTIVE, Ledger, drift
from excise.settings import overridden
from studies.world import add_taught, folder, questions


def row(ledger: Ledger, what: str, seconds: float, count: int) -> str:
    """A line of the table."""
    cells: list[str] = []
    for entry in ledger.entries:
        now: dict[str, Any] = entry["checks"][-1]["scores"]
        recall = now.get("forget.fact_recall")
        cells.append(
            ("" if entry["status"] == ACTIVE else "R " if not entry["met"] else "undone ") + (f"{recall:.2f}" if recall is not None else "–")
        )
    utility = drift(ledger)
    left = "–" if utility is None else f"{utility:.1%}"
    return f"| {what} | {' | '.join([*cells, *[''] * (count - len(cells))])} | {left} | {seconds:.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add_taught(parser)
    parser.add_argument("--requests", type=int, default=5)
    parser.add_argument("--undo", type=int, default=3)
    parser.add_argument("--budget", type=float, default=0.1)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    taught = folder(chosen.taught)
    benchmark = Strangers(forget_people=4, retain_people=16, holdout_people=2)()
    examples = [*benchmark.forget, *benchmark.split("retain")]
    people = list(dict.fromkeys(example.group for example in examples))[: chosen.requests]
    ledger = Ledger.start(chosen.out / "ledger", ModelSpec(path=str(taught / "target"), system=""))
    settings = Settings(budget=chosen.budget, method=overridden({}, chosen.set))
    print(f"| after | {' | '.join(f'request {n + 1}' for n in range(len(people)))} | utility | seconds |\n|" + "---|" * (len(people) + 3))
    for number, person in enumerate(people, start=1):
        file = chosen.out / f"questions-{number}.jsonl"
        write_lines(file, questions(examples, [person]))
        begun = time.perf_counter()
        ledger.add(Asked(questions=(str(file),)), settings)
        print(row(ledger, f"request {number}", time.perf_counter() - begun, len(people)), flush=True)
    if any(entry["number"] == chosen.undo for entry in ledger.active):
        begun = time.perf_counter()
        ledger.undo(chosen.undo)
        print(row(ledger, f"undo of {chosen.undo}", time.perf_counter() - begun, len(people)))
    else:
        print(f"request {chosen.undo} was not applied, so there is nothing to undo")


if __name__ == "__main__":
    main()
