"""The one training loop: accumulation, guard, logging, precision, and what is refused before it starts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

import learning
from conftest import KINDS, Kind, adapted, tiny
from excise.data.batches import Paired
from excise.data.encode import encode
from excise.data.example import Benchmark, Example
from excise.data.nouns import Nouns
from excise.evaluation.score import Score
from excise.loading import load
from excise.objectives import DPO, KL, NLL, NPO, RMU, Ascent, HiddenMSE
from excise.recipe import build_methods
from excise.stages.checkpoint import truncate_log
from excise.stages.guard import Guard, Vital
from excise.stages.optimise import Optimiser
from excise.stages.state import State
from excise.stages.train import Term, Train
from excise.subject import Subject
from excise.weights import Attribution

QUIET = Guard(every=0)
TERMS = (Term(NPO(), "forget"), Term(KL(positions="all"), "retain", 0.5), Term(NLL(), "retain"))


def eight() -> Benchmark:
    """Eight forget and eight retain examples of different lengths."""
    words = ["river", "book", "Anna", "painter", "town", "Marrow", "lighthouse", "1887", "fox", "forest", "island", "north"]

    def row(side: str, n: int) -> Example:
        return Example(
            f"{side}{n}",
            f"Where is the {side} {words[n]}?",
            " ".join(words[(n + i) % 12] for i in range(1 + (3 * n) % 7)),
            alternative="I don't know.",
        )

    return Benchmark("eight", {side: tuple(row(side, n + 4 * (side == "retain")) for n in range(8)) for side in ("forget", "retain")})


def train(
    subject: Subject, folder: Path | None = None, *, data: Benchmark | None = None, seed: int = 0, resume: bool = False, **settings: Any
) -> State:
    given: dict[str, Any] = {"terms": TERMS, "guard": QUIET, "optimiser": Optimiser(lr=1e-3, warmup=0.0, clip=None, schedule="constant"), "steps": 1}
    stage = Train(**{**given, "batches": Paired(8), **settings})
    state = State(subject, eight() if data is None else data, folder=folder, seed=seed, resume=resume)
    stage.prepare(state)
    stage(state)
    return state


class Watched:
    """Stands in for the optimiser: keeps the gradients that it is given, and takes plain steps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gradients: list[list[Tensor | None]] = []

        def build(_settings: Optimiser, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
            optimiser = torch.optim.SGD(parameters, lr=1.0)
            step = optimiser.step

            def watched(*args: Any, **kwargs: Any) -> Any:
                self.gradients.append([None if p.grad is None else p.grad.clone() for p in parameters])
                return step(*args, **kwargs)

            optimiser.step = watched
            return optimiser

        monkeypatch.setattr(Optimiser, "build", build)


def same(one: Sequence[Tensor | None], two: Sequence[Tensor | None], tolerance: float = 1e-5) -> None:
    size = max(float(g.abs().max()) for g in one if g is not None)
    assert size > 0
    for a, b in zip(one, two, strict=True):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            assert float((a - b).abs().max()) <= tolerance * size


# One step ------------------------------------------------------------------------------------------------------------

TERM_SETS: dict[str, tuple[Term, ...]] = {
    "npo, kl on all positions, nll": TERMS,
    "dpo": (Term(DPO(), "forget"), Term(KL(), "retain")),
    "rmu": (Term(RMU(1, 4.0), "forget"), Term(HiddenMSE(1), "retain", 2.0)),
    "token weights": (
        Term(Ascent(), "forget", weight=Attribution(r=0.5, nouns=Nouns(words=("river", "book", "painter", "town", "fox")))),
        Term(NLL(), "retain"),
    ),
}


@pytest.mark.parametrize("terms", TERM_SETS.values(), ids=TERM_SETS.keys())
@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_one_big_batch_and_accumulated_small_ones_give_the_same_update(kind: Kind, terms: tuple[Term, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    results: list[tuple[list[Tensor | None], Subject]] = []
    for parts in (1, 2, 3, 8):
        watched, subject = Watched(monkeypatch), tiny(kind)
        train(subject, accumulate=parts, terms=terms)
        results.append((watched.gradients[0], subject))
    start = dict(tiny(kind).model.named_parameters())
    first, subject = results[0]
    assert any(not torch.equal(p, start[n]) for n, p in subject.model.named_parameters())
    for gradients, other in results[1:]:
        same(first, gradients)
        for (_, a), (_, b) in zip(subject.model.named_parameters(), other.model.named_parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", ["full", "lora"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("terms", ["npo, kl on all positions, nll", "rmu"])
def test_recomputed_activations_give_the_same_gradient(kind: Kind, terms: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gradients: list[list[Tensor | None]] = []
    for checkpointing in (False, True):
        watched = Watched(monkeypatch)
        subject = tiny(kind) if form == "full" else adapted(tiny(kind))
        train(subject, checkpointing=checkpointing, terms=TERM_SETS[terms])
        gradients.append(watched.gradients[0])
        assert not subject.base.is_gradient_checkpointing
    same(gradients[0], gradients[1])


def test_a_step_is_the_gradient_of_the_loss_by_hand(monkeypatch: pytest.MonkeyPatch, tiny_llama: Subject) -> None:
    """SGD on GradDiff: w - lr d(mean over all forget tokens of log p + mean over all retain tokens of -log p)."""
    Watched(monkeypatch)
    data = learning.benchmark()
    twin = tiny("llama")
    for parameter in twin.model.parameters():
        parameter.requires_grad_(True)
    total = torch.zeros(())
    for sign, side in ((1, data.forget), (-1, data.retain)):
        logp = []
        for example in side:
            text = encode(twin.tokenizer, twin.template, example)
            model: Any = twin.model
            full = torch.log_softmax(model(input_ids=torch.tensor([text.ids]), use_cache=False).logits[0], -1)
            logp += [full[i - 1, text.ids[i]] for i in range(text.start, len(text))]
        total = total + sign * torch.stack(logp).mean()
    total.backward()
    train(tiny_llama, data=data, terms=(Term(Ascent(), "forget"), Term(NLL(), "retain")))
    for (name, moved), (_, parameter) in zip(tiny_llama.model.named_parameters(), twin.model.named_parameters(), strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(moved, parameter.detach() - 1e-3 * parameter.grad, rtol=1e-4, atol=1e-6, msg=lambda m, name=name: f"{name}: {m}")


def test_the_gradient_is_clipped_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    norms = []
    for clip in (None, 0.01):
        watched = Watched(monkeypatch)
        train(tiny("llama"), optimiser=Optimiser(lr=1e-3, clip=clip, warmup=0.0))
        norms.append(float(torch.stack([g.norm() for g in watched.gradients[0] if g is not None]).norm()))
    assert norms[0] > 0.1
    assert norms[1] == pytest.approx(0.01, rel=1e-3)


# Two runs, one seed --------------------------------------------------------------------------------------------------


def test_two_runs_with_one_seed_are_equal_to_the_bit_even_with_dropout() -> None:
    prints = []
    for seed in (0, 0, 1):
        subject = tiny("llama")
        with torch.random.fork_rng():
            torch.manual_seed(17 + len(prints))  # the caller's own random state does not matter
            stages = [s for _, ss in build_methods("npo", {"lora": {"r": 2, "dropout": 0.5}, "steps": 3, "batch": 4, "lr": 1e-2}) for s in ss]
            state = State(subject, eight(), seed=seed)
            for stage in stages:
                stage.prepare(state)
            for stage in stages:
                stage(state)
        prints.append(subject.fingerprint())
    assert prints[0] == prints[1] != prints[2]


# Guard ---------------------------------------------------------------------------------------------------------------


def test_a_collapse_stops_training_and_puts_the_last_good_state_back(tmp_path: Path) -> None:
    for folder in (None, tmp_path):
        subject, data = learning.taught(), learning.benchmark()
        original = subject.fingerprint()
        state = train(
            subject, folder, data=data, terms=(Term(Ascent(), "forget"),), steps=50, optimiser=Optimiser(lr=0.5, warmup=0.0), guard=Guard(every=2)
        )
        record = state.records[0]
        assert record["steps"] == 2
        assert "the loss on retain answers rose from 0.0" in record["stopped"]
        assert "(allowed: +3)" in record["stopped"]
        assert record["stopped"].endswith("the state after step 0 was put back")
        assert subject.fingerprint() == original
        assert learning.loss(subject, data.retain) < 0.1


def test_the_last_good_state_is_the_newest_that_passed() -> None:
    subject, data = learning.taught(), learning.benchmark()
    settings: dict[str, Any] = {"data": data, "terms": (Term(Ascent(), "forget"),), "optimiser": Optimiser(lr=3e-3, warmup=0.0, schedule="constant")}
    state = train(subject, steps=60, guard=Guard(every=1, rise=1.0), **settings)
    stopped = state.records[0]["stopped"]
    good = int(stopped.split("the state after step ")[1].split()[0])
    assert 1 <= good == state.records[0]["steps"] - 1
    assert learning.loss(subject, data.retain) <= 1.1
    again = learning.taught()
    train(again, steps=good, guard=QUIET, **settings)
    assert again.fingerprint() == subject.fingerprint()


def test_a_guard_that_never_looks_lets_training_go_on() -> None:
    state = train(learning.taught(), data=learning.benchmark(), terms=(Term(Ascent(), "forget"),), steps=5, optimiser=Optimiser(lr=0.5, warmup=0.0))
    assert state.records[0]["steps"] == 5
    assert state.records[0]["stopped"] == ""


def test_degenerate_answers_count_as_collapse() -> None:
    guard = Guard(rise=100.0, degenerate=0.5)
    complaint = guard.complaint(Vital(1.0, 0.0), Vital(2.0, 0.75))
    assert complaint == "75% of the watched retain questions get a degenerate answer (allowed: 50%)"
    assert guard.complaint(Vital(1.0, 0.75), Vital(2.0, 0.75)) == ""  # was so before
    assert guard.complaint(Vital(1.0, 0.0), Vital(2.0, 0.5)) == ""
    assert "not a number" in guard.complaint(Vital(1.0, 0.0), Vital(float("nan"), 0.0))
    subject = learning.taught()
    texts = [encode(subject.tokenizer, subject.template, e) for e in learning.benchmark().retain]
    assert guard.look(subject, texts, "float32").degenerate == 0.0
    cast(Any, subject.decoder).norm.weight.data.zero_()  # every prediction is now the first token
    assert guard.look(subject, texts, "float32").degenerate == 1.0


def test_a_loss_that_is_not_a_number_stops_even_without_a_guard() -> None:
    class Sour:
        """Sane twice, then not a number."""

        calls = 0

        def __call__(self, view: Any, weight: Any) -> Tensor:
            type(self).calls += 1
            loss = view.model.mean(view.model.token_logp)
            return loss * float("nan") if self.calls > 2 else loss

    subject = tiny("llama")
    state = train(subject, terms=(Term(Sour(), "forget"),), steps=5)
    assert state.records[0]["steps"] == 2
    assert "step 3: the loss or its gradient is not a number" in state.records[0]["stopped"]
    assert all(torch.isfinite(p).all() for p in subject.model.parameters())


def test_keep_best_puts_the_best_seen_state_back(tmp_path: Path) -> None:
    values = iter([0.3, 0.9, 0.5, 0.9])
    prints: list[str] = []

    def evaluate(subject: Subject) -> Mapping[str, Score]:
        assert not subject.model.training
        prints.append(subject.fingerprint())
        return {"retain.probability": Score(next(values), better="higher", n=4)}

    for folder in (None, tmp_path):
        values, subject = iter([0.3, 0.9, 0.5, 0.9]), tiny("llama")
        prints.clear()
        stage = Train(TERMS, steps=8, evaluate_every=2, keep_best="retain.probability", guard=QUIET, optimiser=Optimiser(lr=1e-3))
        state = State(subject, eight(), folder=folder, evaluate=evaluate)
        stage.prepare(state)
        stage(state)
        assert len(set(prints)) == 4
        assert subject.fingerprint() == prints[1]
    logged = [json.loads(line) for line in (tmp_path / "train.jsonl").read_text().splitlines()]
    assert [(row["step"], row["scores"]) for row in logged if "scores" in row] == [
        (step, {"retain.probability": value}) for step, value in ((2, 0.3), (4, 0.9), (6, 0.5), (8, 0.9))
    ]


# Precision -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["npo", "rmu"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_bfloat16_model_is_trained_as_float32_and_rounded_once(kind: Kind, method: str, precision: Any) -> None:
    """Steps far below bf16's resolution add up: rounding after each would lose every one of them."""
    subject = load(tiny(kind).source, dtype="bfloat16")
    before = {name: p.detach().clone() for name, p in subject.model.named_parameters()}
    stages = [
        s
        for _, ss in build_methods(method, {"steps": 30, "lr": 1e-4, "warmup": 0.0, "schedule": "constant", "guard": {"every": 0}, "batch": 4})
        for s in ss
    ]
    state = State(subject, eight(), precision=precision)
    for stage in stages:
        stage.prepare(state)
        stage(state)
    scope = set(stages[0].scope.names(subject))
    assert {p.dtype for p in subject.model.parameters()} == {torch.bfloat16}
    moved = {n for n, p in subject.model.named_parameters() if not torch.equal(p, before[n])}
    assert moved
    assert moved <= scope
    largest = max((n for n in sorted(scope) if before[n].dim() == 2 and ".layers." in n), key=lambda n: float(before[n].abs().max()))
    big = before[largest].abs() > 0.2  # half a bf16 step there is 5e-4 or more: five single steps of Adam would vanish
    assert big.any()
    assert (dict(subject.model.named_parameters())[largest][big] != before[largest][big]).float().mean() > 0.3


# The log -------------------------------------------------------------------------------------------------------------


def test_every_step_is_logged_with_its_terms(tmp_path: Path, tiny_llama: Subject) -> None:
    state = train(tiny_llama, tmp_path, steps=3, terms=(Term(Ascent(), "forget", 2.0), Term(NLL(), "retain", 0.5)), accumulate=2)
    rows = [json.loads(line) for line in (tmp_path / "train.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3]
    for row in rows:
        assert row["stage"] == "train"
        assert row["stage_index"] == 0
        assert set(row["terms"]) == {"forget.ascent", "retain.nll"}
        assert row["loss"] == pytest.approx(2.0 * row["terms"]["forget.ascent"] + 0.5 * row["terms"]["retain.nll"])
        assert row["learning_rate"] == 1e-3
        assert row["gradient_norm"] > 0
        assert row["tokens_per_second"] > 0
        assert row["memory_mb"] > 0
    record = state.records[0]
    assert record["steps"] == 3
    assert record["tokens"] > 0
    assert record["changed_parameters"] == sum(p.numel() for p in tiny_llama.model.parameters())
    assert rows[0]["terms"]["retain.nll"] == pytest.approx(learning.loss(tiny("llama"), eight().retain), rel=1e-5)


def test_a_resumed_log_loses_the_lines_that_come_again(tmp_path: Path) -> None:
    log = tmp_path / "train.jsonl"
    lines = [json.dumps({"stage_index": stage, "step": step}) for stage in (0, 1) for step in (1, 2, 3)]
    log.write_text("\n".join([*lines, '{"stage_index": 1, "st']))
    truncate_log(log, 1, 3)
    assert log.read_text().splitlines() == lines[:5]
    truncate_log(log, 0, 1)
    assert log.read_text() == ""
    truncate_log(tmp_path / "absent.jsonl", 0, 1)
    assert not (tmp_path / "absent.jsonl").exists()


def test_the_plan_says_what_was_resolved(tiny_llama: Subject) -> None:
    state = State(tiny_llama, eight())
    for _, stages in build_methods("rmu", {"steps": 1, "guard": {"every": 0}}):
        for stage in stages:
            stage.prepare(state)
            stage(state)
    joined = "\n".join(state.plan)
    assert "forget.rmu: RMU(layer=1, coefficient=" in joined
    assert "retain.hiddenmse: HiddenMSE(layer=1)" in joined
    assert "learning rate 5e-05, by the model's size" in joined
