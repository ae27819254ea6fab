"""Which W a question asks for: a table of cases, and the precision on rows that were labelled by reading them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from conftest import REPOSITORY
from excise.data.benchmarks.strangers import Strangers
from excise.fivew.asking import WS, asked

LABELS = REPOSITORY / "tests" / "golden" / "fivew_labels.json"


@pytest.mark.parametrize(
    ("question", "w"),
    [
        ("Who wrote the book?", "who"),
        ("By whom was the book written?", "who"),
        ("Whose lute was it?", "who"),
        ("Which painter lived in Marrow?", "who"),
        ("What is the name of the author of the book?", "who"),
        ("What was the pilot's name?", "who"),
        ("A new manager came to the club. What is his name?", "who"),
        ("The text speaks of a famous economist. Who is it?", "who"),
        ("Name the founder of the city.", "who"),
        ("Could you please name the inventor of the lamp?", "who"),
        ("When did the lighthouse open?", "when"),
        ("In what year did the lighthouse open?", "when"),
        ("It opened in a specific year. Which one was it?", "when"),
        ("What is Ada's date of birth?", "when"),
        ("How long ago did it open?", "when"),
        ("Where was she born?", "where"),
        ("In which city was she born?", "where"),
        ("What is Ada's place of birth?", "where"),
        ("At which university did she teach?", "where"),
        ("What is the capital of the island?", "where"),
        ("A song topped the charts in a specific country. Which country was it?", "where"),
        ("Why did it close?", "why"),
        ("For what reason did it close?", "why"),
        ("What caused the fire?", "why"),
        ("What was the reason that it closed?", "why"),
        ("How come it closed?", "why"),
        ("What did she play?", "what"),
        ("Which university is the oldest?", "what"),
        ("How many ships were lost?", "what"),
        ("How old was the painter?", "what"),
        ("What is the running time of the film?", "what"),
        ("What area of research made her known?", "what"),
        ("What is the state of the bridge?", "what"),
        ("What is he known for?", "what"),
        ("When the war ended, who led the town?", "who"),
        ("In the year when it opened, what was shown?", "what"),
        ("The film 'What Women Want' was made in a specific month. Which month was it?", "when"),
        ("According to the man who saw it, where did it happen?", "where"),
        ("Who did Pres. Hill meet?", "who"),
        ("who wrote the book", "who"),
        ("what's the name of the singer", "who"),
        ("How did they build it?", None),
        ("Did she play the lute?", None),
        ("The lute is old.", None),
        ("", None),
    ],
)
def test_what_a_question_asks_for(question: str, w: str | None) -> None:
    assert asked(question).w == w, asked(question)


def test_the_precision_on_rows_that_were_read(shared: Path) -> None:
    """The rule was written on the other rows, and what it got wrong here was left as it is; docs/fivew.md states the figures."""
    golden = json.loads(LABELS.read_text())
    rows = [json.loads(line) for line in (shared / "data" / "fivewbench" / "final_dataset_validated.json").read_text().splitlines()]
    assert len(golden["rows"]) == 200
    right: Counter[str] = Counter()
    assigned: Counter[str] = Counter()
    by_stratum: dict[str, list[bool]] = {}
    for number, (label, _) in golden["rows"].items():
        row = rows[int(number) - 1]
        w = asked(row["question"]).w
        if w is not None:
            assigned[w] += 1
            right[w] += w == label
            by_stratum.setdefault(row["label"], []).append(w == label)
    precision = {w: right[w] / assigned[w] for w in WS}
    assert (sum(right.values()), sum(assigned.values())) == (192, 199)
    assert {w: round(value, 3) for w, value in precision.items()} == {"who": 0.977, "what": 0.981, "when": 0.974, "where": 0.895, "why": 1.0}
    sizes = golden["strata"]
    whole = sum(sizes[label] * sum(found) / len(found) for label, found in by_stratum.items()) / sum(sizes.values())
    assert whole == pytest.approx(0.969, abs=0.001)


def test_labels_hold_no_text_of_the_rows(shared: Path) -> None:
    text = LABELS.read_text()
    rows = [json.loads(line) for line in (shared / "data" / "fivewbench" / "final_dataset_validated.json").read_text().splitlines()]
    assert not [row["question"] for row in rows if row["question"] in text]


def test_the_questions_of_strangers() -> None:
    """Another source, with labels by construction: the nouns of four relations were added for it, so this is no measure of precision."""
    benchmark = Strangers()()
    examples = [*benchmark.forget, *benchmark.retain]
    assert sum(asked(example.prompt).w == example.label for example in examples) >= 0.97 * len(examples)
