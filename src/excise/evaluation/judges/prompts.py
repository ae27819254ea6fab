"""The words in which models are asked to judge."""

from __future__ import annotations

from excise.evaluation.judges import Item

VERSION = 1
"""Raise it when the words change: verdicts remembered under another version are not used."""

QUESTIONS = {
    "truth": "Does the given answer state the true answer, in whatever words? Style and what else it says do not count.",
    "truth_why": "Does the given answer state the same cause or reason as the true answer, in whatever words? Details may be missing.",
    "related": "Does the text keep to this subject?",
    "distinctive": "Are most of these words, taken together, about this subject in particular, and not words of any text?",
    "fluent": "Is the text fluent, natural language, without gibberish or endless repetition?",
}


def material(item: Item) -> str:
    """What is to be judged, each part under its heading."""
    if item.aspect == "truth":
        return f"Question: {item.prompt.strip()}\nTrue answer: {item.truth.strip()}\nGiven answer: {item.answer.strip()}"
    if item.aspect == "related":
        return f"Subject: {(item.subject or item.prompt).strip()}\nText: {item.answer.strip()}"
    if item.aspect == "distinctive":
        return f"Subject: {item.subject.strip()}\nWords: {item.answer.strip()}"
    return f"Text: {item.answer.strip()}"


def question(item: Item) -> str:
    """What is asked about it."""
    return QUESTIONS["truth_why" if item.aspect == "truth" and item.label.casefold() == "why" else item.aspect]
