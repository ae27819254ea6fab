"""One pass per split: everything that the metrics need from a model, as records.

Each text runs through the model once, however many splits and parts ask for it, and the answers to one question share
its prompt: prompt and all answers are one line under a mask (``tokens.collate_shared``). The remaining texts are padded
within buckets of similar length: with 50 to 110 tokens a text that is 1.3 to 1.7 times as fast as packed rows (SmolLM2,
one thread), whose attention grows with the square of the whole batch.

Examples are taken in blocks. Every batch belongs to one block, so a subset whose size is a multiple of the block gives the
very same numbers as the whole, and a batch that is finished is kept (``store.Journal``) and never run again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from excise.data.encode import BARE, Encoded, encode, encode_prompt
from excise.data.example import Benchmark, Example
from excise.errors import InputError
from excise.evaluation.generate import NotFinite, Sampling, alike, generate, sample
from excise.evaluation.plan import ANSWERS_AT_ONCE, Plan
from excise.evaluation.predict import gradient_norm, predicted
from excise.evaluation.records import Record, Records, TextScore
from excise.evaluation.store import Journal, Key, read_records, write_records
from excise.layout import can_share, layout_of
from excise.parallel import ranks
from excise.parallel.forward import is_spread
from excise.precision import Precision, reading, resolve_precision
from excise.tokens import buckets, collate, collate_shared

if TYPE_CHECKING:
    from excise.evaluation.engines import Engine
    from excise.subject import Subject

__all__ = ["Plan", "Progress", "collect", "likelihoods", "read_records", "write_records"]

BLOCK = 100
"""Examples whose texts may share a batch."""

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and of how much."""


def collect(
    subject: Subject,
    benchmark: Benchmark,
    plans: Mapping[str, Plan],
    *,
    precision: Precision = "auto",
    max_tokens: int = 4096,
    generate_batch: int = ANSWERS_AT_ONCE,
    limit: int | None = None,
    cache: Path | None = None,
    progress: Progress | None = None,
    engine: Engine | None = None,
) -> Records:
    """Runs a model over the splits of a benchmark.

    Args:
        plans: split -> what is needed of it.
        precision: of the forward passes; log-probabilities are float32 or better, and the output head of a float32
            model is applied in float32 whatever the precision.
        max_tokens: tokens of one batch, padding included.
        generate_batch: rows of one batch while generating.
        limit: only the first so many examples of each split.
        cache: a folder that keeps what the model said, batch by batch, by model, template, precision, text and settings: a run
            that was killed goes on where it was, and another one that asks the same is answered from it. It holds plain
            texts: leave it out where nothing may be kept.
        progress: see :data:`Progress`.
        engine: who writes the answers; None: transformers.

    Raises:
        InputError: an unknown split; a prediction that is NaN or infinite (names the split and the example).
    """
    if limit is not None and limit < 1:
        raise InputError(f"limit is {limit}: at least one example per split is needed")
    resolved = resolve_precision(precision, subject.device)
    tell = progress or (lambda what, done, total: None)
    known = Journal(None) if cache is None else Journal.of(cache, subject, resolved)
    run = _Run(subject, resolved, max_tokens, generate_batch, tell, known, engine)
    layout_of(subject)  # refuses an architecture whose output head is not what we think it is
    can_share(subject)
    chosen = {split: benchmark.split(split)[:limit] for split in plans}
    apart = ranks.several() and not is_spread(subject.base)  # spread weights need all processes for every text
    own = {split: ranks.own_stretch(examples) if apart else examples for split, examples in chosen.items()}
    with reading(subject, resolved):
        run.answer(plans, own)
        found = {split: run.split(split, plan, own[split]) for split, plan in plans.items()}
    return {split: _gathered(rows) for split, rows in found.items()} if apart else found


def _gathered(own: Sequence[Record]) -> list[Record]:
    """The records of all processes, in order."""
    return [Record.from_json(row) for part in ranks.gather([record.to_json() for record in own]) for row in part]


def likelihoods(
    subject: Subject, asked: Sequence[tuple[str, str]], *, precision: Precision = "auto", max_tokens: int = 4096
) -> dict[tuple[str, str], TextScore]:
    """Scores answers to questions that stand in no benchmark: (question, answer) -> its score.

    Raises:
        InputError: a prediction that is NaN or infinite.
    """
    resolved = resolve_precision(precision, subject.device)
    run = _Run(subject, resolved, max_tokens, 1, lambda what, done, total: None, Journal(None))
    examples = [Example(f"question {i}", question, answer) for i, (question, answer) in enumerate(asked)]
    layout_of(subject)
    can_share(subject)
    with reading(subject, resolved):
        records = run.split("asked", Plan(), examples)
    return {pair: cast(TextScore, record.true) for pair, record in zip(asked, records, strict=True)}


@dataclass
class _Run:
    """What the model said so far, so that nothing is asked twice."""

    subject: Subject
    precision: Literal["float32", "bfloat16"]
    max_tokens: int
    generate_batch: int
    tell: Progress
    known: Journal
    engine: Engine | None = None
    planned: set[Key] = field(default_factory=set)
    """What was put into a batch of this run, known or not: batches must not depend on what is known already."""

    def answer(self, plans: Mapping[str, Plan], examples: Mapping[str, Sequence[Example]]) -> None:
        """Lets the model answer the questions of all splits together: a batch of few rows takes nearly as long as one of many.

        A round takes a block of every split, so that the rounds of a subset whose size is a multiple of the block are those of the whole.
        """
        asking = {split: plan for split, plan in plans.items() if plan.generation}
        for most in dict.fromkeys(plan.max_new_tokens for plan in asking.values()):
            together = {split: examples[split] for split, plan in asking.items() if plan.max_new_tokens == most}
            total = sum(bool(e.prompt) for split in together for e in together[split])
            count = _Counter(" and ".join(together) if len(together) < 3 else f"{len(together)} splits", {"answering": total}, self.tell)
            for start in range(0, max(map(len, together.values())), BLOCK):
                block = [(split, e) for split, rows in together.items() for e in rows[start : start + BLOCK]]
                self._generate(most, block, count)

    def split(self, name: str, plan: Plan, examples: Sequence[Example]) -> list[Record]:
        texts = sum(len(plan.asked(e)) for e in examples)
        asked = len([e for e in examples if e.prompt])
        wanted = {
            "scoring": texts,
            "sampling": asked * bool(plan.samples),
            "gradients": len(examples) * plan.gradient,
        }
        count = _Counter(name, {what: total for what, total in wanted.items() if total}, self.tell)
        for start in range(0, len(examples), BLOCK):
            block = examples[start : start + BLOCK]
            self._score(plan, block, count)
            if plan.samples:
                self._sample(plan, block, count)
            if plan.gradient:
                self._gradients(block, count)
        return [self._record(example, plan) for example in examples]

    # --- likelihoods --------------------------------------------------------------------------------------------------

    def _score(self, plan: Plan, examples: Sequence[Example], count: _Counter) -> None:
        wanted: dict[Key, Encoded] = {}
        for example in examples:
            for form, text in plan.asked(example):
                key = score_key(form, text, plan.spread)
                if key not in self.planned and key not in wanted:
                    wanted[key] = encode(self.subject.tokenizer, self.subject.template, form, answer=text)
        self.planned |= wanted.keys()
        keys, texts = list(wanted), list(wanted.values())
        for group in self._batches(texts):
            indices = [i for line in group for i in line if keys[i] not in self.known]
            if indices:
                kept = set(indices)
                lines = [[texts[i] for i in line if i in kept] for line in group]
                found = self._run_texts([line for line in lines if line], plan.spread, count.split)
                self.known.add(zip(indices, found, strict=True), keys)
            count.add("scoring", sum(map(len, group)))
        count.finish("scoring", sum(len(plan.asked(e)) for e in examples))

    def _batches(self, texts: Sequence[Encoded]) -> list[list[list[int]]]:
        """Batches of lines of texts: the texts of a line share their beginning; lines of one text are batched apart."""
        lines: dict[tuple[int, ...], list[int]] = {}
        for i, text in enumerate(texts):
            lines.setdefault((i,) if not text.question[1] or not can_share(self.subject) else text.ids[: text.start], []).append(i)
        several = [line for line in lines.values() if len(line) > 1]
        single = [line for line in lines.values() if len(line) == 1]
        lengths = [texts[line[0]].start + sum(texts[i].scored for i in line) for line in several]
        batches = [[several[k] for k in group] for group in buckets(lengths, self.max_tokens)]
        return batches + [[single[k] for k in group] for group in buckets([len(texts[line[0]]) for line in single], self.max_tokens)]

    def _run_texts(self, lines: Sequence[Sequence[Encoded]], spread: bool, split: str) -> list[dict[str, Any]]:
        flat = [text for line in lines for text in line]
        batch = collate(flat, "padded") if len(flat) == len(lines) else collate_shared(lines)
        found = predicted(self.subject, batch, self.precision, spread)
        for text, values in zip(flat, found, strict=True):
            if not values["finite"]:
                raise _not_finite(self.subject, split, text.id)
        return [{name: value for name, value in values.items() if name != "finite"} for values in found]

    # --- answers ------------------------------------------------------------------------------------------------------

    def _pending(self, examples: Sequence[Example], key: Callable[[Example], Key]) -> dict[Key, Example]:
        found = {key(e): e for e in examples if e.prompt and key(e) not in self.planned}
        self.planned |= found.keys()
        return found

    def _prompts(self, examples: Sequence[Example]) -> list[list[int]]:
        template = self.subject.template
        return [encode_prompt(self.subject.tokenizer, BARE if e.bare else template, e.prompt, e.opening, e.history) for e in examples]

    def _generate(self, most: int, examples: Sequence[tuple[str, Example]], count: _Counter) -> None:
        pending = self._pending([e for _, e in examples], lambda e: answer_key(e, most, self.engine))
        keys, asked = list(pending), list(pending.values())
        prompts = self._prompts(asked)
        for batch in alike([len(prompt) for prompt in prompts], self.generate_batch):
            rows = [i for i in batch if keys[i] not in self.known]
            if rows:
                try:
                    said = generate(self.subject, [prompts[i] for i in rows], most, precision=self.precision, batch=len(rows), engine=self.engine)
                except NotFinite as error:
                    wrong = asked[rows[error.index]]
                    raise _not_finite(self.subject, next(split for split, e in examples if e is wrong), wrong.id) from None
                self.known.add(zip(rows, said, strict=True), keys)
            count.add("answering", len(batch))
        count.finish("answering", sum(bool(e.prompt) for _, e in examples))

    def _sample(self, plan: Plan, examples: Sequence[Example], count: _Counter) -> None:
        pending = self._pending(examples, lambda e: sample_key(e, plan, self.engine))
        keys, asked = list(pending), list(pending.values())
        together = max(1, self.generate_batch // plan.samples)
        for start in range(0, len(asked), together):
            part = asked[start : start + together]
            rows = [start + i for i in range(len(part)) if keys[start + i] not in self.known]
            if rows:
                seed = plan.seed + int(keys[rows[0]][:8], 16)  # a batch draws the same however many were finished before it
                sampling = Sampling(plan.samples, plan.temperature, plan.top_p, seed)
                try:
                    prompts = self._prompts([asked[i] for i in rows])
                    said = sample(self.subject, prompts, plan.max_new_tokens, sampling, precision=self.precision, engine=self.engine)
                except NotFinite as error:
                    raise _not_finite(self.subject, count.split, asked[rows[error.index]].id) from None
                self.known.add(zip(rows, said, strict=True), keys)
            count.add("sampling", len(part))
        count.finish("sampling", sum(bool(e.prompt) for e in examples))

    # --- gradients ----------------------------------------------------------------------------------------------------

    def _gradients(self, examples: Sequence[Example], count: _Counter) -> None:
        for example in examples:
            key = gradient_key(example)
            if key not in self.known:
                norm = gradient_norm(self.subject, encode(self.subject.tokenizer, self.subject.template, example), self.precision)
                if norm is None:
                    raise _not_finite(self.subject, count.split, example.id)
                self.known.add([(0, norm)], [key])
            count.add("gradients", 1)

    # --- records ------------------------------------------------------------------------------------------------------

    def _record(self, example: Example, plan: Plan) -> Record:
        def scored(text: str, form: Example = example) -> TextScore:
            return TextScore(text=text, ended=bool(form.prompt) and not form.bare, **self.known[score_key(form, text, plan.spread)])

        return Record(
            id=example.id,
            prompt=example.prompt,
            answer=example.answer,
            label=example.label,
            group=example.group,
            opening=example.opening,
            span=example.span,
            span_tokens=self._span_tokens(example) if plan.true else (),
            true=scored(example.answer) if plan.true else None,
            paraphrase=scored(example.paraphrased_answer) if plan.paraphrase and example.paraphrased_answer else None,
            false=tuple(map(scored, example.false_answers)) if plan.false else (),
            options=tuple(map(scored, example.options)) if plan.options else (),
            letters=tuple(scored(text, form) for form, text in plan.lettered(example)),
            gold=example.gold,
            generation=self.known[answer_key(example, plan.max_new_tokens, self.engine)] if plan.generation and example.prompt else None,
            samples=tuple(self.known[sample_key(example, plan, self.engine)]) if plan.samples and example.prompt else (),
            gradient_norm=self.known[gradient_key(example)] if plan.gradient else None,
        )

    def _span_tokens(self, example: Example) -> tuple[int, ...]:
        if not example.span:
            return ()
        text = encode(self.subject.tokenizer, self.subject.template, example)
        shown = example.answer.strip() if example.prompt else example.answer
        begin = text.answer[0] + shown.find(example.span.strip())
        return tuple(i - text.start for i in text.tokens_within(begin, begin + len(example.span.strip())) if i >= text.start)


def score_key(form: Example, text: str, spread: bool) -> Key:
    return Journal.key("score", form.prompt, form.bare, text, spread, *form.history)


def answer_key(example: Example, max_new_tokens: int, engine: Engine | None = None) -> Key:
    others = [*example.history, *([] if engine is None else [("engine", engine.name)])]
    return Journal.key("answer", example.prompt, example.bare, example.opening, max_new_tokens, *others)


def sample_key(example: Example, plan: Plan, engine: Engine | None = None) -> Key:
    drawn = (plan.samples, plan.temperature, plan.top_p, plan.seed)
    others = [*example.history, *([] if engine is None else [("engine", engine.name)])]
    return Journal.key("samples", example.prompt, example.bare, example.opening, plan.max_new_tokens, *drawn, *others)


def gradient_key(example: Example) -> Key:
    return Journal.key("gradient", example.prompt, example.bare, example.answer, *example.history)


@dataclass
class _Counter:
    """How much of a split is done."""

    split: str
    totals: Mapping[str, int]
    tell: Progress
    done: dict[str, int] = field(default_factory=dict)
    before: dict[str, int] = field(default_factory=dict)

    def add(self, what: str, n: int) -> None:
        self.done[what] = self.done.get(what, 0) + n
        self.tell(f"{self.split}: {what}", self.done[what], self.totals[what])

    def finish(self, what: str, n: int) -> None:
        """A block of ``n`` is done: what stood in an earlier batch counts as well."""
        self.before[what] = self.before.get(what, 0) + n
        if self.before[what] > self.done.get(what, 0):
            self.done[what] = self.before[what]
            self.tell(f"{self.split}: {what}", self.done[what], self.totals[what])


def _not_finite(subject: Subject, split: str, id: str) -> InputError:
    return InputError(
        f"{subject.source}: the model predicts NaN or infinity (split {split!r}, example {id!r}): "
        "it has collapsed, or its precision overflows (try precision=float32)"
    )
