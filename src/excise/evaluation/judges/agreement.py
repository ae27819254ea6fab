"""Do two judges say the same? Agreement, Cohen's kappa, and what they disagree on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from excise.errors import InputError
from excise.evaluation.judges import Item, Judge, refuse_others
from excise.evaluation.judges.journal import remembered
from excise.evaluation.judges.judging import Progress, item_of
from excise.evaluation.records import Record, Verdict
from excise.evaluation.score import Array, bootstrap, wilson


@dataclass(frozen=True)
class Pair:
    """What two judges say about one item."""

    item: Item
    first: Verdict
    second: Verdict


@dataclass(frozen=True)
class Agreement:
    """Two judges compared."""

    judges: tuple[str, str]
    aspect: str
    pairs: tuple[Pair, ...]
    """One for each distinct item."""
    repeated: int
    """Records that ask what another one asked already; they count once."""

    @property
    def decided(self) -> tuple[Pair, ...]:
        """Those that both judges decided."""
        return tuple(pair for pair in self.pairs if pair.first.yes is not None and pair.second.yes is not None)

    @property
    def undecided(self) -> dict[str, int]:
        """How many items the first judge, the second, and both left undecided."""
        open_ = [(pair.first.yes is None, pair.second.yes is None) for pair in self.pairs]
        return {"first": sum(a for a, _ in open_), "second": sum(b for _, b in open_), "both": sum(a and b for a, b in open_)}

    @property
    def disagreements(self) -> tuple[Pair, ...]:
        return tuple(pair for pair in self.decided if pair.first.yes is not pair.second.yes)

    def confusion(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Counts [first says yes, no][second says yes, no]."""
        answers = [(pair.first.yes, pair.second.yes) for pair in self.decided]
        return (answers.count((True, True)), answers.count((True, False))), (answers.count((False, True)), answers.count((False, False)))

    def to_json(self) -> dict[str, Any]:
        """Numbers, and the texts of the disagreements."""
        n = len(self.decided)
        same = n - len(self.disagreements)
        kappa, interval, reason = self.kappa()
        return {
            "judges": list(self.judges),
            "aspect": self.aspect,
            "n": n,
            "agreement": same / n if n else None,
            "agreement_ci95": list(wilson(same, n)) if n else None,
            "kappa": kappa,
            "kappa_ci95": interval,
            "kappa_unavailable": reason,
            "confusion": [list(row) for row in self.confusion()],
            "undecided": self.undecided,
            "repeated": self.repeated,
            "disagreements": [_shown(pair) for pair in self.disagreements],
        }

    def kappa(self) -> tuple[float | None, list[float] | None, str]:
        """Cohen's kappa, its bootstrap interval over items, and why there is none."""
        if not self.decided:
            return None, None, "there is no item that both judges decided"
        answers = np.array([[pair.first.yes, pair.second.yes] for pair in self.decided], dtype=np.float64)
        n = len(answers)
        value = float(kappas(np.ones((1, n)), answers)[0])
        if not np.isfinite(value):
            return None, None, "both judges always say the same, so agreement by chance is certain"
        interval = bootstrap(lambda counts: kappas(counts, answers), [n])
        return value, None if interval is None else list(interval), ""


def kappas(counts: Array, answers: Array) -> Array:
    """Cohen's kappa (p_o - p_e) / (1 - p_e) for each resample, p_e = p_a p_b + (1 - p_a)(1 - p_b); NaN where p_e is 1.

    Args:
        counts: how often each item was drawn [resamples, items].
        answers: 1 for yes, 0 for no [items, 2].
    """
    share = counts / counts.sum(axis=1, keepdims=True)
    first, second = share @ answers[:, 0], share @ answers[:, 1]
    observed = share @ (answers[:, 0] == answers[:, 1]).astype(np.float64)
    chance = first * second + (1 - first) * (1 - second)
    rest = 1 - chance
    return np.where(rest > 1e-12, (observed - chance) / np.where(rest > 1e-12, rest, 1.0), np.nan)


def agreement(
    records: Sequence[Record], first: Judge, second: Judge, aspect: str = "truth", *, cache: Path | None = None, progress: Progress | None = None
) -> Agreement:
    """Asks two judges about the generations of the records.

    Raises:
        InputError: no record has a generation; a judge that does not decide the aspect, or cannot be used.
    """
    asked = [item_of(record, aspect) for record in records if record.generation is not None]
    if not asked:
        raise InputError(f"none of the {len(records)} records has a generation, so there is nothing to judge: evaluate with a suite that generates")
    items = list(dict.fromkeys(asked))
    for judge in (first, second):
        refuse_others(judge, items)
    verdicts = [_verdicts(judge, items, cache, progress) for judge in (first, second)]
    pairs = tuple(Pair(item, verdicts[0][item], verdicts[1][item]) for item in items)
    return Agreement((first.name, second.name), aspect, pairs, len(asked) - len(items))


def _verdicts(judge: Judge, items: Sequence[Item], cache: Path | None, progress: Progress | None) -> dict[Item, Verdict]:
    found: dict[Item, Verdict] = {}
    for item, verdict in remembered(judge, items, cache):
        found[item] = verdict
        if progress is not None:
            progress(f"{judge.name}: judging", len(found), len(items))
    return found


def _shown(pair: Pair) -> dict[str, Any]:
    item = pair.item
    verdicts = [{"judge": v.judge, "score": v.score, "reason": v.reason} for v in (pair.first, pair.second)]
    return {"question": item.prompt, "truth": item.truth, "answer": item.answer, "label": item.label, "verdicts": verdicts}
