"""Which score of answer tokens finds the fact? Average precision against the facts of a taught world.

    python -m studies.attribution [--tofu FOLDER] [--taught FOLDER] [--base embedded:smollm2] [--gradients 20] [--out docs/results/attribution]

The world is the demo's strangers with their marked spans, or TOFU's forget01 and eight authors to keep where ``--tofu`` gives TOFU's files (the facts
are then the names, nouns and numbers that the question lacks, as fact recall derives them). ``--taught`` is what `excise teach` wrote for it; without
it target and twin are taught now, once. A token is right where any of its characters belongs to the fact. In the column "words" only the fact's
content words are right, and what else stands in the span ("in the", "of") counts neither as right nor as wrong. Writes OUT.json and OUT.svg and
prints the table, the whole with 95 % intervals (bootstrap over answers), then by who, what, when, where, why, and by length.

The twin was taught the retain facts too, so the contrast with it is taken on the forget answers only; the columns of the others that say
``forget`` are on the same answers.

Scores by gradients cost a backward pass for each token, so they are taken on the first ``--gradients`` forget answers only.
"""

from __future__ import annotations

import argparse
import platform
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from sklearn.metrics import average_precision_score

from excise.data.encode import Encoded, encode
from excise.data.example import Example, spread
from excise.data.nouns import Nouns
from excise.evaluation.metrics.facts import FactRecall, words
from excise.evaluation.score import mean_score
from excise.files import write_json, write_text
from excise.loading import ModelSpec, load
from excise.report import plots
from excise.report.result import Score
from excise.subject import Subject
from excise.token_scores import attribute
from excise.weights import Attribution
from excise.weights.masking import Masking
from studies.figures import standalone
from studies.world import add_world, world_of

R = 0.2
"""Share of the tokens that TokenUnlearn's hard form selects."""
RETAINED = 80
"""Retain answers that count, spread over all."""
NAMES = Nouns(names_only=True)
WORD = re.compile(r"\w+(?:,\d{3})*")


@dataclass(frozen=True)
class Answer:
    """One answer's tokens: which of them carry the fact, and what each score says of them."""

    label: str
    forget: bool
    right: np.ndarray
    content: np.ndarray
    """Which of the right ones belong to a content word."""
    scores: Mapping[str, np.ndarray]


def settings(twin: str, base: str) -> dict[str, Attribution]:
    """The scores that the library has, the paper's own first."""
    best: dict[str, Any] = {"copies": "drop", "unit": "word"}
    return {
        "paper: nouns of the question hidden": Attribution(),
        "paper, copies dropped": Attribution(copies="drop"),
        "paper, copies dropped, by word": Attribution(**best),
        "mentions hidden, copies dropped": Attribution(hide="mentions", copies="drop"),
        "mentions hidden, copies dropped, by word": Attribution(hide="mentions", **best),
        "invented names, copies dropped": Attribution(hide="mentions", copies="drop", mask="names", nouns=NAMES),
        "invented names, copies dropped, by word": Attribution(hide="mentions", mask="names", nouns=NAMES, **best),
        "entropy only": Attribution(alpha=0.0),
        "entropy only, copies dropped, by word": Attribution(alpha=0.0, **best),
        "contrast with the twin": Attribution(contrast=twin, alpha=1.0),
        "contrast with the twin, copies dropped, by word": Attribution(contrast=twin, alpha=1.0, **best),
        "contrast with the model before teaching": Attribution(contrast=base, alpha=1.0),
        "contrast with the model before teaching, copies dropped, by word": Attribution(contrast=base, alpha=1.0, **best),
    }


def right_tokens(text: Encoded, example: Example) -> tuple[np.ndarray, np.ndarray]:
    """For each scored token, whether it belongs to the fact, and whether to one of its content words."""
    facts = set(FactRecall().fact_words(example))
    begin = example.answer.find(example.span) if example.span else 0
    end = begin + len(example.span or example.answer)
    places = [m.span() for m in WORD.finditer(example.answer) if m.start() < end and m.end() > begin and facts & set(words(m[0]))]

    def tokens(spans: Sequence[tuple[int, int]]) -> np.ndarray:
        inside = {i for a, b in spans for i in text.tokens_within(text.answer[0] + a, text.answer[0] + b)}
        return np.array([i in inside for i in range(text.start, len(text))])

    content = tokens(places)
    return tokens([(begin, end)]) if example.span else content, content


def gradient_scores(subject: Subject, text: Encoded, masking: Masking) -> dict[str, np.ndarray]:
    """For each scored token the gradient of its log-probability: norm at the question's nouns, and input times gradient there."""
    hidden = masking.hidden(text)
    table = cast(Any, subject.embedding)
    rows = table(torch.tensor([list(text.ids)], device=subject.device)).detach().float().requires_grad_(True)
    logits = cast(Any, subject.model)(inputs_embeds=rows, use_cache=False).logits[0].float()
    logp = torch.log_softmax(logits, dim=-1)
    norms: list[float] = []
    products: list[float] = []
    for i in range(text.start, len(text)):
        (gradient,) = torch.autograd.grad(logp[i - 1, text.ids[i]], rows, retain_graph=True)
        here = gradient[0, hidden]
        norms.append(float(here.norm()))
        products.append(float((here * rows.detach()[0, hidden]).sum().abs()))
    return {"gradient norm at the nouns": np.array(norms), "gradient times input at the nouns": np.array(products)}


def collected(subject: Subject, examples: Sequence[Example], variants: Mapping[str, Attribution], forget: int, gradients: int) -> list[Answer]:
    """The answers with all scores; gradients for the first so many only."""
    texts = [encode(subject.tokenizer, subject.template, e) for e in examples]
    tables: dict[str, list[np.ndarray]] = {}
    for name, attribution in variants.items():
        begun = time.perf_counter()
        rows = attribute(subject, examples[:forget] if "twin" in name else examples, attribution)
        tables[name] = [np.array([token["phi"] for token in row["tokens"]]) for row in rows]
        print(f"  {name}: {time.perf_counter() - begun:.1f} s", flush=True)
    answers: list[Answer] = []
    for n, (example, text) in enumerate(zip(examples, texts, strict=True)):
        scores = {name: columns[n] for name, columns in tables.items() if n < len(columns)}
        if n < gradients:
            scores |= gradient_scores(subject, text, Masking())
        answers.append(Answer(example.label, n < forget, *right_tokens(text, example), scores))
    return answers


def precision_at(right: np.ndarray, scores: np.ndarray, r: float = R) -> float:
    """Share of right tokens among the top ceil(r n), ties by position."""
    count = max(1, int(np.ceil(r * len(scores) - 1e-9)))
    return float(right[np.argsort(-scores, kind="stable")[:count]].mean())


def on_words(right: np.ndarray, content: np.ndarray, scores: np.ndarray) -> float:
    """Average precision where the fact's function words count as neither right nor wrong."""
    counted = content | ~right
    return float(average_precision_score(content[counted], scores[counted]))


METRICS: dict[str, Callable[[Answer, np.ndarray], float]] = {
    "average_precision": lambda answer, scores: float(average_precision_score(answer.right, scores)),
    "average_precision_words": lambda answer, scores: on_words(answer.right, answer.content, scores),
    "precision_at_20": lambda answer, scores: precision_at(answer.right, scores),
}


def summary(values: Sequence[float]) -> dict[str, Any]:
    """Mean with its 95 % interval (bootstrap over answers) and the number of answers."""
    found = mean_score(values, "higher", "bootstrap", "no answers").to_json()
    return {name: found[name] for name in ("value", "ci95", "n")}


def rows_of(answers: Sequence[Answer]) -> dict[str, dict[str, Any]]:
    """Score -> metric -> summary: over all answers, by label, and by length (up to the median and beyond)."""
    names = list(dict.fromkeys(name for answer in answers for name in answer.scores))
    median = float(np.median([len(answer.right) for answer in answers]))
    groups: dict[str, Callable[[Answer], bool]] = {"all": lambda _: True, "forget": lambda a: a.forget}
    groups |= {label: (lambda a, label=label: a.label == label) for label in sorted({a.label for a in answers if a.label})}
    groups |= {"short": lambda a: len(a.right) <= median, "long": lambda a: len(a.right) > median}
    table: dict[str, dict[str, Any]] = {}
    for name in ("chance", *names):
        table[name] = {}
        for group, belongs in groups.items():
            members = [a for a in answers if belongs(a) and (name == "chance" or name in a.scores) and a.content.any() and not a.right.all()]
            if not members:
                continue
            for metric, function in METRICS.items():
                values = [float(a.right.mean()) if name == "chance" else function(a, a.scores[name]) for a in members]
                table[name].setdefault(metric, {})[group] = summary(values)
    return table


def figure(table: Mapping[str, Any]) -> str:
    """The average precision of each score as an SVG picture."""
    rows: list[plots.ScoreRow] = []
    for name, metrics in sorted(table.items(), key=lambda item: -item[1]["average_precision"]["all"]["value"]):
        found = metrics["average_precision"]["all"]
        rows.append((name, "higher", [("average precision", 0, Score(found["value"], "higher", found["n"], tuple(found["ci95"]), ""))]))
    return standalone("bars", plots.interval_bars(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add_world(parser)
    parser.add_argument("--base", default="embedded:smollm2")
    parser.add_argument("--gradients", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("docs/results/attribution"))
    arguments = parser.parse_args()
    world = world_of(arguments)
    begun = time.perf_counter()
    subject = load(ModelSpec(path=world.target, system=""))
    forget = world.benchmark.split("forget")
    examples = [*forget, *spread(world.benchmark.split("retain"), RETAINED)]
    answers = collected(subject, examples, settings(world.twin, arguments.base), len(forget), arguments.gradients)
    table = rows_of(answers)
    seconds = time.perf_counter() - begun
    found = {
        "command": "python -m studies.attribution" + ("" if arguments.tofu is None else " --tofu TOFU"),
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads",
        "versions": {name: version(name) for name in ("torch", "transformers", "spacy", "scikit-learn")},
        "seconds": round(seconds, 1),
        "answers": len(examples),
        "tokens": int(sum(len(a.right) for a in answers)),
        "table": table,
    }
    write_json(arguments.out.with_suffix(".json"), found)
    write_text(arguments.out.with_suffix(".svg"), figure(table))
    print_table(table)
    print(f"{len(examples)} answers, {seconds:.0f} s; {arguments.out}.json, {arguments.out}.svg")


def print_table(table: Mapping[str, Any]) -> None:
    groups = list(table["chance"]["average_precision"])
    print(f"| score | average precision | words | precision at {R:g} | {' | '.join(groups[1:])} |\n|---|---|---|---|{'---|' * (len(groups) - 1)}")
    for name, metrics in sorted(table.items(), key=lambda item: -item[1]["average_precision"]["all"]["value"]):
        first, second, third = (metrics[metric]["all"] for metric in METRICS)
        each = [f"{metrics['average_precision'][g]['value']:.2f}" if g in metrics["average_precision"] else "–" for g in groups[1:]]
        interval = f"{first['value']:.2f} [{first['ci95'][0]:.2f}, {first['ci95'][1]:.2f}]"
        print(f"| {name} (n = {first['n']}) | {interval} | {second['value']:.2f} | {third['value']:.2f} | {' | '.join(each)} |")


if __name__ == "__main__":
    main()
