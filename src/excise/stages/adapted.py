"""Linear layers with a LoRA adapter as one operation while a stage trains.

PEFT adds the adapter's product to the layer's in several steps, each a pass over all activations: a copy of the input in the
adapter's precision, its conversion for the matrix product, the scaling, the sum, and their counterparts in the backward pass.
On a small model they cost as much as the weight gradients that an adapter saves.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from excise.parallel.forward import is_spread

if TYPE_CHECKING:
    from excise.subject import Subject


@contextmanager
def adapted_layers(subject: Subject) -> Iterator[None]:
    """The adapted linear layers of a model compute in one operation during the block, where the adapter is a plain LoRA one.

    The numbers are PEFT's, but for the rounding of the sum.
    """
    if not subject.is_adapter or is_spread(subject.base):
        yield
        return
    from peft.tuners.lora.layer import Linear

    inputs = _Inputs()
    taken = [module for module in subject.model.modules() if type(module) is Linear]
    for module in taken:
        module.forward = partial(_forward, module, module.forward, inputs)
    try:
        yield
    finally:
        for module in taken:
            del module.forward  # the instance's own; the class has PEFT's


class _Inputs:
    """The last input of a layer in the precision of its products: the layers of one block that read the same share the copy."""

    def __init__(self) -> None:
        self.seen: Callable[[], Tensor | None] = lambda: None
        self.version = 0
        self.copy: Tensor | None = None

    def __call__(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        if x.dtype == dtype:
            return x
        if self.copy is None or self.seen() is not x or self.version != x._version or self.copy.dtype != dtype:
            self.seen, self.version, self.copy = weakref.ref(x), x._version, x.detach().to(dtype)
        return self.copy


def _forward(module: Any, original: Callable[..., Tensor], inputs: _Inputs, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """What a layer does in place of PEFT's forward; PEFT's own for whatever is not plain."""
    active = [name for name in module.active_adapters if name in module.lora_A]
    half = torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else None
    if args or kwargs or len(active) != 1 or not _is_plain(module, active[0], x, half):
        return original(x, *args, **kwargs)
    name, base = active[0], module.base_layer
    a, b = module.lora_A[name].weight, module.lora_B[name].weight
    dtype = half or x.dtype
    return cast(Tensor, _Adapted.apply(x, inputs(x, dtype), base.weight, base.bias, a, b, float(module.scaling[name])))


def _is_plain(module: Any, name: str, x: Tensor, half: torch.dtype | None) -> bool:
    base, dropout, parts = module.base_layer, module.lora_dropout[name], (module.lora_A[name], module.lora_B[name])
    return (
        type(base) is nn.Linear
        and not base.weight.requires_grad
        and (base.bias is None or not base.bias.requires_grad)
        and not (module.disable_adapters or module.merged or name in module.lora_variant)
        and (isinstance(dropout, nn.Identity) or not dropout.training or dropout.p == 0)
        and all(type(part) is nn.Linear and part.bias is None for part in parts)
        and not any(part._forward_hooks or part._forward_pre_hooks or part._backward_hooks for part in (base, *parts))
        and (half is not None or x.dtype == base.weight.dtype == parts[0].weight.dtype == parts[1].weight.dtype)
    )


class _Adapted(torch.autograd.Function):
    """y = x W^T + bias + scaling (x A^T) B^T, with gradients for x, A and B."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, copy: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scaling: float) -> Tensor:
        dtype = copy.dtype
        rows = copy.reshape(-1, copy.shape[-1])
        weight, narrow, wide = (part.to(dtype) for part in (weight, a, b))
        with torch.autocast(x.device.type, enabled=False):
            inner = rows @ narrow.T
            result = nn.functional.linear(rows, weight, None if bias is None else bias.to(dtype))
            result.addmm_(inner, wide.T, alpha=scaling)
        ctx.save_for_backward(rows, inner, weight, narrow, wide)
        ctx.scaling, ctx.dtypes, ctx.shape = scaling, (x.dtype, a.dtype, b.dtype), x.shape
        return result.reshape(*x.shape[:-1], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        rows, inner, weight, narrow, wide = ctx.saved_tensors
        of_x, _, _, _, of_a, of_b, _ = ctx.needs_input_grad
        outer = gradients[0].reshape(-1, weight.shape[0])
        with torch.autocast(outer.device.type, enabled=False):
            back = (outer @ wide).mul_(ctx.scaling) if of_x or of_a else None
            x = a = b = None
            if back is not None and of_x:
                x = (outer @ weight).addmm_(back, narrow).to(ctx.dtypes[0]).reshape(ctx.shape)
            if back is not None and of_a:
                a = (back.T @ rows).to(ctx.dtypes[1])
            if of_b:
                b = (outer.T @ inner).mul_(ctx.scaling).to(ctx.dtypes[2])
        return x, None, None, None, a, b, None
