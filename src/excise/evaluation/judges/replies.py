"""What a chat server sends back: the text of its reply, and the decision in it, read strictly."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Reply:
    """One answer of the server."""

    text: str
    """What the model wrote; empty where there is nothing."""
    used: tuple[int, int] | None
    """Tokens sent and received, where the server says so."""


@dataclass(frozen=True)
class Decision:
    """What was read from a reply."""

    score: float
    reason: str = ""


def read_body(body: bytes) -> Reply:
    """The reply in the body of a chat completion; anything else is an empty reply."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return Reply("", None)
    try:
        text = value["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError):
        text = None
    return Reply(text if isinstance(text, str) else "", _used(value))


def _used(value: Any) -> tuple[int, int] | None:
    usage = value.get("usage") if isinstance(value, dict) else None
    if not isinstance(usage, dict):
        return None
    sent, received = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
    return None if sent is None or received is None else (sent, received)


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def read_decision(text: str, graded: bool) -> Decision | None:
    """The decision in a reply: one JSON object and nothing else.

    ``{"verdict": "yes"}`` or ``"no"``; ``{"score": 0.7}`` between 0 and 1 where the answer is graded; both may have a "reason".
    A code fence around it and a thought (<think>...</think>) before it are allowed. None: it is not that.
    """
    text = re.sub(r"^\s*<think>.*?</think>", "", text, flags=re.S).strip()
    if fenced := re.fullmatch(r"```(?:json)?\s*(.*?)\s*```", text, flags=re.S):
        text = fenced[1]
    try:
        pairs = json.loads(text, object_pairs_hook=_Pairs)
    except (ValueError, RecursionError):
        return None
    if not isinstance(pairs, _Pairs) or len({name for name, _ in pairs}) < len(pairs):
        return None
    value = dict(pairs)
    reason = value.pop("reason", "")
    if not isinstance(reason, str) or set(value) != {"score" if graded else "verdict"}:
        return None
    said = value["score" if graded else "verdict"]
    if graded:
        number = isinstance(said, (int, float)) and not isinstance(said, bool) and 0 <= said <= 1
        return Decision(float(said), reason) if number else None
    if isinstance(said, str) and said.strip().casefold() in ("yes", "no"):
        return Decision(float(said.strip().casefold() == "yes"), reason)
    return None


class _Pairs(list[tuple[str, Any]]):
    """The names and values of an object, names that occur twice included."""
