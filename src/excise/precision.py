"""In which numbers a model runs, and in which mode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

if TYPE_CHECKING:
    from excise.subject import Subject

Precision = Literal["auto", "float32", "bfloat16"]


def resolve_precision(precision: Precision, device: torch.device) -> Literal["float32", "bfloat16"]:
    """``auto``: bfloat16 matrix products where the processor has them in hardware (AMX, AVX512-BF16, CUDA), else float32."""
    if precision != "auto":
        return precision
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported() else "float32"
    return "bfloat16" if device.type == "cpu" and not is_emulated("cpu") else "float32"


@cache
def is_emulated(kind: str) -> bool:
    """Whether a kind of device is a processor without instructions for bf16: its bf16 products take several times as long as those of float32."""
    return kind == "cpu" and not (torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported())


@contextmanager
def autocast(precision: Literal["float32", "bfloat16"], device: torch.device) -> Iterator[None]:
    """The context in which forward passes run: bf16 matrix products over float32 weights, or nothing."""
    half = torch.bfloat16 if precision == "bfloat16" else None
    with in_half(device, half), quick_products(precision, device):
        yield


def quick_products(precision: Literal["float32", "bfloat16"], device: torch.device) -> Any:
    """The context in which bf16 products, those of backward passes too, take no longer than float32's on a processor that has no instructions
    for them: the rounded factors are multiplied in float32 and the product is rounded, which gives the same numbers but for the order of sums.
    """
    return _InFloat32() if precision == "bfloat16" and is_emulated(device.type) else nullcontext()


ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


class _InFloat32(TorchDispatchMode):
    """Products of bf16 tensors computed in float32."""

    NEW = frozenset(
        {
            torch.ops.aten.mm.default,
            torch.ops.aten.addmm.default,
            torch.ops.aten.bmm.default,
            torch.ops.aten.baddbmm.default,
            ATTENTION,
            torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
        }
    )
    IN_PLACE: dict[Any, Any] = {  # noqa: RUF012
        torch.ops.aten.addmm_.default: torch.ops.aten.addmm.default,
        torch.ops.aten.baddbmm_.default: torch.ops.aten.baddbmm.default,
    }

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        change = self.IN_PLACE.get(func)
        if not (change or func in self.NEW) or args[0].dtype != torch.bfloat16:
            return func(*args, **kwargs)
        found = (change or func)(*_each(args, torch.bfloat16, torch.float32), **_each(kwargs, torch.bfloat16, torch.float32))
        if change:
            return args[0].copy_(found)
        if func is ATTENTION:
            return found[0].bfloat16(), found[1]  # the second one, log-sums of exponentials, is in float32 always
        return _each(found, torch.float32, torch.bfloat16)


def _each(values: Any, old: torch.dtype, new: torch.dtype) -> Any:
    """The same values; tensors of one number format, also those within, in another."""
    return tree_map_only(Tensor, lambda value: value.to(new) if value.dtype == old else value, values)


def half_now(device: torch.device) -> torch.dtype | None:
    """What autocast converts the inputs of matrix products to; None where it is off."""
    return torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None


def in_half(device: torch.device, half: torch.dtype | None) -> Any:
    """The context that :func:`half_now` described."""
    return nullcontext() if half is None else torch.autocast(device.type, half)


@contextmanager
def reading(subject: Subject, precision: Literal["float32", "bfloat16"]) -> Iterator[None]:
    """Every module in eval mode, no gradients, and the weights converted to bf16 once for the whole block instead of in every pass.

    Autocast keeps a converted weight as long as its outermost block lasts, and only of a parameter that asks for gradients.
    Afterwards everything is as it was.
    """
    flags = [(p, p.requires_grad) for p in subject.model.parameters() if p.is_floating_point()]
    try:
        for parameter, _ in flags:
            parameter.requires_grad_(True)
        with evaluating(subject.model), torch.no_grad(), autocast(precision, subject.device):
            yield
    finally:
        for parameter, flag in flags:
            parameter.requires_grad_(flag)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Every module in eval mode during the block; afterwards each as it was."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
