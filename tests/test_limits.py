"""Limits and identities: where a formula becomes another one, or nothing at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import contract
from conftest import tiny
from excise.objectives import CEU, DPO, KL, NLL, NPO, RMU, UNDIAL, WGA, Ascent, Entropy, HiddenMSE, SatImp, SimNPO
from excise.objectives.distance import kl_divergence
from excise.recipe import build_methods
from excise.run import run_stages
from excise.stages.state import State
from excise.stages.views import Views
from excise.tokens import Scored
from excise.view import View
from excise.weights import Attribution, Uniform
from excise.weights.attribution import hard, soft
from test_objectives import batch, view_of
from test_tokens import texts


def gradient(objective: Any, weight: Tensor | None = None, answers: Any = None) -> tuple[float, Tensor]:
    """Loss, and its gradient with respect to the logits."""
    view, leaves, own = view_of(batch() if answers is None else answers)
    loss = objective(view, own if weight is None else weight)
    loss.backward()
    grad = leaves["logits"].grad
    assert grad is not None
    return float(loss.detach()), grad


def ones() -> Tensor:
    return torch.ones(12, dtype=torch.float64)


def test_npo_becomes_gradient_ascent_as_beta_goes_to_zero() -> None:
    """d NPO = mean_seq 2 sigmoid(beta ratio) d(sum log p): at beta 0 the factor is 1."""
    _, slow = gradient(NPO(1e-7), ones())
    _, ascent = gradient(Ascent(), ones())
    answers = batch()
    per_sequence = torch.cat([torch.full((len(a.target),), 12 / 3) for a in answers])  # NPO averages over sequences, GA over tokens
    torch.testing.assert_close(slow, ascent * per_sequence[:, None], rtol=1e-5, atol=1e-7)
    _, fast = gradient(NPO(5.0), ones())
    assert not torch.allclose(fast, slow, rtol=0.1)


def test_npo_pushes_with_exactly_the_gradient_of_ascent_where_nothing_moved_yet() -> None:
    answers = batch()
    for answer in answers:
        answer.reference = answer.logits
    loss, grad = gradient(NPO(0.3), ones(), answers)
    assert loss == pytest.approx(2 / 0.3 * 0.6931471805599453)
    _, ascent = gradient(Ascent(), ones(), answers)
    torch.testing.assert_close(grad, 4 * ascent)  # 12 tokens in 3 sequences


def test_simnpo_becomes_length_normalised_ascent_as_beta_goes_to_zero() -> None:
    _, slow = gradient(SimNPO(1e-7), ones())
    _, ascent = gradient(Ascent(), ones())
    lengths = torch.cat([torch.full((len(a.target),), 12 / (3 * len(a.target))) for a in batch()])
    torch.testing.assert_close(slow, ascent * lengths[:, None], rtol=1e-5, atol=1e-7)


def test_npo_is_bounded_below_and_its_push_dies_out() -> None:
    for forgotten in (10.0, 100.0, 1e4):
        logits = torch.tensor([[-forgotten, forgotten]], dtype=torch.float64, requires_grad=True)
        scored = Scored.of(logits, torch.tensor([0]), torch.tensor([0]), 1)
        known = Scored.of(torch.zeros(1, 2, dtype=torch.float64), scored.target, scored.row, 1)
        loss = NPO(1.0)(View(lambda s=scored: s, lambda k=known: k), torch.ones(1))
        loss.backward()
        assert 0 <= float(loss.detach()) < 1e-5
        assert logits.grad is not None
        assert float(logits.grad.abs().max()) < 1e-4


@pytest.mark.parametrize("pair", [(WGA(0.0), Ascent()), (SatImp(0.0, 0.0), Ascent()), (SatImp(2.0, 0.0), WGA(2.0)), (SatImp(1.0, 0.0), WGA())])
def test_exponents_of_zero_leave_plain_ascent(pair: tuple[Any, Any]) -> None:
    (one, first), (two, second) = gradient(pair[0]), gradient(pair[1])
    assert one == pytest.approx(two, rel=1e-12)
    torch.testing.assert_close(first, second, rtol=1e-12, atol=0)


def test_exponents_of_zero_are_ascent_even_where_p_is_exactly_0_or_1() -> None:
    logits = torch.tensor([[1e4, -1e4], [-1e4, 1e4]], requires_grad=True)
    scored = Scored.of(logits, torch.tensor([0, 0]), torch.tensor([0, 0]), 1)
    assert (
        float(SatImp(0.0, 0.0)(View(lambda: scored), torch.ones(2)).detach()) == float(Ascent()(View(lambda: scored), torch.ones(2)).detach()) == -1e4
    )


def test_nll_is_ascent_turned_round() -> None:
    (one, first), (two, second) = gradient(NLL()), gradient(Ascent())
    assert one == -two
    torch.testing.assert_close(first, -second)


def test_the_divergence_of_a_distribution_from_itself_is_nothing_and_pulls_nowhere() -> None:
    logits = torch.randn(5, 9, dtype=torch.float64, requires_grad=True)
    for temperature in (0.5, 1.0, 3.0):
        divergence = kl_divergence(logits.detach(), logits, temperature)
        assert divergence.abs().max() < 1e-12
        (grad,) = torch.autograd.grad(divergence.sum(), logits)
        assert grad.abs().max() < 1e-12
    assert (kl_divergence(logits.detach(), logits.detach().flip(0)) > 0).sum() == 4  # the middle row is itself


def test_temperature_changes_the_divergence() -> None:
    assert gradient(KL())[0] != pytest.approx(gradient(KL(temperature=2.0))[0], rel=0.01)


def test_undial_without_lowering_is_distillation() -> None:
    """beta -> 0: cross-entropy to the reference, which is KL plus a constant, so the same gradient."""
    torch.testing.assert_close(gradient(UNDIAL(1e-9))[1], gradient(KL())[1], rtol=1e-6, atol=1e-9)


def test_undial_of_a_large_beta_wants_the_reference_without_the_target() -> None:
    answers = batch()
    for answer in answers:
        answer.reference = answer.logits
    (one, first), (two, second) = gradient(UNDIAL(1e6), answers=answers), gradient(CEU(0), answers=answers)
    assert one == pytest.approx(two, rel=1e-9)
    torch.testing.assert_close(first, second)


def test_dpo_with_the_same_answer_twice_is_log_two_and_pulls_nowhere() -> None:
    answers = batch()
    view, leaves, _ = view_of(answers)
    same = View(lambda: view.model, lambda: view.reference, get_alternative=lambda: view)
    loss = DPO(0.7)(same, ones())
    assert float(loss.detach()) == pytest.approx(2 / 0.7 * 0.6931471805599453)
    loss.backward()
    assert leaves["logits"].grad is not None
    assert leaves["logits"].grad.abs().max() < 1e-12


def test_hidden_states_that_did_not_move_cost_nothing() -> None:
    answers = batch()
    for answer in answers:
        answer.hidden_reference = answer.hidden
    view, leaves, weight = view_of(answers)
    loss = HiddenMSE(1)(view, weight)
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert leaves["hidden"].grad is not None
    assert not leaves["hidden"].grad.any()


def test_rmu_at_its_goal_costs_nothing() -> None:
    from excise.objectives.steering import control_vector

    answers = batch()
    for answer in answers:
        answer.hidden[:] = control_vector(5, 3.0, 42).numpy()
    view, _, weight = view_of(answers)
    assert float(RMU(1, 3.0)(view, weight).detach()) == pytest.approx(0.0, abs=1e-12)


def test_entropy_is_at_its_most_where_all_tokens_are_alike() -> None:
    scored = Scored.of(torch.zeros(2, 8, requires_grad=True), torch.tensor([0, 1]), torch.tensor([0, 0]), 1)
    assert float(Entropy()(View(lambda: scored), torch.ones(2)).detach()) == pytest.approx(-torch.log(torch.tensor(8.0)).item())


# Token weights -------------------------------------------------------------------------------------------------------


def weights(**settings: Any) -> list[Tensor]:
    view = contract.synthetic_view(range(4))
    return view.model.split(Attribution(**settings)(view))


def test_a_share_of_one_and_a_high_temperature_are_uniform() -> None:
    for part in (*weights(r=1.0), *weights(select="soft", tau=1e9)):
        torch.testing.assert_close(part, torch.ones_like(part))


def test_a_low_temperature_is_the_arg_max_and_so_is_the_smallest_share() -> None:
    for cold, few in zip(weights(select="soft", tau=1e-6), weights(r=1e-9), strict=True):
        torch.testing.assert_close(cold, few)
        assert int((cold > 0).sum()) == 1
        assert float(cold.max()) == len(cold)


def test_a_constant_score_is_uniform_or_the_first_tokens() -> None:
    torch.testing.assert_close(soft(torch.full((4,), 0.3), 0.01), torch.ones(4))
    assert hard(torch.full((5,), 0.3), 0.4).tolist() == [2.5, 2.5, 0, 0, 0]


def test_alpha_of_one_is_delta_alone_and_of_zero_entropy_alone() -> None:
    view = contract.synthetic_view(range(4))
    for alpha, source in ((1.0, Attribution().delta(view)), (0.0, view.model.entropy.detach())):
        for phi, part in zip(view.model.split(Attribution(alpha=alpha).phi(view)), view.model.split(source), strict=True):
            spread = part.max() - part.min()
            torch.testing.assert_close(phi, (part - part.min()) / spread if len(part) > 1 else torch.zeros(1))


@pytest.mark.parametrize("norm", ["minmax", "zscore", "rank", "none"])
def test_a_sequence_of_one_token_has_weight_one(norm: str) -> None:
    for settings in ({"select": "hard"}, {"select": "soft"}):
        assert weights(norm=norm, **settings)[0].tolist() == [1.0]


@pytest.mark.parametrize(
    "objective", [Ascent(), WGA(), NPO(), SimNPO(), DPO(), KL(), NLL(), UNDIAL(), CEU(), SatImp(), Entropy(), RMU(1, 3.0), HiddenMSE(1)], ids=str
)
def test_a_share_of_one_is_the_uniform_method(objective: Any) -> None:
    view, _, _ = view_of(batch())
    plain, (attributed,) = Uniform()(view), [torch.cat([hard(torch.rand(len(p)), 1.0) for p in view.model.split(view.model.row)])]
    assert float(objective(view, plain).detach()) == float(objective(view, attributed).detach())


# Methods that change nothing -----------------------------------------------------------------------------------------


def trained(folder: Path, **settings: Any) -> tuple[State, dict[str, Tensor]]:
    folder.mkdir()
    subject = contract.small_subject()
    before = {name: p.detach().clone() for name, p in subject.model.named_parameters()}
    state = State(subject, contract.small_benchmark(), folder=folder)
    run_stages(state, [s for _, stages in build_methods(str(settings.pop("name")), settings) for s in stages])
    return state, before


def test_no_steps_change_no_bit(tmp_path: Path) -> None:
    for name in ("npo", "rmu", "ga_kl"):
        state, before = trained(tmp_path / name, name=name, steps=0)
        assert all(torch.equal(p, before[n]) for n, p in state.subject.model.named_parameters())
        assert state.records[0]["changed_parameters"] == 0


def test_a_retain_scale_of_zero_is_the_method_without_retain_term(tmp_path: Path) -> None:
    common: dict[str, Any] = {"steps": 3, "lr": 1e-3, "guard": {"every": 0}, "batch": 3}
    zero, _ = trained(tmp_path / "zero", name="ga_kl", retain_scale=0.0, **common)
    none, _ = trained(tmp_path / "none", name="ga", **common)
    for (name, one), (_, two) in zip(zero.subject.model.named_parameters(), none.subject.model.named_parameters(), strict=True):
        assert torch.equal(one, two), name


@pytest.mark.parametrize("uniform", [{"r": 1.0}, {"select": "soft", "tau": 1e12}])
def test_a_token_method_with_uniform_weights_is_its_partner(uniform: dict[str, Any], tmp_path: Path) -> None:
    common: dict[str, Any] = {"steps": 3, "lr": 1e-3, "guard": {"every": 0}, "batch": 3}
    for method, partner in (("t_ga", "ga_kl"), ("t_wga", "wga"), ("t_npo", "npo"), ("t_rmu", "rmu")):
        one, _ = trained(tmp_path / method, name=method, attribution={**uniform, "nouns": {"words": [contract.NOUN]}}, **common)
        two, _ = trained(tmp_path / partner, name=partner, **common)
        for (name, a), (_, b) in zip(one.subject.model.named_parameters(), two.subject.model.named_parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0 if "r" in uniform else 1e-6, msg=lambda m, name=name: f"{name}: {m}")


def test_looking_at_a_view_does_not_change_the_model() -> None:
    subject = tiny("llama")
    before = subject.fingerprint()
    view = Views(subject, "float32").of(texts())
    _ = view.model.entropy, view.model.token_logp
    assert subject.fingerprint() == before
