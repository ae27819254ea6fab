"""How the gradients of forget and retain terms are put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Loss:
    """The loss of some terms of one side on one micro-batch, waiting to be computed."""

    side: str
    """forget, retain or adapter."""
    compute: Callable[[], Tensor]
    """Runs the model and gives the sum of the terms, each times its scale (times 1 where ``scale`` is given)."""
    scale: float | None = None
    """The scale that all of these terms have, where it was left to the gradients to apply."""


Backward = Callable[[Tensor], None]


@runtime_checkable
class Gradients(Protocol):
    """Fills ``.grad`` of the parameters from the losses of one optimiser step.

    One that sets ``unscaled = True`` gets retain losses without their scale, those of scale 0 too.
    """

    def __call__(self, losses: Sequence[Loss], parameters: Sequence[nn.Parameter], backward: Backward) -> Mapping[str, float]:
        """``losses`` are those of every micro-batch; ``backward`` back-propagates one of them. One after the other, only
        one graph is in memory. Returns what is worth logging, by name."""
        ...


@dataclass(frozen=True)
class Sum:
    """The gradient of the weighted sum of all terms.

    Paper: every unlearning objective with a retain term, such as GradDiff (arXiv 2203.12817).
    """

    additive = True
    """The gradient of a batch is the sum of its parts' gradients, so that several processes may each take a part."""
    together = True
    """Both sides may run in one forward pass: their losses are added anyway."""

    def __call__(self, losses: Sequence[Loss], parameters: Sequence[nn.Parameter], backward: Backward) -> Mapping[str, float]:
        for loss in losses:
            backward(loss.compute())
        return {}


@dataclass(frozen=True)
class ProjectConflicts:
    """Takes from the forget gradient, tensor by tensor, what works against the retain terms; then adds these by their scale.

    With G the gradient of the forget terms and R that of the retain terms without their scales, for each weight tensor with
    <G, R> < 0:  G <- G - <G, R> / (||R||^2 + epsilon) R.  Terms are minimised, so for ascent G = -g_f, where g_f is the gradient
    of the answer's cross-entropy: <G, R> < 0 is the paper's <g_f, g_r> > 0. The step follows G + sum of scale x R: a retain term
    of scale 0 only shapes the projection, one of scale a > 0 is an anchor as well.

    Paper: MAAT (arXiv 2605.30514, section 3.1); Yu et al. 2020, "Gradient Surgery for Multi-Task Learning", alg. 1 (arXiv
        2001.06782).

    Differs: the gradients of a whole optimiser step are projected, not those of its micro-batches.
    """

    epsilon: float = 1e-12
    """Added to the squared norm that is divided by."""
    unscaled = True

    def __call__(self, losses: Sequence[Loss], parameters: Sequence[nn.Parameter], backward: Backward) -> Mapping[str, float]:
        anchor: dict[int, Tensor] = {}
        retain: dict[int, Tensor] = {}
        for scale in dict.fromkeys(loss.scale for loss in losses if loss.side == "retain"):
            for loss in losses:
                if loss.side == "retain" and loss.scale == scale:
                    backward(loss.compute())
            for index, gradient in _taken(parameters).items():
                retain[index] = retain[index] + gradient if index in retain else gradient
                if scale:
                    anchor[index] = anchor[index] + scale * gradient if index in anchor else scale * gradient
        for loss in losses:
            if loss.side == "forget":
                backward(loss.compute())
        notes = self._project(parameters, retain)
        for index, gradient in anchor.items():
            _add(parameters[index], gradient)
        for loss in losses:
            if loss.side not in ("forget", "retain"):
                backward(loss.compute())
        return notes

    @torch.no_grad()
    def _project(self, parameters: Sequence[nn.Parameter], retain: Mapping[int, Tensor]) -> dict[str, float]:
        """Projects what stands in ``.grad``, and says how often and how much."""
        rows: list[Tensor] = []
        for index, against in retain.items():
            gradient = parameters[index].grad
            if gradient is None:
                continue
            g, r = gradient.flatten().float(), against.flatten().float()
            dot, squared, before = g @ r, r @ r, g @ g
            share = torch.where(dot < 0, dot / (squared + self.epsilon), torch.zeros_like(dot))
            gradient.sub_((share * r).view_as(gradient).to(gradient.dtype))
            cosine = dot / (before * squared).sqrt().clamp_min(1e-30)
            rows.append(torch.stack([(dot < 0).float(), cosine.abs(), before, before - share * dot * 2 + share.square() * squared]))
        if not rows:
            return {}
        conflict, cosine, before, after = torch.stack(rows).double().T
        kept = (after.clamp_min(0).sum() / before.sum().clamp_min(1e-60)).sqrt()
        return {"conflicts": float(conflict.mean()), "mean_cosine": float(cosine.mean()), "norm_kept": float(kept)}


def _taken(parameters: Sequence[nn.Parameter]) -> dict[int, Tensor]:
    """Takes the gradients out of the parameters, by place."""
    taken: dict[int, Tensor] = {}
    for index, parameter in enumerate(parameters):
        if parameter.grad is not None:
            taken[index], parameter.grad = parameter.grad, None
    return taken


def _add(parameter: nn.Parameter, gradient: Tensor) -> None:
    parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
