"""Adapted layers in one operation: PEFT's numbers, and PEFT's own forward for whatever is not plain."""

from __future__ import annotations

from typing import Any, cast

import peft
import pytest
import torch
from torch import Tensor, nn

from conftest import KINDS, Kind, tiny
from excise.stages import adapted as module
from excise.stages.adapted import adapted_layers
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
    found = {name: cast(Tensor, p.grad).clone() for name, p in subject.model.named_parameters() if p.grad is not None}
    return {**found, "logits": logits.detach().float()}


def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the layers that were computed in one operation."""
    seen: list[int] = []
    own = module._Adapted.apply

    def counted(*args: Any) -> Any:
        seen.append(1)
        return own(*args)

    monkeypatch.setattr(module._Adapted, "apply", counted)
    return seen


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("half", [False, True])
def test_outputs_and_gradients_are_those_of_peft(kind: Kind, half: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32 to rounding; under autocast as near to the float32 numbers as PEFT's."""
    subject = with_lora(kind)
    exact, theirs = outcome(subject, half=False, hidden=True), outcome(subject, half, hidden=True)
    seen = calls(monkeypatch)
    with adapted_layers(subject):
        ours = outcome(subject, half, hidden=True)
    assert len(seen) == len(layers_of(subject)) >= 4 * subject.depth
    assert ours.keys() == theirs.keys()
    assert sum("lora_" in name for name in ours) == 2 * len(seen)
    for name, value in exact.items():
        error, usual = (float((found[name] - value).norm() / value.norm()) for found in (ours, theirs))
        assert error < (1.5 * usual + 2e-3 if half else 1e-5), name
        assert ours[name].dtype == theirs[name].dtype


def test_afterwards_the_layers_are_peft_s_again() -> None:
    subject = with_lora()
    layers = layers_of(subject)
    assert layers
    with adapted_layers(subject):
        assert all("forward" in vars(layer) for layer in layers)
    assert not any("forward" in vars(layer) for layer in layers)
    with pytest.raises(ZeroDivisionError), adapted_layers(subject):
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
    with adapted_layers(subject):
        ours = outcome(subject, half=False)
    plain = {"rslora": 7, "two": 6}.get(odd, 0)
    assert len(seen) == plain * subject.depth
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=0, atol=1e-5 if plain else 0)


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


def test_a_model_without_adapter_is_left_alone() -> None:
    subject = tiny("llama")
    with adapted_layers(subject):
        assert not any("forward" in vars(part) for part in subject.model.modules() if isinstance(part, nn.Linear))
