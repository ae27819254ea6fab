"""Every token counts the same."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from excise.view import View


@dataclass(frozen=True)
class Uniform:
    """Weight 1 on every scored token.

    Paper: the sequence-level setting that TokenUnlearn compares with (arXiv 2605.00364).
    """

    def __call__(self, view: View) -> Float[Tensor, " n"]:
        return torch.ones_like(view.model.row, dtype=torch.float32)
