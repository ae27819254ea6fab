"""Layers in one operation: Transformers' and PEFT's numbers, less kept, and their own forward for whatever is not plain."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import peft
import pytest
import torch
from torch import Tensor, nn

from conftest import KINDS, Kind, tiny, watched
from excise.data.benchmarks.strangers import Strangers
from excise.files import read_lines
from excise.head import HeadInTraining, hand_over_gradient
from excise.recipe import build_methods
from excise.run import run_stages
from excise.stages import fused as module
from excise.stages.fused import fused_layers
from excise.stages.state import State
from excise.stages.working import working_copies
from excise.subject import Subject


def with_lora(kind: Kind = "llama", **settings: Any) -> Subject:
    """A tiny model with a LoRA adapter whose both factors are drawn."""
    subject = tiny(kind)
    config = peft.LoraConfig(r=4, lora_alpha=6, target_modules="all-linear", **settings)
    model: Any = peft.get_peft_model(subject.base, config)
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.3)
    subject.model = model
    return subject


def layers_of(subject: Subject) -> list[Any]:
    return [module for module in subject.model.modules() if isinstance(module, peft.tuners.lora.layer.Linear)]


def outcome(subject: Subject, half: bool, hidden: bool = False) -> dict[str, Tensor]:
    """Logits, and the gradients of everything that asks for some."""
    ids = torch.tensor([[5, 9, 2, 7, 1, 30], [3, 3, 8, 1, 4, 6]])
    for parameter in subject.model.parameters():
        parameter.grad = None
    if hidden:
        subject.embedding.weight.requires_grad_(True)
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        logits = subject.model(input_ids=ids, use_cache=False).logits
    logits.float().square().mean().backward()
    hand_over_gradient(subject.head)
    found = {name: cast(Tensor, p.grad).clone() for name, p in subject.model.named_parameters() if p.grad is not None}
    return {**found, "logits": logits.detach().float()}


def calls(monkeypatch: pytest.MonkeyPatch, operation: Any = module._Adapted) -> list[int]:
    """Counts the layers that were computed in one operation."""
    return watched(monkeypatch, operation, "apply")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("half", [False, True])
def test_outputs_and_gradients_are_those_of_peft(kind: Kind, half: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32 to rounding; under autocast as near to the float32 numbers as PEFT's."""
    subject = with_lora(kind)
    exact, theirs = outcome(subject, half=False, hidden=True), outcome(subject, half, hidden=True)
    seen = calls(monkeypatch)
    with fused_layers(subject):
        ours = outcome(subject, half, hidden=True)
    assert len(seen) == len(layers_of(subject)) >= 4 * subject.depth
    assert ours.keys() == theirs.keys()
    assert sum("lora_" in name for name in ours) == 2 * len(seen)
    for name, value in exact.items():
        error, usual = (float((found[name] - value).norm() / value.norm()) for found in (ours, theirs))
        assert error < (1.5 * usual + 2e-3 if half else 1e-5), name
        assert ours[name].dtype == theirs[name].dtype


def test_afterwards_the_layers_are_their_own_again() -> None:
    subject = with_lora()
    layers = layers_of(subject)
    assert layers
    with fused_layers(subject):
        assert all("forward" in vars(layer) for layer in layers)
    assert not any("forward" in vars(layer) for layer in layers)
    with pytest.raises(ZeroDivisionError), fused_layers(subject):
        raise ZeroDivisionError
    assert not any("forward" in vars(layer) for layer in layers)


@pytest.mark.parametrize("odd", ["dropout", "dora", "disabled", "hooked", "two", "full", "rslora"])
def test_what_is_not_plain_goes_through_peft(odd: str, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = with_lora(**{"dropout": {"lora_dropout": 0.5}, "dora": {"use_dora": True}, "rslora": {"use_rslora": True}}.get(odd, {}))
    model: Any = subject.model
    if odd == "disabled":
        for layer in layers_of(subject):
            layer._disable_adapters = True
        subject.embedding.weight.requires_grad_(True)
    elif odd == "two":
        model.add_adapter("second", peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
        model.base_model.set_adapter(["default", "second"])
    elif odd == "full":
        for parameter in subject.model.parameters():
            parameter.requires_grad_(True)
    elif odd == "hooked":
        for layer in layers_of(subject):
            layer.base_layer.register_forward_hook(lambda *_: None)
    subject.model.train()
    torch.manual_seed(3)
    theirs = outcome(subject, half=False)
    seen = calls(monkeypatch)
    torch.manual_seed(3)
    with fused_layers(subject):
        ours = outcome(subject, half=False)
    plain = {"rslora": 7, "two": 6}.get(odd, 0)
    assert len(seen) == plain * subject.depth
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-5, atol=1e-5)


def test_the_layers_of_a_block_share_the_converted_input() -> None:
    inputs, x = module._Inputs(), torch.randn(2, 3)
    first = inputs(x, torch.bfloat16)
    assert inputs(x, torch.bfloat16) is first
    assert inputs(x.clone(), torch.bfloat16) is not first
    again = inputs(x, torch.bfloat16)
    with torch.no_grad():
        x += 1
    assert torch.equal(inputs(x, torch.bfloat16), x.bfloat16()), "a tensor that was changed in place is converted again"
    assert not torch.equal(again, x.bfloat16())
    assert inputs(x, torch.float32) is x


def norms_of(subject: Subject) -> list[nn.Module]:
    return [part for part in subject.model.modules() if type(part).__name__.endswith("RMSNorm")]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("half", [False, True])
def test_a_whole_model_has_the_outputs_and_gradients_of_its_own_layers(kind: Kind, half: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The outputs are the same to the bit; gradients to rounding, under autocast as near to the float32 ones as the usual ones."""
    subject = tiny(kind)
    subject.model.requires_grad_(True)
    parameters = dict(subject.model.named_parameters())
    exact = outcome(subject, half=False)
    linear, norm = calls(monkeypatch, module._Linear), calls(monkeypatch, module._Norm)
    with working_copies(subject, parameters, half) as working:

        def found() -> dict[str, Tensor]:
            for parameter in working.masters.values():
                parameter.grad = None
            seen = outcome(subject, half)
            return {**seen, **{name: cast(Tensor, p.grad).clone() for name, p in working.masters.items()}}

        theirs = found()
        assert linear == norm == []
        with fused_layers(subject):
            ours = found()
    names = [name for name, part in subject.model.named_modules() if type(part).__name__.endswith("RMSNorm")]
    after_product = ("q_norm", "k_norm", *(("post_attention_layernorm", "post_feedforward_layernorm") if kind == "gemma3" else ()))
    assert len(norm) == sum(not (half and name.endswith(after_product)) for name in names)  # what reads a product's bf16 keeps its forward
    assert (len(linear) >= 2 * subject.depth) == half
    assert torch.equal(ours["logits"], theirs["logits"])
    assert ours.keys() == theirs.keys() >= exact.keys()
    for name, value in exact.items():
        error, usual = (float((side[name] - value).norm() / value.norm()) for side in (ours, theirs))
        assert error < (1.1 * usual + 1e-4 if half else 1e-5), name
        assert ours[name].dtype == theirs[name].dtype


def kept(subject: Subject) -> int:
    """Bytes that a forward pass keeps for the backward pass, beside the parameters."""
    own = {p.untyped_storage().data_ptr() for p in subject.model.parameters()}
    seen: dict[int, int] = {}
    alive: list[Tensor] = []  # a storage that is freed could lend its address to the next

    def count(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda t: t):
        with torch.autocast("cpu", torch.bfloat16):
            logits = subject.base.get_decoder()(input_ids=torch.arange(1, 61)[None], use_cache=False).last_hidden_state
        assert logits.requires_grad
    return sum(seen.values())


def test_less_is_kept_for_the_backward_pass() -> None:
    """Of one converted input for each reader, two tensors for each norm, and three for each gated product, one, one and two remain."""
    subject = tiny("llama")
    subject.model.requires_grad_(True)
    with working_copies(subject, dict(subject.model.named_parameters()), True):
        before = kept(subject)
        with fused_layers(subject):
            after = kept(subject)
    width, tokens = subject.base.config.hidden_size, 60
    copies, norms = 3 * subject.depth, 2 * subject.depth + 1  # in bf16, and in float32
    activations = 2 * subject.depth * subject.base.config.intermediate_size
    assert before - after == (2 * copies * width + 4 * norms * width + activations) * tokens


@pytest.mark.parametrize(("kind", "offset"), [("llama", 0.0), ("qwen3", 0.0), ("gemma3", 1.0)])
def test_how_a_norm_computes_is_found_by_trying(kind: Kind, offset: float) -> None:
    norms = norms_of(tiny(kind))
    assert len(norms) > 4
    assert {module._offset_of(norm) for norm in norms} == {offset}


class OddMLP(nn.Module):
    """Has the parts of a gated MLP, and puts them together in another way."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj, self.act_fn = nn.Linear(4, 6), nn.Linear(4, 6), nn.Linear(6, 4), nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.gate_proj(x) * self.act_fn(self.up_proj(x)))


def test_a_gated_mlp_is_found_by_trying() -> None:
    for kind in ("llama", "qwen3", "gemma3"):
        parts = [part for part in tiny(cast(Kind, kind)).model.modules() if type(part).__name__.endswith("MLP")]
        assert len(parts) >= 2
        assert all(module._is_gated(part) for part in parts)
    assert not module._is_gated(OddMLP())
    assert not module._is_gated(nn.Linear(2, 2))
    parts[0].register_forward_hook(lambda *_: None)
    assert not module._is_gated(parts[0])


class OddRMSNorm(nn.Module):
    """By its name a norm, and none by its numbers."""

    def __init__(self, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))
        self.eps = 1e-6
        if bias:
            self.bias = nn.Parameter(torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        return x / x.abs().mean(-1, keepdim=True) * self.weight if not hasattr(self, "bias") else module._normed(x, self.eps)[0] * self.weight


def test_a_norm_that_computes_otherwise_is_left_alone() -> None:
    assert module._offset_of(OddRMSNorm()) is None
    assert module._offset_of(OddRMSNorm(bias=True)) is None
    assert module._offset_of(nn.LayerNorm(8)) is None
    assert module._offset_of(cast(nn.Module, norms_of(tiny("llama"))[0].bfloat16())) is None


def test_a_norm_takes_every_shape_and_only_the_gradients_that_are_asked_for() -> None:
    norm: Any = norms_of(tiny("llama"))[0]
    width = len(norm.weight)
    for shape in ((3, width), (1, 5, width), (1, 4, 2, width)):
        torch.manual_seed(0)
        x, outer = torch.randn(shape, requires_grad=True), torch.randn(shape)
        norm.weight.grad = None
        (norm(x) * outer).sum().backward()
        exact, of_weight = cast(Tensor, x.grad).clone(), cast(Tensor, norm.weight.grad).clone()
        x.grad = norm.weight.grad = None
        (module._Norm.apply(x, norm.weight, norm.variance_epsilon, 0.0) * outer).sum().backward()
        torch.testing.assert_close(x.grad, exact)
        torch.testing.assert_close(norm.weight.grad, of_weight)
    norm.weight.requires_grad_(False)
    norm.weight.grad = None
    module._Norm.apply(x, norm.weight, norm.variance_epsilon, 0.0).sum().backward()
    assert norm.weight.grad is None


def test_a_model_in_half_precision_keeps_its_layers() -> None:
    subject = tiny("llama")
    subject.model.bfloat16()
    plain = outcome(subject, half=False)["logits"]
    with fused_layers(subject):
        assert torch.equal(outcome(subject, half=False)["logits"], plain)


def test_the_head_s_weight_is_converted_when_it_has_changed_and_only_then() -> None:
    head = nn.Linear(3, 5, bias=False)
    weight = HeadInTraining(head, None)
    first = weight(head.weight, torch.bfloat16)
    assert weight(head.weight, torch.bfloat16) is first
    with torch.no_grad():
        head.weight.add_(1)
    assert torch.equal(weight(head.weight, torch.bfloat16), head.weight.bfloat16())
    head.weight.data = head.weight.data + 1
    assert torch.equal(weight(head.weight, torch.bfloat16), head.weight.bfloat16())


def test_a_copy_that_exists_serves_a_head_that_stays() -> None:
    head = nn.Linear(3, 5, bias=False)
    given = head.weight.detach().bfloat16()
    assert HeadInTraining(head.requires_grad_(False), given)(head.weight, torch.bfloat16) is given
    assert HeadInTraining(head.requires_grad_(True), given)(head.weight, torch.bfloat16) is not given


def test_the_head_called_twice_in_a_step_adds_its_gradients_in_float32() -> None:
    subject = tiny("llama")
    head: Any = subject.head
    head.weight.requires_grad_(True)
    torch.manual_seed(0)
    rows = torch.randn(2, 7, head.in_features)

    def gradient(parts: Tensor) -> Tensor:
        head.weight.grad = None
        with torch.autocast("cpu", torch.bfloat16):
            total = sum((head(part).float().square().sum() for part in parts), torch.zeros(()))
        total.backward()
        return cast(Tensor, head.weight.grad)

    one, other = (gradient(rows[i : i + 1]) for i in range(2))
    with fused_layers(subject):
        both = gradient(rows)
    assert both.dtype == torch.float32
    torch.testing.assert_close(both, one + other)


def test_a_stage_learns_the_same_with_and_without(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """At a rate that moves every weight in every step, and more logits than exist at once: a copy that is not renewed would show."""
    monkeypatch.setattr("excise.tokens.LOGITS_AT_ONCE", 9 * 400)
    losses: list[list[float]] = []
    for name in ("with", "without"):
        if name == "without":
            monkeypatch.setattr("excise.stages.loop.fused_layers", lambda *_: nullcontext())
        folder = tmp_path / name
        folder.mkdir()
        state = State(tiny("llama"), Strangers(forget_people=1, retain_people=1, holdout_people=0)(), seed=0, precision="bfloat16", folder=folder)
        settings = {"steps": 5, "batch": 4, "lr": 3e-3, "warmup": 0.0, "schedule": "constant", "guard": {"every": 0}, "checkpoint_every": 0}
        run_stages(state, [stage for _, part in build_methods("ga_kl", settings) for stage in part])
        losses.append([row["loss"] for row in read_lines(folder / "train.jsonl")])
    ours, theirs = losses
    assert len(ours) == 5
    assert abs(ours[-1] - ours[0]) > 0.5
    assert ours == pytest.approx(theirs, rel=0.01)
