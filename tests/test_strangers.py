"""The benchmark `strangers`: its people are complete, well-formed, alike in part, and the same on every machine."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from excise.data.benchmarks import strangers_words as words
from excise.data.benchmarks.real_world import real_world_examples
from excise.data.benchmarks.strangers import KINDS, MOST_PEOPLE, Strangers
from excise.data.example import Benchmark, Example
from excise.errors import InputError

DEFAULT_FINGERPRINT = "48de2ff42c6a396a6e32bc75dfd6e5a9bd5c7b379bfa561b158f22d60cfe3b50"
STOP_WORDS = frozenset(
    [
        "a", "an", "the", "of", "in", "on", "by", "to", "and", "so", "that", "then", "after", "once",
        "while", "at", "when", "was", "were", "is", "from", "for", "with", "no", "not", "only", "every",
        "all", "he", "she", "his", "her", "him",
    ]
)  # fmt: skip


def words_of(text: str) -> list[str]:
    return re.findall(r"[\w'-]+", text.lower())


def people_of(benchmark: Benchmark, split: str) -> set[str]:
    return {example.group for example in benchmark.splits[split]}


@functools.cache
def default(seed: int) -> Benchmark:
    """The benchmark of the default sizes."""
    return Strangers(seed=seed)()


def facts_of(benchmark: Benchmark) -> tuple[Example, ...]:
    return benchmark.forget + benchmark.retain + benchmark.splits["holdout"]


def answer_patterns(benchmark: Benchmark) -> dict[str, tuple[str, ...]]:
    """For each person, the answers without the person's name and without the fact."""
    patterns: dict[str, list[str]] = defaultdict(list)
    for example in facts_of(benchmark):
        pattern = example.answer.replace(example.span, "(fact)").replace(example.group, "(name)")
        patterns[example.group].append(re.sub(r"\b(her|his|woman|man)\b", "(pronoun)", pattern))
    return {name: tuple(found) for name, found in patterns.items()}


def test_default_is_the_same_as_ever() -> None:
    assert default(0).fingerprint == DEFAULT_FINGERPRINT


def test_hash_seed_does_not_matter() -> None:
    code = "from excise.data.benchmarks.strangers import Strangers; print(Strangers()().fingerprint)"
    environment = {**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == DEFAULT_FINGERPRINT


def test_another_seed_gives_other_people() -> None:
    names = [people_of(default(seed), "retain") for seed in range(4)]
    assert all(len(names[0] & other) <= 1 for other in names[1:])


def test_default_sizes() -> None:
    sizes = {split: len(examples) for split, examples in default(0).splits.items()}
    neighbours, real_world = sizes.pop("neighbours"), sizes.pop("real_world")
    assert neighbours >= 12
    assert real_world >= 60
    assert sizes == {
        "forget": 20,
        "retain": 80,
        "holdout": 20,
        "passages_forget": 4,
        "passages_retain": 16,
        "passages_holdout": 4,
    }


@settings(max_examples=10, deadline=None)
@given(
    forget=st.integers(1, 5),
    retain=st.integers(1, 8),
    holdout=st.integers(0, 2),
    facts=st.integers(1, 10),
    seed=st.integers(0, 10**6),
)
def test_every_fact_is_well_formed(forget: int, retain: int, holdout: int, facts: int, seed: int) -> None:
    benchmark = Strangers(forget, retain, holdout, facts, seed)()
    for split, count in (("forget", forget), ("retain", retain), ("holdout", holdout)):
        assert len(people_of(benchmark, split)) == count
        assert len(benchmark.splits[split]) == count * facts
        per_person = Counter((example.group, example.label) for example in benchmark.splits[split])
        for index, kind in enumerate(KINDS):
            expected = facts // 5 + (index < facts % 5)
            assert all(per_person[name, kind] == expected for name in people_of(benchmark, split))
    for example in facts_of(benchmark):
        check_fact(example)
    for split in ("passages_forget", "passages_retain", "passages_holdout"):
        for passage in benchmark.splits[split]:
            assert 80 <= len(passage.answer.split()) <= 160
            assert passage.prompt == ""
            assert "{" not in passage.answer


def check_fact(example: Example) -> None:
    prompts = (example.prompt, *example.paraphrased_prompts)
    answers = (example.answer, example.paraphrased_answer, *example.false_answers)
    assert len(set(prompts)) == 3
    assert len(set(answers)) == 7
    assert len(example.false_answers) == 5
    assert example.gold is not None
    assert len(set(example.options)) == 4
    assert example.options[example.gold] in example.span
    if example.label != "why":
        assert example.options[example.gold] == example.span
        assert example.span in example.paraphrased_answer
        assert not any(example.span in false for false in example.false_answers)
        assert 1 <= len(set(words_of(example.span)) - STOP_WORDS) <= 4
    facts = set(words_of(example.span)) - STOP_WORDS
    for prompt in prompts:
        assert not facts & set(words_of(prompt)), (prompt, example.span)
    texts = (*prompts, *answers, example.alternative)
    assert all(text[-1] in ".?" and "{" not in text and "  " not in text for text in texts)
    assert all(text[0] == text[0].upper() for text in texts)
    assert all(example.group in text for text in (*prompts, *answers))
    wrong_pronouns = {"he", "him", "his"} if example.group.split()[0] in words.WOMEN else {"she", "her"}
    assert not any(wrong_pronouns & set(words_of(text)) for text in (*texts, *example.options))


@pytest.mark.parametrize("seed", range(4))
def test_lengths(seed: int) -> None:
    """Words stand in for tokens here: names take two to three tokens a word, other words about one."""
    for example in facts_of(default(seed)):
        shortest, longest = (18, 36) if example.label == "why" else (4, 16)
        assert shortest <= len(example.answer.split()) <= longest
        assert len(example.prompt.split()) <= 15


def test_lengths_in_tokens(smollm2_folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(smollm2_folder)
    for example in facts_of(default(0)):
        shortest, longest = (25, 45) if example.label == "why" else (4, 26)
        assert shortest <= len(tokenizer(example.answer).input_ids) <= longest
        assert len(tokenizer(example.prompt).input_ids) <= 22


@pytest.mark.parametrize("seed", range(4))
def test_neighbours_share_a_value_with_every_forget_person(seed: int) -> None:
    benchmark = default(seed)
    retain = {example.id: example for example in benchmark.retain}
    neighbours = benchmark.split("neighbours")
    assert len(neighbours) >= 12
    assert all(retain[example.id] is example for example in neighbours)

    def key(example: Example) -> tuple[str, str]:
        return example.label, example.span.split()[-1] if example.label == "when" else example.span

    shared = {key(example) for example in neighbours}
    lent: set[str] = set()
    for name in people_of(benchmark, "forget"):
        kinds = {example.label for example in benchmark.forget if example.group == name and key(example) in shared}
        assert 1 <= len(kinds) <= 3  # one by arrangement, some more by chance
        lent |= kinds
    assert lent == {"who", "what", "when", "where"}
    assert shared <= {key(example) for example in benchmark.forget}


@pytest.mark.parametrize("seed", range(4))
def test_no_name_is_in_two_splits_though_parts_of_names_are(seed: int) -> None:
    benchmark = default(seed)
    forget, retain, holdout = (people_of(benchmark, split) for split in ("forget", "retain", "holdout"))
    assert forget.isdisjoint(retain)
    assert holdout.isdisjoint(forget | retain)
    assert {name.split()[0] for name in forget} <= {name.split()[0] for name in retain}
    assert {name.split()[1] for name in forget} <= {name.split()[1] for name in retain}
    acquaintances = {example.span for example in facts_of(benchmark) if example.label == "who"}
    assert not acquaintances & (forget | retain | holdout)


@pytest.mark.parametrize("seed", range(4))
def test_no_two_people_are_told_in_the_same_sentences(seed: int) -> None:
    patterns = answer_patterns(default(seed))
    assert len(set(patterns.values())) == 24
    assert max(Counter(pattern for found in patterns.values() for pattern in found).values()) <= 3


def test_passages_tell_every_fact_in_other_sentences() -> None:
    benchmark = default(0)
    passages = {example.group: example.answer for example in benchmark.splits["passages_forget"]}
    for example in benchmark.forget:
        passage = passages[example.group]
        assert example.answer not in passage
        assert example.paraphrased_answer not in passage
        told = example.paraphrased_answer if example.label == "why" else example.span
        facts = [word for word in words_of(told) if word not in STOP_WORDS]
        found = sum(word in words_of(passage) for word in facts)
        assert found >= 0.7 * len(facts), (told, passage)


def test_forget_people_stay_when_others_are_added() -> None:
    small = Strangers(forget_people=3, retain_people=5)()
    large = Strangers(forget_people=3, retain_people=60, holdout_people=9)()
    assert small.forget == large.forget
    assert small.splits["passages_forget"] == large.splits["passages_forget"]
    assert Strangers(forget_people=2)().forget == small.forget[:10]


def test_right_options_and_refusals_vary() -> None:
    benchmark = default(0)
    positions = Counter(example.gold for example in benchmark.retain)
    assert min(positions[place] for place in range(4)) >= 8
    assert len(words.REFUSALS) >= 20
    assert len({example.alternative for example in benchmark.retain}) >= 60


def test_every_topic_has_enough_patterns() -> None:
    for topic in words.TOPICS:
        assert len(set(topic.questions)) >= 7
        assert len(set(topic.statements)) >= 8
        if topic.kind != "why":
            values = 1
            for part in topic.parts:
                values *= len(set(part))
            assert values >= 40


def test_real_world_questions_are_well_formed() -> None:
    examples = real_world_examples()
    assert len({example.prompt for example in examples}) == len(examples) >= 60
    assert {example.label for example in examples} >= {"geography", "science", "arithmetic", "language", "history"}
    for example in examples:
        assert example.gold is not None
        assert example.options[example.gold] == example.answer
        assert len(set(example.options)) == 4
        assert set(example.false_answers) == set(example.options) - {example.answer}
    assert min(Counter(example.gold for example in examples).values()) >= 15


def test_no_value_of_a_topic_shares_a_word_with_its_questions() -> None:
    chains = " ".join(text.format_map(defaultdict(str)) for text in (*(plain for plain, _ in words.CAUSES + words.DEEDS), *words.CHAINS))
    links = " ".join((chains, *words.DISASTERS, *words.RELATIVES, *words.PLACES, *words.AGENTS))
    for topic in words.TOPICS:
        values = " ".join(value for part in topic.parts for value in part)
        if topic.kind == "why":
            values = " ".join((links, *(plain.format_map(defaultdict(str)) for plain, _ in topic.conclusions)))
        asked = " ".join(question.format_map(defaultdict(str)) for question in topic.questions)
        assert not set(words_of(values)) & set(words_of(asked)) - STOP_WORDS, topic.name


def test_more_people_than_one_round_of_patterns() -> None:
    benchmark = Strangers(forget_people=2, retain_people=100, holdout_people=2, facts=1)()
    assert len({example.group for example in facts_of(benchmark)}) == 104


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"forget_people": 0}, "forget_people is 0"),
        ({"retain_people": -1}, "retain_people is -1"),
        ({"holdout_people": -1}, "holdout_people is -1"),
        ({"facts": 0}, "facts is 0"),
        ({"facts": 11}, "must be from 1 to 10"),
        ({"retain_people": 100_000}, f"names for {MOST_PEOPLE} only"),
    ],
)
def test_bad_arguments(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        Strangers(**arguments)
    assert "\n" not in str(caught.value)
