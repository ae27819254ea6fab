"""How llama.cpp stores weights: which number format each matrix gets, and the way there and back."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize, quantize
from torch import Tensor

Kind = Literal["f32", "f16", "bf16", "q8_0", "q4_0"]
"""The number format of a file; what it is named after is the format of its big matrices."""
Role = Literal["matrix", "embedding", "head"]

TYPES: dict[Kind, GGMLQuantizationType] = {
    "f32": GGMLQuantizationType.F32,
    "f16": GGMLQuantizationType.F16,
    "bf16": GGMLQuantizationType.BF16,
    "q8_0": GGMLQuantizationType.Q8_0,
    "q4_0": GGMLQuantizationType.Q4_0,
}


def stored_as(kind: Kind, role: Role, tied: bool) -> GGMLQuantizationType:
    """The format of one matrix in a file of this kind; vectors (norms, biases) are float32 always.

    The output head, and the embedding where it is the head as well, is kept better than the rest in a q4_0 file.
    llama-quantize takes Q6_K for it; the gguf package cannot write that, so it is Q8_0 here.
    """
    if kind == "q4_0" and (role == "head" or (role == "embedding" and tied)):
        return GGMLQuantizationType.Q8_0
    return TYPES[kind]


def block(number_format: GGMLQuantizationType) -> int:
    """How many neighbours in a row share a scale; the width of a matrix must be a multiple of it."""
    return GGML_QUANT_SIZES[number_format][0]


def encoded(weight: Tensor, number_format: GGMLQuantizationType) -> np.ndarray:
    """The weights as they stand in the file."""
    return quantize(np.ascontiguousarray(weight.detach().to("cpu", torch.float32).numpy()), number_format)


def decoded(stored: np.ndarray, number_format: GGMLQuantizationType) -> Tensor:
    """What a reader makes of it, in float32."""
    return torch.from_numpy(np.array(dequantize(stored, number_format), dtype=np.float32))


def round_trip(weight: Tensor, number_format: GGMLQuantizationType) -> Tensor:
    """What is left of the weights once they have been stored; the type and the device stay."""
    return decoded(encoded(weight, number_format), number_format).to(device=weight.device, dtype=weight.dtype)
