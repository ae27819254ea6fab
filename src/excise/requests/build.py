"""What a request is about, and the data for it, built with the model's own help."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from excise.data.benchmarks.jsonl import examples
from excise.data.benchmarks.text import cut, read_documents
from excise.data.concept_sets import NEUTRAL, SHIPPED
from excise.data.encode import encode_prompt
from excise.data.example import Benchmark, Example
from excise.data.invented import invented
from excise.data.tables import read_rows
from excise.errors import InputError
from excise.evaluation.collect import Progress, collect
from excise.evaluation.generate import Sampling, generate, sample
from excise.evaluation.metrics.facts import FactRecall
from excise.evaluation.metrics.fluency import is_degenerate
from excise.evaluation.metrics.memory import RougeLRecall
from excise.evaluation.plan import Plan
from excise.evaluation.records import Record
from excise.evaluation.score import Unavailable
from excise.files import read_json
from excise.precision import resolve_precision
from excise.requests.names import ORDINARY, STOP_WORDS, control, name_words, renamed

if TYPE_CHECKING:
    from excise.subject import Subject

ANSWER_TOKENS = 64
"""Length of the model's own answers."""
CHUNK_WORDS = 60
"""Words of one passage of a text that is to be forgotten."""
SETS = 4
"""Sets of invented names; the last is for neighbours only, which training does not see."""


@dataclass(frozen=True)
class Asked:
    """What is to be forgotten: a subject by name, questions with their answers, or texts; and perhaps samples of what must stay."""

    subject: str = ""
    questions: tuple[str, ...] = ()
    """Tables of questions and answers."""
    texts: tuple[str, ...] = ()
    """Text files, or folders of them."""
    retain: str | None = None
    """A table of the user's own samples of what must be kept."""

    def __post_init__(self) -> None:
        if sum(map(bool, (self.subject.strip(), self.questions, self.texts))) != 1:
            raise InputError('say what is to be forgotten in one way: --subject "NAME", --questions FILE or --texts FILE')

    @property
    def kind(self) -> str:
        return "subject" if self.subject.strip() else "questions" if self.questions else "texts"


@dataclass
class Built:
    """The data of a request, and in plain words how it came about."""

    benchmark: Benchmark
    how: list[str] = field(default_factory=list)


@cache
def shipped() -> dict[str, Any]:
    """Questions about any subject, and well-known subjects by kind."""
    return json.loads(resources.files("excise.requests").joinpath("subjects.json").read_text(encoding="utf-8"))


def build(model: Subject, asked: Asked, *, precision: Any = "auto", seed: int = 0, progress: Progress | None = None) -> Built:
    """The splits of a request: see the suite ``request``.

    Raises:
        InputError: files that cannot be read, a model that answers nothing.
    """
    return _Builder(model, asked, precision, seed, progress).build()


@dataclass
class _Builder:
    model: Subject
    asked: Asked
    precision: Any
    seed: int
    progress: Progress | None
    how: list[str] = field(default_factory=list)

    def build(self) -> Built:
        forget, rephrased = {"subject": self._of_subject, "questions": self._of_questions, "texts": self._of_texts}[self.asked.kind]()
        names = self._names(forget)
        sets = [dict(zip(names, invented(len(names), names, self.seed + n), strict=True)) for n in range(SETS)]
        controls = [c for n, one in enumerate(sets[:2]) for e in forget if not _is_sample(e) and (c := control(e, one, f"~{n + 1}"))]
        if not controls:
            raise InputError(
                "nothing in the request has a name (a word with a capital letter) that could be replaced by an invented one, so there is no "
                "measure of what the model never knew: name the subject with --subject"
            )
        controls = self._ignorant(controls)
        self.how.append(
            f"controls: {len(controls)} of these with invented names in place of {_listed(names)}: what the model says of them it never knew"
        )
        retain, neighbours = self._kept(forget, sets)
        splits: dict[str, tuple[Example, ...]] = {"forget": tuple(forget), "retain": tuple(retain), "rephrased": tuple(rephrased)}
        splits |= {"controls": tuple(controls), "neighbours": tuple(neighbours), "neutral": tuple(_neutral(held_out=True))}
        return Built(Benchmark("request", {name: rows for name, rows in splits.items() if rows}), self.how)

    # --- what is to be forgotten --------------------------------------------------------------------------------------

    def _of_subject(self) -> tuple[list[Example], list[Example]]:
        subject = self.asked.subject.strip()
        prompts = [text.format(subject=subject) for text in shipped()["questions"]]
        greedy = self._answered("forget", prompts, group=subject)
        sampled = self._answered("forget-sampled", prompts, group=subject, sampled=True)
        rephrased = self._answered("rephrased", [text.format(subject=subject) for text in shipped()["rephrased"]], group=subject)
        if not greedy:
            raise InputError(f"{self.model.source} gives no usable answer to any question about {subject!r}, so there is nothing to take away")
        self.how.append(f"forget: the model's own answers to {len(prompts)} questions about {subject}, the likeliest and a random one of each")
        self.how.append(f"rephrased: its answers to {len(rephrased)} other questions about {subject}, which are only measured")
        return [*greedy, *(e for e in sampled if all(e.answer != other.answer for other in greedy))], rephrased

    def _of_questions(self) -> tuple[list[Example], list[Example]]:
        forget = [e for file in self.asked.questions for e in examples(read_rows(file), Path(file).stem, {})]
        if texts := [e.id for e in forget if not e.prompt]:
            raise InputError(f"{texts[0]!r} has no question; give plain text with --texts")
        rephrased = [dataclasses.replace(e, id=f"{e.id}~p", prompt=e.paraphrased_prompts[0]) for e in forget if e.paraphrased_prompts]
        self.how.append(f"forget: the {len(forget)} questions that were given")
        if rephrased:
            self.how.append(f"rephrased: {len(rephrased)} of them in the other words that were given with them, which are only measured")
        return forget, rephrased

    def _of_texts(self) -> tuple[list[Example], list[Example]]:
        documents = [pair for file in self.asked.texts for pair in read_documents(file)]
        forget = list(cut(documents, CHUNK_WORDS, "words", 20))
        if not forget:
            raise InputError(f"{', '.join(self.asked.texts)}: no passage of at least 20 characters is left")
        rephrased = [half for e in forget if (half := _second_half(e))]
        self.how.append(f"forget: {len(forget)} passages of at most {CHUNK_WORDS} words")
        self.how.append(f"rephrased: the second half of {len(rephrased)} of them, to be continued from the first")
        return forget, rephrased

    def _names(self, forget: Sequence[Example]) -> list[str]:
        """The words that stand for what is to be forgotten."""
        if self.asked.subject:
            words = re.findall(r"\w[\w'’-]*", self.asked.subject)
            own = [w for w in words if w[0].isupper() and w.casefold() not in ORDINARY and w.casefold() not in STOP_WORDS]
            return own or [self.asked.subject.strip()]
        if self.asked.questions:
            return name_words([e.prompt for e in forget])
        return name_words([e.answer for e in forget])[:12]

    # --- what must stay -----------------------------------------------------------------------------------------------

    def _kept(self, forget: Sequence[Example], sets: Sequence[Mapping[str, str]]) -> tuple[list[Example], list[Example]]:
        """Examples to train on, and others to measure by."""
        known = self._well_known()
        third = max(2, len(known) // 3)
        about = [_pairs(known[third:], shipped()["questions"], 3), _pairs(known[:third], shipped()["questions"], 2)]
        others: list[list[str]] = [[], []]
        origin: dict[str, Example] = {}
        if self.asked.questions:
            asked = list(dict.fromkeys(e.prompt for e in forget))
            others = [[renamed(prompt, one) for one in sets[1:-1] for prompt in asked], [renamed(prompt, sets[-1]) for prompt in asked]]
            others = [[prompt for prompt in prompts if prompt not in asked] for prompts in others]
            origin |= {renamed(e.prompt, one): e for one in sets[1:] for e in forget}
        retain = self._answered("retain", list(dict.fromkeys([*about[0], *others[0]])))
        neighbours = self._answered("neighbours", list(dict.fromkeys([*about[1], *others[1]])))
        retain, neighbours = ([e for e in rows if not self._told(origin.get(e.prompt), e.answer)] for rows in (retain, neighbours))
        neutral = _neutral(held_out=False)
        told = f"the model's own answers about {_listed(known)}"
        if others[0]:
            told += " and to the same questions about invented people"
        self.how.append(f"retain: {len(retain)} of {told}; {len(neutral)} neutral sentences that come with excise")
        self.how.append(f"neighbours: {len(neighbours)} more such answers, which training does not see; neutral: other neutral sentences")
        given: list[Example] = []
        if self.asked.retain:
            given = list(examples(read_rows(self.asked.retain), "given", {}))
            self.how.append(f"retain: {len(given)} samples of your own, every fourth of which is only measured")
        return [*retain, *neutral, *(e for n, e in enumerate(given) if n % 4 != 3)], [*neighbours, *given[3::4]]

    def _ignorant(self, controls: Sequence[Example]) -> list[Example]:
        """The controls whose fact the model does not tell: one that it tells of somebody invented too is keyed by other words than the name.

        Raises:
            InputError: there is none.
        """
        asked = [example for example in controls if example.prompt and not example.bare]
        answers = dict(zip((e.id for e in asked), self._say([e.prompt for e in asked]), strict=True))
        kept = [example for example in controls if not self._told(example, answers.get(example.id, ""))]
        if left := len(controls) - len(kept):
            self.how.append(f"{left} of {len(controls)} controls are left out: the model tells these facts of invented names too")
        if not kept:
            raise InputError(
                "the model tells these facts whatever name is asked for, so nothing shows what it would say if it did not know them: "
                "ask with other wordings, or use a recipe with a retrained twin"
            )
        return kept

    def _told(self, example: Example | None, said: str) -> bool:
        """Whether a text holds at least half of an example's fact."""
        if example is None or not said:
            return False
        record = Record(example.id, example.prompt, example.answer, label=example.label, span=example.span, generation=said)
        try:
            share = FactRecall().per_example(record)
        except Unavailable:  # no spaCy, and no span
            share = RougeLRecall().per_example(record)
        return share is not None and share >= 0.5

    def _say(self, prompts: Sequence[str], sampling: Sampling | None = None) -> list[str]:
        """The model's answers, greedy ones or one drawn for each prompt."""
        tokens = [encode_prompt(self.model.tokenizer, self.model.template, prompt) for prompt in prompts]
        if not tokens:
            return []
        precision = resolve_precision(self.precision, self.model.device)
        if sampling is None:
            return generate(self.model, tokens, ANSWER_TOKENS, precision=precision)
        return [said[0] for said in sample(self.model, tokens, ANSWER_TOKENS, sampling, precision=precision)]

    def _well_known(self) -> list[str]:
        """Well-known subjects: those of the same kind, as the model sees it; of questions and texts a few of each kind."""
        kinds: dict[str, list[str]] = shipped()["kinds"]
        if not self.asked.subject:
            return [names[n] for names in kinds.values() for n in (0, 1)]
        subject = self.asked.subject.strip()
        lists = tuple(Example(str(n), f"{', '.join(names[:8])},", f" {subject}", bare=True) for n, names in enumerate(kinds.values()))
        found = collect(self.model, Benchmark("kinds", {"kinds": lists}), {"kinds": Plan()}, precision=self.precision)["kinds"]
        fits = [0.0 if record.true is None else record.true.mean_logp for record in found]
        kind = list(kinds)[fits.index(max(fits))]
        self.how.append(f"kind: {subject} is taken for {kind}: it goes best with {_listed(kinds[kind], 3)}")
        return [name for name in kinds[kind] if name.casefold() not in subject.casefold() and subject.casefold() not in name.casefold()]

    def _answered(self, split: str, prompts: Sequence[str], group: str = "", sampled: bool = False) -> list[Example]:
        """Questions with the model's own answers; where it gives none worth the name, they are left out."""
        said = self._say(prompts, Sampling(1, 0.8, 0.95, self.seed) if sampled else None)
        if self.progress is not None:
            self.progress(f"{split}: the model's own answers", len(prompts), len(prompts))
        found: list[Example] = []
        for number, (prompt, answer) in enumerate(zip(prompts, said, strict=True)):
            text = _whole_sentences(answer)
            if text and not is_degenerate(text):
                found.append(Example(f"{split}-{number}", prompt, text, group=group))
        return found


def _is_sample(example: Example) -> bool:
    return example.id.startswith("forget-sampled-")


def _whole_sentences(text: str) -> str:
    """What stands before the last full stop; the whole of a text without any."""
    text = text.strip()
    end = max((match.end() for match in re.finditer(r"[.!?][\"'”’)]*(?=\s|$)", text)), default=0)
    return text[:end] if end > 20 else text


def _second_half(example: Example) -> Example | None:
    words = list(re.finditer(r"\S+", example.answer))
    if len(words) < 16:
        return None
    middle = words[len(words) // 2].start()
    return Example(f"{example.id}~h", example.answer[:middle].rstrip(), " " + example.answer[middle:], bare=True, group=example.group)


def _pairs(subjects: Sequence[str], questions: Sequence[str], each: int) -> list[str]:
    """So many questions about each subject, going through the questions in turn."""
    return [questions[(each * n + k) % len(questions)].format(subject=name) for n, name in enumerate(subjects) for k in range(each)]


def _neutral(held_out: bool) -> list[Example]:
    rows: list[Any] = list(_sentences())
    chosen = rows[2::6] if held_out else rows[::5]
    if not held_out:
        chosen = [row for row in chosen if row not in rows[2::6]]
    return [Example(f"neutral-{n}", "", row) for n, row in enumerate(chosen)]


def _sentences() -> Iterator[str]:
    for row in read_json(SHIPPED / NEUTRAL):
        yield row["sentence"]


def _listed(names: Sequence[str], most: int = 4) -> str:
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} others" if len(names) > most else shown
