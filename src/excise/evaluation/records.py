"""What an evaluation pass leaves behind: one record per example, from which every metric is computed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from excise.errors import InputError


@dataclass(frozen=True)
class TextScore:
    """Teacher-forced predictions of one answer text."""

    text: str
    logp: tuple[float, ...]
    """log p of every scored token, in nats; the last one ends the turn when ``ended``."""
    hits: tuple[bool, ...]
    """Whether the arg-max prediction was the token."""
    ended: bool = True

    @property
    def mean_logp(self) -> float:
        """Length-normalised log-likelihood, in nats per token."""
        return sum(self.logp) / len(self.logp)


@dataclass(frozen=True)
class Record:
    """Everything that a model said and thought about one example. Parts that were not asked for are None or empty."""

    id: str
    prompt: str
    answer: str
    label: str = ""
    group: str = ""
    span: str = ""
    span_tokens: tuple[int, ...] = ()
    """Indices into ``true.logp`` of the tokens that carry the fact."""
    true: TextScore | None = None
    paraphrase: TextScore | None = None
    false: tuple[TextScore, ...] = ()
    options: tuple[TextScore, ...] = ()
    gold: int | None = None
    generation: str | None = None
    """What the model answers, greedily unless the suite says otherwise."""

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(row: Mapping[str, Any]) -> Record:
        """The inverse of ``to_json``; a missing or unknown field is an error that names it."""
        known = {f.name for f in dataclasses.fields(Record)}
        if unknown := sorted(set(row) - known):
            raise InputError(f"a record has an unknown field {unknown[0]!r}: the file was written by another version or damaged")
        if missing := [name for name in ("id", "prompt", "answer") if name not in row]:
            raise InputError(f"a record lacks the field {missing[0]!r}")
        values = dict(row)
        for name in ("true", "paraphrase"):
            if values.get(name) is not None:
                values[name] = _text_score(values[name])
        for name in ("false", "options"):
            values[name] = tuple(_text_score(v) for v in values.get(name, ()))
        values["span_tokens"] = tuple(values.get("span_tokens", ()))
        return Record(**values)


def _text_score(value: Mapping[str, Any]) -> TextScore:
    try:
        return TextScore(str(value["text"]), tuple(map(float, value["logp"])), tuple(map(bool, value["hits"])), bool(value.get("ended", True)))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"a record has a broken text score ({error})") from None


Records = Mapping[str, Sequence[Record]]
"""Split name -> records, in the order of the split."""
