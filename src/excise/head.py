"""The output head: logits from final hidden states when somebody looks, in pieces where they are many."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from excise.hidden import is_hooked
from excise.parallel.forward import is_spread
from excise.precision import half_now, in_half

if TYPE_CHECKING:
    from transformers import PreTrainedModel

OfLogits = Callable[[Tensor, slice], Tensor]
"""From the logits [m, vocab] of some tokens, and which they are, a value for each; it depends on parameters through the logits only."""
TOGETHER = 128
"""Tokens whose share of the head's gradient is added in one product: each product passes over the whole vocabulary."""
BLOCK = 2**13
"""Rows of the vocabulary whose gradient is added at a time, so that what is added stays in the cache."""


@dataclass(frozen=True)
class Head:
    """The output head of a model over some final hidden states, waiting for somebody to look."""

    base: PreTrainedModel
    features: Float[Tensor, "n width"]
    half: torch.dtype | None
    """The number format of matrix products, as it was in the forward pass; None: that of the weights."""

    @property
    def vocab(self) -> int:
        return int(self.base.config.get_text_config().vocab_size)

    def __call__(self, part: slice) -> Tensor:
        """Logits [m, vocab] of some of the tokens."""
        features = self.features[part]
        with in_half(features.device, self.half):
            return output_head(self.base, features)

    def between(self, begin: int, end: int) -> Head:
        return Head(self.base, self.features[begin:end], self.half)

    def in_pieces(self, function: OfLogits, size: int) -> Float[Tensor, " n"] | None:
        """``function`` over ``size`` tokens at a time: their logits are given up at once, and made again in the backward pass.

        The gradients of the pieces are added up in place. None where the head is no plain linear layer that is here as a whole.
        """
        module = cast(nn.Module, self.base.get_output_embeddings())
        if type(module) is not nn.Linear or is_hooked(module) or is_spread(self.base):
            return None
        return cast(Tensor, _Pieces.apply(self.features, module.weight, module.bias, self, function, size))


def output_head(base: PreTrainedModel, features: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    """Logits from final hidden states: the head with its bias, then what the architecture does to logits.

    Args:
        weight: take this matrix [vocab, width], and ``bias`` with it, in place of the head's own (the head as it was).
    """
    if weight is None:
        logits = cast(nn.Linear, base.get_output_embeddings())(features)
    else:
        logits = nn.functional.linear(features, weight.to(features.dtype), None if bias is None else bias.to(features.dtype))
    return finished(base, logits)


def finished(base: PreTrainedModel, logits: Tensor) -> Tensor:
    """What the architecture does to the products of its output head."""
    config = base.config.get_text_config()
    cap = getattr(config, "final_logit_softcapping", None)
    if cap:  # Gemma 2
        logits = torch.tanh(logits / cap) * cap
    if scale := getattr(config, "logit_scale", None):  # Cohere
        logits = logits * scale
    if scaling := getattr(config, "logits_scaling", None):  # Granite
        logits = logits / scaling
    return logits


class HeadInTraining:
    """What is kept of an output head while a stage trains: its weight in the precision of its products, converted again when it has
    changed, and the sum of the gradients of all pieces of a backward pass, until :func:`hand_over_gradient`.

    Whoever updates the weight says so by :func:`weight_changed`: torch's fused optimisers leave no trace in its version.

    Args:
        copy: one that exists already; only of a weight that is not trained.
    """

    def __init__(self, module: nn.Linear, copy: Tensor | None = None) -> None:
        self.seen: tuple[int, int] | None = None
        self.copy = copy
        self.gradient: Tensor | None = None
        if copy is not None and not module.weight.requires_grad:
            self.seen = self._state(module.weight)

    def __call__(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        if self.copy is None or self.seen != self._state(weight) or self.copy.dtype != dtype:
            self.copy = None  # two copies need not exist at a time
            self.seen, self.copy = self._state(weight), weight.detach().to(dtype)
        return self.copy

    def table(self, weight: Tensor) -> Tensor:
        """Where the weight's gradient is collected: in what it has from the parts of this step before, if there were any."""
        if self.gradient is None:
            self.gradient = torch.zeros_like(weight) if weight.grad is None else weight.grad
        return self.gradient

    @staticmethod
    def _state(weight: Tensor) -> tuple[int, int]:
        return weight.data_ptr(), weight._version


IN_TRAINING: weakref.WeakKeyDictionary[nn.Module, HeadInTraining] = weakref.WeakKeyDictionary()
"""Of the heads of models that train now (``excise.stages.fused``)."""


def hand_over_gradient(module: nn.Module) -> None:
    """After a backward pass: what was collected becomes a part of the gradient of a head's weight."""
    kept = IN_TRAINING.get(module)
    if kept is None or kept.gradient is None:
        return
    weight, table = cast(nn.Linear, module).weight, kept.gradient
    kept.gradient = None
    if weight.grad is None:
        weight.grad = table
    elif weight.grad is not table:
        weight.grad += table


def weight_changed(module: nn.Module) -> None:
    """After a step of the optimiser: the copy of a head's weight is out of date."""
    kept = IN_TRAINING.get(module)
    if kept is not None and cast(nn.Linear, module).weight.requires_grad:
        kept.seen = None


class _Pieces(torch.autograd.Function):
    """A value for each token from its logits, and its gradients for features, weight and bias.

    The gradient of a weight that :data:`IN_TRAINING` knows stays there until :func:`hand_over_gradient`: one table for all backward passes
    of a step's loss instead of one for each.
    """

    @staticmethod
    def forward(ctx: Any, features: Tensor, weight: Tensor, bias: Tensor | None, head: Head, function: OfLogits, size: int) -> Tensor:
        dtype = head.half or weight.dtype
        ctx.kept = kept = IN_TRAINING.get(cast(nn.Module, head.base.get_output_embeddings()))
        narrow = weight.detach() if weight.dtype == dtype else kept(weight, dtype) if kept else weight.detach().to(dtype)
        ctx.save_for_backward(features, weight, narrow, bias)
        ctx.head, ctx.function = head, function
        ctx.half = half_now(features.device)
        ctx.parts = [slice(start, min(start + size, len(features))) for start in range(0, len(features), size)]
        return torch.cat([function(finished(head.base, _products(features[part], narrow, bias)), part) for part in ctx.parts])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        features, weight, narrow, bias = ctx.saved_tensors
        of_features, of_weight, of_bias, *_ = ctx.needs_input_grad
        found = torch.zeros_like(features) if of_features else None
        table = (torch.zeros_like(weight) if ctx.kept is None else ctx.kept.table(weight)) if of_weight else None
        sums = torch.zeros_like(bias) if of_bias else None
        waiting: list[tuple[Tensor, Tensor]] = []
        for number, part in enumerate(ctx.parts, start=1):
            products = _products(features[part], narrow, bias).requires_grad_(True)
            with torch.enable_grad(), in_half(features.device, ctx.half):
                values = ctx.function(finished(ctx.head.base, products), part)
            if values.requires_grad:
                (outer,) = torch.autograd.grad(values, products, gradients[0][part])
                if found is not None:
                    found[part] = outer @ narrow
                if sums is not None:
                    sums += outer.sum(0)
                if table is not None:
                    waiting.append((outer, features[part].to(narrow.dtype)))
            if table is not None and waiting and (number == len(ctx.parts) or sum(len(outer) for outer, _ in waiting) >= TOGETHER):
                _add(table, waiting)
                waiting.clear()
        return found, None if ctx.kept is not None else table, sums, None, None, None


def _products(features: Tensor, narrow: Tensor, bias: Tensor | None) -> Tensor:
    """The head's products, apart from any graph and in the precision of its copy."""
    with torch.no_grad(), torch.autocast(features.device.type, enabled=False):
        return nn.functional.linear(features.to(narrow.dtype), narrow, None if bias is None else bias.to(narrow.dtype))


def _add(table: Tensor, waiting: list[tuple[Tensor, Tensor]]) -> None:
    """Adds to the gradient of the head's weight what comes from some tokens."""
    outer, rows = torch.cat([part for part, _ in waiting]), torch.cat([part for _, part in waiting])
    for start in range(0, len(table), BLOCK):
        table[start : start + BLOCK] += outer[:, start : start + BLOCK].T @ rows
