"""Does the model betray what it was trained on? Forget quality against a retrained model, and membership inference."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, cast

import numpy as np

from excise.evaluation.metrics.memory import TruthRatio, without_end
from excise.evaluation.records import Record, Records
from excise.evaluation.score import ALONE, Array, Direction, Others, Score, Unavailable, bootstrap, matching, required

NEEDS_HOLDOUT = "the benchmark has no holdout split: membership needs examples like the forget split's that nobody was taught (data.holdout)"


@dataclass(frozen=True)
class ForgetQuality:
    """p-value of the two-sample Kolmogorov-Smirnov test between the truth ratios R of the unlearned and the retrained model.

    Higher is better: a low p-value says that the two models can be told apart on the forget split. It falls with the
    number of examples, so compare it only at equal n. Needs a retrained model's records.

    Paper: Maini et al. 2024, TOFU (arXiv 2401.06121), section 2.2.3.
    """

    mean: Literal["geometric", "arithmetic"] = "geometric"
    """How the truth ratio averages over the false answers."""
    split: str = "forget"

    better: ClassVar[Direction] = "higher"

    def __call__(self, records: Records, others: Others) -> Score:
        mine, theirs = required(records, self.split), matching(records, others, "retrained", self.split)
        pairs = [(self._log_ratio(a), self._log_ratio(b)) for a, b in zip(mine, theirs, strict=True)]
        known = [(a, b) for a, b in pairs if a is not None and b is not None]
        if not known:
            raise Unavailable(f"no example has {TruthRatio.needs}")
        from scipy.stats import ks_2samp

        _, p = cast(tuple[float, float], ks_2samp([a for a, _ in known], [b for _, b in known]))
        return Score(float(p), "higher", len(known), left_out=len(pairs) - len(known))

    def _log_ratio(self, record: Record) -> float | None:
        return TruthRatio(mean=self.mean).log_ratio(record)


# --- membership inference ---------------------------------------------------------------------------------------------

Signal = Callable[[Record], float | None]
"""Lower for members: what the model has seen."""


def _loss(record: Record) -> float | None:
    return None if record.true is None else -record.true.mean_logp


def _zlib_loss(record: Record) -> float | None:
    return None if record.true is None else -record.true.mean_logp / len(zlib.compress(record.true.text.encode()))


def _min_k(share: float) -> Signal:
    def signal(record: Record) -> float | None:
        if record.true is None:
            return None
        logp = sorted(without_end(record.true)[0])
        lowest = logp[: max(1, int(share * len(logp)))]
        return -sum(lowest) / len(lowest)

    return signal


def order(members: Sequence[float], others: Sequence[float]) -> Array:
    """[members, others]: 1 where the member's signal is lower, 1/2 at a tie, else 0. Its mean is the AUC."""
    a, b = np.array(members)[:, None], np.array(others)[None, :]
    return cast(Array, (a < b) + 0.5 * (a == b))


def _signals(records: Sequence[Record], signal: Signal, split: str) -> list[float]:
    values = [value for value in map(signal, records) if value is not None]
    if not values:
        raise Unavailable(f"no example of the split {split!r} has a scored true answer")
    return values


def membership(records: Records, signal: Signal) -> Score:
    """AUC of telling the forget split (members) from the hold-out split by a signal that is lower for members."""
    if not records.get("holdout"):
        raise Unavailable(NEEDS_HOLDOUT)
    members = _signals(required(records, "forget"), signal, "forget")
    outsiders = _signals(records["holdout"], signal, "holdout")
    table = order(members, outsiders)
    scale = table.size
    interval = bootstrap(lambda a, b: ((a @ table) * b).sum(axis=1) / scale, list(table.shape))
    return Score(float(table.mean()), "none", len(members) + len(outsiders), interval)


@dataclass(frozen=True)
class MembershipLoss:
    """AUC of telling forget from hold-out examples by their mean loss: P(loss of a forget example < loss of a hold-out one).

    0.5 is what a model that never saw either would give if both come from one distribution; above, the forget split still
    looks trained on; far below betrays it too. Neither direction is better: compare with the retrained model's.

    Paper: Yeom et al. 2018 (arXiv 1709.01604).
    """

    better: ClassVar[Direction] = "none"

    def __call__(self, records: Records, others: Others = ALONE) -> Score:
        return membership(records, _loss)


@dataclass(frozen=True)
class MembershipZlib:
    """AUC of telling forget from hold-out examples by mean loss divided by the bytes of the zlib-compressed answer.

    Read it as ``mia_loss``.

    Paper: Carlini et al. 2021 (arXiv 2012.07805).
    """

    better: ClassVar[Direction] = "none"

    def __call__(self, records: Records, others: Others = ALONE) -> Score:
        return membership(records, _zlib_loss)


@dataclass(frozen=True)
class MembershipMinK:
    """AUC of telling forget from hold-out examples by the mean of the lowest k share of their token log-probabilities.

    The end of the turn is left out. Read it as ``mia_loss``.

    Paper: Shi et al. 2024, Min-K % Prob (arXiv 2310.16789).
    """

    k: float = 0.4
    """Share of the answer's tokens that count: those with the lowest probability, at least one."""

    better: ClassVar[Direction] = "none"

    def __call__(self, records: Records, others: Others = ALONE) -> Score:
        return membership(records, _min_k(self.k))


@dataclass(frozen=True)
class MembershipMinKPlusPlus:
    """AUC as ``mia_min_k``, of log-probabilities that are standardised by what the model expected: (log p - mu) / sigma.

    mu and sigma are the mean and the standard deviation of log p over the vocabulary under the prediction itself. The end of the
    turn is left out. Read it as ``mia_loss``. Needs a plan with ``spread``.

    Paper: Zhang et al. 2024, Min-K%++ (arXiv 2404.02936), equation 3.
    """

    k: float = 0.4
    """Share of the answer's tokens that count: the lowest, at least one."""

    better: ClassVar[Direction] = "none"

    def __call__(self, records: Records, others: Others = ALONE) -> Score:
        return membership(records, self._signal)

    def _signal(self, record: Record) -> float | None:
        if record.true is None:
            return None
        if not record.true.expected:
            raise Unavailable("the spread of the predictions was not collected: use the suite membership")
        logp = without_end(record.true)[0]
        standardised = sorted((x - m) / max(s, 1e-6) for x, m, s in zip(logp, record.true.expected, record.true.deviation, strict=False))
        lowest = standardised[: max(1, int(self.k * len(standardised)))]
        return -sum(lowest) / len(lowest)


@dataclass(frozen=True)
class MembershipReference:
    """AUC of telling forget from hold-out examples by their mean loss minus that of the retrained model.

    What makes a text easy for every model cancels out. Read it as ``mia_loss``. Needs a retrained model's records.

    Paper: Carlini et al. 2021 (arXiv 2012.07805); Mireshghallah et al. 2022 (arXiv 2203.03929).
    """

    better: ClassVar[Direction] = "none"

    def __call__(self, records: Records, others: Others = ALONE) -> Score:
        if not records.get("holdout"):
            raise Unavailable(NEEDS_HOLDOUT)
        reference: dict[int, float] = {}
        for split in ("forget", "holdout"):
            for mine, theirs in zip(required(records, split), matching(records, others, "retrained", split), strict=True):
                if theirs.true is not None:
                    reference[id(mine)] = theirs.true.mean_logp
        return membership(records, lambda r: None if r.true is None or id(r) not in reference else reference[id(r)] - r.true.mean_logp)


@dataclass(frozen=True)
class MembershipGradientNorm:
    """AUC of telling forget from hold-out examples by the norm of the gradient of their mean loss: small for what was fitted.

    Read it as ``mia_loss``. Needs a plan with ``gradient`` (a backward pass for each example).

    Paper: Wang et al. 2024, "Pandora's White-Box" (arXiv 2402.17012); as in open-unlearning (arXiv 2506.12618).
    """

    better: ClassVar[Direction] = "none"

    def __call__(self, records: Records, others: Others = ALONE) -> Score:
        if all(record.gradient_norm is None for record in required(records, "forget")):
            raise Unavailable("no gradient norms were collected: use the suite membership")
        return membership(records, lambda record: record.gradient_norm)


@dataclass(frozen=True)
class PrivLeak:
    """100 ((1 - AUC) - (1 - AUC_retrained)) / (1 - AUC_retrained), AUC by Min-K % as in ``mia_min_k``.

    0 is best: below 0 the forget split still looks trained on, above 0 it looks pushed away (over-unlearned). Needs a
    retrained model's records and a hold-out split.

    Paper: Shi et al. 2024, MUSE (arXiv 2407.06460), section 3.1.
    """

    k: float = 0.4

    better: ClassVar[Direction] = "none"

    def __call__(self, records: Records, others: Others) -> Score:
        signal = _min_k(self.k)
        splits = ("forget", "holdout")
        if not records.get("holdout"):
            raise Unavailable(NEEDS_HOLDOUT)
        theirs = {split: matching(records, others, "retrained", split) for split in splits}
        ours, reference = (order(*(_signals(source[split], signal, split) for split in splits)) for source in (records, theirs))

        def leak(a: Array, b: Array) -> Array:
            mine, base = (1 - ((a @ table) * b).sum(axis=1) / table.size for table in (ours, reference))
            return np.divide(100 * (mine - base), base, out=np.full_like(mine, math.inf), where=base > 0)

        value = float(leak(np.ones((1, ours.shape[0])), np.ones((1, ours.shape[1])))[0])
        if not math.isfinite(value):
            raise Unavailable("the retrained model's AUC is 1: the hold-out split is not from the same distribution as the forget split")
        return Score(value, "none", sum(ours.shape), bootstrap(leak, list(ours.shape)))
