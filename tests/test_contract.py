"""The contract, run over everything that is registered."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError

import contract
from excise import registry
from excise.data.nouns import Nouns
from excise.objectives import CEU, DPO, KL, NPO, RMU, UNDIAL, WGA, CappedAscent, Entropy, HiddenCosine, HiddenMSE, SatImp, SimNPO
from excise.view import View
from excise.weights import Attribution
from saes import contract_sae

MORE: dict[str, list[Any]] = {
    "wga": [WGA(0.0), WGA(5.0)],
    "satimp": [SatImp(0.0, 0.0), SatImp(1.0, 3.0)],
    "kl": [KL(temperature=2.0), KL(positions="all"), KL(0.7, "all", "sequence")],
    "npo": [NPO(4.5)],
    "simnpo": [SimNPO(4.5, 0.3)],
    "dpo": [DPO(1.0)],
    "undial": [UNDIAL(1.0)],
    "ceu": [CEU(0)],
    "rmu": [RMU(0), RMU(1, 6.5, seed=7)],
    "hidden_mse": [HiddenMSE(0)],
    "entropy": [Entropy(1), Entropy(-1, skip=1)],
    "capped_ascent": [CappedAscent(50.0)],
    "hidden_cosine": [HiddenCosine(0), HiddenCosine(1, first_token=True)],
    "attribution": [
        Attribution(select="soft"),
        Attribution(r=1.0),
        Attribution(r=0.001),
        Attribution(select="soft", tau=1e-4),
        Attribution(norm="zscore", alpha=0.0),
        Attribution(norm="rank", select="soft", copies="drop"),
        Attribution(norm="none", select="soft", tau=1.0),
        Attribution(
            contrast="somewhere", copies="drop", refresh="epoch", mask="token", mask_token="x", hide="mentions", nouns=Nouns(words=("a", "b"))
        ),
    ],
}
"""Settings to check beside the defaults."""
NEEDS: dict[str, dict[str, Any]] = {
    "compose": {"terms": [{"objective": "ascent", "data": "forget", "weight": {"name": "attribution", "nouns": {"words": [contract.NOUN]}}},
                          {"objective": {"name": "kl", "positions": "all"}, "data": "retain", "scale": 0.5}]},
    "ember": {"rank": 4, "keep": 0.2, "ratio": 0.0, "judge": "ratio", "strength": 2.0},
    "snmf": {"mlp_rank": 3, "mlp_keep": 0.2, "mlp_ratio": 0.0, "judge": "ratio", "mlp_strength": 1.0},
    **{f"{prefix}_{name}": {"attribution": {"nouns": {"words": [contract.NOUN]}}} for prefix in "ts" for name in ("ga", "wga", "npo", "rmu")},
}  # fmt: skip
"""Settings without which a method cannot run here, or would need spaCy."""


PHASES = ("ascent", "prune", "negate", "repair")
EDITS_AN_ADAPTER: dict[str, list[dict[str, Any]]] = {
    "maat": [
        {"repair": None},
        {"ascent": {"project": False, "anchor": 0.5, "cap": 50.0}, "repair": None, "prune": None, "negate": {"strength": 0.0}},
        {"ascent": None, "repair": {"steps": 2}, "untouched": dict.fromkeys(PHASES, None) | {"prune": {"fraction": 0.0}}},
    ]
}
"""Methods that need a model with an adapter, and the settings to check. ``untouched``: what replaces them where nothing is to be trained."""


def both(kind: str) -> list[Any]:
    return [pytest.param(name, form, id=f"{name}-{i}") for name in registry.names(kind) for i, form in enumerate([None, *MORE.get(name, ())])]


@pytest.mark.parametrize(("name", "form"), both("objectives"))
def test_every_objective_keeps_the_contract(name: str, form: Any) -> None:
    kind = registry.find("objectives", name)
    assert form is None or isinstance(form, kind)
    contract.check_objective(kind() if form is None else form)


@pytest.mark.parametrize(("name", "form"), both("weights"))
def test_every_weight_keeps_the_contract(name: str, form: Any) -> None:
    kind = registry.find("weights", name)
    assert form is None or isinstance(form, kind)
    contract.check_weight(kind() if form is None else form)


@pytest.mark.parametrize("name", registry.names("methods"))
def test_every_method_keeps_the_contract(name: str, tmp_path: Path) -> None:
    if name in EDITS_AN_ADAPTER:
        for settings in EDITS_AN_ADAPTER[name]:
            contract.check_method(name, tmp_path / str(len(list(tmp_path.iterdir()))), settings, adapter=True)
    else:
        contract.check_method(name, tmp_path, {"sae": contract_sae(), "ratio": 0.1} if name == "crisp" else NEEDS.get(name))


# The contract itself: each promise is broken once ---------------------------------------------------------------------


@dataclass(frozen=True)
class Broken:
    """Breaks one promise.

    Paper: none.
    """

    how: str = ""

    def __call__(self, view: View, weight: Float[Tensor, " n"]) -> Float[Tensor, ""]:
        if self.how == "unseen":  # the first look at the model is without gradient
            with torch.no_grad():
                n = len(view.model.token_logp)
            return view.model.token_logp.sum() / n
        scored = view.model
        logp = scored.token_logp
        if self.how == "mean":  # forgets the global batch
            return (logp * weight).sum() / len(logp)
        if self.how == "order":
            return scored.mean(logp * (1 + torch.arange(len(logp))), weight)
        if self.how == "extremes":
            return scored.mean((1 - logp.exp()).log(), weight)
        if self.how == "gradient":
            return scored.mean(_Wrong.apply(logp), weight)
        if self.how == "weight":
            return scored.mean(logp)
        if self.how == "constant":
            return scored.mean(logp.detach(), weight) + 0.0 * logp.sum()
        return scored.mean(logp, weight)


class _Wrong(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return 1.1 * grads[0]


def test_the_contract_accepts_what_keeps_it() -> None:
    contract.check_objective(Broken())


@pytest.mark.parametrize(
    ("how", "complaint"),
    [
        ("mean", "one by one"),
        ("order", "another order"),
        ("extremes", "at now p -> 1"),
        ("gradient", "Jacobian mismatch"),
        ("weight", "weight zero"),
        ("constant", "no gradient at all"),
        ("unseen", "inside no_grad"),
    ],
)
def test_the_contract_notices_a_broken_objective(how: str, complaint: str) -> None:
    with pytest.raises((AssertionError, GradcheckError), match=complaint):
        contract.check_objective(Broken(how))


@dataclass(frozen=True)
class Undocumented:
    """A summary."""

    value: float = 1.0


@dataclass
class Melted:
    """A summary.

    Paper: none.
    """


@dataclass(frozen=True)
class Unmeant:
    """Weights of another mean.

    Paper: none.
    """

    how: str = ""

    def __call__(self, view: View) -> Float[Tensor, " n"]:
        ones = torch.ones(len(view.model.target))
        if self.how == "mean":
            return 2 * ones
        if self.how == "negative":
            return torch.cat([torch.linspace(-1, 3, n) if n > 1 else torch.ones(1) for n in contract.LENGTHS if n]) if len(ones) == 17 else ones
        if self.how == "random":
            return torch.cat([part / part.mean() for part in view.model.split(torch.rand(len(ones)) + 0.1)])
        return len(ones) * torch.softmax(view.model.token_logp.detach(), 0)


def test_the_contract_notices_undocumented_and_unfrozen_components() -> None:
    with pytest.raises(AssertionError, match="Paper"):
        contract.check_documented(Undocumented)
    with pytest.raises(AssertionError, match="frozen"):
        contract.check_settings(Melted())


@pytest.mark.parametrize(
    ("how", "complaint"), [("mean", "mean over a sequence"), ("negative", "negative"), ("random", "differ"), ("batch", "mean over")]
)
def test_the_contract_notices_a_broken_weight(how: str, complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        contract.check_weight(Unmeant(how))
