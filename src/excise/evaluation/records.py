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
    expected: tuple[float, ...] = ()
    """Mean of log p over the vocabulary under the prediction itself, for each scored token (minus the entropy); empty: not asked for."""
    deviation: tuple[float, ...] = ()
    """Standard deviation of log p under the prediction itself, for each scored token; empty: not asked for."""

    @property
    def mean_logp(self) -> float:
        """Length-normalised log-likelihood, in nats per token."""
        return sum(self.logp) / len(self.logp)


@dataclass(frozen=True)
class Verdict:
    """What a judge says about one aspect of a generation."""

    judge: str
    aspect: str
    """truth (does it contain the true answer), related (does it keep to its subject), fluent (is it language)."""
    score: float | None
    """1 yes, 0 no, something between where a judge grades; None: undecided."""
    reason: str = ""

    @property
    def yes(self) -> bool | None:
        """The decision: a score above 1/2; None where it is undecided."""
        return None if self.score is None else self.score > 0.5


@dataclass(frozen=True)
class Record:
    """Everything that a model said and thought about one example. Parts that were not asked for are None or empty."""

    id: str
    prompt: str
    answer: str
    label: str = ""
    group: str = ""
    opening: str = ""
    """The start of the answer that was put into the model's mouth; ``generation`` is what it said after that."""
    span: str = ""
    span_tokens: tuple[int, ...] = ()
    """Indices into ``true.logp`` of the tokens that carry the fact."""
    true: TextScore | None = None
    paraphrase: TextScore | None = None
    false: tuple[TextScore, ...] = ()
    options: tuple[TextScore, ...] = ()
    letters: tuple[TextScore, ...] = ()
    """The options' letters after the question in lm-eval's form, in the order of the options."""
    gold: int | None = None
    generation: str | None = None
    """What the model answers, greedily unless the suite says otherwise."""
    samples: tuple[str, ...] = ()
    """Answers that were drawn at random, where an attack samples."""
    gradient_norm: float | None = None
    """Norm of the gradient of the true answer's mean loss with respect to all parameters."""
    verdicts: tuple[Verdict, ...] = ()

    def verdict(self, judge: str, aspect: str) -> Verdict | None:
        """What that judge says about that aspect; None: it was not asked."""
        return next((v for v in self.verdicts if (v.judge, v.aspect) == (judge, aspect)), None)

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
        for name in ("false", "options", "letters"):
            values[name] = tuple(_text_score(v) for v in values.get(name, ()))
        for name in ("span_tokens", "samples"):
            values[name] = tuple(values.get(name, ()))
        values["verdicts"] = tuple(_verdict(v) for v in values.get("verdicts", ()))
        return Record(**values)


def _text_score(value: Mapping[str, Any]) -> TextScore:
    try:
        logp, hits, ended = tuple(map(float, value["logp"])), tuple(map(bool, value["hits"])), bool(value.get("ended", True))
        spread = [tuple(map(float, value.get(name, ()))) for name in ("expected", "deviation")]
        return TextScore(str(value["text"]), logp, hits, ended, *spread)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"a record has a broken text score ({error})") from None


def _verdict(value: Mapping[str, Any]) -> Verdict:
    try:
        score = value["score"]
        return Verdict(str(value["judge"]), str(value["aspect"]), None if score is None else float(score), str(value.get("reason", "")))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"a record has a broken verdict ({error})") from None


Records = Mapping[str, Sequence[Record]]
"""Split name -> records, in the order of the split."""
