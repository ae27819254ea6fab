"""Chat data: a row with a list of turns, as an example that asks for the last answer."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from excise.data.example import Example
from excise.data.tables import Row
from excise.errors import InputError, did_you_mean

ROLES = {"system": "system", "user": "user", "human": "user", "assistant": "assistant", "gpt": "assistant", "model": "assistant"}
"""A role as files call it -> as chat templates call it."""
ROLE_KEYS = ("role", "from")
TEXT_KEYS = ("content", "value")


def conversation(row: Row, column: str, blank: Example, span: str = "") -> Example:
    """The example of a row: everything before the last assistant turn is asked, that turn is the answer.

    Turns are ``{"role": ..., "content": ...}`` or ``{"from": ..., "value": ...}``; what stands behind the last assistant turn is ignored.

    Args:
        blank: id, label and group of the example.

    Raises:
        InputError: no list of turns, an unknown role, no answer, or an answer that no user turn asks for.
    """
    turns = _turns(row, column)
    last = max((i for i, (role, _) in enumerate(turns) if role == "assistant"), default=None)
    if last is None:
        raise row.error(column, "has no assistant turn, so there is no answer")
    if last == 0 or turns[last - 1][0] != "user":
        raise row.error(column, f"the last assistant turn (number {last + 1}) does not follow a user turn")
    try:
        return dataclasses.replace(blank, prompt=turns[last - 1][1], answer=turns[last][1], span=span, history=turns[: last - 1])
    except InputError as error:
        raise InputError(f"{row.where}: {error}") from None


def every_answer(example: Example) -> list[Example]:
    """An example for each answer of a conversation that a user turn asks for, in order."""
    turns = (*example.history, ("user", example.prompt), ("assistant", example.answer))
    places = [i for i, (role, _) in enumerate(turns) if role == "assistant" and i and turns[i - 1][0] == "user"]
    parts = [(turns[: i - 1], turns[i - 1][1], turns[i][1]) for i in places]
    return [
        dataclasses.replace(
            example, id=f"{example.id}-{n}", history=history, prompt=prompt, answer=answer, span=example.span if example.span in answer else ""
        )
        for n, (history, prompt, answer) in enumerate(parts, start=1)
    ]


def _turns(row: Row, column: str) -> tuple[tuple[str, str], ...]:
    value = row.values[column]
    if isinstance(value, str):  # a CSV cell
        try:
            value = json.loads(value)
        except ValueError:
            raise row.error(column, 'expected a list of turns like [{"role": "user", "content": "..."}]') from None
    if not isinstance(value, list):
        raise row.error(column, f'expected a list of turns like [{{"role": "user", "content": "..."}}], got {type(value).__name__}')
    return tuple(_turn(row, column, number, turn) for number, turn in enumerate(value, start=1))


def _turn(row: Row, column: str, number: int, turn: Any) -> tuple[str, str]:
    if not isinstance(turn, dict):
        raise row.error(column, f"turn {number}: expected an object with role and content, got {type(turn).__name__}")
    role = next((turn[key] for key in ROLE_KEYS if key in turn), None)
    text = next((turn[key] for key in TEXT_KEYS if key in turn), None)
    if role not in ROLES:
        raise row.error(column, f"turn {number}: the role is {role!r}; {did_you_mean(str(role), ROLES)}")
    if isinstance(text, list):  # parts, as some services write them
        parts = [part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in text]
        text = None if None in parts else "".join(str(part) for part in parts)
    if not isinstance(text, str) or not text.strip():
        raise row.error(column, f"turn {number}: its content must be text that is not empty (excise reads no images and no tool calls)")
    return ROLES[role], text
