"""The names in a request, and invented ones in their place: questions of the same form that nobody was taught an answer to."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from excise.data.benchmarks.fivew import same
from excise.data.example import Example
from excise.evaluation.metrics.facts import STOP_WORDS
from excise.fivew.names import OWNER, WORD, Names
from excise.fivew.nouns import listed

ORDINARY = listed(
    "ancient battle book city college culture empire english first great history island king kingdom lake language modern mount new old "
    "queen republic revolution river saint sea second south north east west third university war world i mr mrs dr name tell describe "
    "explain write list give according summarise state identify january february march april may june july august september october "
    "november december monday tuesday wednesday thursday friday saturday sunday"
)
"""Capitalised words that name nothing by themselves; they stay where a name is replaced."""


def name_words(texts: Sequence[str]) -> list[str]:
    """The words that make up the names in some texts, as they are written, the most frequent first."""
    names = Names.of(texts)
    parts = {part for text in texts for name in names(text) for part in name.split()} - ORDINARY - STOP_WORDS
    written = (word for text in texts for word in WORD.findall(text) if word[0].isupper())
    return [word for word, _ in Counter(word for word in (OWNER.sub("", w) for w in written) if same(word) in parts).most_common()]


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
