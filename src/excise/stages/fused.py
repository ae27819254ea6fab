"""Layers of a model as single operations while a stage trains: the same numbers in fewer passes over the activations, and fewer of them kept.

* A linear layer with a LoRA adapter. PEFT adds the adapter's product in several steps: a copy of the input in the adapter's precision,
  its conversion for the matrix product, the scaling, the sum, and their counterparts in the backward pass. On a small model they cost as
  much as the weight gradients that an adapter saves.
* A linear layer under autocast. Those that read the same input (queries, keys and values; gate and up) convert it and keep the copy each
  for itself; here they share one. The output head, which is called several times in a step, converts its weight once instead of each time.
* An RMS norm. Transformers' keeps the normalised input beside the input; here it is made again in the backward pass.
* The product within a gated MLP, whose activation is made again too.
* The lookup in an input table that is the output head's weight too: its gradient goes where that of the head is collected, row by row,
  instead of into a table of its own.

What is not plain (hooks, dropout within an adapter, DoRA, another number format) goes through the layer's own forward.
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

from excise.head import IN_TRAINING, HeadInTraining
from excise.hidden import is_hooked
from excise.parallel.forward import is_spread
from excise.precision import evaluating, half_now

if TYPE_CHECKING:
    from excise.subject import Subject

Forward = Callable[..., Tensor]


@contextmanager
def fused_layers(subject: Subject, head: Tensor | None = None) -> Iterator[None]:
    """The layers of a model compute in one operation each during the block; those of a model spread over processes stay as they are.

    The numbers are Transformers' and PEFT's, but for the rounding of sums.

    Args:
        head: a copy of the output head's weight in the precision of its products, where there is one already; only of a weight that
            is not trained.
    """
    modules = () if is_spread(subject.base) else list(subject.model.modules())
    replaced = [(module, forward) for module in modules if (forward := _replacement(module)) is not None and module is not subject.head]
    if modules and type(subject.head) is nn.Linear:
        IN_TRAINING[subject.head] = HeadInTraining(subject.head, head)
        replaced.append((subject.head, partial(_head, IN_TRAINING[subject.head])))
        if _is_plain_table(subject.embedding) and cast(Any, subject.embedding).weight is subject.head.weight:
            replaced.append((subject.embedding, partial(_lookup, IN_TRAINING[subject.head])))
    inputs = _Inputs()
    for module, forward in replaced:
        cast(Any, module).forward = partial(forward, module, module.forward, inputs)
    try:
        yield
    finally:
        IN_TRAINING.pop(subject.head, None)
        for module, _ in replaced:
            del module.forward  # the instance's own; the class keeps its


def _replacement(module: nn.Module) -> Callable[..., Tensor] | None:
    """What computes in place of a module's forward."""
    if type(module) is nn.Linear:
        return _linear
    if type(module).__module__ == "peft.tuners.lora.layer" and type(module).__name__ == "Linear":
        return _adapted
    if _is_gated(module):
        return _gated
    offset = _offset_of(module)
    return None if offset is None else partial(_norm, offset)


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


# --- linear layers ----------------------------------------------------------------------------------------------------


def _linear(module: nn.Linear, original: Forward, inputs: _Inputs, x: Tensor) -> Tensor:
    half = half_now(x.device)
    if half is None or x.dtype == half or module.weight.dtype != half or not torch.is_grad_enabled():
        return original(x)
    return cast(Tensor, _Linear.apply(x, inputs(x, half), module.weight, module.weight, module.bias))


def _head(kept: HeadInTraining, module: nn.Linear, original: Forward, inputs: _Inputs, x: Tensor) -> Tensor:
    half = half_now(x.device)
    if half is None or module.weight.dtype == half or is_hooked(module):
        return original(x)
    copy = x.detach().to(half)  # whoever looks at logits takes another part of the features each time: nothing to share
    return cast(Tensor, _Linear.apply(x, copy, module.weight, kept(module.weight, half), module.bias))


class _Linear(torch.autograd.Function):
    """y = x W^T + bias with gradients for x, W and bias; ``copy`` and ``narrow`` are x and W in the precision of the product."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, copy: Tensor, weight: Tensor, narrow: Tensor, bias: Tensor | None) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            result = nn.functional.linear(copy, narrow, None if bias is None else bias.to(narrow.dtype))
        ctx.save_for_backward(copy, narrow)
        ctx.dtypes = x.dtype, weight.dtype, None if bias is None else bias.dtype
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        copy, narrow = ctx.saved_tensors
        of_x, _, of_weight, _, of_bias = ctx.needs_input_grad
        outer = gradients[0].reshape(-1, narrow.shape[0])
        with torch.autocast(outer.device.type, enabled=False):
            x = (outer @ narrow).to(ctx.dtypes[0]).reshape(copy.shape) if of_x else None
            w = (outer.T @ copy.reshape(-1, copy.shape[-1])).to(ctx.dtypes[1]) if of_weight else None
            b = outer.sum(0).to(ctx.dtypes[2]) if of_bias else None
        return x, None, w, None, b


# --- input table ------------------------------------------------------------------------------------------------------


def _is_plain_table(module: nn.Module) -> bool:
    return type(module) is nn.Embedding and module.max_norm is None and not (module.sparse or module.scale_grad_by_freq)


def _lookup(kept: HeadInTraining, module: nn.Embedding, original: Forward, inputs: _Inputs, ids: Tensor) -> Tensor:
    if not (module.weight.requires_grad and torch.is_grad_enabled()):
        return original(ids)
    return cast(Tensor, _Lookup.apply(module.weight, ids, module.padding_idx, kept))


class _Lookup(torch.autograd.Function):
    """Rows of a table; their gradient is collected with that of the head (:func:`excise.head.hand_over_gradient`)."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, ids: Tensor, padding: int | None, kept: HeadInTraining) -> Tensor:
        ctx.save_for_backward(ids, weight)
        ctx.kept, ctx.padding = kept, padding
        return nn.functional.embedding(ids, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        ids, weight = ctx.saved_tensors
        rows = gradients[0].reshape(-1, weight.shape[1])
        ids = ids.reshape(-1)
        if ctx.padding is not None:
            rows = rows * (ids != ctx.padding)[:, None]
        ctx.kept.table(weight).index_add_(0, ids, rows.to(weight.dtype))
        return None, None, None, None


# --- linear layers with an adapter ------------------------------------------------------------------------------------


def _adapted(module: Any, original: Forward, inputs: _Inputs, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    active = [name for name in module.active_adapters if name in module.lora_A]
    half = half_now(x.device)
    if args or kwargs or len(active) != 1 or not _is_plain_lora(module, active[0], x, half):
        return original(x, *args, **kwargs)
    name, base = active[0], module.base_layer
    a, b = module.lora_A[name].weight, module.lora_B[name].weight
    dtype = half or x.dtype
    return cast(Tensor, _Adapted.apply(x, inputs(x, dtype), base.weight, base.bias, a, b, float(module.scaling[name])))


def _is_plain_lora(module: Any, name: str, x: Tensor, half: torch.dtype | None) -> bool:
    base, dropout, parts = module.base_layer, module.lora_dropout[name], (module.lora_A[name], module.lora_B[name])
    return (
        type(base) is nn.Linear
        and not base.weight.requires_grad
        and (base.bias is None or not base.bias.requires_grad)
        and not (module.disable_adapters or module.merged or name in module.lora_variant)
        and (isinstance(dropout, nn.Identity) or not dropout.training or dropout.p == 0)
        and all(type(part) is nn.Linear and part.bias is None for part in parts)
        and not is_hooked(base, *parts)
        and (half is not None or x.dtype == base.weight.dtype == parts[0].weight.dtype == parts[1].weight.dtype)
    )


class _Adapted(torch.autograd.Function):
    """y = x W^T + bias + scaling (x A^T) B^T, with gradients for x, A and B; ``copy`` is x in the precision of the products."""

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


# --- RMS norms --------------------------------------------------------------------------------------------------------


def _offset_of(module: nn.Module) -> float | None:
    """What an RMS norm adds to its weight before it multiplies (Llama: 0, Gemma: 1); None for a module that is no such norm.

    Found by trying: the name alone does not say how a norm computes.
    """
    weight, epsilon = getattr(module, "weight", None), _epsilon(module)
    if not type(module).__name__.endswith("RMSNorm") or epsilon is None or not isinstance(weight, nn.Parameter):
        return None
    alone = weight.dim() == 1 and [name for name, _ in module.named_parameters()] == ["weight"]
    if not alone or weight.dtype != torch.float32 or weight.is_meta:
        return None
    x = torch.linspace(-2.0, 3.0, 2 * len(weight), device=weight.device).reshape(2, -1)
    with torch.no_grad(), torch.autocast(weight.device.type, enabled=False):
        theirs = module(x)
        for offset in (0.0, 1.0):
            if torch.allclose(theirs, _normed(x, epsilon)[0] * (weight + offset), rtol=1e-5, atol=1e-6):
                return offset
    return None


def _epsilon(module: nn.Module) -> float | None:
    found = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    return found if isinstance(found, float) else None


def _norm(offset: float, module: Any, original: Forward, inputs: _Inputs, x: Tensor) -> Tensor:
    if not x.dtype == module.weight.dtype == torch.float32 or not torch.is_grad_enabled():
        return original(x)
    return cast(Tensor, _Norm.apply(x, module.weight, _epsilon(module), offset))


def _normed(x: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """The rows of x divided by the root of their mean square, and one over that root."""
    root = (x.square().mean(-1, keepdim=True) + epsilon).rsqrt()
    return x * root, root


class _Norm(torch.autograd.Function):
    """y = x / rms(x) (w + offset) in float32, with gradients for x and w.

    Paper: Zhang and Sennrich 2019, "Root Mean Square Layer Normalization" (arXiv 1910.07467), eq. 4.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float, offset: float) -> Tensor:
        normed, root = _normed(x, epsilon)
        ctx.save_for_backward(x, weight, root)
        ctx.offset = offset
        return normed.mul_(weight + offset if offset else weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, weight, root = ctx.saved_tensors
        of_x, of_weight, _, _ = ctx.needs_input_grad
        outer = gradients[0]
        factor = weight + ctx.offset if ctx.offset else weight
        normed = x * root
        along = outer * normed
        found = None
        if of_x:
            with torch.autocast(x.device.type, enabled=False):
                share = (along @ factor).unsqueeze(-1).div_(-x.shape[-1])
            found = (outer * factor).addcmul_(normed, share).mul_(root)
        return found, along.reshape(-1, x.shape[-1]).sum(0) if of_weight else None, None, None


# --- gated MLPs -------------------------------------------------------------------------------------------------------


def _is_gated(module: Any) -> bool:
    """Whether a module computes down(act(gate(x)) up(x)); found by trying."""
    parts = [getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj", "act_fn")]
    if not type(module).__name__.endswith("MLP") or not all(isinstance(part, nn.Module) for part in parts) or is_hooked(module):
        return False
    gate, up, down, act = cast(list[nn.Module], parts)
    weight = next(gate.parameters())
    if weight.is_meta or not weight.is_floating_point():
        return False
    x = torch.linspace(-1.0, 1.0, 2 * weight.shape[-1], device=weight.device, dtype=weight.dtype).reshape(1, 2, -1)
    with evaluating(module), torch.no_grad(), torch.autocast(weight.device.type, enabled=False):
        return torch.allclose(module(x), down(act(gate(x)) * up(x)))


def _gated(module: Any, original: Forward, inputs: _Inputs, x: Tensor) -> Tensor:
    if not torch.is_grad_enabled():
        return original(x)
    return module.down_proj(_Gated.apply(module.gate_proj(x), module.up_proj(x), module.act_fn))


class _Gated(torch.autograd.Function):
    """act(gate) up, with gradients for both; keeps these two only."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, act: nn.Module) -> Tensor:
        ctx.save_for_backward(gate, up)
        ctx.act = act
        return act(gate).mul_(up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        gate, up = ctx.saved_tensors
        outer = gradients[0]
        with torch.enable_grad(), torch.autocast(outer.device.type, enabled=False):
            gate = gate.detach().requires_grad_(True)
            active = ctx.act(gate)
        (of_gate,) = torch.autograd.grad(active, gate, outer * up)
        return of_gate, active.detach() * outer, None
