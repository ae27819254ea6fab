"""What every objective, token weight and method must do: excise's own, and yours.

    from contract import check_method, check_objective, check_weight

    def test_my_loss() -> None:
        check_objective(MyLoss(beta=0.3))

A failed promise is an AssertionError that says which. Nothing is downloaded; a check takes a second or two.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
import yaml
from torch import Tensor
from torch.overrides import TorchFunctionMode

from contract_world import LENGTHS, NOUN, World, small_benchmark, small_subject, synthetic_view, texts, weights_for, with_adapter
from excise import attention, registry
from excise.recipe import build_methods, expanded_methods
from excise.run import run_stages
from excise.settings import build, plain
from excise.stages.chain import changed_by
from excise.stages.features import SuppressFeatures
from excise.stages.state import State
from excise.stages.surgery import NegateTaskVector, PruneRanks
from excise.stages.train import Train
from excise.stages.undo import undo
from excise.tokens import Given, Layout, Scored
from excise.view import View

__all__ = [
    "LENGTHS",
    "NOUN",
    "check_method",
    "check_objective",
    "check_weight",
    "small_benchmark",
    "small_subject",
    "synthetic_view",
    "with_adapter",
]

# Promises that all components make -----------------------------------------------------------------------------------


def check_documented(component: Any, *, paper: bool = True) -> None:
    """A one-line summary, and the paper that it comes from."""
    name = getattr(component, "__name__", component)
    summary = registry.summary(component)
    assert summary.endswith((".", "?", ":")), f"{name}: the docstring's first line is no sentence: {summary!r}"
    text = inspect.getdoc(component) or ""
    assert text == summary or text[len(summary) :].startswith("\n\n"), f"{name}: the summary is longer than one line"
    if paper:
        assert registry.paper(component), f"{name}: the docstring has no 'Paper:' entry"


def check_settings(component: Any) -> None:
    """A frozen dataclass, every field of which survives YAML."""
    kind = type(component)
    assert dataclasses.is_dataclass(kind), f"{kind.__name__} is not a dataclass"
    assert cast(Any, kind).__dataclass_params__.frozen, f"{kind.__name__} is not frozen"
    again = build(kind, yaml.safe_load(yaml.safe_dump(plain(component))), kind.__name__)
    assert again == component, f"{kind.__name__} does not survive YAML: {component} became {again}"


# Objectives ----------------------------------------------------------------------------------------------------------


def check_objective(objective: Any) -> None:
    """All promises of an objective; see the functions below for each."""
    check_documented(type(objective))
    check_settings(objective)
    resolve = getattr(objective, "resolved", None)
    if resolve is not None:
        objective = resolve(2, lambda layer: 3.0)
    check_layouts(objective)
    check_padding(objective)
    check_extremes(objective)
    check_gradient(objective)
    check_weighting(objective)


def check_layouts(objective: Any) -> None:
    """Packed, behind a common beginning, padded, one by one, in parts, in another order: the same loss and the same gradient."""
    world = World(getattr(objective, "layers", ()))
    for subject in (world.now, world.then):
        attention.install(subject.base)  # a common beginning needs it
    everything = range(len(texts()[0]))
    totals = (float(sum(t.scored for t in texts()[0])), float(len(everything)))
    ways: dict[str, list[tuple[Sequence[int], Layout, tuple[float, float] | None]]] = {
        "padded": [(everything, "padded", None)],
        "packed": [(everything, "packed", None)],
        "common beginning": [(everything, "shared", None)],
        "another order": [([4, 1, 5, 0, 3, 2], "packed", None)],
        "totals given": [(everything, "padded", totals)],
        "one by one": [([i], "padded", totals) for i in everything],
        "in two parts": [([0, 1, 2, 3], "packed", totals), ([4, 5], "padded", totals)],
    }
    losses: dict[str, Tensor] = {}
    gradients: dict[str, Tensor] = {}
    for way, parts in ways.items():
        world.now.model.zero_grad()
        loss = torch.zeros((), dtype=torch.float64)
        for chosen, layout, given in parts:
            part = objective(world.view(chosen, layout, given), torch.cat([weights_for(texts()[0][i]) for i in chosen]))
            assert part.shape == (), "an objective gives one number"
            assert part.requires_grad, "the objective has no gradient at all: was view.model first looked at inside no_grad?"
            part.backward()
            loss = loss + part.detach()
        losses[way] = loss
        gradient = cast(Any, world.now.embedding).weight.grad
        assert gradient is not None, "the objective has no gradient at all: was the model first looked at inside no_grad?"
        gradients[way] = gradient.clone()
    size = float(gradients["padded"].abs().max())
    assert size > 0, "the objective has no gradient at all"
    for way in ways:
        torch.testing.assert_close(losses[way], losses["padded"], rtol=1e-6, atol=1e-9, msg=lambda m, way=way: f"loss, {way}: {m}")
        torch.testing.assert_close(gradients[way], gradients["padded"], rtol=1e-5, atol=1e-6 * size, msg=lambda m, way=way: f"gradient, {way}: {m}")


def check_padding(objective: Any) -> None:
    """No gradient at all reaches a padding column, and what stands there does not matter."""
    world = World(getattr(objective, "layers", ()))
    chosen = range(len(texts()[0]))
    kept: list[Tensor] = []

    def keep(_module: Any, _inputs: Any, output: Tensor) -> None:
        if output.requires_grad:
            output.retain_grad()
            kept.append(output)

    handle = world.now.embedding.register_forward_hook(keep)
    objective(world.view(chosen, "padded"), torch.cat([weights_for(t) for t in texts()[0]])).backward()
    handle.remove()
    assert kept, "the model was not asked with gradients switched on"
    for output in kept:
        width = output.shape[1]
        side = next(side for side in texts() if max(len(t) for t in side) == width)
        grid = cast(Tensor, output.grad)
        padding = torch.tensor([[i >= len(t) for i in range(width)] for t in side])
        assert padding.any(), "the batch has padding"
        assert not grid[padding].any(), "padding gets a gradient"
        assert grid[~padding].any(), "the texts get a gradient"


def _synthetic(logits: Tensor, objective: Any, reference: Tensor, hidden: Tensor, other: Tensor | None = None) -> View:
    """A view of two answers (3 and 2 tokens) over these tensors; the alternative answers have 2 and 1."""
    layers = getattr(objective, "layers", ())
    target, row = torch.tensor([0, 2, 1, 3, 0]), torch.tensor([0, 0, 0, 1, 1])

    def scored(values: Tensor, states: Tensor) -> Scored:
        return Scored(target, row, 2, Given(values), dict.fromkeys(layers, states))

    alternative = logits.detach().flip(0)[:3] * 0.5 if other is None else other
    short = (torch.tensor([1, 1, 2]), torch.tensor([0, 0, 1]), 2)
    return View(
        lambda: scored(logits, hidden),
        lambda: scored(reference, hidden.detach() * 0.5 - 0.1),
        get_alternative=lambda: View(lambda: Scored.of(alternative, *short), lambda: Scored.of(reference.flip(0)[:3], *short)),
    )


def _tensors(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logits, reference, hidden states, logits of the alternative; fixed numbers of no special kind."""
    draw = torch.Generator().manual_seed(5)
    return cast(Any, tuple(torch.randn(n, m, generator=draw, dtype=torch.float64).to(dtype) for n, m in ((5, 4), (5, 4), (5, 3), (3, 4))))


def check_extremes(objective: Any) -> None:
    """Loss and gradient stay numbers where p is as good as 0 or 1, now or in the reference."""
    certain = torch.full((5, 4), -1e4).scatter(1, torch.tensor([0, 2, 1, 3, 0])[:, None], 1e4)
    shapes = {"p -> 1": certain, "p -> 0": -certain, "ordinary": _tensors(torch.float32)[1]}
    for now in shapes:
        for then in shapes:
            for other in shapes:
                logits, alternative = shapes[now].clone().requires_grad_(), shapes[other][:3].clone().requires_grad_()
                hidden = (_tensors(torch.float32)[2] * 1e4).requires_grad_()
                loss = objective(_synthetic(logits, objective, shapes[then], hidden, alternative), torch.ones(5))
                assert torch.isfinite(loss), f"the loss is {float(loss.detach())} at now {now}, reference {then}"
                loss.backward()
                for name, leaf in (("logits", logits), ("hidden states", hidden), ("alternative", alternative)):
                    assert leaf.grad is None or torch.isfinite(leaf.grad).all(), f"gradient of the {name} at now {now}, reference {then}"


def _within_operation() -> bool:
    """Whether an operation that brings its own gradient computes now: without autograd, but not held fixed."""
    frame = sys._getframe(2)
    while frame is not None:
        if isinstance(frame.f_locals.get("ctx"), torch.autograd.function.FunctionCtx):
            return True
        frame = frame.f_back
    return False


class _Frozen(TorchFunctionMode):
    """Remembers everything that is computed without gradient, and gives the same again at every replay.

    What is left to vary is what the gradient sees, so a finite difference of a replayed objective is the derivative with
    its stop-gradient factors held fixed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tape: list[tuple[Any, Any]] = []
        self.at: int | None = None

    def __torch_function__(self, func: Any, types: Iterable[Any], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        switching = func is torch._C._set_grad_enabled
        if switching or (torch.is_grad_enabled() and func is not Tensor.detach) or _within_operation():
            return func(*args, **(kwargs or {}))
        value = func(*args, **(kwargs or {}))
        if not isinstance(value, Tensor):
            return value
        if self.at is None:
            self.tape.append((func, value.clone()))
            return value
        known, remembered = self.tape[self.at]
        assert known is func, "the objective computes something else without gradient at another point"
        self.at += 1
        return remembered.clone()


def check_gradient(objective: Any) -> None:
    """Autograd's gradient is the derivative, with what the objective detaches held fixed."""
    logits, reference, hidden, other = _tensors(torch.float64)
    leaves = [t.clone().requires_grad_() for t in (logits, hidden, other)]
    weight = torch.tensor([1.5, 0.5, 1.0, 0.25, 1.75], dtype=torch.float64)
    frozen = _Frozen()

    def loss(logits: Tensor, hidden: Tensor, other: Tensor) -> Tensor:
        frozen.at = 0 if frozen.tape else None
        with frozen, torch.enable_grad():
            return objective(_synthetic(logits, objective, reference, hidden, other), weight)

    loss(*leaves)
    assert torch.autograd.gradcheck(loss, tuple(leaves), eps=1e-6, atol=1e-6, rtol=1e-5)
    plainly = torch.autograd.grad(objective(_synthetic(leaves[0], objective, reference, leaves[1], leaves[2]), weight), leaves, allow_unused=True)
    replayed = torch.autograd.grad(loss(*leaves), leaves, allow_unused=True)
    assert any(g is not None and g.any() for g in plainly), "the objective has no gradient"
    for a, b in zip(plainly, replayed, strict=True):
        assert (a is None and b is None) or torch.equal(cast(Tensor, a), cast(Tensor, b))


def check_weighting(objective: Any) -> None:
    """A token of weight zero gets exactly no gradient; the others do."""
    logits, reference, hidden, _ = _tensors(torch.float64)
    weight = torch.tensor([1.0, 0.0, 2.0, 0.0, 2.0], dtype=torch.float64)
    leaves = [logits.clone().requires_grad_(), hidden.clone().requires_grad_()]
    grads = torch.autograd.grad(objective(_synthetic(leaves[0], objective, reference, leaves[1]), weight), leaves, allow_unused=True)
    touched = torch.stack([g.abs().sum(-1) for g in grads if g is not None]).sum(0) > 0
    assert not touched[weight == 0].any(), "a token of weight zero gets a gradient"
    assert touched[4], "the last token has weight 2 and no gradient"


# Token weights -------------------------------------------------------------------------------------------------------


def check_weight(weight: Any) -> None:
    """All promises of a token weight: mean 1 over each sequence, none negative, each sequence on its own, repeatable."""
    check_documented(type(weight))
    check_settings(weight)
    for scale in (1.0, 0.0, 1e4):
        values = _weights_of(weight, range(4), scale)
        again = _weights_of(weight, range(4), scale)
        for n, one, two in zip(LENGTHS, values, again, strict=True):
            assert len(one) == n
            assert torch.isfinite(one).all(), f"weights at logits x {scale:g}: {one}"
            assert (one >= 0).all(), f"negative weights at logits x {scale:g}"
            assert not one.requires_grad, "weights carry a gradient"
            assert torch.equal(one, two), "two calls differ"
            torch.testing.assert_close(one.mean(), torch.ones((), dtype=one.dtype), msg=lambda m: f"mean over a sequence: {m}")
        order = (2, 0, 3, 1)
        for place, one in zip(order, _weights_of(weight, order, scale), strict=True):
            torch.testing.assert_close(one, values[place], msg=lambda m: f"another order: {m}")
        for i in range(4):
            torch.testing.assert_close(_weights_of(weight, [i], scale)[0], values[i], msg=lambda m: f"a sequence alone: {m}")


def _weights_of(weight: Any, order: Sequence[int], scale: float) -> list[Tensor]:
    view = synthetic_view(order, scale)
    values = weight(view)
    assert values.shape == (len(view.model.target),), "one weight for each scored token"
    return view.model.split(values)


# Methods -------------------------------------------------------------------------------------------------------------


def check_method(name: str, folder: Path, settings: Mapping[str, Any] | None = None, *, adapter: bool = False) -> None:
    """All promises of a named method; ``folder`` is an empty one, ``settings`` what it cannot do without.

    ``adapter``: the method edits a LoRA adapter, so the model gets one, and the method is not tried in full or with a fresh one.
    A setting ``untouched`` holds what takes the settings' place in the run that trains for no step.
    """
    function = registry.find("methods", name)
    check_documented(function, paper=name != "compose")
    if "training" not in inspect.signature(function).parameters:
        check_edit(name, folder, settings or {})
        return
    given = dict(settings or {})
    still = given.pop("untouched", {})
    entry = {"name": name, "steps": 2, "batch": 3, "warmup": 0.0, "lr": 1e-3, "guard": {"every": 0}, **given}
    (full,) = expanded_methods(entry)
    (again,) = expanded_methods(yaml.safe_load(yaml.safe_dump(full)))
    assert again == full, "the expanded settings expand to something else"
    assert _stages(full) == _stages(entry), "the expanded settings build another method"
    for lora in (None,) if adapter else (None, {"r": 2, "alpha": 4}):
        form = {**entry, "lora": lora}
        kind = "full" if lora is None else "lora"
        untouched = _run({**form, "steps": 0, **still}, folder / f"{kind}-0", adapter)
        first, second = (_run(form, folder / f"{kind}-{n}", adapter) for n in (1, 2))
        _check_run(form, untouched, first, second)


def _check_run(entry: Mapping[str, Any], untouched: State, first: State, second: State) -> None:
    start, one, two = (dict(s.subject.model.named_parameters()) for s in (untouched, first, second))
    assert sum(record["steps"] for record in untouched.records) == 0
    assert sum(record["steps"] for record in first.records) == 2, first.records
    assert not any(record["stopped"] for record in first.records)
    scopes = [
        changed_by(stage, first.subject) for stage in _stages(entry) if isinstance(stage, (Train, PruneRanks, NegateTaskVector, SuppressFeatures))
    ]
    in_scope = {parameter for names in scopes if names is not None for parameter in names}
    moved = {parameter for parameter in one if not torch.equal(one[parameter], start[parameter])}
    assert moved, "nothing moved"
    assert moved <= in_scope, f"{sorted(moved - in_scope)} moved and are not in scope"
    for parameter, value in one.items():
        assert torch.isfinite(value).all(), f"{parameter} is not finite"
        assert torch.equal(value, two[parameter]), f"two runs with one seed differ in {parameter}"
        assert not value.requires_grad, f"{parameter} still asks for a gradient"


def check_edit(name: str, folder: Path, settings: Mapping[str, Any]) -> None:
    """All promises of a method that edits weights without training: it repeats itself, changes what it says, and can be undone."""
    entry = {"name": name, **settings}
    (full,) = expanded_methods(entry)
    (again,) = expanded_methods(yaml.safe_load(yaml.safe_dump(full)))
    assert again == full, "the expanded settings expand to something else"
    assert _stages(full) == _stages(entry), "the expanded settings build another method"
    start = dict(small_subject().model.named_parameters())
    first, second = (_run(entry, folder / f"edit-{n}") for n in (1, 2))
    one, two = (dict(state.subject.model.named_parameters()) for state in (first, second))
    (stage,) = _stages(entry)
    assert stage.edits, "an edit says so (edits = True), so that what follows refers to the edited model"
    moved = {parameter for parameter in one if not torch.equal(one[parameter], start[parameter])}
    assert moved, "nothing moved"
    assert moved <= stage.changes(first.subject), "something moved that the stage does not name"
    for parameter, value in one.items():
        assert torch.isfinite(value).all(), f"{parameter} is not finite"
        assert torch.equal(value, two[parameter]), f"two runs differ in {parameter}"
    (record,) = first.records
    assert {"name", "seconds", "steps", "tokens", "peak_memory_mb", "changed_parameters", "stopped", "edit"} <= set(record)
    (place,) = [file for file in record["edit"]["files"] if file.endswith(".safetensors")]
    undo(first.subject, folder / "edit-1" / place)
    for parameter, value in one.items():
        assert torch.equal(value, start[parameter]), f"undoing the edit leaves {parameter} changed"


def _stages(entry: Mapping[str, Any]) -> list[Any]:
    chain = build_methods(str(entry["name"]), {k: v for k, v in entry.items() if k != "name"})
    return [stage for _, stages in chain for stage in stages]


def _run(entry: Mapping[str, Any], folder: Path, adapter: bool = False) -> State:
    folder.mkdir(parents=True)
    state = State(with_adapter(small_subject()) if adapter else small_subject(), small_benchmark(), folder=folder, seed=3)
    run_stages(state, _stages(entry))
    return state
