"""Runs a method as a process of its own: once undisturbed, once killed at a step, once going on.

    python resume_driver.py FOLDER SETTINGS.json [KILL_STAGE KILL_STEP [mid]]

Leaves FOLDER/fingerprint.txt when it comes to the end. ``mid`` kills inside a checkpoint that is half written.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

import contract
from excise.recipe import build_methods
from excise.run import run_stages
from excise.stages import checkpoint, loop
from excise.stages.state import State


def kill_after(stage: int, step: int, mid: bool) -> None:
    """SIGKILL to this very process after that step, or inside the first checkpoint from then on."""
    done = loop.Loop._one_step

    def stepping(self: loop.Loop) -> None:
        done(self)
        if not mid and (self.session.state.stage_index, self.step) >= (stage, step):
            os.kill(os.getpid(), signal.SIGKILL)

    writing = checkpoint.write_json

    def cut_short(path: Path, value: Any) -> None:
        if mid and (value["stage"], value["step"]) >= (stage, step):
            path.write_text('{"stage": ')
            os.kill(os.getpid(), signal.SIGKILL)
        writing(path, value)

    loop.Loop._one_step = stepping
    checkpoint.write_json = cut_short


def main() -> None:
    torch.set_num_threads(1)
    folder, settings = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())
    if len(sys.argv) > 3:
        kill_after(int(sys.argv[3]), int(sys.argv[4]), mid=len(sys.argv) > 5)
    resume = folder.exists()
    folder.mkdir(exist_ok=True)
    subject = contract.with_adapter(contract.small_subject()) if settings.pop("adapter", False) else contract.small_subject()
    state = State(subject, contract.small_benchmark(), folder=folder, seed=5, resume=resume)
    name = settings.pop("name")
    run_stages(state, [stage for _, stages in build_methods(name, settings) for stage in stages])
    kept = [{k: v for k, v in record.items() if k in ("name", "steps", "tokens", "changed_parameters", "stopped")} for record in state.records]
    (folder / "records.json").write_text(json.dumps(kept))
    (folder / "fingerprint.txt").write_text(state.subject.fingerprint())


if __name__ == "__main__":
    main()
