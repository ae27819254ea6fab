"""Several processes that run the same program (torchrun, accelerate launch): which one this is, and what they tell each other.

Without a launcher there is one process, and every function here gives back what it was given.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from excise.errors import InputError

T = TypeVar("T")
PATIENCE = timedelta(hours=12)
"""How long a process waits for another one: the first may be evaluating, or saving a large model."""
BUCKET = 2**25
"""Numbers of gradient that travel together."""


def start(device: torch.device | None = None) -> None:
    """Joins the other processes where a launcher started several; nothing otherwise, or where that has been done.

    Raises:
        InputError: this build of torch cannot talk to other processes.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or several():
        return
    if not torch.distributed.is_available():
        raise InputError(f"WORLD_SIZE is {os.environ['WORLD_SIZE']}, and this build of torch has no distributed package: install one that has")
    backend = "gloo"
    if torch.cuda.is_available() and (device is None or device.type == "cuda"):
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        backend = "cuda:nccl,cpu:gloo"
    torch.distributed.init_process_group(backend, timeout=PATIENCE)


def stop() -> None:
    """Leaves the other processes."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def world() -> int:
    """How many processes there are."""
    return torch.distributed.get_world_size() if _joined() else 1


def rank() -> int:
    """Which of them this is, from 0."""
    return torch.distributed.get_rank() if _joined() else 0


def several() -> bool:
    return world() > 1


def is_main() -> bool:
    """Whether this is the process that writes."""
    return rank() == 0


def own_device() -> str | None:
    """``cuda:N`` for this process where each has an accelerator of its own; None otherwise."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or not torch.cuda.is_available():
        return None
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}"


def own_part(items: Sequence[T]) -> Sequence[T]:
    """This process's share of a batch: every world-th item. The shares differ by one item at most, and may be empty."""
    return items[rank() :: world()]


def own_stretch(items: Sequence[T]) -> Sequence[T]:
    """This process's share as a stretch; the stretches of all in order are the whole."""
    n, k = len(items), world()
    return items[n * rank() // k : n * (rank() + 1) // k]


def wait() -> None:
    """Until all processes are here."""
    if several():
        torch.distributed.barrier()


def add_gradients(parameters: Sequence[nn.Parameter]) -> None:
    """Replaces each gradient by the sum over all processes. Losses are divided by the global batch's counts, so that this is its gradient.

    A parameter may have a gradient in some processes only: it then gets one in all. Spread (sharded) parameters are left alone:
    their gradients were summed in the backward pass.
    """
    if not several():
        return
    own = [p for p in parameters if not is_spread(p)]
    if not own:
        return
    there = torch.tensor([float(p.grad is not None) for p in own], device=own[0].device)
    torch.distributed.all_reduce(there)
    wanted = [p for p, n in zip(own, there.tolist(), strict=True) if n]
    for bucket in _buckets(wanted):
        flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten().float() for p in bucket])
        torch.distributed.all_reduce(flat)
        for parameter, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
            value = part.view_as(parameter).to(parameter.dtype)
            if parameter.grad is None:
                parameter.grad = value
            else:
                parameter.grad.copy_(value)


def _buckets(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    buckets: list[list[nn.Parameter]] = []
    room = 0
    for parameter in parameters:
        if not buckets or room < parameter.numel():
            buckets.append([])
            room = BUCKET
        buckets[-1].append(parameter)
        room -= parameter.numel()
    return buckets


def is_spread(value: Tensor) -> bool:
    """Whether a tensor is one of which each process holds a part."""
    tensors = sys.modules.get("torch.distributed.tensor")  # where nobody imported it, nothing is spread
    return tensors is not None and isinstance(value, tensors.DTensor)


def add_values(values: Mapping[str, float], names: Sequence[str], device: torch.device) -> dict[str, float]:
    """The sum over all processes of each named value; a process that lacks one adds nothing."""
    if not several():
        return dict(values)
    table = torch.tensor([[values.get(name, 0.0) for name in names], [float(name in values) for name in names]], dtype=torch.float64)
    table = table.to(torch.float32) if device.type == "mps" else table.to(device)
    torch.distributed.all_reduce(table)
    return {name: total for name, total, there in zip(names, *table.tolist(), strict=True) if there}


def gather(value: Any) -> list[Any]:
    """What each process has, in order. Values travel as JSON."""
    if not several():
        return [value]
    own = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    size = torch.tensor([len(own)])
    sizes = [torch.zeros_like(size) for _ in range(world())]
    torch.distributed.all_gather(sizes, size)
    longest = max(int(n) for n in sizes)
    padded = torch.zeros(longest, dtype=torch.uint8)
    padded[: len(own)] = own
    found = [torch.zeros_like(padded) for _ in range(world())]
    torch.distributed.all_gather(found, padded)
    return [json.loads(bytes(part[: int(n)].tolist())) for part, n in zip(found, sizes, strict=True)]


def from_main(make: Callable[[], Any]) -> Any:
    """What the first process makes, in all of them, as JSON holds it; its input error is raised in all of them too."""
    if not several():
        return make()
    told: list[Any] = [None, ""]
    if is_main():
        try:
            told = [make(), ""]
        except InputError as error:
            told = [None, str(error)]
    value, complaint = gather(told)[0]
    if complaint:
        raise InputError(complaint)
    return value


def _joined() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()
