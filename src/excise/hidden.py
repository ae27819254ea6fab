"""Activations by layer, through forward hooks, with an early stop after the last layer that is wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from excise.errors import InputError


class _Stop(Exception):
    """Ends a forward pass early."""


@dataclass
class Captured:
    """What the hooks saw."""

    outputs: dict[int, Tensor] = field(default_factory=dict)
    """Layer (0-based) -> output [lines, length, width]."""

    def run(self, forward: Callable[[], Tensor]) -> Tensor | None:
        """Runs the forward pass; None where it was stopped early."""
        try:
            return forward()
        except _Stop:
            return None


@contextmanager
def capture(blocks: nn.ModuleList, layers: Sequence[int], *, stop: bool = False) -> Iterator[Captured]:
    """Keeps the outputs of decoder layers during the block.

    Args:
        blocks: the decoder layers of the model.
        layers: which to keep, 0-based.
        stop: end the forward pass after the last of them (there must be one then).
    """
    for layer in layers:
        require_layer(layer, len(blocks))
    if stop and not layers:
        raise ValueError("an early stop needs at least one layer")
    captured = Captured()
    last = max(layers, default=-1)

    def keep(layer: int) -> Callable[[nn.Module, Any, Any], None]:
        def hook(_module: nn.Module, _args: Any, output: Any) -> None:
            captured.outputs[layer] = output[0] if isinstance(output, tuple) else output
            if stop and layer == last:
                raise _Stop

        return hook

    handles = [blocks[layer].register_forward_hook(keep(layer)) for layer in set(layers)]
    try:
        yield captured
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def replaced(blocks: nn.ModuleList, layer: int, change: Callable[[Tensor], Tensor] | None) -> Iterator[None]:
    """Puts ``change(output)`` in place of a decoder layer's output [lines, length, width] during the block; None changes nothing."""
    require_layer(layer, len(blocks))
    if change is None:
        yield
        return

    def hook(_module: nn.Module, _args: Any, output: Any) -> Any:
        return (change(output[0]), *output[1:]) if isinstance(output, tuple) else change(output)

    handle = blocks[layer].register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def require_layer(layer: int, depth: int) -> None:
    """An error in one line where the model has no such layer."""
    if not 0 <= layer < depth:
        raise InputError(f"layer {layer} does not exist: the model has {depth} layers, 0 to {depth - 1}")


def default_layer(depth: int) -> int:
    """The layer at the depth fraction of RMU's layer 7 of 32."""
    return max(1, round(7 / 32 * depth)) if depth > 1 else 0


def is_hooked(*modules: nn.Module) -> bool:
    """Whether somebody listens to one of these modules, which must then be called as they are."""
    return any(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks for module in modules)
