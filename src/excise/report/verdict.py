"""What a run measured, in plain sentences that never say more than the numbers do."""

from __future__ import annotations

from excise.report.names import metric_of, metric_rank, phase_name, readable, score_order, split_of, spoken
from excise.report.result import TWIN, Result, Score

UNTESTED = (
    "Not tested: no attack (relearning, quantisation, other phrasings, sampling, probing) was run. "
    "A low score on ordinary questions does not show that the knowledge is gone."
)
STEPS = "steps_to_half"
PROBE = "forget.probe_auc"
NO_TWIN = "No retrained twin was evaluated, so it is not known whether the model now behaves like one that never learned this."


def verdict(result: Result) -> tuple[str, ...]:
    """The lines at the head of a report: what was forgotten, what was kept, and what was not tested."""
    lines = result.verdict or _measured(result)
    return (*lines, *_attacks(result))


def _measured(result: Result) -> tuple[str, ...]:
    after = result.evaluations.get("after")
    if after is None:
        return ("This run holds no evaluation after unlearning, so nothing is said about what was forgotten.",)
    lines: list[str] = []
    for suite in after.suites:
        found = [*_forgotten(result, suite), *_kept(result, suite)]
        lines += [f"{suite}: {line}" for line in found] if len(after.suites) > 1 else found
    if "retrained" not in result.evaluations:
        lines.append(NO_TWIN)
    return tuple(lines) or ("The evaluation after unlearning holds no scores.",)


def _forgotten(result: Result, suite: str) -> list[str]:
    name = chosen(result, suite, "forget")
    after = result.score("after", suite, name) if name else None
    if name is None or after is None:
        return ["Nothing was measured on the forget split after unlearning."]
    what = f"On the forget split {spoken(metric_of(name))}"
    if after.value is None:
        return [f"{what} could not be computed: {after.unavailable or 'the run gives no reason'}."]
    before = result.score("before", suite, name)
    twin = result.score("retrained", suite, name)
    line = f"{what} {_change(before, after)}{_certainty(after)}"
    if twin is not None and twin.value is not None:
        line += f"; the twin that never learned it scores {readable(twin.value)}"
    return [f"{line}.", *_comparisons(before, after, twin)]


def _change(before: Score | None, after: Score) -> str:
    new = readable(after.value)
    if before is None or before.value is None or after.value is None:
        return f"is {new} after unlearning (it was not measured before)"
    old = readable(before.value)
    if old == new:
        return f"stayed at {new}"
    return f"{'fell' if after.value < before.value else 'rose'} from {old} to {new}"


def _certainty(score: Score) -> str:
    parts = [f"95 % interval {readable(score.interval[0])} to {readable(score.interval[1])}"] if score.interval else []
    parts += [f"n = {score.n}"] if score.n is not None else []
    return f" ({', '.join(parts)})" if parts else ""


def _comparisons(before: Score | None, after: Score, twin: Score | None) -> list[str]:
    """What the intervals allow to be said about the differences."""
    lines: list[str] = []
    if before is not None and before.apart_from(after) is False:
        lines.append("The 95 % intervals before and after overlap: the change may be chance.")
    if twin is None or twin.value is None or after.value is None:
        return lines
    if before is not None and before.apart_from(twin) is False:
        lines.append("Before unlearning the model did not score measurably apart from the twin, so this run cannot show forgetting.")
    apart = after.apart_from(twin)
    if apart is False:
        lines.append("After unlearning its 95 % interval overlaps with the twin's: no difference from the twin was measured.")
    elif apart:
        lines.append(f"After unlearning it is measurably {'above' if after.value > twin.value else 'below'} the twin.")
    return lines


def _kept(result: Result, suite: str) -> list[str]:
    """One sentence for each other split, with the metric of the forget split where it has it, and one for the utility."""
    names = score_order(name for name in result.evaluations["after"].suites[suite] if "@" not in name)
    splits = [s for s in dict.fromkeys(map(split_of, names)) if s not in ("", "forget")]
    forget = chosen(result, suite, "forget")
    lines: list[str] = []
    for split in splits:
        same = f"{split}.{metric_of(forget)}" if forget else ""
        name = same if same in names else chosen(result, suite, split)
        if name is not None:
            lines.append(_kept_line(result, suite, name, f"On the {split} split {spoken(metric_of(name))}"))
    if "model_utility" in names:
        lines.append(_kept_line(result, suite, "model_utility", "Model utility"))
    return lines


def _kept_line(result: Result, suite: str, name: str, what: str) -> str:
    after = result.score("after", suite, name)
    before = result.score("before", suite, name)
    if after is None or after.value is None:
        return f"{what} could not be computed: {(after.unavailable if after else '') or 'the run gives no reason'}."
    if before is None or before.value is None:
        return f"{what} {_change(before, after)}."
    if after.better == "higher" and after.value < before.value and readable(after.value) != readable(before.value):
        line = f"{what} kept {readable(after.value)} of {readable(before.value)}"
    else:
        line = f"{what} {_change(before, after)}"
    return f"{line}; the 95 % intervals do not overlap." if before.apart_from(after) else f"{line}."


def _attacks(result: Result) -> list[str]:
    if not result.attacks:
        return [UNTESTED]
    found = [(phase, suite) for phase in result.attacks for suite in result.evaluations[phase].suites]
    return [line for phase, suite in found for line in (_attacked(result, phase, suite), *_way_back(result, phase, suite))]


def _way_back(result: Result, phase: str, suite: str) -> list[str]:
    """How many steps of relearning bring half of what was lost back, and how many the twin needs."""
    mine, twin = result.score(phase, suite, STEPS), result.score(phase + TWIN, suite, STEPS)
    if mine is None:
        return []
    if mine.value is None:
        line = f"Under the attack {phase_name(phase)}: {mine.unavailable}"
    else:
        line = f"Under the attack {phase_name(phase)} about {readable(max(mine.value, 0.0))} steps bring half of what was lost back"
    if twin is not None and twin.value is not None:
        line += f"; the twin, which never knew it, needs about {readable(twin.value)}"
    elif twin is not None:
        line += "; for the twin, which never knew it, they are not enough" if mine.value is not None else "; nor for the twin"
    return [f"{line}."]


def _attacked(result: Result, phase: str, suite: str) -> str:
    if result.score(phase, suite, PROBE) is not None:
        return _probed(result, phase, suite)
    name = chosen(result, suite, "forget", phase)
    attacked = result.score(phase, suite, name) if name else None
    if name is None or attacked is None or attacked.value is None:
        return f"Under the attack {phase_name(phase)} nothing was measured on the forget split."
    others: list[str] = []
    plain = result.score("after", suite, name)
    twin = result.score(phase + TWIN, suite, name)
    if plain is not None and plain.value is not None:
        others.append(f"{readable(plain.value)} without it")
    if twin is not None and twin.value is not None:
        difference = ", measurably apart" if attacked.apart_from(twin) else ""
        others.append(f"the twin under the same attack {readable(twin.value)}{difference}")
    compared = f" ({'; '.join(others)})" if others else ""
    return f"Under the attack {phase_name(phase)} {spoken(metric_of(name))} on the forget split is {readable(attacked.value)}{compared}."


def _probed(result: Result, phase: str, suite: str) -> str:
    """What a probe finds in the hidden states, which says nothing about answers."""
    mine, twin = result.score(phase, suite, PROBE), result.score(phase + TWIN, suite, PROBE)
    if mine is None or mine.value is None:
        return f"The attack {phase_name(phase)} measured nothing."
    line = f"A probe of the hidden states ranks the true answer above a false one in {mine.value:.0%} of the cases"
    if twin is not None and twin.value is not None:
        line += f", for the twin in {twin.value:.0%}"
    return f"{line} (50% is chance)."


def chosen(result: Result, suite: str, split: str, phase: str = "after") -> str | None:
    """The plainest score of a split that has a value in this phase; without any, the plainest that has a reason."""
    evaluation = result.evaluations.get(phase)
    scores = evaluation.suites.get(suite, {}) if evaluation else {}
    names = [name for name in scores if split_of(name) == split and "@" not in name]
    names.sort(key=lambda name: (scores[name].value is None, metric_rank(metric_of(name)), name))
    return names[0] if names else None
