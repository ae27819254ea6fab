"""In which numbers a model runs, and in which mode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

if TYPE_CHECKING:
    from excise.subject import Subject

Precision = Literal["auto", "float32", "bfloat16"]


def resolve_precision(precision: Precision, device: torch.device) -> Literal["float32", "bfloat16"]:
    """``auto``: bfloat16 matrix products where the processor has them in hardware (AMX, AVX512-BF16, CUDA), else float32."""
    if precision != "auto":
        return precision
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported() else "float32"
    if device.type == "cpu":
        fast = torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()
        return "bfloat16" if fast else "float32"
    return "float32"


def autocast(precision: Literal["float32", "bfloat16"], device: torch.device) -> Any:
    """The context in which forward passes run: bf16 matrix products over float32 weights, or nothing."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16)


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
