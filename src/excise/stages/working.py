"""bf16 copies of the weights that matrix products read, beside the float32 ones that are trained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from excise.subject import Subject


@dataclass
class Working:
    """Linear layers that hold bf16 weights while a stage trains under autocast, which would else convert every weight in every step.

    The float32 weights (masters) are what the optimiser, checkpoints and evaluations see. Autocast would have made the same bf16
    weights, and the gradient of a product with them is bf16 in both cases, so every number is the same to the bit.
    """

    pairs: list[tuple[nn.Parameter, nn.Parameter]] = field(default_factory=list)
    """A parameter of the model, bf16 by now, and its master."""
    masters: dict[str, nn.Parameter] = field(default_factory=dict)
    """What is trained, by name: a master where there is one, else the parameter itself."""

    @torch.no_grad()
    def refresh(self) -> None:
        """Takes over what the masters have become."""
        for parameter, master in self.pairs:
            if parameter.requires_grad:
                parameter.data.copy_(master)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """The model with its float32 weights, for somebody who looks at it in another way."""
        copies = [parameter.data for parameter, _ in self.pairs]
        for parameter, master in self.pairs:
            parameter.data = master.data
        try:
            yield
        finally:
            for (parameter, _), copy in zip(self.pairs, copies, strict=True):
                parameter.data = copy


@contextmanager
def working_copies(subject: Subject, trained: Mapping[str, nn.Parameter], wanted: bool) -> Iterator[Working]:
    """Gives the linear layers of a model bf16 weights during the block; afterwards they hold what their masters have become.

    The output head keeps its float32 weight: it is used several times in a step, and its gradients must not be added in bf16.

    Args:
        trained: the parameters that a stage trains.
        wanted: False changes nothing.
    """
    names = {id(parameter): name for name, parameter in trained.items()}
    working = Working(masters=dict(trained))
    hooks: list[torch.utils.hooks.RemovableHandle] = []
    for parameter in _of_linear_layers(subject.model, subject.head) if wanted else ():
        master = nn.Parameter(parameter.data, requires_grad=parameter.requires_grad)
        parameter.data = parameter.data.bfloat16()
        working.pairs.append((parameter, master))
        if id(parameter) in names:
            working.masters[names[id(parameter)]] = master
            hooks.append(parameter.register_post_accumulate_grad_hook(_Hand(master)))
    try:
        yield working
    finally:
        for hook in hooks:
            hook.remove()
        for parameter, master in working.pairs:
            parameter.grad = None
            parameter.data = master.data


@dataclass
class _Hand:
    """Hands the gradient of a bf16 weight on to its master, where it is added up in float32."""

    master: nn.Parameter

    def __call__(self, parameter: Tensor) -> None:
        gradient, parameter.grad = parameter.grad, None
        if gradient is None:
            return
        if self.master.grad is None:
            self.master.grad = gradient.float()
        else:
            self.master.grad += gradient


def _of_linear_layers(model: nn.Module, head: nn.Module) -> list[nn.Parameter]:
    """The float32 weights that nothing but linear layers reads, without those of adapters, which convert their inputs themselves."""
    linear: dict[int, nn.Parameter] = {}
    others: set[int] = set()
    for name, module in model.named_modules():
        if getattr(module, "lora_magnitude_vector", None):  # DoRA looks at the weight itself
            others.add(id(cast(Any, module).base_layer.weight))
        for parameter in module.parameters(recurse=False):
            if (
                type(module) is nn.Linear
                and module is not head
                and parameter is module.weight
                and parameter.dtype == torch.float32
                and "lora_" not in name
            ):
                linear[id(parameter)] = parameter
            else:
                others.add(id(parameter))
    return [parameter for key, parameter in linear.items() if key not in others]
