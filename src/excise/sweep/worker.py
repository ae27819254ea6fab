"""One worker of a sweep: it loads the model once and runs trials until there are none left.

    python -m excise.sweep.worker FOLDER --worker N --trials N --session NAME [--device NAME]

is how ``excise sweep --workers`` starts one; it ends when its parent does.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from excise.errors import InputError
from excise.stages.state import Narrator, Silent
from excise.sweep.bench import Bench, Outcome
from excise.sweep.folder import SweepFolder
from excise.sweep.space import Space, shown


def work(
    folder: SweepFolder,
    space: Space,
    *,
    trials: int,
    session: str,
    worker: int = 0,
    device: str | None = None,
    narrator: Narrator,
    keep_models: bool = False,
    bench: Callable[[], Bench] | None = None,
) -> None:
    """Runs trials until as many as asked are taken."""
    study = folder.study(space)
    with folder.worker_lock(worker):
        claim = folder.claim(study, space, trials, worker, session)
        if claim is None:
            return
        own = bench() if bench is not None else Bench(folder.recipe, space, folder.place, device, narrator)
        while claim is not None:
            narrator.say(f"Trial {claim.number + 1} of {trials}: {shown(claim.settings)}.")
            place = folder.trial(claim.number)
            if (place / "result.json").exists():  # killed between the result and the journal
                outcome = Outcome.read(place)
            else:
                outcome = own.run(claim.settings, place, claim.number, keep_model=keep_models)
            folder.tell(study, claim, outcome, space.objectives)
            narrator.say(f"Trial {claim.number + 1}: {told(outcome)}.")
            claim = folder.claim(study, space, trials, worker, session)


def told(outcome: Outcome) -> str:
    """An outcome in a line."""
    values = ", ".join(f"{name} {value:.4g}" for name, value in outcome.values.items())
    return values if outcome.state == "complete" else f"{outcome.state}: {outcome.reason}"


class Lines(Silent):
    """Says lines with the worker's number, and shows no bars: several workers share a terminal."""

    def __init__(self, worker: int) -> None:
        self.worker = worker

    def say(self, text: str) -> None:
        print(f"[{self.worker}] {text}", file=sys.stderr, flush=True)


def _end_with(parent: int) -> None:
    """Ends this process when its parent has gone."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--worker", type=int, required=True)
    parser.add_argument("--trials", type=int, required=True)
    parser.add_argument("--session", required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--device")
    parser.add_argument("--keep-models", action="store_true")
    given = parser.parse_args()
    _end_with(given.parent)
    folder = SweepFolder(given.folder)
    try:
        work(
            folder, folder.space, trials=given.trials, session=given.session, worker=given.worker, device=given.device,
            narrator=Lines(given.worker), keep_models=given.keep_models,
        )  # fmt: skip
    except InputError as error:
        print(f"excise: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
