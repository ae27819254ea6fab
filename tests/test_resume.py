"""A run that was killed goes on to the same bits: SIGKILL at several steps, in several methods, in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import contract
import excise
from conftest import REPOSITORY, tiny
from excise.errors import InputError
from excise.stages.checkpoint import Checkpoints

DRIVER = Path(__file__).parent / "resume_driver.py"
COMMON: dict[str, Any] = {"batch": 2, "lr": 3e-3, "checkpoint_every": 2, "guard": {"every": 2, "rise": 50.0, "degenerate": 1.0}}
ATTRIBUTION: dict[str, Any] = {"nouns": {"words": [contract.NOUN]}, "select": "soft"}
METHODS: dict[str, dict[str, Any]] = {
    "npo": {"name": "npo", "steps": 7, **COMMON},
    "weights refreshed every epoch, with dropout": {
        "name": "s_npo", "steps": 8, "attribution": {**ATTRIBUTION, "refresh": "epoch"}, "lora": {"r": 2, "dropout": 0.3}, **COMMON
    },
    "a chain with one adapter": {"name": "ga+npo", "steps": 5, "lora": {"r": 2}, **COMMON},
    "rmu, accumulated, recomputed": {"name": "t_rmu", "steps": 5, "attribution": ATTRIBUTION, "accumulate": 2, "checkpointing": True, **COMMON},
    "adapter surgery": {
        "name": "maat", "adapter": True, "ascent": {"steps": 1, "moments": "fresh"}, "repair": {"steps": 5, "lr": 1e-3}, **COMMON
    },
    "an adapter's negation": {"name": "adapter_negation", "adapter": True, "steps": 5, **COMMON},
}  # fmt: skip
KILLS: list[tuple[str, tuple[str, ...]]] = [
    ("npo", ("0", "1")),
    ("npo", ("0", "2")),
    ("npo", ("0", "5")),
    ("npo", ("0", "4", "mid")),
    ("npo", ("1", "0", "mid")),  # inside the checkpoint between two stages
    ("weights refreshed every epoch, with dropout", ("1", "5")),
    ("weights refreshed every epoch, with dropout", ("1", "7")),
    ("a chain with one adapter", ("1", "3")),
    ("a chain with one adapter", ("3", "1")),
    ("a chain with one adapter", ("3", "4")),
    ("a chain with one adapter", ("2", "0", "mid")),
    ("rmu, accumulated, recomputed", ("0", "3")),
    ("adapter surgery", ("1", "3")),
    ("adapter surgery", ("4", "3")),  # the repair reads the task vector that an earlier stage left
    ("an adapter's negation", ("1", "4")),
]


def drive(folder: Path, settings: dict[str, Any], kill: tuple[str, ...] = ()) -> int:
    """The exit status of a run in a process of its own."""
    written = folder.parent / f"{folder.name}.json"
    written.write_text(json.dumps(settings))
    paths = [str(Path(excise.__file__).parent.parent), str(DRIVER.parent)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(DRIVER), str(folder), str(written), *kill],
        env=environment, cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode in (0, -signal.SIGKILL), done.stderr[-2000:]
    return done.returncode


def log_of(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in ("seconds", "tokens_per_second", "memory_mb")} for line in lines]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders: dict[str, Path] = {}
    for name, settings in METHODS.items():
        folders[name] = tmp_path_factory.mktemp("undisturbed") / "run"
        assert drive(folders[name], settings) == 0
    return folders


@pytest.mark.slow
@pytest.mark.parametrize(("method", "kill"), KILLS, ids=lambda value: value if isinstance(value, str) else "-".join(value))
def test_a_killed_run_goes_on_to_the_same_bits(method: str, kill: tuple[str, ...], undisturbed: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert drive(folder, METHODS[method], kill) == -signal.SIGKILL
    assert not (folder / "fingerprint.txt").exists()
    assert drive(folder, METHODS[method]) == 0
    whole = undisturbed[method]
    assert (folder / "fingerprint.txt").read_text() == (whole / "fingerprint.txt").read_text()
    assert log_of(folder) == log_of(whole)
    assert json.loads((folder / "records.json").read_text()) == json.loads((whole / "records.json").read_text())


@pytest.mark.slow
def test_a_run_may_be_killed_more_than_once(undisturbed: dict[str, Path], tmp_path: Path) -> None:
    method = "a chain with one adapter"
    folder = tmp_path / "run"
    for kill in (("1", "1"), ("1", "4"), ("3", "2", "mid"), ("3", "3")):
        assert drive(folder, METHODS[method], kill) == -signal.SIGKILL
    assert drive(folder, METHODS[method]) == 0
    assert (folder / "fingerprint.txt").read_text() == (undisturbed[method] / "fingerprint.txt").read_text()
    assert log_of(folder) == log_of(undisturbed[method])


@pytest.mark.slow
def test_a_run_that_was_not_killed_is_the_undisturbed_one(undisturbed: dict[str, Path], tmp_path: Path) -> None:
    for name, settings in METHODS.items():
        if name == "npo":
            folder = tmp_path / "again"
            assert drive(folder, settings) == 0
            assert (folder / "fingerprint.txt").read_text() == (undisturbed[name] / "fingerprint.txt").read_text()
    assert len({(folder / "fingerprint.txt").read_text() for folder in undisturbed.values()}) == len(METHODS)


def test_only_the_newest_complete_checkpoint_and_the_boundary_are_kept(tmp_path: Path) -> None:
    subject = contract.small_subject()
    parameters = dict(subject.model.named_parameters())
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    assert checkpoints.newest() is None
    for stage, step in ((1, 0), (1, 2), (1, 4)):
        checkpoints.write(stage, step, parameters)
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["001-0000000", "001-0000004"]
    (tmp_path / "checkpoints" / "001-0000009").mkdir()  # cut short: no state.json
    newest = checkpoints.newest()
    assert newest is not None
    assert (newest.stage, newest.step) == (1, 4)
    checkpoints.write(2, 0, parameters)
    assert [p.name for p in sorted((tmp_path / "checkpoints").iterdir()) if (p / "state.json").exists()] == ["002-0000000"]
    boundary = checkpoints.boundary(2)
    assert boundary is not None
    assert checkpoints.boundary(1) is None
    checkpoints.clear()
    assert checkpoints.newest() is None


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.write(0, 1, dict(contract.small_subject().model.named_parameters()))
    saved = checkpoints.newest()
    assert saved is not None
    with pytest.raises(InputError, match=r"another shape than the model's.*start without --resume"):
        saved.restore_weights(dict(tiny("llama", tied=False).model.named_parameters()))
    with pytest.raises(InputError, match=r"which this model has not.*start without --resume"):
        saved.restore_weights({})
