"""Optuna as excise uses it: one journal file as storage, samplers that depend on the seed and the trial's number only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock

from excise.errors import InputError

Sampler = Literal["tpe", "nsga2", "random"]


def optuna(who: str) -> Any:
    """The library.

    Raises:
        InputError: it is not installed.
    """
    try:
        import optuna as library
    except ImportError:
        raise InputError(f'{who} needs optuna: pip install "excise[sweep]"') from None
    library.logging.set_verbosity(library.logging.WARNING)
    return library


def open_study(library: Any, name: str, place: Path | None, directions: Sequence[str]) -> Any:
    """The study of that name in a journal file, begun or gone on with; in memory without ``place``.

    What a killed writer left of its last line is cut off. Call it while no other process writes, or where none can be killed.
    """
    storage = None
    if place is not None:
        place.parent.mkdir(parents=True, exist_ok=True)
        backend = library.storages.journal.JournalFileBackend(str(place), lock_obj=_Lock(place))
        storage = library.storages.JournalStorage(backend)
    return library.create_study(study_name=name, storage=storage, load_if_exists=True, directions=list(directions))


def cut_to_whole_lines(place: Path) -> None:
    """Removes what a killed writer left of its last line, which would make the whole journal unreadable."""
    if not place.exists():
        return
    content = place.read_bytes()
    if content and not content.endswith(b"\n"):
        with place.open("rb+") as file:
            file.truncate(content.rfind(b"\n") + 1)


def sampler(library: Any, kind: Sampler, seed: int, number: int, trials: int) -> Any:
    """The sampler of one trial: a resumed search proposes what an undisturbed one would."""
    own = seed + 7919 * number
    if kind == "random":
        return library.samplers.RandomSampler(seed=own)
    if kind == "nsga2":
        return library.samplers.NSGAIISampler(seed=own, population_size=max(4, math.isqrt(trials)))
    return library.samplers.TPESampler(seed=own, n_startup_trials=max(4, math.isqrt(trials)))


class _Lock:
    """Optuna's own lock outlives a killed holder for half a minute; one of the operating system goes with it."""

    def __init__(self, place: Path) -> None:
        self._lock = FileLock(f"{place}.lock")

    def acquire(self) -> bool:
        self._lock.acquire()
        return True

    def release(self) -> None:
        self._lock.release()
