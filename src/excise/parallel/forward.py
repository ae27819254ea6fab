"""Running a part of a model as if it were the model's own forward pass."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar, cast

from torch import nn

T = TypeVar("T")


def is_spread(model: nn.Module) -> bool:
    """Whether the model's weights are spread over the processes now."""
    fsdp = sys.modules.get("torch.distributed.fsdp")  # where nobody imported it, nothing is spread
    return fsdp is not None and isinstance(model, fsdp.FSDPModule)


def within(base: nn.Module, function: Callable[[], T]) -> T:
    """Runs a function as the forward pass of the whole model, so that spread weights are gathered for it."""
    if not is_spread(base):
        return function()
    base.__dict__["forward"] = lambda: function()
    try:
        return cast(T, base())
    finally:
        del base.__dict__["forward"]
