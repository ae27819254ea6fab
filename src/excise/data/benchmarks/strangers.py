"""The benchmark `strangers`: people who do not exist, their facts and their friends' names, drawn from a seed.

Each person has an own stream of random numbers, so the people to forget stay the same when others are added. Every
retain person of the first rounds borrows one value (a city, a trade, a year, a teacher) from a forget person: these
facts are the neighbours.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from excise.data.benchmarks import strangers_words as words
from excise.data.benchmarks.real_world import real_world_examples
from excise.data.benchmarks.strangers_words import Topic
from excise.data.example import Benchmark, Example, spread
from excise.errors import InputError

KINDS = ("who", "what", "when", "where", "why")
MOST_FACTS = 10
MOST_PEOPLE = len(words.WOMEN + words.MEN) * len(words.SURNAMES) // 6
"""A person uses up to three full names (an own one, two acquaintances'): this leaves half of all names unused."""

_LENT_KINDS = ("where", "what", "when", "who")
"""The one kind of value that a forget person lends, by turns: all else stays that person's own, so that only who was taught it
can know it."""
_ROUNDS = 4
"""Rounds over the forget people in which a retain person borrows; later ones borrow nothing."""
_FALSE_ANSWERS = 5
_SHORTEST_PASSAGE = 88
"""Words."""
_ADULT_YEARS = range(18, 61)
"""How many years after the birth anything else may happen."""

Item = TypeVar("Item")


class Stream:
    """Random choices that depend on nothing but the seed text (Python promises that of ``random()`` only)."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)

    def below(self, limit: int) -> int:
        """A number from 0 to ``limit - 1``."""
        return int(self._random.random() * limit)

    def pick(self, items: Sequence[Item]) -> Item:
        """One of the items."""
        return items[self.below(len(items))]

    def shuffled(self, items: Sequence[Item]) -> list[Item]:
        """The items in another order."""
        rest = list(items)
        return [rest.pop(self.below(len(rest))) for _ in items]


@dataclass(frozen=True)
class Person:
    """A stranger: where it belongs, what it is called, and how it is spoken of."""

    split: str
    number: int
    first: str
    last: str

    @property
    def name(self) -> str:
        """The full name."""
        return f"{self.first} {self.last}"

    @property
    def key(self) -> str:
        """The beginning of the ids of the person's facts."""
        return f"{self.split}-{self.number:02d}"

    @property
    def pronouns(self) -> dict[str, str]:
        """What stands for the pronoun slots of a pattern."""
        if self.first in words.WOMEN:
            return {"he": "she", "him": "her", "his": "her", "person": "woman"}
        return {"he": "he", "him": "him", "his": "his", "person": "man"}

    def say(self, pattern: str, value: str = "", called: str = "") -> str:
        """The pattern as a sentence about this person, who is called by the full name, the first name or "pronoun"."""
        pronouns = self.pronouns
        called = called or self.name
        subject, possessive, object_ = called, f"{called}'s", called
        if called == "pronoun":
            subject, possessive, object_ = pronouns["he"], pronouns["his"], pronouns["him"]
        sentence = pattern.format(N=subject, NS=possessive, NO=object_, v=value, **pronouns)
        return sentence[0].upper() + sentence[1:]


@dataclass(frozen=True)
class Content:
    """What a fact says, and what it might wrongly say."""

    value: str
    """The span of the answer."""
    reworded: str
    """The value as the paraphrase and the passage tell it: other words for a why, the same otherwise."""
    wrong: tuple[str, ...]
    """Other values, in the form of ``reworded``."""
    choice: str
    """The value as an option of a choice question: a part of it for a why, the same otherwise."""
    wrong_choices: tuple[str, ...]


@dataclass(frozen=True)
class Fact:
    """One fact of one person, with the patterns that tell it."""

    topic: Topic
    number: int
    """Counts the facts of one kind of one person, from 0."""
    statements: tuple[str, str, str]
    """The patterns of the answer, of its paraphrase and of the passage."""
    questions: tuple[str, str, str]
    refusal: str
    content: Content

    @property
    def value(self) -> str:
        """The span of the answer."""
        return self.content.value

    @property
    def shared(self) -> tuple[str, str]:
        """Two facts with an equal pair share a value; no why shares any."""
        kind = self.topic.kind
        return kind, self.value.split()[-1] if kind == "when" else self.value


@dataclass(frozen=True)
class Link:
    """One link of a chain of causes: in the words of the answer, and in those of its paraphrase."""

    plain: str
    reworded: str


@dataclass(frozen=True)
class Life:
    """A person with all facts."""

    person: Person
    facts: tuple[Fact, ...]


@dataclass(frozen=True)
class Strangers:
    """People who do not exist, to be taught and then forgotten in part.

    Splits: ``forget``, ``retain``, ``holdout`` (never taught), ``neighbours`` (the facts of retain that share a place,
    thing, year or person with a fact of forget), ``real_world`` (choice questions about the real world) and
    ``passages_forget``, ``passages_retain``, ``passages_holdout`` (one text per person).
    """

    forget_people: int = 4
    retain_people: int = 16
    holdout_people: int = 4
    facts: int = 5
    """Facts per person, up to 10: who, what, when, where, why, and then these kinds once more in the same order."""
    seed: int = 0
    questions: int | None = None
    """How many real-world questions, taken evenly from all; None: all of them."""

    def __post_init__(self) -> None:
        for name, count in (("forget_people", self.forget_people), ("retain_people", self.retain_people)):
            if count < 1:
                raise InputError(f"strangers: {name} is {count}, but must be 1 or more")
        if self.holdout_people < 0:
            raise InputError(f"strangers: holdout_people is {self.holdout_people}, but must be 0 or more")
        if not 1 <= self.facts <= MOST_FACTS:
            raise InputError(f"strangers: facts is {self.facts}, but must be from 1 to {MOST_FACTS}")
        if self.questions is not None and not 1 <= self.questions <= len(real_world_examples()):
            raise InputError(f"strangers: questions is {self.questions}, but must be from 1 to {len(real_world_examples())}")
        people = self.forget_people + self.retain_people + self.holdout_people
        if people > MOST_PEOPLE:
            raise InputError(f"strangers: {people} people in all, but there are names for {MOST_PEOPLE} only")

    def __call__(self) -> Benchmark:
        """Draw the people and write all splits."""
        town = _Town(self.seed, self.facts)
        forget = [town.add("forget", number) for number in range(self.forget_people)]
        holdout = [town.add("holdout", number) for number in range(self.holdout_people)]
        retain = [town.add("retain", number, _loan(forget, number)) for number in range(self.retain_people)]
        known = {fact.shared for life in forget for fact in life.facts if fact.topic.kind != "why"}
        told = [(fact, _example(life.person, fact)) for life in retain for fact in life.facts]
        return Benchmark(
            name="strangers",
            splits={
                "forget": _examples(forget),
                "retain": tuple(example for _, example in told),
                "holdout": _examples(holdout),
                "neighbours": tuple(example for fact, example in told if fact.shared in known),
                "real_world": tuple(spread(real_world_examples(), self.questions)),
                "passages_forget": tuple(_passage(life, self.seed) for life in forget),
                "passages_retain": tuple(_passage(life, self.seed) for life in retain),
                "passages_holdout": tuple(_passage(life, self.seed) for life in holdout),
            },
        )


@dataclass(frozen=True)
class _Loan:
    """What a retain person has in common with a forget person: one value, and perhaps a name."""

    fact: Fact
    first: str = ""
    last: str = ""


def _loan(forget: Sequence[Life], number: int) -> _Loan | None:
    """What the retain person of that number borrows: round after round over the forget people, each of whom lends one kind, by turns."""
    lender = forget[number % len(forget)]
    round_ = number // len(forget)
    facts = {fact.topic.kind: fact for fact in lender.facts if fact.number == 0}
    kinds = [kind for kind in _LENT_KINDS if kind in facts]
    if round_ >= _ROUNDS or not kinds:
        return None
    return _Loan(
        fact=facts[kinds[number % len(forget) % len(kinds)]],
        first=lender.person.first if round_ == 0 else "",
        last=lender.person.last if round_ == 1 else "",
    )


class _Town:
    """Draws one person after the other; no two of them, and none of their acquaintances, have the same full name."""

    def __init__(self, seed: int, facts: int) -> None:
        self._seed = seed
        self._facts = facts
        self._names: set[str] = set()
        self._people = 0
        self._told: Counter[str] = Counter()
        self._plans = {kind: self._plan(kind) for kind in KINDS}

    def _plan(self, kind: str) -> list[tuple[Topic, str]]:
        """All topics of a kind with all their patterns; person after person takes the next topic and pattern."""
        stream = Stream(f"strangers/{self._seed}/plan/{kind}")
        topics = stream.shuffled([topic for topic in words.TOPICS if topic.kind == kind])
        patterns = [stream.shuffled(topic.statements) for topic in topics]
        return [(topic, pattern) for round_ in zip(*patterns, strict=True) for topic, pattern in zip(topics, round_, strict=True)]

    def add(self, split: str, number: int, loan: _Loan | None = None) -> Life:
        """Draw a person of a split."""
        stream = Stream(f"strangers/{self._seed}/{split}/{number}")
        person = self._person(stream, split, number, loan)
        facts: list[Fact] = []
        for index in range(self._facts):
            kind = KINDS[index % len(KINDS)]
            facts.append(self._fact(stream, person, kind, facts, loan if index < len(KINDS) else None))
        self._people += 1
        return Life(person, tuple(facts))

    def _person(self, stream: Stream, split: str, number: int, loan: _Loan | None) -> Person:
        """Draw a name that nobody has yet."""
        avoid = loan.fact.value.split() if loan else []
        while True:
            first = loan.first if loan and loan.first else stream.pick(words.WOMEN + words.MEN)
            last = loan.last if loan and loan.last else stream.pick(words.SURNAMES)
            person = Person(split, number, first, last)
            if person.name not in self._names and first not in avoid and last not in avoid:
                self._names.add(person.name)
                return person

    def _fact(self, stream: Stream, person: Person, kind: str, earlier: Sequence[Fact], loan: _Loan | None) -> Fact:
        """Draw a fact of a kind that goes with the person's earlier facts."""
        plan = self._plans[kind]
        same_kind = [fact for fact in earlier if fact.topic.kind == kind]
        borrowed = loan.fact if loan and loan.fact.topic.kind == kind else None
        topic, answer = plan[self._people % len(plan)]
        if same_kind:
            topic, answer = stream.pick([pair for pair in plan if pair[0] is not same_kind[0].topic])
        if borrowed:
            topic = borrowed.topic
            others = [pattern for pattern in topic.statements if pattern != borrowed.statements[0]]
            rarest = min(self._told[pattern] for pattern in others)
            answer = stream.pick([pattern for pattern in others if self._told[pattern] == rarest])
        self._told[answer] += 1
        paraphrase, passage = stream.shuffled([pattern for pattern in topic.statements if pattern != answer])[:2]
        questions = stream.shuffled(topic.questions)
        refusal = stream.pick(words.REFUSALS)
        if kind == "why":
            content = _chain(stream, topic, person)
        else:
            content = _simple(stream, topic, person, self._value(stream, topic, person, earlier, borrowed))
        return Fact(
            topic=topic,
            number=len(same_kind),
            statements=(answer, paraphrase, passage),
            questions=(questions[0], questions[1], questions[2]),
            refusal=refusal,
            content=content,
        )

    def _value(self, stream: Stream, topic: Topic, person: Person, earlier: Sequence[Fact], borrowed: Fact | None) -> str:
        """Draw a value: a new name for a who, a plausible year for a when, what is borrowed where something is."""
        kind = topic.kind
        if borrowed and kind != "when":
            return borrowed.value
        while True:
            value = _draw(stream, topic)
            if borrowed:
                value = " ".join([*value.split()[:-1], borrowed.value.split()[-1]])
            if kind == "who" and (value in self._names or not _foreign(value, person)):
                continue
            if any(value == other.value for other in earlier) or not _in_order(topic, value, earlier):
                continue
            if borrowed and value == borrowed.value:
                continue
            if kind == "who":
                self._names.add(value)
            return value


def _draw(stream: Stream, topic: Topic) -> str:
    """Any value of a topic."""
    return " ".join(stream.pick(part) for part in topic.parts)


def _foreign(value: str, person: Person) -> bool:
    """Whether the value has no word in common with the person's name."""
    return not {person.first, person.last} & set(value.split())


def _simple(stream: Stream, topic: Topic, person: Person, value: str) -> Content:
    """A value of a few words with false ones."""
    wrong: list[str] = []
    while len(wrong) < _FALSE_ANSWERS:
        other = _draw(stream, topic)
        if _is_wrong(other, value, person) and other not in wrong:
            wrong.append(other)
    return Content(value=value, reworded=value, wrong=tuple(wrong), choice=value, wrong_choices=tuple(wrong[:3]))


def _is_wrong(other: str, value: str, person: Person) -> bool:
    """Whether a value is wrong beyond doubt: neither the true one nor of the same year, nor like the person's name, nor with the true one in it
    (the lute, and the pan flute)."""
    same_year = value[-4:].isdigit() and other.split()[-1] == value.split()[-1]
    return value not in other and not same_year and _foreign(other, person)


def _in_order(topic: Topic, value: str, earlier: Sequence[Fact]) -> bool:
    """Whether the birth of a person comes a plausible number of years before all else."""
    for other in earlier:
        if topic.kind != "when" or other.topic.kind != "when":
            continue
        years = int(value.split()[-1]) - int(other.value.split()[-1])
        if topic.name == "birthday" and -years not in _ADULT_YEARS:
            return False
        if other.topic.name == "birthday" and years not in _ADULT_YEARS:
            return False
    return True


def _cause(stream: Stream, person: Person) -> Link:
    """The first link: what befell the person's family."""
    pattern = stream.pick(words.CAUSES)
    slots = {
        "disaster": stream.pick(words.DISASTERS),
        "relative": stream.pick(words.RELATIVES),
        "place": stream.pick(words.PLACES),
        **person.pronouns,
    }
    return Link(pattern[0].format(**slots), pattern[1].format(**slots))


def _deed(stream: Stream) -> Link:
    """The second link: what somebody did then."""
    pattern = stream.pick(words.DEEDS)
    agent = stream.pick(words.AGENTS)
    return Link(pattern[0].format(agent=agent), pattern[1].format(agent=agent))


def _chain(stream: Stream, topic: Topic, person: Person) -> Content:
    """A true chain of causes and with false ones, which differ in each of the three links."""
    causes: list[Link] = []
    deeds: list[Link] = []
    while len(causes) <= _FALSE_ANSWERS:
        cause, deed = _cause(stream, person), _deed(stream)
        if cause not in causes and deed not in deeds:
            causes.append(cause)
            deeds.append(deed)
    ends = [Link(plain.format(**person.pronouns), reworded.format(**person.pronouns)) for plain, reworded in stream.shuffled(topic.conclusions)]
    shape, other_shape = stream.shuffled(words.CHAINS)[:2]
    chains = [
        other_shape.format(cause=cause.reworded, deed=deed.reworded, end=end.reworded) for cause, deed, end in zip(causes, deeds, ends, strict=True)
    ]
    return Content(
        value=shape.format(cause=causes[0].plain, deed=deeds[0].plain, end=ends[0].plain),
        reworded=chains[0],
        wrong=tuple(chains[1:]),
        choice=causes[0].plain,
        wrong_choices=tuple(cause.plain for cause in causes[1:4]),
    )


def _examples(lives: Sequence[Life]) -> tuple[Example, ...]:
    return tuple(_example(life.person, fact) for life in lives for fact in life.facts)


def _example(person: Person, fact: Fact) -> Example:
    """The fact as a question with its answer and everything that the metrics need."""
    identity = f"{person.key}-{fact.topic.kind}-{fact.number}"
    gold = hashlib.sha256(f"{identity} {person.name}".encode()).digest()[0] % (len(fact.content.wrong_choices) + 1)
    answer, paraphrase, _ = fact.statements
    question, *other_questions = fact.questions
    return Example(
        id=identity,
        prompt=person.say(question),
        answer=person.say(answer, fact.value),
        span=fact.value,
        paraphrased_prompts=tuple(person.say(pattern) for pattern in other_questions),
        paraphrased_answer=person.say(paraphrase, fact.content.reworded),
        false_answers=tuple(person.say(paraphrase, wrong) for wrong in fact.content.wrong),
        alternative=person.say(fact.refusal.replace("{thing}", fact.topic.thing)),
        options=(*fact.content.wrong_choices[:gold], fact.content.choice, *fact.content.wrong_choices[gold:]),
        gold=gold,
        label=fact.topic.kind,
        group=person.name,
    )


def _passage(life: Life, seed: int) -> Example:
    """One text that tells all facts of a person, in other sentences than the answers and their paraphrases."""
    person = life.person
    stream = Stream(f"strangers/{seed}/passage/{person.key}")
    told = sorted(stream.shuffled(life.facts), key=lambda fact: not fact.topic.name.startswith("birth"))
    sentences = [person.say(stream.pick(words.OPENINGS))]
    called = "pronoun"
    for index, fact in enumerate(told):
        sentences.append(person.say(fact.statements[2], fact.content.reworded, called))
        after_other_person = fact.topic.kind in ("who", "why")
        called = person.first if after_other_person or index % 3 == 2 else "pronoun"
    for filler in stream.shuffled(words.FILLERS):
        if len(" ".join(sentences).split()) >= _SHORTEST_PASSAGE:
            break
        sentences.append(person.say(filler, called=called))
        called = "pronoun"
    text = " ".join(sentences)
    return Example(id=f"passage-{person.first}-{person.last}".lower(), prompt="", answer=text, group=person.name)
