"""The judge that is a local language model: which of two answers, yes or no, is likelier to it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from excise.errors import InputError
from excise.evaluation.judges import Item, prompts, refuse_others, settled
from excise.evaluation.metrics.memory import without_end
from excise.evaluation.records import TextScore, Verdict

if TYPE_CHECKING:
    from excise.subject import Subject

VERSION = 1
"""Raise it when the way of asking changes: verdicts remembered under another version are not used."""
ANSWERS = ("Yes", "No")
EMPTY = "N/A"
"""An answer that says nothing: what the model thinks of it is its leaning, not its judgement."""


@dataclass(frozen=True)
class ModelJudge:
    """p(Yes) / (p(Yes) + p(No)), both as answers of a local causal language model to a question about the item; yes above 1/2.

    Nothing is generated, so nothing can be unparsable. With ``debias`` the log-odds of the same question about an answer that
    says nothing ("N/A") are subtracted first. A degenerate answer is not asked about: no.

    The judgement is as good as the model: small ones are close to guessing (docs/judges.md has figures).

    Paper: Zheng et al. 2023, LLM-as-a-judge (arXiv 2306.05685); decision by likelihood and contextual calibration as in Zhao
    et al. 2021 (arXiv 2102.09690). The prompt is ours.
    """

    path: str = "embedded:smollm2"
    """Hub id, folder, adapter folder, .gguf file or embedded:NAME of the judging model."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, mps."""
    template: Literal["auto", "chat", "plain"] = "auto"
    """auto: chat if the tokenizer has a chat template, else plain."""
    debias: bool = True
    """Subtract the log-odds of an answer that says nothing."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the forward passes."""
    max_tokens: int = 4096
    """Tokens of one batch, padding included."""
    items: int = 64
    """Items between two moments at which verdicts are handed over (and kept)."""

    name: ClassVar[str] = "model"
    aspects: ClassVar[tuple[str, ...]] = ("truth", "related", "fluent", "distinctive")

    def __post_init__(self) -> None:
        if min(self.items, self.max_tokens) < 1:
            raise InputError("judges.model: items and max_tokens must be at least 1")

    def identity(self) -> Mapping[str, Any]:
        from excise.fingerprint import tokenizer_fingerprint
        from excise.precision import resolve_precision

        subject = self._subject()
        return {
            "version": [VERSION, prompts.VERSION],
            "model": subject.fingerprint(),
            "tokenizer": tokenizer_fingerprint(subject.tokenizer),
            "template": dataclasses.asdict(subject.template),
            "precision": resolve_precision(self.precision, subject.device),
            "debias": self.debias,
        }

    def __call__(self, items: Sequence[Item]) -> Iterator[Verdict]:
        refuse_others(self, items)
        for start in range(0, len(items), self.items):
            group = items[start : start + self.items]
            asked = [item for item in group if settled(self, item) is None]
            odds = dict(zip(asked, self.log_odds(asked), strict=True))
            for item in group:
                yield settled(self, item) or self._verdict(item, odds[item])

    def _verdict(self, item: Item, odds: float) -> Verdict:
        return Verdict(self.name, item.aspect, _logistic(odds), f"log-odds {odds:+.2f}")

    def log_odds(self, items: Sequence[Item]) -> list[float]:
        """log p(Yes) - log p(No) for each item, minus the model's leaning with ``debias``."""
        from excise.evaluation.collect import likelihoods

        questions = [ask(item) for item in items]
        leanings = [ask(dataclasses.replace(item, answer=EMPTY)) for item in items] if self.debias else []
        distinct = list(dict.fromkeys([*questions, *leanings]))
        pairs = [(question, answer) for question in distinct for answer in ANSWERS]
        scores = likelihoods(self._subject(), pairs, precision=self.precision, max_tokens=self.max_tokens)
        odds = {question: _logp(scores[question, ANSWERS[0]]) - _logp(scores[question, ANSWERS[1]]) for question in distinct}
        if not self.debias:
            return [odds[question] for question in questions]
        return [odds[question] - odds[leaning] for question, leaning in zip(questions, leanings, strict=True)]

    def _subject(self) -> Subject:
        return _loaded(self.path, self.device, self.template)


def ask(item: Item) -> str:
    """The whole question to the model."""
    return f"{prompts.material(item)}\n\n{prompts.question(item)} Answer Yes or No."


@lru_cache(maxsize=1)
def _loaded(path: str, device: str, template: Literal["auto", "chat", "plain"]) -> Subject:
    from excise.loading import ModelSpec, load

    return load(ModelSpec(path=path, device=device, template=template))


def _logp(score: TextScore) -> float:
    """Of the answer's own tokens: a model that would go on after "Yes" has said yes all the same."""
    return sum(without_end(score)[0])


def _logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))
