"""A ledger: several deletion requests on one model, each an adapter of its own, all of them checked after every change."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from filelock import FileLock, Timeout

from excise.data.benchmarks.request import Request
from excise.errors import InputError
from excise.evaluation.score import Score
from excise.evaluation.suites import evaluate
from excise.evaluation.suites.request import request as request_suite
from excise.files import cache_folder, explained, read_json, write_json
from excise.loading import ModelSpec, load
from excise.requests.build import Asked
from excise.requests.forget import Settings, forget, load_record, sentence
from excise.run import narrated
from excise.saving import RECORD as MODEL_RECORD
from excise.saving import merged, save
from excise.settings import plain
from excise.stages.state import Narrator, Silent
from excise.subject import Subject

if TYPE_CHECKING:
    from rich.table import Table

NAME = "ledger.json"
SCHEMA = 1
ACTIVE = "active"
UNDONE = "undone"
REFUSED = "not met"


@dataclass
class Ledger:
    """A folder with ``ledger.json``, ``requests/<number>/`` (a run folder each, with its adapter) and ``model/`` (all active adapters merged).

    ledger.json is what counts: a model folder that does not belong to its active requests (a process was killed in between) is
    made anew when the ledger is opened.
    """

    folder: Path
    base: ModelSpec
    fingerprint: str
    entries: list[dict[str, Any]] = field(default_factory=list)

    # --- reading and writing ------------------------------------------------------------------------------------------

    @staticmethod
    def start(folder: str | Path, base: ModelSpec) -> Ledger:
        """A new ledger.

        Raises:
            InputError: the folder is not empty, or the model cannot be loaded or is itself an adapter.
        """
        folder = Path(folder)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InputError(f"{folder} exists and is not empty: choose another place for the ledger")
        subject = load(base)
        if subject.is_adapter:
            raise InputError(f"{base.path} is an adapter: merge it first (merge: true), a ledger keeps adapters of its own")
        ledger = Ledger(folder, base, subject.fingerprint())
        with explained(folder):
            folder.mkdir(parents=True, exist_ok=True)
        ledger._write()
        return ledger

    @staticmethod
    def open(folder: str | Path) -> Ledger:
        """An existing ledger; its model folder is mended where a process was killed.

        Raises:
            InputError: no ledger, a broken one, or one of another version.
        """
        folder = Path(folder)
        if not (folder / NAME).is_file():
            raise InputError(f"{folder} is no ledger: it has no {NAME} (excise ledger start {folder} MODEL)")
        values = read_json(folder / NAME)
        try:
            if values["schema"] != SCHEMA:
                raise InputError(f"{folder / NAME} was written by another version of excise (schema {values['schema']}, not {SCHEMA})")
            base = ModelSpec(**values["base"]["spec"])
            return Ledger(folder, base, str(values["base"]["fingerprint"]), list(values["requests"]))
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{folder / NAME} is broken ({type(error).__name__}: {' '.join(str(error).split())})") from None

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, "base": {"spec": plain(self.base), "fingerprint": self.fingerprint}, "requests": self.entries}

    def _write(self) -> None:
        write_json(self.folder / NAME, self.to_json())

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Only one process changes a ledger at a time."""
        lock = FileLock(self.folder / ".lock")
        try:
            with explained(self.folder):
                lock.acquire(timeout=0)
        except Timeout:
            raise InputError(f"another process is working on {self.folder}") from None
        try:
            self.entries = Ledger.open(self.folder).entries
            yield
        finally:
            lock.release()

    # --- what it holds ------------------------------------------------------------------------------------------------

    @property
    def active(self) -> list[dict[str, Any]]:
        return [entry for entry in self.entries if entry["status"] == ACTIVE]

    def _place(self, entry: Mapping[str, Any]) -> Path:
        return self.folder / "requests" / f"{entry['number']:03d}"

    def model(self) -> ModelSpec:
        """The model after all active requests, made anew where it is not there."""
        if not self.active:
            return self.base
        place, wanted = self.folder / "model", [entry["id"] for entry in self.active]
        record = read_json(place / MODEL_RECORD) if (place / MODEL_RECORD).is_file() else {}
        if record.get("requests") != wanted:
            save(self._composed(), place, provenance={"method": "ledger", "requests": wanted, "base": self.fingerprint}, overwrite=True)
        return ModelSpec(path=str(place), system=self.base.system, template=self.base.template, device=self.base.device)

    def _composed(self) -> Subject:
        """The base with the adapter of each active request added."""
        from peft import PeftModel

        subject = load(self.base)
        if subject.fingerprint() != self.fingerprint:
            raise InputError(f"{self.base.path} is not the model that the ledger {self.folder} was started on: its weights have changed")
        for entry in self.active:
            subject.model = cast(PeftModel, PeftModel.from_pretrained(subject.base, str(self._place(entry) / "model")))
            subject = merged(subject)
        return subject

    # --- changing -----------------------------------------------------------------------------------------------------

    def add(self, asked: Asked, settings: Settings | None = None, narrator: Narrator | None = None) -> dict[str, Any]:
        """Carries out a request on the model as it is now. One that is not met within its budget is written down and not applied.

        Raises:
            InputError: see :func:`excise.requests.forget.forget`.
        """
        narrator, settings = narrator or Silent(), settings or Settings()
        with self._alone():
            entry: dict[str, Any] = {"number": 1 + max((e["number"] for e in self.entries), default=0)}
            place = self._place(entry)
            shutil.rmtree(place, ignore_errors=True)  # a killed attempt
            place.parent.mkdir(parents=True, exist_ok=True)
            found = forget(self.model(), asked, place, replace(settings, adapter=True), narrator=narrator, overwrite=True)
            if any(other["id"] == found["id"] for other in self.active):
                shutil.rmtree(place)
                raise InputError(f"this request stands in the ledger already ({found['id']})")
            entry |= {name: found[name] for name in ("id", "date", "kind", "examples", "met", "why_not", "levels", "seconds")}
            entry |= {
                "status": ACTIVE if found["met"] else REFUSED,
                "redacted": settings.privacy == "redact",
                "sentence": sentence(found),
                "checks": [],
            }
            self.entries.append(entry)
            self._write()
            self.model()
            self._check(narrator)
        return entry

    def undo(self, number: int, narrator: Narrator | None = None) -> None:
        """Takes a request back: its adapter is no longer added; those of the others stay what they are.

        Raises:
            InputError: no such active request.
        """
        with self._alone():
            entry = next((e for e in self.active if e["number"] == number), None)
            if entry is None:
                there = ", ".join(str(e["number"]) for e in self.active) or "none"
                raise InputError(f"{self.folder} has no active request {number} (active: {there})")
            entry["status"] = UNDONE
            self._write()
            self.model()
            self._check(narrator or Silent())

    def check(self, narrator: Narrator | None = None) -> None:
        """Asks the present model about every request again."""
        with self._alone():
            self._check(narrator or Silent())

    def _check(self, narrator: Narrator) -> None:
        spec = self.model()
        subject = load(spec)
        after = [entry["number"] for entry in self.active]
        for entry in self.entries:
            place = self._place(entry) / "data"
            if entry["redacted"] or not place.is_dir():
                entry["checks"].append({"active": after, "scores": {}, "why": "its texts were not kept"})
                continue
            narrator.say(f"Asking about request {entry['number']}.")
            scores = self._scores(subject, place, narrator)
            entry["checks"].append({"active": after, "scores": {name: s.value for name, s in scores.items() if s.value is not None}})
        self._write()

    def _scores(self, subject: Subject, place: Path, narrator: Narrator) -> dict[str, Score]:
        benchmark = Request(str(place))()
        return evaluate(subject, benchmark, request_suite(), cache=cache_folder() / "records", progress=narrated(narrator))[1]


def holds(entry: Mapping[str, Any]) -> bool | None:
    """Whether a request still holds by its last check; None where it was not checked."""
    scores = entry["checks"][-1]["scores"] if entry["checks"] else {}
    if not scores:
        return None
    return all(scores.get(name, 1.0) <= level for name, level in entry["levels"].items())


def drift(ledger: Ledger) -> float | None:
    """Share of the probability that neighbours' answers and neutral text have by now, of what they had before the first request."""
    first = next((e for e in ledger.entries if e["checks"] and e["checks"][-1]["scores"]), None)
    if first is None:
        return None
    before = load_record(ledger.folder / "requests" / f"{first['number']:03d}")["scores"]
    now = first["checks"][-1]["scores"]
    shares = [
        now[name] / before[name]["before"] for name in ("neighbours.probability", "neutral.probability") if name in now and before[name]["before"]
    ]
    return min(shares, default=None)


def table(ledger: Ledger) -> Table:
    """The ledger for the terminal."""
    from rich.table import Table

    shown = Table("request", "id", "date", "status", "forget, then", "forget, now", "never known", "holds", box=None, pad_edge=False)
    for entry in ledger.entries:
        shown.add_row(str(entry["number"]), entry["id"], entry["date"], entry["status"], *_cells(ledger, entry))
    utility = drift(ledger)
    shown.caption = "" if utility is None else f"utility: {utility:.1%} of what it was before the first request"
    return shown


def _cells(ledger: Ledger, entry: Mapping[str, Any]) -> Sequence[str]:
    name = next(iter(reversed(list(entry["levels"]))))
    checks = [check["scores"] for check in entry["checks"] if check["scores"]]
    told = {True: "yes", False: "NO", None: "not checked"}[holds(entry)]
    if entry["status"] != ACTIVE:
        told = f"({told})"
    return (
        f"{checks[0][name]:.3f}" if checks else "",
        f"{checks[-1][name]:.3f}" if checks else "",
        f"{entry['levels'][name]:.3f}",
        told,
    )
