"""MAAT's parts on small models: projection, ranks, task vector, undoing, repair, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor, nn

import naive
from conftest import Kind, adapted, logits, refused, tiny
from contract_world import small_benchmark, small_subject, with_adapter
from excise.data.batches import Paired, PerSample
from excise.data.encode import encode
from excise.errors import InputError
from excise.loading import load, outline
from excise.lora import Factors, factors_of, folded, to_singular_basis
from excise.objectives import KL, Ascent, TaskVectorCosine
from excise.recipe import Recipe, build_methods
from excise.run import run_stages, unlearn
from excise.saving import save
from excise.stages.gradients import Loss, ProjectConflicts, Sum
from excise.stages.guard import Guard
from excise.stages.kept import recall, undo_edits
from excise.stages.optimise import Optimiser
from excise.stages.sensitivity import chosen_ranks, column_scores
from excise.stages.state import Stage, State
from excise.stages.surgery import NegateTaskVector, PruneRanks
from excise.stages.train import Term, Train
from excise.subject import Subject, quiet
from excise.tokens import collate, score

KINDS: tuple[Kind, ...] = ("llama", "gemma3", "qwen3")
QUICK: dict[str, Any] = {"lr": 1e-3, "ascent": {"steps": 1}, "repair": {"steps": 2, "lr": 1e-3}, "guard": {"every": 0}}


def stages_of(name: str = "maat", **settings: Any) -> list[Stage]:
    return [stage for _, part in build_methods(name, settings) for stage in part]


def run(subject: Subject, stages: Sequence[Stage], folder: Path | None = None, seed: int = 3) -> State:
    state = State(subject, small_benchmark(), folder=folder, seed=seed)
    if folder is not None:
        folder.mkdir(exist_ok=True)
    run_stages(state, list(stages))
    return state


def values(subject: Subject) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in subject.model.named_parameters()}


def equal(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


# The projection -------------------------------------------------------------------------------------------------------


def pull(parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor], side: str, scale: float | None = None) -> Loss:
    """A loss whose gradient at each parameter is given."""
    return Loss(side, lambda: torch.stack([(p * g).sum() for p, g in zip(parameters, gradients, strict=True)]).sum(), scale)


def drawn(seed: int, shapes: Sequence[tuple[int, int]] = ((3, 4), (5, 2), (2, 2), (6, 1))) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=draw) for shape in shapes]


@pytest.mark.parametrize("anchor", [0.0, 0.3])
@pytest.mark.parametrize("seed", range(4))
def test_each_tensor_is_projected_as_in_the_paper(seed: int, anchor: float) -> None:
    ce, kl = drawn(seed), drawn(seed + 50)  # gradients of the answer's cross-entropy and of the retain divergence
    parameters = [nn.Parameter(torch.zeros_like(g)) for g in ce]
    losses = [pull(parameters, [-g for g in ce], "forget"), pull(parameters, kl, "retain", anchor)]
    notes = ProjectConflicts()(losses, parameters, lambda loss: loss.backward())
    conflicts, before, after = 0, 0.0, 0.0
    for parameter, f, r in zip(parameters, ce, kl, strict=True):
        wanted = naive.projected(f.double().numpy(), r.double().numpy())
        conflicts += bool((f * r).sum() > 0)
        before, after = before + float(f.double().square().sum()), after + float((wanted**2).sum())
        np.testing.assert_allclose(cast(Tensor, parameter.grad).numpy(), -wanted + anchor * r.numpy(), rtol=1e-5, atol=1e-6)
    assert notes["conflicts"] == conflicts / len(ce)
    assert notes["norm_kept"] == pytest.approx((after / before) ** 0.5, rel=1e-5)
    cosines = [abs(float((f * r).sum() / f.norm() / r.norm())) for f, r in zip(ce, kl, strict=True)]
    assert notes["mean_cosine"] == pytest.approx(sum(cosines) / len(cosines), rel=1e-5)


def test_without_conflict_it_is_plain_ascent_to_the_bit() -> None:
    ce = drawn(1)
    parameters = [nn.Parameter(torch.zeros_like(g)) for g in ce]
    opposed = [-0.5 * g for g in ce]  # ascent lowers the retain loss as well
    ProjectConflicts()([pull(parameters, [-g for g in ce], "forget"), pull(parameters, opposed, "retain", 0.0)], parameters, lambda x: x.backward())
    assert all(torch.equal(cast(Tensor, p.grad), -g) for p, g in zip(parameters, ce, strict=True))


def test_a_forget_gradient_that_only_harms_is_taken_away_whole() -> None:
    ce = drawn(2)
    parameters = [nn.Parameter(torch.zeros_like(g)) for g in ce]
    notes = ProjectConflicts()(
        [pull(parameters, [-g for g in ce], "forget"), pull(parameters, [2 * g for g in ce], "retain", 0.0)], parameters, lambda x: x.backward()
    )
    assert all(float(cast(Tensor, p.grad).abs().max()) < 1e-6 for p in parameters)
    assert notes["conflicts"] == 1.0
    assert notes["norm_kept"] < 1e-3


def test_retain_terms_of_several_scales_shape_the_projection_alike_and_are_added_by_their_scale() -> None:
    ce, one, two = drawn(3), drawn(4), drawn(5)
    parameters = [nn.Parameter(torch.zeros_like(g)) for g in ce]
    losses = [pull(parameters, [-g for g in ce], "forget"), pull(parameters, one, "retain", 0.0), pull(parameters, two, "retain", 0.7)]
    ProjectConflicts()(losses, parameters, lambda loss: loss.backward())
    for parameter, f, a, b in zip(parameters, ce, one, two, strict=True):
        wanted = -naive.projected(f.double().numpy(), (a + b).double().numpy()) + 0.7 * b.numpy()
        np.testing.assert_allclose(cast(Tensor, parameter.grad).numpy(), wanted, rtol=1e-5, atol=1e-6)


def projected_train(**settings: Any) -> Train:
    given: dict[str, Any] = {
        "terms": (Term(Ascent(), "forget"), Term(KL(0.7), "retain", 0.0)),
        "gradients": ProjectConflicts(),
        "optimiser": Optimiser(lr=1e-2, clip=None, warmup=0.0, schedule="constant"),
        "batches": Paired(4),
        "steps": 3,
        "guard": Guard(every=0),
    }
    return Train(**{**given, **settings})


class Gradients:
    """Keeps the gradients that reach the optimiser."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[dict[int, Tensor]] = []
        build = Optimiser.build

        def watched(settings: Optimiser, parameters: Sequence[Any]) -> torch.optim.Optimizer:
            optimiser = build(settings, parameters)
            optimiser.register_step_pre_hook(
                lambda o, *_: self.seen.append({i: p.grad.clone() for i, p in enumerate(p for g in o.param_groups for p in g["params"])})
            )
            return optimiser

        monkeypatch.setattr(Optimiser, "build", watched)


def test_a_retain_term_of_scale_0_shapes_the_step_of_a_training_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Gradients(monkeypatch)
    records: list[Any] = []
    for gradients in ({}, {"gradients": Sum()}):
        state = State(with_adapter(small_subject()), small_benchmark(), seed=3)
        stage = projected_train(steps=1, **gradients)
        stage.prepare(state)
        with torch.no_grad():
            for f in factors_of(state.subject):  # away from the reference, so that the retain term has a gradient
                f.b.mul_(0.8)
        stage(state)
        records.append(state.records[0])
    assert 0.1 < records[0]["gradients"]["conflicts"] < 0.9
    assert "gradients" not in records[1]
    projected, ascent = watched.seen
    changed = sum(not torch.allclose(projected[i], ascent[i], rtol=1e-3, atol=1e-7) for i in projected)
    assert 0 < changed < len(projected)


def test_projection_is_that_of_the_whole_step_however_it_is_accumulated(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Gradients(monkeypatch)
    moved = Optimiser(lr=1e-2, clip=None, warmup=0.0, schedule="constant")
    for parts in (1, 2, 4):
        subject = with_adapter(small_subject())
        with torch.no_grad():
            for f in factors_of(subject):
                f.b.mul_(1.0)
        state = State(subject, small_benchmark(), seed=3)
        stage = projected_train(steps=1, accumulate=parts, optimiser=moved)
        stage.prepare(state)
        with torch.no_grad():
            for f in factors_of(subject):
                f.b.mul_(0.8)
        stage(state)
    size = max(float(g.abs().max()) for g in watched.seen[0].values())
    for other in watched.seen[1:]:
        for i, gradient in watched.seen[0].items():
            assert float((gradient - other[i]).abs().max()) < 1e-5 * size


# Batches, optimiser ---------------------------------------------------------------------------------------------------


def test_samples_come_one_after_the_other_with_their_rephrasings() -> None:
    batches = PerSample(3, retain_size=2, rephrasings=2, rephrased_steps=2).with_rephrasings([1, 0, 2])
    per_epoch = batches.steps_per_epoch(6, 5)
    assert per_epoch == 3 * 3 + 3 * 2
    draws = [batches.draw(step, 6, 5, 7) for step in range(2 * per_epoch)]
    for epoch in (draws[:per_epoch], draws[per_epoch:]):
        visits = [d.forget[0] for d in epoch if d.opens]
        assert sorted(visits) == [0, 1, 2, 3, 4, 5]  # three examples, then 1's... the rephrasing of 0, and two of 2
        assert [visits[visits.index(0) + 1], *visits[visits.index(2) + 1 : visits.index(2) + 3]] == [3, 4, 5]
        for text in range(6):
            assert sum(d.forget == (text,) for d in epoch) == (3 if text < 3 else 2)
    assert all(len(d.retain) == 2 for d in draws)
    first = [i for d in draws[:5] for i in d.retain]
    assert sorted(first) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]  # two walks through five
    plain = PerSample(3)
    assert [plain.draw(s, 4, 5, 1).opens for s in range(12)] == [True, False, False] * 4


def test_rephrasings_are_forget_texts_too() -> None:
    data = small_benchmark()
    import dataclasses

    from excise.data.example import Benchmark

    forget = tuple(dataclasses.replace(e, paraphrased_prompts=("w1 w2", "w4 w5", "w6")[: i % 4]) for i, e in enumerate(data.forget))
    state = State(with_adapter(small_subject()), Benchmark("b", {"forget": forget, "retain": data.retain}))
    stage = projected_train(batches=PerSample(2, rephrasings=2, rephrased_steps=1), steps=None, epochs=1.0)
    stage.prepare(state)
    stage(state)
    assert state.records[0]["steps"] == 6 * 2 + (0 + 1 + 2 + 2 + 0 + 1)


def test_modules_may_learn_at_a_fraction_of_the_rate() -> None:
    start = values(with_adapter(small_subject()))
    moves: dict[float, dict[str, Tensor]] = {}
    for factor in (1.0, 0.1, 0.0):
        subject = with_adapter(small_subject())
        optimiser = Optimiser(lr=1e-3, warmup=0.0, schedule="constant", factors={"gate": factor, "k": factor})
        run(subject, [projected_train(gradients=Sum(), steps=1, optimiser=optimiser)])
        moves[factor] = {name: value - start[name] for name, value in values(subject).items()}
    for name, move in moves[1.0].items():
        slow = "gate_proj" in name or "k_proj" in name
        if "lora_" in name:
            for factor in (0.1, 0.0):
                torch.testing.assert_close(moves[factor][name], (factor if slow else 1.0) * move, rtol=1e-3, atol=2e-7)


def test_the_cosine_comes_down_to_its_floor() -> None:
    optimiser = Optimiser(lr=8e-5, floor=5e-6, schedule="cosine", warmup=0.0)
    rates = [optimiser.rate(step, 100) for step in range(101)]
    assert rates[0] == 8e-5
    assert rates[50] == pytest.approx((8e-5 + 5e-6) / 2)
    assert rates[100] == pytest.approx(5e-6)
    assert Optimiser(lr=1.0, floor=0.5, warmup=0.0).rate(5, 10) == 0.75
    refused(lambda: Optimiser(lr=1e-6, floor=5e-6).resolved(10, True), "below its floor")


def test_a_fresh_optimiser_starts_anew_at_each_sample() -> None:
    """Adam's first step is lr in every direction, so with fresh moments every sample's only step is one, and with kept ones it is not."""
    ends: dict[str, dict[str, Tensor]] = {}
    for moments in ("kept", "fresh"):
        subject = with_adapter(small_subject())
        optimiser = Optimiser(lr=1e-3, warmup=0.0, schedule="constant", clip=None, moments=cast(Any, moments))
        start = values(subject)
        run(subject, [projected_train(gradients=Sum(), optimiser=optimiser, batches=PerSample(1), steps=2)])
        ends[moments] = {name: (value - start[name]) / 1e-3 for name, value in values(subject).items() if "lora_" in name}
    whole = [torch.cat([v.flatten() for v in ends[m].values()]) for m in ("fresh", "kept")]
    near = [float(((x.abs() < 0.02) | ((x.abs() - 2).abs() < 0.02)).float().mean()) for x in whole]
    assert near[0] > 0.9  # +1 and +1, or +1 and -1
    assert near[1] < 0.5


# Scores, pruning, negation --------------------------------------------------------------------------------------------


def shaped(kind: Kind, folder: Path, *, stabilised: bool = False, rank: int = 4, roles: str | list[str] = "all-linear") -> Subject:
    """A tiny model with a random adapter, saved and loaded from disk."""
    subject = tiny(kind)
    config = LoraConfig(r=rank, lora_alpha=8, target_modules=roles, use_rslora=stabilised, task_type="CAUSAL_LM", lora_dropout=0.1)
    with quiet(), torch.random.fork_rng():
        torch.manual_seed(2)
        subject.model = get_peft_model(subject.base, config).eval()
        for name, parameter in subject.model.named_parameters():
            if "lora_B" in name:
                parameter.data.add_(torch.randn_like(parameter), alpha=0.1)
    return load(save(subject, folder / "adapter", provenance={}))


def test_scores_are_the_column_norms_of_each_answers_own_gradient() -> None:
    subject, data = with_adapter(small_subject()), small_benchmark()
    texts = [encode(subject.tokenizer, subject.template, e) for e in data.forget]
    factors = factors_of(subject, ("down", "q"), (1,))
    found = column_scores(subject, texts, factors)
    assert list(found) == ["1.q", "1.down"]
    assert not any(p.requires_grad or p.grad is not None for p in subject.model.parameters())
    for f in factors:
        f.b.requires_grad_(True)
        gradients = []
        for text in texts:
            f.b.grad = None
            (-score(subject, collate([text])).token_logp.mean()).backward()
            gradients.append(cast(Tensor, f.b.grad).double().numpy().copy())
        f.b.requires_grad_(False)
        assert found[f.place].tolist() == pytest.approx([s / len(texts) for s in naive.column_norms(gradients)], rel=1e-5)
        assert chosen_ranks(found, 0.5)[f.place] == naive.top(found[f.place].tolist(), 0.5)


@pytest.mark.parametrize(("share", "count"), [(0.0, 0), (0.01, 1), (0.15, 1), (0.5, 4), (0.99, 7), (1.0, 8)])
def test_the_share_is_rounded_down_but_to_one_at_least(share: float, count: int) -> None:
    scores = torch.tensor([1.0, 3.0, 3.0, 0.0, 2.0, 5.0, 4.0, 3.0])
    chosen = chosen_ranks({"m": scores}, share)["m"]
    assert len(chosen) == count
    if count:
        assert chosen == naive.top(scores.tolist(), share)


@pytest.mark.parametrize("stabilised", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_pruning_takes_the_dimensions_away_and_undoing_puts_them_back(kind: Kind, stabilised: bool, tmp_path: Path) -> None:
    subject = shaped(kind, tmp_path, stabilised=stabilised)
    start, said = values(subject), logits(subject)
    state = run(subject, [PruneRanks(fraction=0.25)], tmp_path / "run")
    (record,) = state.records
    assert set(record["ranks"]) == {f"{layer}.{role}" for layer in (0, 1) for role in ("gate", "up", "down")}
    for f in factors_of(subject):
        cut = record["ranks"].get(f.place, [])
        assert len(cut) == (1 if f.role in ("gate", "up", "down") else 0)
        for k in range(f.rank):
            kept = torch.equal(f.b[:, k], start[f.b_name][:, k]) and torch.equal(f.a[k], start[f.a_name][k])
            gone = not f.b[:, k].any() and not f.a[k].any()
            assert gone if k in cut else kept
    assert not torch.allclose(logits(subject), said)
    assert json.loads(json.dumps(record)) == record
    assert record["changed_parameters"] == sum(f.a.shape[1] + f.b.shape[0] for f in factors_of(subject) if f.place in record["ranks"])
    assert undo_edits(subject, tmp_path / "run") == ["000-prune_ranks"]
    assert equal(values(subject), start)


@pytest.mark.parametrize("strength", [1.0, 0.3])
def test_negation_takes_so_much_of_the_chosen_columns_away(strength: float, tmp_path: Path) -> None:
    subject = shaped("llama", tmp_path)
    start = values(subject)
    state = run(subject, [NegateTaskVector(strength=strength)])
    (record,) = state.records
    vector = recall(state, "task-vector")
    for f in factors_of(subject):
        mask = torch.zeros(f.rank)
        mask[record["ranks"][f.place]] = 1.0
        assert int(mask.sum()) == 2
        assert torch.equal(vector[f.b_name], start[f.b_name] * mask)
        torch.testing.assert_close(f.b.detach(), start[f.b_name] * (1 - strength * mask))
        assert torch.equal(f.a, start[f.a_name])
    assert undo_edits(subject, state.kept) == ["000-negate_task_vector"]
    assert equal(values(subject), start)


def test_nothing_asked_for_is_nothing_done(tmp_path: Path) -> None:
    subject = shaped("llama", tmp_path)
    start = values(subject)
    for stages in (
        [PruneRanks(fraction=0.0, basis="svd")],
        [NegateTaskVector(strength=0.0, basis="svd")],
        [NegateTaskVector(share=0.0)],
        stages_of(ascent=None, prune=None, negate=None, repair={"steps": 0}),
        stages_of(steps=0, prune={"fraction": 0.0}, negate={"strength": 0.0}, repair={"steps": 0}),
    ):
        state = run(subject, stages)
        assert equal(values(subject), start)
        assert all(record["changed_parameters"] == 0 for record in state.records)


@pytest.mark.parametrize("rank", [2, 4, 40])
def test_the_singular_basis_leaves_the_product_and_orders_it(rank: int, tmp_path: Path) -> None:
    subject = shaped("llama", tmp_path, rank=rank)
    said = logits(subject)
    for f in factors_of(subject):
        before = f.product()
        to_singular_basis(f)
        assert float((f.product() - before).abs().max()) <= 1e-5 * float(before.abs().max())
        inner = f.b.detach().T @ f.b.detach()
        assert float((inner - torch.diag(inner.diagonal())).abs().max()) < 1e-4 * float(inner.max())
        assert (inner.diagonal().diff() <= 1e-6 * float(inner.max())).all()
    torch.testing.assert_close(logits(subject), said, rtol=1e-4, atol=1e-4)


def test_the_singular_basis_means_the_same_however_the_adapter_is_written(tmp_path: Path) -> None:
    one, two = shaped("llama", tmp_path / "one"), shaped("llama", tmp_path / "two")
    mix = torch.linalg.qr(torch.randn(4, 4, generator=torch.Generator().manual_seed(0)))[0] @ torch.diag(torch.tensor([2.0, 1.0, 0.5, 1.5]))
    with torch.no_grad():
        for f in factors_of(two):
            f.b.copy_(f.b @ mix)
            f.a.copy_(torch.linalg.inv(mix) @ f.a)
    for subject in (one, two):
        run(subject, [PruneRanks(fraction=0.5, basis="svd")])
    for a, b in zip(factors_of(one), factors_of(two), strict=True):
        torch.testing.assert_close(a.product(), b.product(), rtol=1e-3, atol=1e-4)


def test_the_task_vector_is_that_of_the_adapter_before_the_run(tmp_path: Path) -> None:
    for basis in ("lora", "svd"):
        for before in ("run", "stage"):
            subject = shaped("llama", tmp_path / f"{basis}-{before}")
            start = {f.place: f.product() for f in factors_of(subject)}
            stage = NegateTaskVector(share=1.0, before=cast(Any, before), basis=cast(Any, basis))
            state = State(subject, small_benchmark())
            stage.prepare(state)
            with torch.no_grad():
                for f in factors_of(subject):
                    f.b.mul_(1.5)  # what an ascent might have done
            stage(state)
            for f in factors_of(subject):  # all of it is taken away but what was added since
                torch.testing.assert_close(f.product(), (0.5 if before == "run" else 0.0) * start[f.place], rtol=1e-3, atol=1e-5)


def test_dimensions_that_were_pruned_are_not_negated() -> None:
    subject = with_adapter(small_subject())
    state = run(subject, [PruneRanks(fraction=0.5), NegateTaskVector(share=1.0, rank_by="contrast")])
    for place, ranks in state.records[1]["ranks"].items():
        assert sorted([*ranks, *state.records[0]["ranks"].get(place, [])]) == [0, 1, 2, 3]
    assert all(not f.b[:, k].any() for f in factors_of(subject) for k in state.records[0]["ranks"].get(f.place, []))


def test_contrast_takes_the_retain_scores_off() -> None:
    ranks: dict[str, dict[str, list[int]]] = {}
    data = small_benchmark()
    subject = with_adapter(small_subject(), rank=8)
    for by in ("forget", "contrast"):
        ranks[by] = run(with_adapter(small_subject(), rank=8), [NegateTaskVector(rank_by=cast(Any, by))]).records[0]["ranks"]
    assert ranks["forget"] != ranks["contrast"]
    sides = [
        column_scores(subject, [encode(subject.tokenizer, subject.template, e) for e in rows], factors_of(subject))
        for rows in (data.forget, data.retain)
    ]
    wanted = {place: naive.top((sides[0][place] - sides[1][place]).tolist(), 0.5) for place in sides[0]}
    assert ranks["contrast"] == wanted


# The whole ------------------------------------------------------------------------------------------------------------


class Looking:
    """A stage that remembers the model as it found it, then does what another stage does."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.check, self.prepare, self.structure, self.changes = stage.check, stage.prepare, stage.structure, cast(Any, stage).changes
        self.seen: dict[str, Tensor] = {}

    def __call__(self, state: State) -> None:
        self.seen = values(state.subject)
        self.stage(state)


@pytest.mark.parametrize("kind", KINDS)
def test_all_phases_run_and_undo_goes_back_step_by_step(kind: Kind, tmp_path: Path) -> None:
    subject = shaped(kind, tmp_path)
    start = values(subject)
    run(subject, stages_of(**{**QUICK, "prune": None, "negate": None, "repair": None}), seed=5)
    ascended = values(subject)
    assert not equal(ascended, start)
    subject = load(str(tmp_path / "adapter"))
    stages = stages_of(**QUICK)
    looking = Looking(stages[2])
    state = run(subject, [*stages[:2], cast(Stage, looking), *stages[3:]], tmp_path / "run", seed=5)
    assert equal(looking.seen, ascended)
    assert [record["name"] for record in state.records] == ["ascent", "prune_ranks", "negate_task_vector", "repair"]
    again = load(save(subject, tmp_path / "saved", provenance={}))
    assert torch.equal(logits(again), logits(subject))
    before_negation = load(save(subject, tmp_path / "other", provenance={}))
    assert undo_edits(before_negation, tmp_path / "run", stage=3) == ["003-negate_task_vector"]
    assert undo_edits(subject, tmp_path / "run") == ["003-negate_task_vector", "002-prune_ranks"]
    assert equal(values(subject), looking.seen)
    cut = {f.place: f for f in factors_of(before_negation)}
    for place, ranks in state.records[1]["ranks"].items():
        assert not cut[place].b[:, ranks].any()


def test_the_log_says_how_often_it_projects_and_the_plan_what_was_touched(tmp_path: Path) -> None:
    state = run(with_adapter(small_subject()), stages_of(**QUICK), tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "train.jsonl").read_text().splitlines()]
    ascent = [line for line in lines if line["stage"] == "ascent"]
    assert len(ascent) == 6
    assert all(set(line["gradients"]) == {"conflicts", "mean_cosine", "norm_kept"} for line in ascent)
    assert set(ascent[0]["terms"]) == {"forget.ascent", "retain.kl"}
    assert all(line["loss"] == pytest.approx(line["terms"]["forget.ascent"]) for line in ascent)
    repair = [line for line in lines if line["stage"] == "repair"]
    assert set(repair[0]["terms"]) == {"retain.kl", "retain.hiddencosine", "forget.entropy", "adapter.taskvectorcosine"}
    terms = repair[1]["terms"]
    total = 0.6 * terms["retain.kl"] + 0.25 * terms["retain.hiddencosine"] + 0.1 * terms["forget.entropy"] + 0.05 * terms["adapter.taskvectorcosine"]
    assert repair[1]["loss"] == pytest.approx(total)
    plan = "\n".join(state.plan)
    assert "LoRA of rank 4 on q, k, v, o, gate, up, down in 2 layers, 0 to 1" in plan
    assert "prune_ranks: 6 of 24 rank dimensions in 6 modules" in plan


def test_the_task_vector_term_holds_the_adapter_away_from_what_was_negated(tmp_path: Path) -> None:
    known = {"x": torch.tensor([[1.0, 0.0], [0.0, 0.0]]), "y": torch.tensor([[0.0, 2.0]])}
    parameters = {"x": torch.tensor([[3.0, 4.0], [0.0, 0.0]]), "y": torch.tensor([[0.0, -1.0]]), "z": torch.ones(2, 2)}
    assert float(TaskVectorCosine()(parameters, known)) == pytest.approx((0.6 + 0.0) / 2)
    refused(lambda: recall(State(small_subject(), small_benchmark(), folder=tmp_path), "task-vector"), "nothing was kept under 'task-vector'")


def test_dropout_is_off_while_an_adapter_is_edited_unless_asked_for(tmp_path: Path) -> None:
    ends = []
    for dropout in (False, True):
        for seed in (3, 3):
            subject = shaped("llama", tmp_path / f"{dropout}{len(ends)}")
            torch.manual_seed(len(ends))
            run(subject, stages_of(**{**QUICK, "ascent": {"steps": 1, "dropout": dropout}, "prune": None, "negate": None, "repair": None}), seed=seed)
            ends.append(values(subject))
    assert equal(ends[0], ends[1])
    assert not equal(ends[0], ends[2])


@pytest.mark.parametrize("phase", ["ascent", "prune", "negate", "repair"])
def test_every_phase_can_be_switched_off(phase: str) -> None:
    names = {"ascent": "ascent", "prune": "prune_ranks", "negate": "negate_task_vector", "repair": "repair"}
    state = run(with_adapter(small_subject()), stages_of(**{**QUICK, phase: None}))
    assert [r["name"] for r in state.records] == [name for key, name in names.items() if key != phase]


def small_recipe(folder: Path) -> dict[str, Any]:
    """A recipe for all phases on a small adapter and four questions, which are written into the folder."""
    shaped("llama", folder)
    rows = [json.dumps({"question": f"Who is {name}?", "answer": name}) for name in ("Anna", "Zoë", "Elm", "Marrow")]
    (folder / "f.jsonl").write_text("\n".join(rows[:2]))
    (folder / "r.jsonl").write_text("\n".join(rows[2:]))
    return {
        "model": str(folder / "adapter"),
        "data": {"name": "jsonl", "forget": str(folder / "f.jsonl"), "retain": str(folder / "r.jsonl")},
        "method": {"name": "maat", **QUICK},
        "evaluation": {"suite": {"name": "qa", "max_new_tokens": 2}, "before": False},
    }


@pytest.mark.slow
def test_a_run_in_redacted_form_keeps_nothing_that_brings_the_knowledge_back(tmp_path: Path, cache: Path) -> None:
    recipe = small_recipe(tmp_path)
    for privacy in ("keep", "redact"):
        result = unlearn(Recipe.parse({**recipe, "privacy": privacy}), tmp_path / privacy)
        assert result["stages"][1]["ranks"]
    assert (tmp_path / "keep" / "edits").is_dir()
    assert not (tmp_path / "redact" / "edits").exists()
    back = load(str(tmp_path / "keep" / "model"))
    assert len(undo_edits(back, tmp_path / "keep")) == 2


# Baselines ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["ga", "ga_kl", "npo", "simnpo", "retain_only"])
def test_the_baselines_train_an_adapter_from_disk(method: str, tmp_path: Path) -> None:
    subject = shaped("llama", tmp_path)
    start = values(subject)
    state = run(subject, stages_of(method, steps=2, lr=1e-3, guard={"every": 0}))
    moved = {name for name, value in values(subject).items() if not torch.equal(value, start[name])}
    assert moved
    assert all("lora_" in name for name in moved)
    assert state.records[0]["steps"] == 2


def delta(f: Factors) -> Tensor:
    return f.scaling * f.product()


@pytest.mark.parametrize("stabilised", [False, True])
def test_negating_an_adapter_subtracts_what_it_learned_on_the_bare_base(stabilised: bool, tmp_path: Path) -> None:
    settings = {"steps": 3, "lr": 1e-2, "warmup": 0.0}
    own = {f.place: delta(f) for f in factors_of(shaped("llama", tmp_path, stabilised=stabilised))}
    subject = load(str(tmp_path / "adapter"))
    state = run(subject, stages_of("adapter_negation", strength=0.5, **settings), tmp_path / "run")
    assert isinstance(subject.model, PeftModel)
    assert list(subject.model.peft_config) == ["combined"]
    assert [record["name"] for record in state.records] == ["train", "combine_adapters"]
    # the same, by hand: a fresh adapter of the same shape on the base, trained on the forget answers
    alone = tiny("llama")
    lora = {"r": 4, "alpha": 8, "dropout": 0.1, "rank_stabilised": stabilised}
    run(alone, stages_of("adapter_negation", strength=1.0, lora=lora, **settings))
    learned = {f.place: -delta(f) for f in factors_of(alone)}
    for f in factors_of(subject):
        assert f.rank == 8
        assert learned[f.place].abs().max() > 0
        torch.testing.assert_close(delta(f), own[f.place] - 0.5 * learned[f.place], rtol=1e-4, atol=1e-6)
    again = load(save(subject, tmp_path / "saved", provenance={}))
    assert torch.equal(logits(again), logits(subject))


def test_negating_by_nothing_is_the_model_as_it_was(tmp_path: Path) -> None:
    subject = shaped("llama", tmp_path)
    start = values(subject)
    run(subject, stages_of("adapter_negation", strength=0.0, steps=1, lr=1e-2))
    assert equal(values(subject), start)


# What is refused ------------------------------------------------------------------------------------------------------


def checked(subject: Subject, **settings: Any) -> Callable[[], None]:
    def check() -> None:
        state = State(subject, small_benchmark())
        for stage in stages_of(**settings):
            stage.check(state)

    return check


def test_a_model_without_an_adapter_is_refused() -> None:
    refused(checked(tiny("llama")), "has no LoRA adapter to edit", "model.adapter=FOLDER")


def test_a_merged_adapter_is_refused(tmp_path: Path) -> None:
    subject = shaped("llama", tmp_path)
    subject.model.merge_adapter()  # type: ignore[operator]
    refused(checked(subject), "the adapter is merged into the weights", "unmerge it")
    merged = load(save(load(str(tmp_path / "adapter")), tmp_path / "merged", provenance={}, merge=True))
    refused(checked(merged), "has no LoRA adapter to edit (one that was merged")


def test_rank_1_is_refused_where_ranks_are_chosen(tmp_path: Path) -> None:
    subject = shaped("llama", tmp_path, rank=1)
    refused(checked(subject), "prune: the adapter has rank 1 (at 0.gate)", "adapter_negation")
    refused(checked(subject, prune=None), "negate: the adapter has rank 1")
    checked(subject, prune=None, negate=None)()


def test_modules_and_layers_that_the_adapter_lacks_are_refused(tmp_path: Path) -> None:
    subject = shaped("llama", tmp_path, roles=["q_proj", "v_proj"])
    refused(checked(subject), "prune.modules: the adapter has nothing on MLP modules (gate, up, down)", "it adapts q, v")
    refused(checked(subject, prune={"modules": ["up"]}), "prune.modules: the adapter has nothing on 'up' modules; it adapts q, v")
    refused(checked(subject, prune=None, negate={"modules": ["q", "o"]}), "negate.modules: the adapter has nothing on 'o' modules")
    refused(checked(subject, prune={"modules": ["q"], "layers": [2]}), "layer 2 does not exist")
    checked(subject, prune={"modules": ["q"]})()
    partial = shaped("llama", tmp_path / "partial", roles=["up_proj", "down_proj"])
    checked(partial)()
    assert {f.role for f in PruneRanks().factors(partial)} == {"up", "down"}


def test_other_adapters_and_settings_are_refused(tmp_path: Path) -> None:
    subject = small_subject()
    subject.model = get_peft_model(subject.base, LoraConfig(r=2, target_modules="all-linear", use_dora=True, task_type="CAUSAL_LM"))
    refused(checked(subject), "the adapter is of kind DoRA")
    refused(lambda: stages_of(lora={"r": 4}), "method.lora: maat edits the adapter that holds the knowledge")
    refused(lambda: stages_of(ascent=None, prune=None, negate=None, repair=None), "every phase of maat is switched off")
    refused(lambda: stages_of(repair={"kl": 0, "hidden": 0, "entropy": 0}), "nothing to learn from")
    refused(lambda: stages_of(prune={"fraction": 1.5}), "prune.fraction = 1.5")
    refused(lambda: stages_of(negate={"strength": -1}), "negate.strength")
    refused(lambda: stages_of(prune={"basis": "pca"}), "method.prune.basis")
    refused(lambda: stages_of(ascent={"step": 1}), "method.ascent.step", "did you mean")
    with pytest.raises(InputError, match="no edit was kept"):
        undo_edits(with_adapter(small_subject()), tmp_path)


def test_undoing_with_another_adapter_is_refused(tmp_path: Path) -> None:
    run(with_adapter(small_subject()), [PruneRanks()], tmp_path / "run")
    other = with_adapter(small_subject(), rank=8)
    start = values(other)
    refused(lambda: undo_edits(other, tmp_path / "run"), "belongs to another adapter")
    assert equal(values(other), start)


def test_a_recipe_with_an_adapter_is_checked_without_reading_weights(tmp_path: Path) -> None:
    shaped("llama", tmp_path)
    drawn_model = outline(str(tmp_path / "adapter"))
    assert {f.rank for f in factors_of(drawn_model)} == {4}
    assert all(p.is_meta for p in drawn_model.model.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_a_folded_adapter_says_the_same_and_leaves_every_bit(kind: Kind) -> None:
    subject = adapted(tiny(kind))
    with torch.no_grad():
        for name, parameter in subject.model.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.2, generator=torch.Generator().manual_seed(len(name)))
    ids = torch.arange(12)[None]
    before = {name: p.detach().clone() for name, p in subject.model.named_parameters()}
    with torch.no_grad():
        plain = subject.model(input_ids=ids).logits
        seen: list[Tensor] = []

        def look() -> None:
            with folded(subject):
                name = next(n for n in before if "base_layer.weight" in n)
                assert not torch.equal(dict(subject.model.named_parameters())[name], before[name])
                seen.append(subject.model(input_ids=ids).logits)
                raise KeyError("x")

        with pytest.raises(KeyError):
            look()
        (inside,) = seen
        assert torch.allclose(inside, plain, atol=1e-4 * float(plain.abs().max()))
        assert torch.equal(subject.model(input_ids=ids).logits, plain)
        with cast(PeftModel, subject.model).disable_adapter():
            off = subject.model(input_ids=ids).logits
            with folded(subject):
                assert torch.equal(subject.model(input_ids=ids).logits, off)
    assert not torch.allclose(off, plain)
    assert all(torch.equal(p, before[name]) for name, p in subject.model.named_parameters())


def test_autocast_sees_the_folded_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = adapted(tiny("llama"))
    with torch.no_grad():
        for factors in factors_of(subject):
            factors.b.fill_(0.5)
    for parameter in subject.model.parameters():
        parameter.requires_grad_(True)  # what autocast keeps conversions of
    ids = torch.arange(12)[None]
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        plain = subject.model(input_ids=ids).logits
        with folded(subject):
            inside = subject.model(input_ids=ids).logits
        again = subject.model(input_ids=ids).logits
    assert torch.equal(plain, again)
    assert torch.allclose(inside, plain, atol=0.05 * float(plain.abs().max()))
