"""Choice questions by letters, as lm-evaluation-harness asks MMLU and WMDP: the options stand in the prompt, the answer is a letter."""

from __future__ import annotations

from collections.abc import Sequence

from excise.data.example import Example
from excise.errors import InputError

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def letters_of(example: Example) -> tuple[str, ...]:
    """One letter for each option."""
    if len(example.options) > len(LETTERS):
        raise InputError(f"example {example.id!r} has {len(example.options)} options, but letters only go to {len(LETTERS)}")
    return tuple(LETTERS[: len(example.options)])


def letter_prompt(question: str, options: Sequence[str]) -> str:
    """The question, one option a line, and ``Answer:``."""
    lines = [f"{letter}. {option}" for letter, option in zip(LETTERS, options, strict=False)]
    return "\n".join([question.strip(), *lines, "Answer:"])


def by_letters(example: Example) -> Example:
    """The choice question asked by letters, without a template: what leads to it, then the prompt; the answer is the right letter."""
    assert example.gold is not None
    prompt = example.lead + letter_prompt(example.prompt, example.options)
    return Example(
        id=example.id, prompt=prompt, answer=LETTERS[example.gold], options=letters_of(example), gold=example.gold, label=example.label, bare=True
    )


def lead_of(heading: str, solved: Sequence[Example]) -> str:
    """What stands before a question: a heading and solved examples, each followed by an empty line."""
    shots = [f"{letter_prompt(shot.prompt, shot.options)} {LETTERS[shot.gold]}" for shot in solved if shot.gold is not None]
    return "".join(f"{part}\n\n" for part in ([heading] if heading else []) + shots)
