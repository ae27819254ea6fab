"""How good are the judges? Answers whose right verdict is known by construction, from the files of 5WBENCH and TOFU.

    python benchmarks/judges.py FOLDER [--tofu FILE] [--rows 200] [--judges contains similarity] [--set judges.model.path=FOLDER ...]

For each question the true answer is put into a sentence (right), the file's false answer into the same sentence (wrong), and a true
answer of another question of the same kind (unrelated, wrong). For "why" the right one is what follows "because" in the true answer:
5WBENCH holds no paraphrases. TOFU's perturbed files do: there the whole answer is the truth, its paraphrase right, the first perturbed
answer (the paraphrase with another fact) wrong. FOLDER holds forget_set_fixed.json and retain_set_fixed.json; FILE is a
forget*_perturbed.json (JSON lines).
"""

from __future__ import annotations

import argparse
import platform
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np

from excise.evaluation.judges import Item, Judge
from excise.evaluation.judges.agreement import kappas
from excise.evaluation.judges.compare import build_judges
from excise.evaluation.judges.similarity import Similarity
from excise.evaluation.judges.wording import contains, normal_words
from excise.files import read_json, read_lines

FRAMES = (
    "It was {}.",
    "{}.",
    "As far as I know, the answer to that question is {}.",
    "The claim says that it was {}, although other sources may see this differently.",
    "I am not entirely sure about this. I would say {}. Please check it in a reliable source.",
)
GROUPS = ("short", "why", "tofu")


@dataclass(frozen=True)
class Case:
    """An item and its right verdict."""

    kind: str
    """right, wrong (the file's false answer) or unrelated."""
    item: Item

    @property
    def group(self) -> str:
        return self.item.label if self.item.label in ("why", "tofu") else "short"

    @property
    def right(self) -> bool:
        return self.kind == "right"


def cases(folder: Path, rows: int, seed: int) -> list[Case]:
    """The cases of so many questions, each label alike."""
    loaded = [row for name in ("forget_set_fixed.json", "retain_set_fixed.json") for row in read_json(folder / name)]
    distinct = list({row["question"]: row for row in loaded if _usable(row)}.values())
    draw = random.Random(seed)
    draw.shuffle(distinct)
    found: list[Case] = []
    for label in ("who", "what", "when", "where", "why"):
        own = [row for row in distinct if row["label"] == label]
        for index, row in enumerate(own[: rows // 5]):
            other = next(r["answer"] for r in draw.sample(own, len(own)) if not _same(r["answer"], row["answer"]))
            texts = {"right": _core(row["answer"]) if label == "why" else row["answer"], "wrong": row["pred_answer"], "unrelated": other}
            frame = "{}" if label == "why" else FRAMES[index % len(FRAMES)]
            found += [Case(kind, Item("truth", row["question"], frame.format(text), row["answer"], label)) for kind, text in texts.items()]
    return found


def paraphrases(file: Path, rows: int, seed: int) -> list[Case]:
    """TOFU's paraphrased and perturbed answers; long truths only, since short ones are looked for word by word."""
    loaded = read_lines(file)
    draw = random.Random(seed)
    draw.shuffle(loaded)
    found: list[Case] = []
    for index, row in enumerate(loaded[:rows]):
        texts = {"right": row["paraphrased_answer"], "wrong": row["perturbed_answer"][0], "unrelated": loaded[index - 1]["paraphrased_answer"]}
        found += [Case(kind, Item("truth", row["question"], text, row["answer"], "tofu")) for kind, text in texts.items()]
    return [case for case in found if len(case.item.truth.split()) >= 11]


def _usable(row: dict[str, str]) -> bool:
    known = row["label"] != "why" or " because " in row["answer"]
    return known and bool(normal_words(row["answer"])) and not _same(row["answer"], row["pred_answer"])


def _same(a: str, b: str) -> bool:
    return contains(a, b) or contains(b, a)


def _core(answer: str) -> str:
    return "Because " + answer.partition(" because ")[2]


def table(judge: Judge, all_cases: Sequence[Case]) -> None:
    """Prints how often the judge says yes to each kind, and its agreement with the right verdicts."""
    begun = time.perf_counter()
    verdicts = list(judge([case.item for case in all_cases]))
    seconds = time.perf_counter() - begun
    for name in GROUPS:
        chosen = [(case, verdict) for case, verdict in zip(all_cases, verdicts, strict=True) if case.group == name]
        if not chosen:
            continue
        shares = [_share([bool(v.yes) for c, v in chosen if c.kind == kind]) for kind in ("right", "wrong", "unrelated")]
        answers = np.array([[case.right, bool(verdict.yes)] for case, verdict in chosen], dtype=np.float64)
        kappa = float(kappas(np.ones((1, len(answers))), answers)[0])
        accuracy = float((answers[:, 0] == answers[:, 1]).mean())
        open_ = sum(verdict.score is None for _, verdict in chosen)
        cells = [f"{judge.name:<11} {name:<6}", *(f"{share:9.3f}" for share in shares), f"{accuracy:9.3f} {kappa:7.3f} {open_:9d}"]
        print(*cells, f"{1000 * seconds / len(all_cases):9.0f}")


def _share(values: Sequence[bool]) -> float:
    return sum(values) / len(values)


def calibrate(judge: Similarity, all_cases: Sequence[Case]) -> None:
    """Prints, for each threshold, the share of right and of wrong answers that pass it; unrelated ones count as wrong."""
    cosines = judge.cosines([case.item for case in all_cases])
    print("\nsimilarity: threshold, share of right / wrong / unrelated answers above it, balanced accuracy (of right against wrong)")
    for name in dict.fromkeys(case.group for case in all_cases):
        for threshold in np.arange(0.5, 0.96, 0.05):
            passed = {
                kind: _share([c >= threshold for case, c in zip(all_cases, cosines, strict=True) if case.group == name and case.kind == kind])
                for kind in ("right", "wrong", "unrelated")
            }
            balanced = (passed["right"] + 1 - passed["wrong"]) / 2
            print(f"{name:<6} {threshold:.2f} {passed['right']:9.3f} {passed['wrong']:9.3f} {passed['unrelated']:9.3f} {balanced:9.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tofu", type=Path, default=None)
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--judges", nargs="+", default=["contains", "similarity"])
    parser.add_argument("--set", action="append", default=[], dest="settings")
    parser.add_argument("--calibrate", action="store_true", help="also the thresholds of similarity")
    chosen = parser.parse_args()
    all_cases = cases(chosen.folder, chosen.rows, chosen.seed)
    if chosen.tofu is not None:
        all_cases += paraphrases(chosen.tofu, chosen.rows, chosen.seed)
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "rouge-score"))
    print(f"{len(all_cases)} items; {platform.machine()}, Python {platform.python_version()}, {versions}")
    head = ["judge", "kind", "right", "wrong", "unrelated", "accuracy", "kappa", "undecided", "ms/item"]
    print("{:<11} {:<6} {:>9} {:>9} {:>9} {:>9} {:>7} {:>9} {:>9}".format(*head))
    judges = build_judges(chosen.judges, chosen.settings)
    for judge in judges:
        table(judge, all_cases)
    if chosen.calibrate:
        calibrate(next((judge for judge in judges if isinstance(judge, Similarity)), Similarity()), all_cases)


if __name__ == "__main__":
    main()
