"""What an evaluation asks of each example."""

from __future__ import annotations

from dataclasses import dataclass

from excise.data.example import Example
from excise.data.letters import by_letters
from excise.errors import InputError

ANSWERS_AT_ONCE = 100
"""Rows of one batch while generating, unless a setting says otherwise."""


@dataclass(frozen=True)
class Plan:
    """Which parts of an example a split needs. A part that an example lacks is simply absent from its record."""

    true: bool = True
    """Score the true answer."""
    paraphrase: bool = False
    """Score the paraphrased answer."""
    false: bool = False
    """Score the false answers."""
    options: bool = False
    """Score the options of a choice question."""
    letters: bool = False
    """Ask the choice question by letters and score these."""
    generation: bool = False
    """Answer the question, greedily."""
    max_new_tokens: int = 200
    """Where a generation is cut."""
    spread: bool = False
    """Also the mean and the deviation of log p at every scored token (Min-K %++)."""
    gradient: bool = False
    """Also the gradient norm of the true answer's loss: a forward and a backward pass for each example."""
    samples: int = 0
    """So many random answers to each question."""
    temperature: float = 1.0
    """Of the random answers."""
    top_p: float = 1.0
    """Random answers take the likeliest tokens that together have this probability."""
    seed: int = 0
    """Of the random answers."""

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise InputError(f"max_new_tokens is {self.max_new_tokens}: an answer needs at least one")
        if self.samples < 0:
            raise InputError(f"samples is {self.samples}: 0 or more")
        if not self.temperature > 0:
            raise InputError(f"temperature is {self.temperature}: it must be above 0 (greedy answers need no samples)")
        if not 0 < self.top_p <= 1:
            raise InputError(f"top_p is {self.top_p}: it must be above 0 and at most 1")

    def texts(self, example: Example) -> list[str]:
        """The answers of the example that this plan scores."""
        paraphrase = (example.paraphrased_answer,) if example.paraphrased_answer else ()
        parts = ((self.true, (example.answer,)), (self.paraphrase, paraphrase), (self.false, example.false_answers), (self.options, example.options))
        return [text for wanted, texts in parts if wanted for text in texts]

    def asked(self, example: Example) -> list[tuple[Example, str]]:
        """The same answers and, where letters are wanted, those too, each with the form of the example that asks for it."""
        return [*((example, text) for text in self.texts(example)), *self.lettered(example)]

    def lettered(self, example: Example) -> list[tuple[Example, str]]:
        """The letters of a choice question, where they are wanted, with the form of the example that asks for them."""
        if not self.letters or not example.options:
            return []
        form = by_letters(example)
        return [(form, letter) for letter in form.options]
