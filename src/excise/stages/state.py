"""What stages work on, and how they tell what they do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from excise.data.example import Benchmark, Example

if TYPE_CHECKING:
    from torch import Tensor

    from excise.evaluation.score import Score
    from excise.subject import Subject


@runtime_checkable
class Narrator(Protocol):
    """Receives what happens, for a progress display, a log file or nothing."""

    def say(self, text: str) -> None:
        """A line for the person who watches."""
        ...

    def begin(self, task: str, total: int) -> None:
        """A task of ``total`` units starts."""
        ...

    def advance(self, task: str, done: int, note: str = "") -> None:
        """``done`` more units of the task are finished."""
        ...

    def end(self, task: str) -> None: ...


class Silent:
    """Says nothing."""

    def say(self, text: str) -> None: ...

    def begin(self, task: str, total: int) -> None: ...

    def advance(self, task: str, done: int, note: str = "") -> None: ...

    def end(self, task: str) -> None: ...


@dataclass
class State:
    """The model on its way through the stages of a method."""

    subject: Subject
    benchmark: Benchmark
    examples: Mapping[Literal["forget", "retain"], tuple[Example, ...]] | None = None
    """What is trained on; None: the benchmark's forget and retain splits."""
    seed: int = 0
    precision: Literal["float32", "bfloat16"] = "float32"
    folder: Path | None = None
    """Work folder for checkpoints and train.jsonl; None keeps everything in memory."""
    checkpoints: bool = True
    """Whether there are checkpoints in the folder; a short run that starts anew after a kill needs none."""
    parallel: Literal["copies", "shards"] = "copies"
    """Where several processes run this: whether each holds the model, or a part of it while it trains."""
    narrator: Narrator = field(default_factory=Silent)
    evaluate: Callable[[Subject], Mapping[str, Score]] | None = None
    """Scores the model in passing; what a training stage calls every k steps."""
    max_tokens: int = 2048
    """Tokens per forward pass where no gradient is kept."""
    stage_index: int = 0
    resume: bool = False
    redact: bool = False
    """Whether no text of the data may be written into the work folder."""
    kept: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    """Tensors that a stage left for later ones or for undoing it, by name; what has a folder lies there instead (`stages/kept.py`)."""
    prepared: dict[int, object] = field(default_factory=dict)
    """What stages computed in ``prepare``, by the identity of the stage."""
    records: list[dict[str, Any]] = field(default_factory=list)
    """One entry per finished stage, for result.json."""
    plan: list[str] = field(default_factory=list)
    """What was resolved on the way (layers, coefficients), in plain words."""

    @property
    def checkpoint_folder(self) -> Path | None:
        """Where checkpoints lie; None where there are none."""
        return self.folder / "checkpoints" if self.folder is not None and self.checkpoints else None

    def side(self, name: Literal["forget", "retain"]) -> tuple[Example, ...]:
        """The examples of one side of the training data."""
        if self.examples is not None:
            return self.examples[name]
        return self.benchmark.forget if name == "forget" else self.benchmark.retain


@runtime_checkable
class Stage(Protocol):
    """One step of a method. It changes ``state.subject`` in place.

    A stage that may run in several processes at once, each doing the same, has the attribute ``several_processes = True``; others are
    refused there.
    """

    def check(self, state: State) -> None:
        """Refuses what cannot work on this model and data, before anything costs time. Quick; changes nothing.

        Raises:
            InputError: what does not fit, and what to do.
        """
        ...

    def prepare(self, state: State) -> None:
        """Called for every stage before the first one starts, while the model is still what it was."""
        ...

    def structure(self, state: State) -> None:
        """Makes the stage's changes to the model's structure only (an adapter, an untied head), for a resumed run."""
        ...

    # A stage may have ``changes(subject)``: the names of the parameters that it may change. One without may change every one, and
    # then a run keeps them all between two stages.

    def __call__(self, state: State) -> None: ...
