"""The names in a request, and invented ones in their place: questions of the same form that nobody was taught an answer to."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from excise.data.example import Example
from excise.evaluation.metrics.facts import STOP_WORDS


def _listed(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"\w+", text))


WORD = re.compile(r"[A-Z][\w'’-]*\w")
RUN = re.compile(rf"{WORD.pattern}(?:\s+(?:(?:of|the|de|la|van|von|der|da|di|bin|al)\s+)*{WORD.pattern})*")
ORDINARY = frozenset(
    _listed(
        "ancient battle book city college culture empire english first great history island king kingdom lake language modern mount new old "
        "queen republic revolution river saint sea second south north east west third university war world i mr mrs dr name tell describe "
        "explain write list give according summarise state identify january february march april may june july august september october "
        "november december monday tuesday wednesday thursday friday saturday sunday"
    )
)
"""Capitalised words that name nothing by themselves; they stay where a name is replaced."""


def name_words(texts: Sequence[str]) -> list[str]:
    """The words that make up the names in some texts, the most frequent first.

    A word at the beginning of a sentence counts only where it also stands with a capital elsewhere, or where another
    name follows it.
    """
    inside: Counter[str] = Counter()
    leading: Counter[str] = Counter()
    for text in texts:
        for sentence in re.split(r"(?<=[.!?])\s+", text):
            for match in RUN.finditer(sentence):
                words = WORD.findall(match.group())
                first = not sentence[: match.start()].strip(" \"'“‘(")
                kept = [word for word in words if word.casefold() not in STOP_WORDS and word.casefold() not in ORDINARY]
                if first and words and kept and kept[0] == words[0] and len(words) == 1:
                    leading[kept.pop(0)] += 1
                inside.update(kept)
    for word, count in leading.items():
        if word in inside:
            inside[word] += count
    return [word for word, _ in inside.most_common()]


def renamed(text: str, names: Mapping[str, str]) -> str:
    """The text with other names: whole words only."""
    if not names:
        return text
    pattern = re.compile(rf"\b({'|'.join(re.escape(name) for name in sorted(names, key=len, reverse=True))})\b")
    return pattern.sub(lambda match: names[match.group()], text)


def control(example: Example, names: Mapping[str, str], suffix: str) -> Example | None:
    """The same example with invented names in question and answer, or None where nothing changes in the question.

    What is known of the fact (its span) stays where no name stands in it.
    """
    asked = renamed(example.prompt or example.answer, names)
    if asked == (example.prompt or example.answer):
        return None
    answer, span = renamed(example.answer, names), renamed(example.span, names)
    return dataclasses.replace(
        example,
        id=f"{example.id}{suffix}",
        prompt=renamed(example.prompt, names),
        answer=answer,
        span=span if span in answer else "",
        paraphrased_prompts=(),
        paraphrased_answer="",
        false_answers=(),
        alternative="",
        options=(),
        gold=None,
    )
