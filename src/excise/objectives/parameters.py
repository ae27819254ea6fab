"""Losses on the parameters themselves, for the ``penalties`` of a training stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cosine_similarity


@dataclass(frozen=True)
class TaskVectorCosine:
    """Keeps the adapter from turning back to what was taken away: mean over modules of max(0, cos(B, tau)).

    Paper: the task-vector term of MAAT's repair phase (arXiv 2605.30514, section 3.3).
    """

    reads: str = "task-vector"
    """The name under which tau was kept, by parameter name."""

    def __call__(self, parameters: Mapping[str, Tensor], known: Mapping[str, Tensor]) -> Float[Tensor, ""]:
        cosines = [
            cosine_similarity(parameters[name].float().flatten(), tau.float().flatten(), dim=0) for name, tau in known.items() if name in parameters
        ]
        return torch.stack(cosines).relu().mean()
