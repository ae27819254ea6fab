"""One pass per split: everything that the metrics need from a model, as records.

Each text runs through the model once, however many splits and parts ask for it. Batches are padded within buckets of
similar length: with 50 to 110 tokens a text that is 1.3 to 1.7 times as fast as packed rows (SmolLM2, one thread), whose
attention grows with the square of the whole batch, and it is right for every architecture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import torch
from torch import Tensor, nn

from excise.data.encode import BARE, Encoded, encode, encode_prompt
from excise.data.example import Benchmark, Example
from excise.data.letters import by_letters
from excise.errors import InputError
from excise.evaluation.generate import NotFinite, generate
from excise.evaluation.plan import Plan
from excise.evaluation.records import Record, Records, TextScore
from excise.evaluation.store import Cache, read_records, write_records
from excise.tokens import Precision, Scored, autocast, buckets, collate, features_of, layout_of, output_head, resolve_precision, score

if TYPE_CHECKING:
    from excise.subject import Subject

__all__ = ["Plan", "Progress", "collect", "likelihoods", "read_records", "write_records"]

_CHUNK = 2**25
"""Logits held at once (128 MB in float32), whatever the batch and the vocabulary."""

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and of how much."""


def collect(
    subject: Subject,
    benchmark: Benchmark,
    plans: Mapping[str, Plan],
    *,
    precision: Precision = "auto",
    max_tokens: int = 4096,
    generate_batch: int = 32,
    limit: int | None = None,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> Records:
    """Runs a model over the splits of a benchmark.

    Args:
        plans: split -> what is needed of it.
        precision: of the forward passes; log-probabilities are float32 or better, and the output head of a float32
            model is applied in float32 whatever the precision.
        max_tokens: tokens of one batch, padding included.
        generate_batch: rows of one batch while generating.
        limit: only the first so many examples of each split.
        cache: a folder that keeps finished splits, by model, template, precision, plan and examples. It holds plain
            texts: leave it out where nothing may be kept.
        progress: see :data:`Progress`.

    Raises:
        InputError: an unknown split; a prediction that is NaN or infinite (names the split and the example).
    """
    if limit is not None and limit < 1:
        raise InputError(f"limit is {limit}: at least one example per split is needed")
    resolved = resolve_precision(precision, subject.device)
    run = _Run(subject, resolved, max_tokens, generate_batch, progress or (lambda what, done, total: None))
    kept = None if cache is None else Cache(cache, subject, resolved)
    records: dict[str, list[Record]] = {}
    with _evaluating(subject.model), torch.no_grad():
        layout_of(subject)  # refuses an architecture whose output head is not what we think it is
        for split, plan in plans.items():
            examples = benchmark.split(split)[:limit]
            known = None if kept is None else kept.read(plan, examples)
            if known is None:
                known = run.split(split, plan, examples)
                if kept is not None:
                    kept.write(plan, examples, known)
            else:
                run.remember(known, plan, examples)
            records[split] = known
    return records


def likelihoods(
    subject: Subject, asked: Sequence[tuple[str, str]], *, precision: Precision = "auto", max_tokens: int = 4096
) -> dict[tuple[str, str], TextScore]:
    """Scores answers to questions that stand in no benchmark: (question, answer) -> its score.

    Raises:
        InputError: a prediction that is NaN or infinite.
    """
    run = _Run(subject, resolve_precision(precision, subject.device), max_tokens, 1, lambda what, done, total: None)
    examples = [Example(f"question {i}", question, answer) for i, (question, answer) in enumerate(asked)]
    with _evaluating(subject.model), torch.no_grad():
        layout_of(subject)
        run.split("asked", Plan(), examples)
    return {(question, answer): score for (question, _, answer), score in run.scores.items()}


@dataclass
class _Run:
    """What the model said so far, so that a text that stands in two splits is not run twice."""

    subject: Subject
    precision: Literal["float32", "bfloat16"]
    max_tokens: int
    generate_batch: int
    progress: Progress
    scores: dict[tuple[str, bool, str], TextScore] = field(default_factory=dict)
    """(prompt, whether it is bare, answer) -> its score."""
    answers: dict[tuple[str, bool, int], str] = field(default_factory=dict)
    """(prompt, whether it is bare, new tokens) -> its generation."""

    def split(self, name: str, plan: Plan, examples: Sequence[Example]) -> list[Record]:
        self._score(name, plan, examples)
        if plan.generation:
            self._generate(name, plan, examples)
        return [self._record(example, plan) for example in examples]

    def remember(self, records: Sequence[Record], plan: Plan, examples: Sequence[Example]) -> None:
        """Takes over what was read from the cache."""
        for record, example in zip(records, examples, strict=True):
            for text in (record.true, record.paraphrase, *record.false, *record.options):
                if text is not None:
                    self.scores[record.prompt, example.bare, text.text] = text
            if record.generation is not None:
                self.answers[record.prompt, example.bare, plan.max_new_tokens] = record.generation

    def _score(self, name: str, plan: Plan, examples: Sequence[Example]) -> None:
        wanted: dict[tuple[str, bool, str], Encoded] = {}
        for example in examples:
            for form, text in plan.asked(example):
                key = (form.prompt, form.bare, text)
                if key not in self.scores and key not in wanted:
                    wanted[key] = encode(self.subject.tokenizer, self.subject.template, form, answer=text)
        keys, texts = list(wanted), list(wanted.values())
        done = 0
        for group in buckets(texts, self.max_tokens):
            found = _text_scores(self.subject, [texts[i] for i in group], self.precision)
            for i, (logp, hits) in zip(group, found, strict=True):
                if logp is None:
                    raise _not_finite(self.subject, name, texts[i].id)
                prompt, bare, answer = keys[i]
                self.scores[keys[i]] = TextScore(answer, logp, hits, ended=bool(prompt) and not bare)
            done += len(group)
            self.progress(f"{name}: scoring", done, len(texts))

    def _generate(self, name: str, plan: Plan, examples: Sequence[Example]) -> None:
        asked = [(e, (e.prompt, e.bare, plan.max_new_tokens)) for e in examples if e.prompt]
        pending = {key: e.id for e, key in asked if key not in self.answers}
        templates = {False: self.subject.template, True: BARE}
        prompts = [encode_prompt(self.subject.tokenizer, templates[bare], prompt) for prompt, bare, _ in pending]
        try:
            answers = generate(
                self.subject,
                prompts,
                plan.max_new_tokens,
                precision=self.precision,
                batch=self.generate_batch,
                progress=lambda done: self.progress(f"{name}: answering", done, len(prompts)),
            )
        except NotFinite as error:
            raise _not_finite(self.subject, name, list(pending.values())[error.index]) from None
        self.answers |= dict(zip(pending, answers, strict=True))

    def _record(self, example: Example, plan: Plan) -> Record:
        def scored(text: str) -> TextScore:
            return self.scores[example.prompt, example.bare, text]

        return Record(
            id=example.id,
            prompt=example.prompt,
            answer=example.answer,
            label=example.label,
            group=example.group,
            span=example.span,
            span_tokens=self._span_tokens(example) if plan.true else (),
            true=scored(example.answer) if plan.true else None,
            paraphrase=scored(example.paraphrased_answer) if plan.paraphrase and example.paraphrased_answer else None,
            false=tuple(map(scored, example.false_answers)) if plan.false else (),
            options=tuple(map(scored, example.options)) if plan.options else (),
            letters=self._letters(example) if plan.letters and example.options else (),
            gold=example.gold,
            generation=self.answers[example.prompt, example.bare, plan.max_new_tokens] if plan.generation and example.prompt else None,
        )

    def _letters(self, example: Example) -> tuple[TextScore, ...]:
        form = by_letters(example)
        return tuple(self.scores[form.prompt, True, letter] for letter in form.options)

    def _span_tokens(self, example: Example) -> tuple[int, ...]:
        if not example.span:
            return ()
        text = encode(self.subject.tokenizer, self.subject.template, example)
        shown = example.answer.strip() if example.prompt else example.answer
        begin = text.answer[0] + shown.find(example.span.strip())
        return tuple(i - text.start for i in text.tokens_within(begin, begin + len(example.span.strip())) if i >= text.start)


def _text_scores(
    subject: Subject, texts: Sequence[Encoded], precision: Literal["float32", "bfloat16"]
) -> list[tuple[tuple[float, ...] | None, tuple[bool, ...]]]:
    """For each text its token log-probabilities (None where one is not finite) and arg-max hits."""
    with autocast(precision, subject.device):
        scored = score(subject, collate(texts, "padded"))
        features = features_of(scored)
    logp, hits = _predictions(subject, scored, features)
    rows: list[tuple[tuple[float, ...] | None, tuple[bool, ...]]] = []
    for one, hit in zip(scored.split(logp), scored.split(hits), strict=True):
        finite = bool(torch.isfinite(one).all())
        rows.append((tuple(one.tolist()) if finite else None, tuple(hit.tolist())))
    return rows


def _predictions(subject: Subject, scored: Scored, features: Tensor) -> tuple[Tensor, Tensor]:
    """log p of each target [n] (NaN where any logit of its position is not finite) and whether it is the arg-max [n].

    The head runs outside autocast: bfloat16 logits are spaced .125 apart around 20, which ties arg-maxes.
    """
    weight = cast(nn.Linear, subject.base.get_output_embeddings()).weight
    if weight.is_floating_point():
        features = features.to(weight.dtype)
    size = max(1, _CHUNK // subject.base.config.get_text_config().vocab_size)
    logp, hits = [], []
    for part, target in zip(features.split(size), scored.target.split(size), strict=True):
        logits = output_head(subject.base, part).float()
        normaliser = torch.logsumexp(logits, dim=-1)
        picked = logits.gather(-1, target[:, None])[:, 0] - normaliser
        logp.append(picked.masked_fill(~torch.isfinite(logits).all(dim=-1), torch.nan))
        hits.append(logits.argmax(dim=-1) == target)
    return torch.cat(logp), torch.cat(hits)


def _not_finite(subject: Subject, split: str, id: str) -> InputError:
    return InputError(
        f"{subject.source}: the model predicts NaN or infinity (split {split!r}, example {id!r}): "
        "it has collapsed, or its precision overflows (try precision=float32)"
    )


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Every module in eval mode; afterwards each as it was."""
    was = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in was:
            module.training = training
