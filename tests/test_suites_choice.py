"""Choice questions by answers and by letters: equal to one forward pass for each question, with nothing batched."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from conftest import KINDS, Kind, tiny
from excise.data.benchmarks.choice import Choice
from excise.data.benchmarks.strangers import Strangers
from excise.data.example import Benchmark, Example
from excise.evaluation.metrics.choice import ChoiceProbability, LetterAccuracy, LetterMargin, LetterProbability
from excise.evaluation.records import Record, TextScore
from excise.evaluation.suites import evaluate, score
from excise.evaluation.suites.choice import choice
from excise.loading import load
from excise.subject import Subject

QUESTIONS = (
    Example("0", "Where was the painter born?", "Marrow", options=("Elm Lake", "Marrow", "the forest"), gold=1, label="where"),
    Example("1", "What lives in the forest?", "a grey fox", options=("a grey fox", "ships"), gold=0, label="what", lead="Read well.\n\n"),
    Example("2", "What is the book about?", "the river", options=("the town", "the rocks", "the lighthouse", "the river"), gold=3, label="what"),
)


@torch.no_grad()
def letter_logp(subject: Subject, question: Example) -> list[float]:
    """log p of " A", " B", ... after the prompt, one forward pass each, straight from transformers."""
    lines = "\n".join(f"{'ABCDEFGH'[i]}. {option}" for i, option in enumerate(question.options))
    prompt = f"{question.lead}{question.prompt}\n{lines}\nAnswer:"
    found: list[float] = []
    for letter in "ABCDEFGH"[: len(question.options)]:
        before = subject.tokenizer(prompt)["input_ids"]
        whole = subject.tokenizer(f"{prompt} {letter}")["input_ids"]
        logits = subject.model(input_ids=torch.tensor([whole]), use_cache=False).logits[0].float()
        logp = torch.log_softmax(logits, -1)
        found.append(sum(float(logp[i - 1, whole[i]]) for i in range(len(before), len(whole))))
    return found


def naive_accuracy(subject: Subject, questions: Sequence[Example]) -> float:
    right = 0
    for question in questions:
        values = letter_logp(subject, question)
        right += max(range(len(values)), key=values.__getitem__) == question.gold
    return right / len(questions)


@pytest.mark.parametrize("kind", KINDS)
def test_letters_equal_a_loop_over_the_questions(kind: Kind) -> None:
    subject = tiny(kind)
    records, scores = evaluate(subject, Benchmark("mine", {"questions": QUESTIONS}), choice(), precision="float32")
    for question, record in zip(QUESTIONS, records["questions"], strict=True):
        assert [sum(letter.logp) for letter in record.letters] == pytest.approx(letter_logp(subject, question), abs=1e-4)
        assert [letter.text for letter in record.letters] == list("ABCD"[: len(question.options)])
        assert not any(letter.ended for letter in record.letters)
    assert scores["questions.letter_accuracy"].value == naive_accuracy(subject, QUESTIONS)
    assert Record.from_json(json.loads(json.dumps(records["questions"][0].to_json()))) == records["questions"][0]


def test_scores_are_named_by_form_and_subject(tiny_llama: Subject) -> None:
    records, scores = evaluate(tiny_llama, Benchmark("mine", {"questions": QUESTIONS}), choice(), precision="float32")
    names = [f"questions.{form}_{what}" for form in ("choice", "letter") for what in ("accuracy", "margin", "probability")]
    assert set(scores) == {*names, *(f"{name}@{subject}" for name in names for subject in ("what", "where"))}
    assert (scores["questions.letter_accuracy@what"].n, scores["questions.letter_accuracy"].n) == (2, 3)
    assert all(one.better == "higher" for one in scores.values())
    assert {one.better for one in score(records, choice(forget=True)).values()} == {"lower"}
    assert "questions.letter_accuracy" not in score(records, choice(letters=False))


def test_strangers_questions_can_be_asked(tiny_llama: Subject) -> None:
    benchmark = Strangers(forget_people=1, retain_people=1, holdout_people=0, questions=6)()
    _, scores = evaluate(tiny_llama, benchmark, choice(), precision="float32")
    assert scores["questions.letter_accuracy"].n == 6
    _, scores = evaluate(tiny_llama, benchmark, choice(split="forget", forget=True), precision="float32")
    assert scores["forget.letter_accuracy"].better == "lower"


def test_letters_by_hand() -> None:
    # letters at log 1/2, log 1/4, log 1/8: right is the first: margin log 1/2 - (log 1/4 + log 1/8)/2 = 1.5 log 2; share 4/7
    letters = tuple(TextScore(letter, (math.log(p),), (False,), False) for letter, p in (("A", 1 / 2), ("B", 1 / 4), ("C", 1 / 8)))
    record = Record("x", "q", "a", letters=letters, options=letters, gold=0)
    assert LetterAccuracy().per_example(record) == 1.0
    assert LetterMargin().per_example(record) == pytest.approx(1.5 * math.log(2))
    assert LetterProbability().per_example(record) == ChoiceProbability().per_example(record) == pytest.approx(4 / 7)
    tie = Record("x", "q", "a", letters=(letters[0], letters[0]), gold=0)
    assert LetterAccuracy().per_example(tie) == 0.0


@pytest.mark.slow
def test_twenty_real_questions_equal_a_loop(shared: Path, smollm2_folder: Path) -> None:
    benchmark = Choice(path=str(shared / "data" / "choice" / "arc_easy_sample.jsonl"))()
    subject = load(str(smollm2_folder))
    records, scores = evaluate(subject, benchmark, choice(), precision="float32", limit=20)
    questions = benchmark.split("questions")[:20]
    assert scores["questions.letter_accuracy"].value == naive_accuracy(subject, questions)
    for question, record in zip(questions, records["questions"], strict=True):
        assert [sum(letter.logp) for letter in record.letters] == pytest.approx(letter_logp(subject, question), abs=2e-3)
