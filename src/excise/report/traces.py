"""Reading the lines that a run wrote while it worked: training steps and the attribution of answer tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from excise.errors import InputError
from excise.files import read_lines
from excise.report.names import readable
from excise.report.result import mapping, number, sequence

CURVES = ("loss", "grad_norm", "learning_rate", "tokens_per_second", "memory_mb")


@dataclass(frozen=True)
class Trace:
    """One stage of training: for each curve the points (step, value); ``term: forget`` and so on, then ``CURVES``."""

    stage: str
    curves: Mapping[str, tuple[tuple[float, float], ...]]


@dataclass(frozen=True)
class PromptToken:
    text: str
    masked: bool


@dataclass(frozen=True)
class Token:
    """One answer token with what attribution says about it."""

    text: str
    logp: float | None
    logp_masked: float | None
    delta: float | None
    entropy: float | None
    phi: float | None
    selected: bool
    weight: float | None
    shade: float
    """phi between 0 and 1, relative to the largest of the answer."""

    @property
    def tooltip(self) -> str:
        return (
            f"phi {readable(self.phi)}, delta {readable(self.delta)}, entropy {readable(self.entropy)}, "
            f"log p {readable(self.logp)}, with the nouns hidden {readable(self.logp_masked)}, weight {readable(self.weight)}"
            f"{', selected' if self.selected else ''}"
        )


@dataclass(frozen=True)
class Attribution:
    """One answer, token by token."""

    id: str
    question: str
    answer: str
    prompt_tokens: tuple[PromptToken, ...]
    tokens: tuple[Token, ...]

    @property
    def selected(self) -> tuple[Token, ...]:
        return tuple(token for token in self.tokens if token.selected)


def load_traces(folder: Path) -> tuple[Trace, ...]:
    """The training curves of a run, stage by stage; empty where the run logged nothing."""
    path = folder / "train.jsonl"
    if not path.is_file():
        return ()
    stages: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for line, row in enumerate(read_lines(path), start=1):
        where = f"{path}, step line {line}"
        step = _logged(row.get("step"), where)
        if step is None:
            raise InputError(f"{where}: 'step' is missing")
        terms = mapping(row.get("terms") or {}, f"{where}: terms")
        values = {**{f"term: {name}": value for name, value in terms.items()}, **{name: row.get(name) for name in CURVES}}
        curves = stages.setdefault(str(row.get("stage", "")), {})
        for name, value in values.items():
            if (point := _logged(value, f"{where}: {name}")) is not None:
                curves.setdefault(name, []).append((step, point))
    return tuple(Trace(stage, {name: tuple(points) for name, points in curves.items()}) for stage, curves in stages.items())


def _logged(value: object, where: str) -> float | None:
    """A logged number; a loss that was not finite leaves a gap in the curve."""
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return number(value, where)


def load_attributions(folder: Path, limit: int) -> tuple[Attribution, ...]:
    """The first answers of ``attribution.jsonl``; empty where the run wrote none."""
    path = folder / "attribution.jsonl"
    rows = read_lines(path)[:limit] if path.is_file() else []
    return tuple(_attribution(row, f"{path}, answer {line}") for line, row in enumerate(rows, start=1))


def _attribution(row: Mapping[str, Any], where: str) -> Attribution:
    prompt = [mapping(token, f"{where}: prompt_tokens") for token in sequence(row.get("prompt_tokens") or [], f"{where}: prompt_tokens")]
    tokens = [mapping(token, f"{where}: tokens") for token in sequence(row.get("tokens") or [], f"{where}: tokens")]
    phis = [phi for token in tokens if (phi := number(token.get("phi"), f"{where}: phi")) is not None]
    low, high = min([0.0, *phis]), max([0.0, *phis])
    return Attribution(
        id=str(row.get("id", "")),
        question=str(row.get("question", "")),
        answer=str(row.get("answer", "")),
        prompt_tokens=tuple(PromptToken(str(token.get("text", "")), bool(token.get("masked"))) for token in prompt),
        tokens=tuple(_token(token, where, low, high) for token in tokens),
    )


def _token(row: Mapping[str, Any], where: str, low: float, high: float) -> Token:
    names = ("logp", "logp_masked", "delta", "entropy", "phi", "weight")
    values = {name: number(row.get(name), f"{where}: {name}") for name in names}
    phi = values["phi"]
    shade = 0.0 if phi is None or high == low else (phi - low) / (high - low)
    return Token(text=str(row.get("text", "")), selected=bool(row.get("selected")), shade=round(shade, 3), **values)
