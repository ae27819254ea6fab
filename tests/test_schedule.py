"""Which examples each step sees, how many steps there are, and the learning rate of each."""

from __future__ import annotations

import pytest

from excise.data.batches import Paired
from excise.objectives import NLL
from excise.stages.optimise import Optimiser, default_rate
from excise.stages.session import Session
from excise.stages.state import State
from excise.stages.train import Term, Train
from excise.subject import Subject
from test_train import QUIET, eight


def test_learning_rates_go_up_and_down() -> None:
    linear = Optimiser(lr=1.0, warmup=0.2)
    rates = [linear.rate(step, 10) for step in range(10)]
    assert rates == pytest.approx([1 / 3, 2 / 3, 1.0, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8])
    assert all(rate > 0 for rate in rates)
    assert [Optimiser(lr=1.0, warmup=0.0, schedule="constant").rate(step, 3) for step in range(3)] == [1.0] * 3
    cosine = [Optimiser(lr=1.0, warmup=0.0, schedule="cosine").rate(step, 4) for step in range(4)]
    assert cosine == pytest.approx([1.0, 0.853553, 0.5, 0.146447], rel=1e-5)
    assert linear.rate(0, 1) == 1.0


def test_the_default_rate_depends_on_size_and_adapter() -> None:
    assert [default_rate(n, False) for n in (10**8, 10**9, 7 * 10**9)] == [5e-5, 2e-5, 1e-5]
    assert default_rate(10**8, True) == pytest.approx(5e-4)
    assert Optimiser().resolved(7 * 10**9, False).lr == 1e-5
    assert Optimiser(lr=0.5).resolved(1, True).lr == 0.5


def test_every_forget_example_is_seen_once_an_epoch_and_retain_at_its_own_pace() -> None:
    batches = Paired(4, 3)
    assert batches.steps_per_epoch(10, 7) == 3
    draws = [batches.draw(step, 10, 7, seed=1) for step in range(7)]
    for epoch in (draws[:3], draws[3:6]):
        assert sorted(i for d in epoch for i in d.forget) == list(range(10))
    assert [len(d.forget) for d in draws] == [4, 4, 2, 4, 4, 2, 4]
    assert all(len(d.retain) == 3 for d in draws)
    kept = [i for d in draws for i in d.retain]
    assert sorted(kept[:7]) == sorted(kept[7:14]) == list(range(7))
    assert kept[:7] != kept[7:14]
    assert draws[5] == batches.draw(5, 10, 7, seed=1)  # a pure function of the step
    assert draws[:3] != [batches.draw(step, 10, 7, seed=2) for step in range(3)]


def test_without_forget_examples_an_epoch_walks_through_the_retain_set() -> None:
    batches = Paired(4)
    assert batches.steps_per_epoch(0, 10) == 3
    draws = [batches.draw(step, 0, 10, 0) for step in range(3)]
    assert sorted(i for d in draws for i in d.retain) == list(range(10))
    assert all(d.forget == () for d in draws)


@pytest.mark.parametrize(("epochs", "batch", "steps"), [(1.0, 8, 1), (2.5, 4, 5), (0.25, 2, 1), (0.0, 8, 0), (3.0, 3, 9)])
def test_epochs_become_steps(epochs: float, batch: int, steps: int, tiny_llama: Subject) -> None:
    stage = Train((Term(NLL(), "forget"),), epochs=epochs, batches=Paired(batch), guard=QUIET)
    assert Session.build(stage, State(tiny_llama, eight())).steps == steps
