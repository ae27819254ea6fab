"""What a file of questions and answers is made of."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from excise.data.benchmarks.fivew import same
from excise.evaluation.score import wilson
from excise.fivew.asking import WS, asked
from excise.fivew.clean import Dropped, clean
from excise.fivew.rows import Pair

MONTHS = "january|february|march|april|may|june|july|august|september|october|november|december"
LINK = re.compile(
    rf"\bbecause(?: of)?\b|\bsince\b(?! (?:\d|{MONTHS}))|\bdue to\b|\bowing to\b|\bthanks to\b|\bas a (?:result|consequence)\b|\bso that\b"
    r"|\bin order to\b|\btherefore\b|\bthus\b|\bhence\b|\bthereby\b|\bconsequently\b|\b(?:led|leads|leading|lead) to\b"
    r"|\b(?:resulted|results|resulting|result) (?:in|from)\b|\bcaus(?:ed|es|ing)\b|\b(?:allow|enabl|prompt|forc)(?:ed|es|s|ing)\b"
    r"|\bmeant\b|\bmeans that\b|\bwhich (?:made|makes)\b",
    re.IGNORECASE,
)
"""Words that say that one thing follows from another."""
CHAIN = 2
"""Links from which on an answer counts as multi-hop."""
SHOWN = 10

Tokens = Callable[[str], int]


def profile(pairs: Sequence[Pair], near: float, shown: int = SHOWN, tokens: Tokens | None = None) -> dict[str, Any]:
    """Shares of the five classes, lengths of answers, multi-hop share, and how much is there twice.

    An answer is multi-hop where it links at least two steps: two causal phrases ("because", "which led to", "so that", ...). This is a
    surface count that misses links without such words.

    Args:
        tokens: how many tokens a text has; None leaves the token lengths out.

    Returns:
        ``rows``; ``distinct``: ``questions`` word for word, ``normalised`` without case, punctuation and spaces, ``near`` without nearly the
        same ones too; ``classes``: for each of the five and for ``none`` rows, share with its 95 % interval, ``answer_words``, ``answer_tokens``
        and ``multi_hop``, of all rows and of distinct questions; ``most_repeated``; ``given_labels``.
    """
    asking = [asked(pair.question) for pair in pairs]
    first = list({same(pair.question): place for place, pair in reversed(list(enumerate(pairs))) if same(pair.question)}.values())[::-1]
    dropped = Dropped()
    kept = clean([pairs[i] for i in sorted(first)], WS, near, dropped)
    classed = [a.w or "none" for a in asking]
    return {
        "rows": len(pairs),
        "distinct": {
            "questions": len({pair.question for pair in pairs if pair.question}),
            "normalised": len(first),
            "near": len(first) - len(dropped.ids.get("nearly the same question", ())),
        },
        "usable": {w: sum(item.w == w for item in kept) for w in WS},
        "classes": _classes(pairs, classed, tokens),
        "classes_distinct": _classes([pairs[i] for i in sorted(first)], [classed[i] for i in sorted(first)], tokens),
        "most_repeated": _repeated(pairs, shown),
        "given_labels": _against(pairs, classed),
    }


def hops(answer: str) -> int:
    """How many causal links an answer names."""
    return len(LINK.findall(answer))


def _classes(pairs: Sequence[Pair], classed: Sequence[str], tokens: Tokens | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for w in (*WS, "none", "all"):
        answers = [pair.answer for pair, of in zip(pairs, classed, strict=True) if w in (of, "all") and pair.answer]
        rows = sum(w in (of, "all") for of in classed)
        row: dict[str, Any] = {"rows": rows, "share": rows / len(pairs) if pairs else None}
        row["share_ci95"] = list(wilson(rows, len(pairs))) if pairs and w != "all" else None
        row["answer_words"] = _lengths([len(answer.split()) for answer in answers])
        if tokens is not None:
            row["answer_tokens"] = _lengths([tokens(answer) for answer in answers])
        row["multi_hop"] = sum(hops(answer) >= CHAIN for answer in answers) / len(answers) if answers else None
        found[w] = row
    return found


def _lengths(values: Sequence[int]) -> dict[str, float] | None:
    if not values:
        return None
    return {
        "mean": round(float(np.mean(values)), 2),
        "median": float(np.median(values)),
        "p90": float(np.percentile(values, 90)),
        "max": float(max(values)),
    }


def _repeated(pairs: Sequence[Pair], shown: int) -> list[dict[str, Any]]:
    """The questions that stand there most often, by the id of their first row."""
    times = Counter(same(pair.question) for pair in pairs if same(pair.question))
    first: dict[str, str] = {}
    for pair in pairs:
        first.setdefault(same(pair.question), pair.id)
    return [{"id": first[question], "times": count} for question, count in times.most_common(shown) if count > 1]


def _against(pairs: Sequence[Pair], classed: Sequence[str]) -> dict[str, Any] | None:
    """How far labels that the rows bring agree with the rule's."""
    both = [(pair, w) for pair, w in zip(pairs, classed, strict=True) if pair.given]
    if not both:
        return None
    other = [(pair, w) for pair, w in both if pair.given != w]
    return {
        "rows": len(both),
        "agreement": 1 - len(other) / len(both),
        "disagreements": {f"{given} -> {w}": n for (given, w), n in Counter((pair.given, w) for pair, w in other).most_common()},
        "first": [{"id": pair.id, "given": pair.given, "rule": w} for pair, w in other[:SHOWN]],
    }


def lines(found: dict[str, Any]) -> list[str]:
    """A profile as a table for a person, one line each."""
    distinct = found["distinct"]
    text = [
        f"{found['rows']:,} rows, {distinct['questions']:,} distinct questions "
        f"({distinct['normalised']:,} but for case and punctuation, {distinct['near']:,} without near duplicates)",
        "",
        f"{'':6}{'rows':>8}{'share':>9}{'95 % interval':>18}{'distinct':>10}{'words':>8}{'tokens':>8}{'multi-hop':>11}",
    ]
    for w, row in found["classes"].items():
        interval = "" if row["share_ci95"] is None else " - ".join(f"{100 * end:.2f}" for end in row["share_ci95"])
        words, tokens = ("" if row.get(key) is None else f"{row[key]['mean']:.1f}" for key in ("answer_words", "answer_tokens"))
        hop = "" if row["multi_hop"] is None else f"{100 * row['multi_hop']:.1f} %"
        share = "" if row["share"] is None else f"{100 * row['share']:.2f} %"
        text.append(f"{w:6}{row['rows']:>8,}{share:>9}{interval:>18}{found['classes_distinct'][w]['rows']:>10,}{words:>8}{tokens:>8}{hop:>11}")
    if found["most_repeated"]:
        text += ["", "most often: " + ", ".join(f"{row['id']} {row['times']} times" for row in found["most_repeated"][:3])]
    if (given := found["given_labels"]) is not None:
        text.append(f"labels of the file: {100 * given['agreement']:.1f} % of {given['rows']:,} as the rule has them")
    return text
