"""Every objective against its naive twin: the value, and the gradient by finite differences of the twin."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import naive
from excise import registry
from excise.errors import InputError
from excise.objectives import CEU, DPO, KL, NLL, NPO, RMU, UNDIAL, WGA, Ascent, CappedAscent, Entropy, HiddenCosine, HiddenMSE, SatImp, SimNPO
from excise.objectives.steering import control_vector
from excise.tokens import Given, Scored
from excise.view import View

VOCAB, WIDTH, LAYER = 6, 5, 1
CONTROL = control_vector(WIDTH, 3.0, 42).double().numpy()

Twin = Callable[[naive.Batch, naive.Batch], float]
"""(batch, what the stop-gradients look at) -> loss."""
CASES: list[tuple[Any, Twin]] = [
    (Ascent(), lambda b, f: naive.ascent(b)),
    (CappedAscent(), lambda b, f: naive.capped_ascent(b, 8.0)),
    (CappedAscent(3.0), lambda b, f: naive.capped_ascent(b, 3.0)),
    (NLL(), lambda b, f: naive.nll(b)),
    (WGA(), lambda b, f: naive.wga(b, 1.0, f)),
    (WGA(5.0), lambda b, f: naive.wga(b, 5.0, f)),
    (SatImp(), lambda b, f: naive.satimp(b, 5.0, 1.0, f)),
    (SatImp(0.5, 2.0), lambda b, f: naive.satimp(b, 0.5, 2.0, f)),
    (KL(), lambda b, f: naive.kl(b)),
    (KL(temperature=2.5), lambda b, f: naive.kl(b, 2.5)),
    (KL(0.7, "all", "sequence"), lambda b, f: naive.kl_per_sequence(b, 0.7)),
    (UNDIAL(), lambda b, f: naive.undial(b, 10.0)),
    (UNDIAL(0.5), lambda b, f: naive.undial(b, 0.5)),
    (CEU(), lambda b, f: naive.ceu(b, 1, f)),
    (CEU(0), lambda b, f: naive.ceu(b, 0, f)),
    (CEU(2), lambda b, f: naive.ceu(b, 2, f)),
    (Entropy(), lambda b, f: naive.entropy_objective(b, -1)),
    (Entropy(1), lambda b, f: naive.entropy_objective(b, 1)),
    (Entropy(-1, 1), lambda b, f: naive.entropy_objective(b, -1, 1)),
    (HiddenCosine(LAYER), lambda b, f: naive.hidden_cosine(b)),
    (NPO(), lambda b, f: naive.npo(b, 0.1)),
    (NPO(3.0), lambda b, f: naive.npo(b, 3.0)),
    (SimNPO(), lambda b, f: naive.simnpo(b, 2.5, 0.0)),
    (SimNPO(4.5, 0.7), lambda b, f: naive.simnpo(b, 4.5, 0.7)),
    (DPO(), lambda b, f: naive.dpo(b, 0.1)),
    (DPO(2.0), lambda b, f: naive.dpo(b, 2.0)),
    (RMU(LAYER, 3.0), lambda b, f: naive.rmu(b, CONTROL)),
    (HiddenMSE(LAYER), lambda b, f: naive.hidden_mse(b)),
]


def one_answer(draw: np.random.Generator, n: int, alternative: bool = True) -> naive.Answer:
    weight = draw.random(n) + 0.1
    return naive.Answer(
        logits=2 * draw.standard_normal((n, VOCAB)),
        reference=2 * draw.standard_normal((n, VOCAB)),
        target=[int(y) for y in draw.integers(VOCAB, size=n)],
        weight=weight * n / weight.sum(),
        hidden=draw.standard_normal((n, WIDTH)),
        hidden_reference=draw.standard_normal((n, WIDTH)),
        alternative=one_answer(draw, 1 + n % 3, False) if alternative else None,
    )


def batch(seed: int = 0, lengths: tuple[int, ...] = (4, 1, 7)) -> list[naive.Answer]:
    draw = np.random.default_rng(seed)
    return [one_answer(draw, n) for n in lengths]


def view_of(answers: list[naive.Answer]) -> tuple[View, dict[str, Tensor], Tensor]:
    """excise's view of a naive batch, its leaves by name, and the weights."""
    target = torch.tensor([y for a in answers for y in a.target])
    row = torch.tensor([i for i, a in enumerate(answers) for _ in a.target])

    def joined(part: str) -> Tensor:
        return torch.tensor(np.concatenate([getattr(a, part) for a in answers]))

    leaves = {part: joined(part).requires_grad_() for part in ("logits", "hidden")}
    parts: dict[str, Any] = {}
    if answers[0].alternative is not None:
        inner, below, _ = view_of([a.alternative for a in answers if a.alternative is not None])
        leaves["alternative"] = below["logits"]
        parts["get_alternative"] = lambda: inner
    model = Scored(target, row, len(answers), Given(leaves["logits"]), {LAYER: leaves["hidden"]})
    reference = Scored(target, row, len(answers), Given(joined("reference")), {LAYER: joined("hidden_reference")})
    return View(lambda: model, lambda: reference, **parts), leaves, joined("weight")


def slope(twin: Twin, answers: list[naive.Answer], place: Callable[[list[naive.Answer]], tuple[np.ndarray[Any, Any], tuple[int, ...]]]) -> float:
    """Central difference of the twin at one number of the batch, its stop-gradients held still."""
    values = []
    for step in (1e-5, -1e-5):
        moved = copy.deepcopy(answers)
        array, index = place(moved)
        array[index] += step
        values.append(twin(moved, answers))
    return (values[0] - values[1]) / 2e-5


def test_every_objective_of_excise_has_a_twin() -> None:
    from excise.objectives import OBJECTIVES

    assert {type(objective) for objective, _ in CASES} == set(OBJECTIVES.values())
    assert set(OBJECTIVES) <= set(registry.names("objectives"))


@pytest.mark.parametrize(
    ("objective", "twin"), CASES, ids=lambda case: str(case) if not callable(case) or hasattr(case, "__dataclass_fields__") else ""
)
def test_an_objective_equals_its_naive_twin(objective: Any, twin: Twin) -> None:
    for seed in range(3):
        answers = batch(seed)
        view, _, weight = view_of(answers)
        assert float(objective(view, weight).detach()) == pytest.approx(twin(answers, answers), rel=1e-6 if isinstance(objective, RMU) else 1e-10)


@pytest.mark.parametrize(
    ("objective", "twin"), CASES, ids=lambda case: str(case) if not callable(case) or hasattr(case, "__dataclass_fields__") else ""
)
def test_its_gradient_is_the_slope_of_the_twin(objective: Any, twin: Twin) -> None:
    answers = batch(3, (3, 2))
    view, leaves, weight = view_of(answers)
    objective(view, weight).backward()
    seen = 0
    for part, leaf in leaves.items():
        grad = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        at = 0
        for a, answer in enumerate(answers):
            source = answer.alternative if part == "alternative" else answer
            assert source is not None
            for i in range(len(source.target)):
                for v in (0, 1, 4):

                    def place(moved: list[naive.Answer], a: int = a, i: int = i, v: int = v, part: str = part) -> Any:
                        inner = moved[a].alternative if part == "alternative" else moved[a]
                        return getattr(inner, "logits" if part == "alternative" else part), (i, v)

                    assert float(grad[at, v]) == pytest.approx(slope(twin, answers, place), rel=1e-4, abs=1e-7), (part, a, i, v)
                    seen += 1
                at += 1
    assert seen == 3 * (5 + 5 + sum(len(a.alternative.target) for a in answers if a.alternative))
    assert any(leaf.grad is not None and leaf.grad.any() for leaf in leaves.values())


def test_parts_of_a_batch_add_up_with_the_totals_of_the_whole() -> None:
    answers = batch(1, (4, 2, 7, 3))
    totals = {"total_tokens": 16.0, "total_rows": 4.0}
    for objective, twin in CASES:
        total = 0.0
        for part in (answers[:1], answers[1:3], answers[3:]):
            view, _, weight = view_of(part)
            scored = Scored(**{**{f: getattr(view.model, f) for f in ("target", "row", "rows", "source", "hidden")}, **totals})
            whole = View(lambda scored=scored: scored, view.get_reference, get_alternative=view.get_alternative)
            total += float(objective(whole, weight).detach())
        assert total == pytest.approx(twin(answers, answers), rel=1e-6), objective


def test_the_control_vector_is_openunlearnings() -> None:
    torch.manual_seed(42)
    u = torch.rand(1, 1, 576)
    torch.testing.assert_close(control_vector(576, 2.0, 42), (2 * u / u.norm())[0, 0])
    assert not torch.equal(control_vector(576, 2.0, 42), control_vector(576, 2.0, 43))


def test_the_control_vector_leaves_the_random_numbers_of_the_run_alone() -> None:
    before = torch.get_rng_state()
    control_vector(8, 1.0, 1)
    assert torch.equal(torch.get_rng_state(), before)


def test_rmu_and_hidden_mse_fill_in_what_depends_on_the_model() -> None:
    asked: list[int] = []

    def norm(layer: int) -> float:
        asked.append(layer)
        return 10.0

    assert RMU(scale=1.5).resolved(32, norm) == RMU(7, 15.0, 1.5)
    assert RMU(3, 2.0).resolved(32, norm) == RMU(3, 2.0)
    assert asked == [7]
    assert HiddenMSE().resolved(16, norm) == HiddenMSE(4)  # 3.5, rounded to even
    assert RMU().layers == ()
    assert RMU(3).layers == (3,)


@pytest.mark.parametrize(
    "broken",
    [
        lambda: WGA(-1.0), lambda: SatImp(-1.0), lambda: SatImp(1.0, -0.5), lambda: KL(temperature=0.0), lambda: NPO(0.0), lambda: NPO(float("inf")),
        lambda: SimNPO(0.0), lambda: DPO(-0.1), lambda: UNDIAL(0.0), lambda: CEU(-1), lambda: Entropy(0), lambda: RMU(coefficient=0.0),
        lambda: RMU(scale=-1.0),
        lambda: NPO(float("nan")), lambda: WGA(float("nan")),
    ],
)  # fmt: skip
def test_an_impossible_setting_is_refused_in_one_line(broken: Callable[[], object]) -> None:
    with pytest.raises(InputError, match="is not allowed: it must be") as caught:
        broken()
    assert "\n" not in str(caught.value)


def test_what_a_view_lacks_is_named() -> None:
    scored = Scored.of(torch.zeros(1, 3), torch.tensor([0]), torch.tensor([0]), 1)
    with pytest.raises(RuntimeError, match="no reference model"):
        NPO()(View(lambda: scored), torch.ones(1))
    with pytest.raises(RuntimeError, match="alternative"):
        DPO()(View(lambda: scored, lambda: scored), torch.ones(1))
