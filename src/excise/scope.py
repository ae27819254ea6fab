"""Which parameters a stage may change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from torch import nn

from excise.errors import InputError, did_you_mean
from excise.hidden import default_layer, require_layer

if TYPE_CHECKING:
    from excise.subject import Subject

Role = Literal["q", "k", "v", "o", "gate", "up", "down", "embedding", "head", "norm"]

ROLES: dict[str, Role] = {
    "q_proj": "q", "k_proj": "k", "v_proj": "v", "o_proj": "o", "dense": "o", "out_proj": "o", "qkv_proj": "q",
    "gate_proj": "gate", "up_proj": "up", "down_proj": "down", "fc1": "up", "fc2": "down", "gate_up_proj": "up",
}  # fmt: skip
"""Name of a linear layer -> what it does. Phi says fc1 and fc2 where Llama says up_proj and down_proj."""


@dataclass(frozen=True)
class Window:
    """A few layers that end with the one where an objective looks."""

    layer: int | None = None
    """The last layer; None takes the one at RMU's depth fraction."""
    width: int = 3
    """How many layers."""

    def within(self, depth: int) -> tuple[int, ...]:
        """The layers for a model of ``depth`` layers."""
        last = default_layer(depth) if self.layer is None else self.layer
        return tuple(range(max(0, last - self.width + 1), last + 1))


@dataclass(frozen=True)
class Scope:
    """A choice of parameters by layer, by role of the module, or only those of the adapter."""

    layers: tuple[int, ...] | Window | None = None
    """Decoder layers, 0-based; None: all, and what stands outside the layers too unless ``modules`` says otherwise."""
    modules: tuple[Role, ...] | None = None
    """Roles; None: all."""
    adapter: Literal["auto", "only", "no"] = "auto"
    """auto: the adapter's parameters if the model has one, else the model's own."""

    def names(self, subject: Subject) -> list[str]:
        """Names of the parameters in scope, in the model's order.

        Raises:
            InputError: a layer that the model lacks, or nothing left.
        """
        layers = self.layers_of(subject.depth)
        adapter_only = self.adapter == "only" or (self.adapter == "auto" and subject.is_adapter)
        if adapter_only and not subject.is_adapter:
            raise InputError("this stage trains an adapter, and the model has none: add method.lora, or load an adapter")
        places = places_of(subject)
        chosen = [
            name
            for name, _ in subject.model.named_parameters()
            if (_in_active_adapter(subject, name) if adapter_only else not _is_adapter_parameter(name))
            and _holds(layers, self.modules, *places.get(name, (None, None)))
        ]
        if not chosen:
            raise InputError(f"the scope {self} selects no parameter of {type(subject.base).__name__}")
        return chosen

    def layers_of(self, depth: int) -> tuple[int, ...] | None:
        """The layers in scope for a model of ``depth`` layers; an error where it lacks one of them."""
        layers = self.layers.within(depth) if isinstance(self.layers, Window) else self.layers
        for layer in sorted(layers or (), reverse=True):
            require_layer(layer, depth)
        return layers

    @contextmanager
    def trainable(self, subject: Subject) -> Iterator[dict[str, nn.Parameter]]:
        """Only the parameters in scope ask for gradients during the block; afterwards none does."""
        names = set(self.names(subject))
        chosen: dict[str, nn.Parameter] = {}
        for name, parameter in subject.model.named_parameters():
            parameter.requires_grad_(name in names)
            parameter.grad = None
            if name in names:
                chosen[name] = parameter
        try:
            yield chosen
        finally:
            for parameter in subject.model.parameters():
                parameter.requires_grad_(False)
                parameter.grad = None


def _holds(layers: tuple[int, ...] | None, modules: tuple[Role, ...] | None, layer: int | None, role: Role | None) -> bool:
    return (layers is None or layer in layers) and (modules is None or role in modules)


def _is_adapter_parameter(name: str) -> bool:
    return "lora_" in name


def _in_active_adapter(subject: Subject, name: str) -> bool:
    """Whether a parameter belongs to an adapter that takes part in the forward pass; others are set aside."""
    return _is_adapter_parameter(name) and any(adapter in name.split(".") for adapter in getattr(subject.model, "active_adapters", ()))


def places_of(subject: Subject) -> dict[str, tuple[int | None, Role | None]]:
    """Parameter name -> (decoder layer or None, role or None)."""
    layer_of = {id(p): i for i, block in enumerate(subject.layers) for p in block.parameters()}
    embedding, head = subject.base.get_input_embeddings(), subject.head
    inside: dict[int, Role] = {id(p): "head" for p in head.parameters()}
    inside |= {id(p): "embedding" for p in embedding.parameters()}
    places: dict[str, tuple[int | None, Role | None]] = {}
    for name, parameter in subject.model.named_parameters():
        parts = name.split(".")
        role: Role | None = next((ROLES[part] for part in reversed(parts) if part in ROLES), None) or inside.get(id(parameter))
        if role is None and any("norm" in part for part in parts):
            role = "norm"
        places[name] = (layer_of.get(id(parameter)), role)
    return places


def module_names(subject: Subject, roles: tuple[Role, ...]) -> list[str]:
    """The names of linear layers with these roles, as PEFT's ``target_modules`` wants them."""
    present = {name.rsplit(".", 1)[-1] for name, module in subject.layers.named_modules() if isinstance(module, nn.Linear)}
    found = sorted(name for name in present if ROLES.get(name) in roles)
    if not found:
        available = {ROLES[name] for name in present if name in ROLES}
        raise InputError(f"the model has no linear layer for {', '.join(roles)}: {did_you_mean(roles[0], available)}")
    return found
