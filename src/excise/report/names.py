"""How scores, phases and numbers are called on the page, and in which order they come."""

from __future__ import annotations

from collections.abc import Iterable

from excise.report.result import ATTACK, PHASES, TWIN

METRICS = ("fact_recall", "rouge_l_recall", "contains_truth", "accuracy", "choice_accuracy", "probability", "truth_ratio")
SPLITS = ("forget", "neighbours", "neighbors", "retain", "", "real_authors", "world_facts")
LABELS = ("who", "what", "when", "where", "why")
SPOKEN = {"rouge_l_recall": "ROUGE-L recall", "fsr": "FSR", "rsr": "RSR"}
PHASE_NAMES = {"before": "before", "after": "after", "retrained": "retrained twin"}


def split_of(score: str) -> str:
    """``forget`` of ``forget.fact_recall@why``; empty for a score of the whole suite, such as ``model_utility``."""
    base = score.partition("@")[0]
    return base.partition(".")[0] if "." in base else ""


def metric_of(score: str) -> str:
    """``fact_recall`` of ``forget.fact_recall@why``."""
    base = score.partition("@")[0]
    return base.partition(".")[2] if "." in base else base


def spoken(metric: str) -> str:
    return SPOKEN.get(metric, metric.replace("_", " "))


def phase_name(phase: str) -> str:
    """``relearn, twin`` of ``attack:relearn@retrained``."""
    if not phase.startswith(ATTACK):
        return PHASE_NAMES.get(phase, phase)
    attack = phase.removeprefix(ATTACK)
    return f"{attack.removesuffix(TWIN)}, twin" if attack.endswith(TWIN) else attack


def phase_order(phases: Iterable[str]) -> list[str]:
    """Before, after, retrained; then everything else as it came."""
    unique = list(dict.fromkeys(phases))
    return [p for p in PHASES if p in unique] + [p for p in unique if p not in PHASES]


def score_order(names: Iterable[str]) -> list[str]:
    """Forget first, then what should stay, then the suite's own scores; the plainest metric first."""
    return sorted(dict.fromkeys(names), key=lambda name: (split_rank(split_of(name)), metric_rank(metric_of(name)), name))


def split_rank(split: str) -> int:
    return SPLITS.index(split) if split in SPLITS else len(SPLITS)


def metric_rank(metric: str) -> int:
    return METRICS.index(metric) if metric in METRICS else len(METRICS)


def label_rank(label: str) -> tuple[int, str]:
    return (LABELS.index(label) if label in LABELS else len(LABELS), label)


def readable(value: float | None) -> str:
    """A number with as many digits as a reader needs; tiny p-values keep their exponent."""
    if value is None:
        return "–"
    value += 0.0  # no negative zero
    size = abs(value)
    if size >= 1000:
        text = f"{value:,.0f}"
    elif size >= 10:
        text = f"{value:.1f}"
    elif size == 0 or size >= 0.01:
        text = f"{value:.2f}"
    else:
        text = f"{value:.3f}" if size >= 0.001 else f"{value:.0e}".replace("e-0", "e-")
    return text.replace("-", "\u2212") if text.startswith("-") else text
