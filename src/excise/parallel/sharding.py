"""Weights, gradients and moments spread over the processes while a stage trains (FSDP2, torch's ``fully_shard``).

A decoder layer is a group that is gathered when it is needed; what stands outside the layers is one more. excise runs the decoder
and the output head by themselves, and the model as a whole must know of it: ``forward.within`` runs a function as its forward pass.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import Tensor, nn

from excise.errors import InputError
from excise.layout import layout_of, same_layout
from excise.parallel import ranks

if TYPE_CHECKING:
    from excise.subject import Subject

Parallel = Literal["auto", "copies", "shards"]
"""copies: each process holds the model (data parallel); shards: they hold parts of it (FSDP2); auto: what accelerate's settings say, else copies."""


def resolve(parallel: Parallel, environment: Mapping[str, str]) -> Literal["copies", "shards"]:
    """What ``auto`` stands for.

    Raises:
        InputError: accelerate is told to use something that excise does not run under.
    """
    if environment.get("ACCELERATE_USE_DEEPSPEED", "").lower() == "true":
        raise InputError(
            "accelerate's settings ask for DeepSpeed, under which excise does not run: FSDP spreads the same things over the processes "
            "(accelerate launch --use_fsdp --fsdp_version 2, or parallel: shards in the recipe)"
        )
    if environment.get("ACCELERATE_USE_MEGATRON_LM", "").lower() == "true":
        raise InputError("accelerate's settings ask for Megatron-LM, under which excise does not run: use --multi_gpu or --use_fsdp")
    if parallel != "auto":
        return parallel
    return "shards" if environment.get("ACCELERATE_USE_FSDP", "").lower() == "true" else "copies"


@contextmanager
def spread(subject: Subject, parameters: Mapping[str, nn.Parameter]) -> Iterator[dict[str, nn.Parameter]]:
    """The model's weights are spread over the processes during the block; afterwards each process has the whole again.

    Torch changes a model for good when it spreads it, so the block works on a copy of the modules, and the weights lie only there.
    Yields the given parameters by name, as they are during the block: parts.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model, device = subject.model, subject.device
    known = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    layout_of(subject)
    original = subject.base
    subject.model = copy.deepcopy(model, known)  # the tensors are shared, only the modules are new
    same_layout(subject.base, original)
    mesh = init_device_mesh(device.type, (ranks.world(),))
    for layer in subject.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(subject.base, mesh=mesh)
    now = dict(subject.model.named_parameters())
    emptied = dict(model.named_parameters())
    for parameter in emptied.values():
        parameter.data = parameter.data.new_empty(0)
    try:
        yield {name: now[name] for name in parameters}
    finally:
        subject.model = model
        with torch.no_grad():
            for name, parameter in emptied.items():
                parameter.data = full(now[name].detach()).clone()


def full(value: Tensor) -> Tensor:
    """The whole of a spread tensor, in every process; another tensor as it is."""
    return cast(Any, value).full_tensor() if ranks.is_spread(value) else value


@torch.no_grad()
def assign(target: Tensor, value: Tensor) -> None:
    """Copies a whole tensor into one that may be spread."""
    target.copy_(like(target, value))


def like(target: Tensor, value: Tensor) -> Tensor:
    """A whole tensor, spread as another one of its shape is."""
    if not ranks.is_spread(target) or ranks.is_spread(value):
        return value
    from torch.distributed.tensor import distribute_tensor

    model = cast(Any, target)
    return distribute_tensor(value.to(target.device), model.device_mesh, model.placements)


def clip(parameters: Sequence[nn.Parameter], limit: float | None) -> float:
    """The norm of the whole gradient, which is then scaled down to ``limit`` where it is larger."""
    norm = torch.nn.utils.clip_grad_norm_(parameters, limit if limit is not None else float("inf"))
    return float(full(norm))
