"""How the gradients of forget and retain terms are put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor, nn


@runtime_checkable
class Gradients(Protocol):
    """Fills ``.grad`` of the parameters from the losses of one micro-batch, adding to what is there."""

    def __call__(self, losses: Mapping[str, Callable[[], Tensor]], parameters: Sequence[nn.Parameter], backward: Callable[[Tensor], None]) -> None:
        """``losses`` maps "forget" and "retain" to functions that run the model and give the weighted sum of that side's
        terms; ``backward`` back-propagates one of them. One after the other, only one graph is in memory."""
        ...


@dataclass(frozen=True)
class Sum:
    """The gradient of the weighted sum of all terms.

    Paper: every unlearning objective with a retain term, such as GradDiff (arXiv 2203.12817).
    """

    together = True
    """Both sides may run in one forward pass: their losses are added anyway."""

    def __call__(self, losses: Mapping[str, Callable[[], Tensor]], parameters: Sequence[nn.Parameter], backward: Callable[[Tensor], None]) -> None:
        for loss in losses.values():
            backward(loss())
