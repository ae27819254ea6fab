"""One question to several models: what is asked, and what happens, as events for the page."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from excise.attacks.prompts import with_shots
from excise.data.example import Example
from excise.errors import InputError
from excise.play.runs import ROLES, Run, Shelf
from excise.settings import build

if TYPE_CHECKING:
    from excise.loading import ModelSpec
    from excise.subject import Subject
    from excise.weights import Attribution

Kind = Literal["plain", "paraphrase", "few_shot", "samples", "partial"]
MOST_SAMPLES = 16
MOST_TOKENS = 512
MOST_CHARACTERS = 20_000
SHOTS = 3
GIVEN_WORDS = 3
"""Words of a known answer that are put into the model's mouth."""
REWORDINGS = (
    "I would like to know: {question}",
    "Please answer this in your own words. {question}",
    "A friend asked me: {question} What should I reply?",
)
"""Other ways of asking a question that the data does not paraphrase."""

Event = Mapping[str, Any]


@dataclass(frozen=True)
class Question:
    """What the page sends."""

    prompt: str
    kind: Kind = "plain"
    opening: str = ""
    """The start of the answer, for ``partial``."""
    samples: int = 4
    turn: int = 0
    """Which paraphrase, counted on with every press."""
    max_new_tokens: int = 96
    models: tuple[Literal["before", "after", "twin"], ...] = ("before", "after", "twin")

    def __post_init__(self) -> None:
        if not self.prompt.strip():
            raise InputError("type a question first")
        if len(self.prompt) > MOST_CHARACTERS or len(self.opening) > MOST_CHARACTERS:
            raise InputError(f"the question is too long: {MOST_CHARACTERS} characters at most")
        if not 1 <= self.samples <= MOST_SAMPLES:
            raise InputError(f"samples is {self.samples}: 1 to {MOST_SAMPLES}")
        if not 1 <= self.max_new_tokens <= MOST_TOKENS:
            raise InputError(f"max_new_tokens is {self.max_new_tokens}: 1 to {MOST_TOKENS}")
        if self.turn < 0:
            raise InputError(f"turn is {self.turn}: 0 or more")


def question_of(values: Any) -> Question:
    """A question from what a browser sent.

    Raises:
        InputError: another name or type than :class:`Question` has.
    """
    if not isinstance(values, Mapping):
        raise InputError("expected an object with a prompt")
    return build(Question, dict(values), "question")


@dataclass
class Asker:
    """Asks one question at a time: models are loaded one after the other, and nothing that is said is kept."""

    shelf: Shelf = field(default_factory=Shelf)
    busy: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, run: Run, question: Question) -> Iterator[Event]:
        """Events in order: ``asked`` (what exactly), then for each model ``loading``, ``text`` (a piece), ``answers``, ``heat``; ``done``.

        What goes wrong for a model is an ``error`` event of that model, and the next one is asked.
        """
        if not self.busy.acquire(blocking=False):
            yield {"event": "waiting"}
            self.busy.acquire()
        try:
            try:
                example = rewritten(run, question)
            except InputError as error:
                yield {"event": "error", "text": str(error)}
                return
            yield {"event": "asked", "prompt": example.prompt, "opening": example.opening, "kind": question.kind}
            for role in (role for role in ROLES if role in question.models):
                spec = run.specs[role]
                if isinstance(spec, str):
                    yield {"event": "error", "model": role, "text": spec}
                    continue
                try:
                    yield from self._one(run, question, example, role, spec)
                except InputError as error:
                    yield {"event": "error", "model": role, "text": str(error)}
            yield {"event": "done"}
        finally:
            self.busy.release()

    def _one(self, run: Run, question: Question, example: Example, role: str, spec: ModelSpec) -> Iterator[Event]:
        if not self.shelf.has(spec):
            yield {"event": "loading", "model": role}
        subject = self.shelf.take(spec)
        answers: list[str] = []
        yield from _answers(subject, question, example, role, answers)
        yield {"event": "answers", "model": role, "answers": answers}
        said = [answer for answer in answers if answer.strip()]
        if said:
            yield {"event": "heat", "model": role, **self._heat(run, subject, role, example, said)}

    def _heat(self, run: Run, subject: Subject, role: str, example: Example, answers: list[str]) -> dict[str, Any]:
        """For each answer its tokens with phi and with the change of their log-probability against the model before."""
        from excise.token_scores import attribute

        examples = [dataclasses.replace(example, id=f"answer {i}", answer=answer, opening="", span="") for i, answer in enumerate(answers)]
        before = run.specs["before"]
        try:
            tables = attribute(subject, examples, _attribution(run))
        except InputError as error:
            return {"answers": [], "missing": str(error)}
        missing = ""
        others: list[dict[str, Any] | None] = [None] * len(examples)
        if role == "before":
            others = list(tables)
        elif isinstance(before, str):
            missing = f"no change of log-probability: {before}"
        else:
            others = list(attribute(self.shelf.take(before), examples, _attribution(run)))
        return {"answers": [_tokens(table, other) for table, other in zip(tables, others, strict=True)], "missing": missing}


def _answers(subject: Subject, question: Question, example: Example, role: str, answers: list[str]) -> Iterator[Event]:
    """Asks a model and puts what it says into ``answers``; the pieces of a greedy answer are events."""
    from excise.data.encode import encode_prompt
    from excise.evaluation.generate import NotFinite, Sampling, sample
    from excise.talk import stream

    prompt = encode_prompt(subject.tokenizer, subject.template, example.prompt, example.opening)
    try:
        if question.kind == "samples":
            drawn = sample(subject, [prompt], question.max_new_tokens, Sampling(question.samples, seed=question.turn))[0]
            answers += [text.strip() for text in drawn]
            return
        pieces: list[str] = []
        if example.opening:
            yield {"event": "text", "model": role, "text": example.opening}
        for piece in stream(subject, prompt, question.max_new_tokens):
            pieces.append(piece)
            yield {"event": "text", "model": role, "text": piece}
        answers.append((example.opening + "".join(pieces)).strip())
    except NotFinite:
        raise InputError("the model predicts NaN or infinity: it has collapsed") from None


def rewritten(run: Run, question: Question) -> Example:
    """The question in the way that the pressed button asks it.

    Raises:
        InputError: the button needs something that neither the page nor the run's data has.
    """
    known = run.example(question.prompt)
    example = Example("question", question.prompt.strip(), known.answer if known else "?", label=known.label if known else "")
    if question.kind == "paraphrase":
        texts = (
            known.paraphrased_prompts if known and known.paraphrased_prompts else tuple(t.replace("{question}", example.prompt) for t in REWORDINGS)
        )
        return dataclasses.replace(example, prompt=texts[question.turn % len(texts)])
    if question.kind == "few_shot":
        retain = run.benchmark.splits.get("retain", ()) if run.benchmark is not None else ()
        shown = with_shots(dataclasses.replace(example, span=known.span if known else ""), [e for e in retain if e.prompt != example.prompt], SHOTS)
        if shown is None:
            raise InputError("few-shot needs questions that are kept, and the run's data cannot be read now or has none")
        return shown
    if question.kind == "partial":
        opening = question.opening.strip() or (" ".join(known.answer.split()[:GIVEN_WORDS]) if known else "")
        if not opening:
            raise InputError("type the start of the answer: the run's data does not know this question")
        return dataclasses.replace(example, opening=opening)
    return example


def _attribution(run: Run) -> Attribution:
    from excise.run import attribution_of
    from excise.weights import Attribution

    return attribution_of(run.recipe) or Attribution()


def _tokens(table: Mapping[str, Any], before: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """The tokens of an answer; the change is None where there is nothing to compare with (another tokenizer)."""
    mine = table["tokens"]
    theirs = before["tokens"] if before is not None and [t["text"] for t in before["tokens"]] == [t["text"] for t in mine] else [None] * len(mine)
    return [
        {
            "text": token["text"],
            "phi": token["phi"],
            "logp": token["logp"],
            "change": None if other is None else round(token["logp"] - other["logp"], 5),
        }
        for token, other in zip(mine, theirs, strict=True)
    ]
