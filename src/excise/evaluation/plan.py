"""What an evaluation asks of each example."""

from __future__ import annotations

from dataclasses import dataclass

from excise.data.example import Example
from excise.data.letters import by_letters
from excise.errors import InputError


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

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise InputError(f"max_new_tokens is {self.max_new_tokens}: an answer needs at least one")

    def texts(self, example: Example) -> list[str]:
        """The answers of the example that this plan scores."""
        paraphrase = (example.paraphrased_answer,) if example.paraphrased_answer else ()
        parts = ((self.true, (example.answer,)), (self.paraphrase, paraphrase), (self.false, example.false_answers), (self.options, example.options))
        return [text for wanted, texts in parts if wanted for text in texts]

    def asked(self, example: Example) -> list[tuple[Example, str]]:
        """The same answers and, where letters are wanted, those too, each with the form of the example that asks for it."""
        found = [(example, text) for text in self.texts(example)]
        if self.letters and example.options:
            form = by_letters(example)
            found += [(form, letter) for letter in form.options]
        return found
