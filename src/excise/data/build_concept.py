"""`excise build-concept`: a concept folder from a person's own text files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from excise.data.benchmarks.choice import choice_examples
from excise.data.benchmarks.text import read_documents
from excise.data.concept_sets import NEUTRAL, SENTENCES, SHIPPED
from excise.data.example import spread
from excise.data.sentences import Dropped, Sentences, paragraphs
from excise.data.tables import read_rows, read_text
from excise.errors import InputError
from excise.files import folder_beside, read_json, write_json
from excise.objectives.check import at_least

QUESTION, ANSWER = ("question", "q", "prompt"), ("answer", "a", "correct_answer")
FEWEST = 20
"""Sentences below which a concept is hardly described."""

MISSING = {
    "choice": "no choice questions (--choice FILE): efficacy, overall and the choice accuracy of the concept are unavailable",
    "open": "no open questions (--open FILE): efficacy_open and overall_open are unavailable",
    "similar_choice": "no choice questions about neighbours (--similar-choice FILE): specificity and overall are unavailable",
    "similar_open": "no open questions about neighbours (--similar-open FILE): specificity_open and overall_open are unavailable",
    "coherence": "no texts to be continued (--coherence FILE): coherence and overall are unavailable",
    "relearn": "no paragraphs are left for relearning: the relearn attack takes the sentences instead",
}


@dataclass(frozen=True)
class ConceptSource:
    """What a concept folder is made of."""

    name: str
    """The concept."""
    texts: tuple[str, ...]
    """Text about it: .txt files, folders of them, or tables with a text column."""
    neutral: tuple[str, ...] = ()
    """Text about other things; empty takes the sentences that come with excise."""
    choice: str | None = None
    """A table of choice questions about it (question, choices, answer)."""
    open: str | None = None
    """A table of open questions about it (question, answer)."""
    similar_choice: str | None = None
    """Choice questions about neighbouring things that must be kept."""
    similar_open: str | None = None
    coherence: str | None = None
    """Texts to be continued, one a line."""
    sentences: Sentences = field(default_factory=Sentences)
    limit: int = 300
    """Most sentences of the concept, and of neutral text; spread evenly over what there is."""
    relearn_every: int = 3
    """One paragraph of so many is set aside for the relearn attack instead of giving sentences; 0 sets none aside."""
    others: bool = True
    """Add the sentences of the concepts that come with excise, to see that they stay."""

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise InputError("the concept needs a name")
        if not self.texts:
            raise InputError("give text about the concept: --texts FILE")
        at_least("limit", self.limit, 1)
        if self.relearn_every:
            at_least("relearn_every", self.relearn_every, 2)


def build_concept(source: ConceptSource, out: Path, *, overwrite: bool = False) -> dict[str, Any]:
    """Writes the folder and returns its report: what is in it, what was left out, what is missing and what that costs.

    Raises:
        InputError: files that cannot be read, no sentence left, a question that is broken, an ``out`` that exists.
    """
    dropped = Dropped()
    told, kept = _paragraphs(source)
    sentences = spread(source.sentences(told, dropped), source.limit)
    if not sentences:
        reasons = ", ".join(f"{count} {reason}" for reason, count in dropped.counts.items()) or "they are empty"
        raise InputError(f"{', '.join(source.texts)}: no sentence is left ({reasons})")
    neutral = _neutral(source)
    both = set(sentences) & set(neutral)
    if both:
        raise InputError(f"the sentence {min(both)!r} stands in the text about the concept and in the neutral text: take it out of one of them")
    choice = {"QA": _choice(source.choice), "SimdomQA": _choice(source.similar_choice)}
    answers = {"QA": _open(source.open), "SimdomQA": _open(source.similar_open)}
    prompts = [] if source.coherence is None else [line.strip() for line in read_text(Path(source.coherence)).splitlines() if line.strip()]
    rows = [{"concept": source.name, "sentences": sentences}, *(_others(source.name) if source.others else [])]
    files: dict[str, Any] = {
        SENTENCES: rows,
        NEUTRAL: [{"sentence": text} for text in neutral],
        "mc_questions.json": {source.name: _divided(choice)},
        "open_questions.json": {source.name: _divided(answers)},
        "coherency_prompts.json": {source.name: prompts},
        "relearn_paragraphs.json": {source.name: {"RelearnParagraphs": kept}},
    }
    sizes = {
        "choice": len(choice["QA"]),
        "open": len(answers["QA"]),
        "similar_choice": len(choice["SimdomQA"]),
        "similar_open": len(answers["SimdomQA"]),
        "coherence": len(prompts),
        "relearn": len(kept),
    }
    report = {
        "concept": source.name,
        "sentences": len(sentences),
        "neutral": len(neutral),
        "neutral_source": list(source.neutral) or "shipped with excise",
        **sizes,
        "dropped": dropped.counts,
        "missing": [MISSING[name] for name, size in sizes.items() if not size] + _warnings(sentences, neutral),
    }
    with folder_beside(out, overwrite) as part:
        for name, value in files.items():
            write_json(part / name, value)
        write_json(part / "report.json", report)
    return report


def _warnings(sentences: Sequence[str], neutral: Sequence[str]) -> list[str]:
    if len(sentences) >= FEWEST:
        return []
    return [f"only {len(sentences)} sentences about the concept, against {len(neutral)} neutral ones: its tokens and features will be found badly"]


def _paragraphs(source: ConceptSource) -> tuple[list[str], list[str]]:
    """The paragraphs that give sentences, and those set aside for relearning."""
    found = [part for path in source.texts for _, text in read_documents(path) for part in paragraphs(text)]
    if not source.relearn_every or len(found) < source.relearn_every:
        return found, []
    aside = source.relearn_every - 1
    told = [part for i, part in enumerate(found) if i % source.relearn_every != aside]
    kept = [part for i, part in enumerate(found) if i % source.relearn_every == aside and len(part.split()) >= source.sentences.shortest]
    return told, kept


def _neutral(source: ConceptSource) -> list[str]:
    if not source.neutral:
        return [row["sentence"] for row in read_json(SHIPPED / NEUTRAL)]
    texts = [part for path in source.neutral for _, text in read_documents(path) for part in paragraphs(text)]
    found = source.sentences(texts)
    if not found:
        raise InputError(f"{', '.join(source.neutral)}: no neutral sentence is left")
    return spread(found, source.limit)


def _others(name: str) -> list[dict[str, Any]]:
    return [row for row in read_json(SHIPPED / SENTENCES) if row["concept"].lower() != name.lower()]


def _choice(path: str | None) -> list[dict[str, Any]]:
    if path is None:
        return []
    examples = choice_examples({"question": read_rows(path)})
    for example in examples:
        if example.options.count(example.answer) != 1:
            raise InputError(f"{path}, {example.id}: the answer {example.answer!r} stands among the options more than once")
    return [{"q": example.prompt, "correct_answer": example.answer, "options": list(example.options)} for example in examples]


def _open(path: str | None) -> list[dict[str, str]]:
    found: list[dict[str, str]] = []
    for row in read_rows(path) if path is not None else ():
        question, answer = (next((name for name in wanted if row.has(name)), None) for wanted in (QUESTION, ANSWER))
        if question is None or answer is None:
            lacking = QUESTION if question is None else ANSWER
            raise InputError(f"{row.where}: no column {' or '.join(map(repr, lacking))}; there are: {row.columns}")
        found.append({"q": row.text(question).strip(), "a": row.text(answer).strip()})
    return found


def _divided(questions: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """Every second question to choose settings by, the others to report; a single one is reported."""
    parts: dict[str, list[Any]] = {}
    for key, rows in questions.items():
        parts[f"{key}_train"], parts[f"{key}_test"] = rows[1::2], rows[0::2]
    return parts
