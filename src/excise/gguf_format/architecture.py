"""The architectures that excise can write: their numbers under llama.cpp's names, and their tensors in its layout."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from gguf import MODEL_ARCH, MODEL_ARCH_NAMES, GGMLQuantizationType, get_tensor_name_map
from torch import Tensor

from excise.errors import InputError
from excise.ggml import Kind, Role, block, stored_as
from excise.subject import Subject

Value = int | float | bool | str | list[str] | list[int] | list[float]
Numbers = dict[str, Value]
ROPE_FACTORS = "rope_freqs.weight"


@dataclass(frozen=True)
class Architecture:
    """How one family of models is written; the names in the file begin with ``name``."""

    kind: MODEL_ARCH
    activation: str
    """The one activation function that llama.cpp computes for it."""
    numbers: Callable[[Any], Numbers]
    """What is particular to it, from transformers' configuration."""
    unfit: Callable[[Any], str] = lambda config: ""
    """Which setting of a configuration llama.cpp has no way to express; empty where there is none."""
    interleaved: bool = False
    """Whether the rows of query and key stand in the order of rotary pairs instead of halves."""
    norm_shift: float = 0.0
    """What is added to the weights of norms: Gemma's multiply by 1 + w, llama.cpp's by w."""
    own_head: bool = False
    """Whether the file needs an output head even where it is tied to the embedding."""
    scalings: tuple[str, ...] = ("default", "linear")
    """Kinds of rotary scaling that can be written."""

    @property
    def name(self) -> str:
        return MODEL_ARCH_NAMES[self.kind]


@dataclass(frozen=True)
class Place:
    """Where one parameter of the model stands in the file, and in which number format."""

    name: str
    source: str
    stored: GGMLQuantizationType
    shape: tuple[int, ...]


# Numbers ----------------------------------------------------------------------------------------------------------


def rope(config: Any, layers: str = "full_attention") -> dict[str, Any]:
    """Base and scaling of the rotary embedding, for one kind of layer where there are several."""
    found = vars(config).get("rope_parameters")
    if found is None:  # transformers 4
        base = config.rope_local_base_freq if layers == "sliding_attention" else config.rope_theta
        scaling = {} if layers == "sliding_attention" else (config.rope_scaling or {})
        found = {"rope_theta": base, "partial_rotary_factor": vars(config).get("partial_rotary_factor"), **scaling}
    found = dict(found.get(layers, found))
    return {**found, "rope_type": found.get("rope_type") or "default"}


def head_width(config: Any) -> int:
    return vars(config).get("head_dim") or config.hidden_size // config.num_attention_heads


def _common(config: Any) -> Numbers:
    numbers: Numbers = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads or config.num_attention_heads,
        "rope.freq_base": float(rope(config)["rope_theta"]),
    }
    if rope(config)["rope_type"] == "linear":
        numbers |= {"rope.scaling.type": "linear", "rope.scaling.factor": float(rope(config)["factor"])}
    return numbers


def _rms(config: Any) -> Numbers:
    return {"attention.layer_norm_rms_epsilon": float(config.rms_norm_eps)}


def _widths(config: Any) -> Numbers:
    return {"attention.key_length": head_width(config), "attention.value_length": head_width(config)}


def _rotated(config: Any) -> int:
    return int((rope(config).get("partial_rotary_factor") or 1.0) * head_width(config))


def _llama(config: Any) -> Numbers:
    return _common(config) | _rms(config) | _widths(config) | {"vocab_size": config.vocab_size, "rope.dimension_count": head_width(config)}


def _qwen(config: Any) -> Numbers:
    return _common(config) | _rms(config) | _widths(config)


def _gemma3(config: Any) -> Numbers:
    numbers = _common(config) | _rms(config) | _widths(config) | {"attention.sliding_window": config.sliding_window}
    numbers["rope.freq_base_swa"] = float(rope(config, "sliding_attention")["rope_theta"])
    if (period := _period(config)) != 6:
        numbers["attention.sliding_window_pattern"] = period
    if config.final_logit_softcapping:
        numbers["final_logit_softcapping"] = float(config.final_logit_softcapping)
    return numbers


def _phi3(config: Any) -> Numbers:
    window = {"attention.sliding_window": config.sliding_window or 0, "rope.scaling.original_context_length": config.max_position_embeddings}
    return _common(config) | _rms(config) | {"rope.dimension_count": _rotated(config)} | window


def _phi(config: Any) -> Numbers:
    return _common(config) | {"attention.layer_norm_epsilon": float(config.layer_norm_eps), "rope.dimension_count": _rotated(config)}


def _period(config: Any) -> int:
    """Every how many layers one sees everything; 0 where the layers follow no such rule."""
    full = [index for index, kind in enumerate(config.layer_types) if kind == "full_attention"]
    period = full[0] + 1 if full else len(config.layer_types) + 1
    return period if all((index in full) == ((index + 1) % period == 0) for index in range(len(config.layer_types))) else 0


# What cannot be expressed -----------------------------------------------------------------------------------------


def _unfit_llama(config: Any) -> str:
    return "sliding_window" if vars(config).get("sliding_window") else ""


def _unfit_qwen(config: Any) -> str:
    return "use_sliding_window" if config.use_sliding_window else ""


def _unfit_gemma3(config: Any) -> str:
    width = config.hidden_size // config.num_attention_heads if config.num_hidden_layers == 62 else head_width(config)
    if config.query_pre_attn_scalar != width:
        return f"query_pre_attn_scalar={config.query_pre_attn_scalar} (llama.cpp takes {width})"
    if config.attn_logit_softcapping:
        return "attn_logit_softcapping"
    if vars(config).get("use_bidirectional_attention"):
        return "use_bidirectional_attention"
    if rope(config, "sliding_attention")["rope_type"] != "default":
        return "rope scaling of the sliding layers"
    return "" if _period(config) else f"layer_types={config.layer_types}"


def _unfit_phi3(config: Any) -> str:
    window = config.sliding_window
    return f"sliding_window={window}, below the context of {config.max_position_embeddings}" if window and window < 2047 else ""


def _unfit_phi(config: Any) -> str:
    return "qk_layernorm" if config.qk_layernorm else ""


ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(MODEL_ARCH.LLAMA, "silu", _llama, _unfit_llama, interleaved=True, scalings=("default", "linear", "llama3")),
    "mistral": Architecture(MODEL_ARCH.LLAMA, "silu", _llama, _unfit_llama, interleaved=True),
    "qwen2": Architecture(MODEL_ARCH.QWEN2, "silu", _qwen, _unfit_qwen),
    "qwen3": Architecture(MODEL_ARCH.QWEN3, "silu", _qwen, _unfit_qwen),
    "gemma3_text": Architecture(MODEL_ARCH.GEMMA3, "gelu_pytorch_tanh", _gemma3, _unfit_gemma3, norm_shift=1.0),
    "phi3": Architecture(MODEL_ARCH.PHI3, "silu", _phi3, _unfit_phi3, scalings=("default",)),
    "phi": Architecture(MODEL_ARCH.PHI2, "gelu_new", _phi, _unfit_phi, own_head=True, scalings=("default",)),
}
"""transformers' model_type -> how it is written."""


def architecture_of(subject: Subject) -> Architecture:
    """How this model is written.

    Raises:
        InputError: llama.cpp (or excise) has no way to express it.
    """
    config: Any = subject.base.config
    found = ARCHITECTURES.get(config.model_type)
    if found is None:
        raise InputError(f"{subject.source}: a {config.model_type} model cannot be written as GGUF; these can: {', '.join(ARCHITECTURES)}")
    used = vars(config).get("hidden_activation") or vars(config).get("hidden_act")
    scaling = rope(config)["rope_type"]
    unfit = found.unfit(config)
    if used != found.activation:
        unfit = f"the activation {used} (llama.cpp computes {found.activation})"
    elif scaling not in found.scalings:
        unfit = f"rope scaling of the type {scaling} (known: {', '.join(found.scalings)})"
    if unfit:
        raise InputError(f"{subject.source}: a GGUF file of the architecture {found.name} cannot hold {unfit}, so it would be another model")
    return found


def numbers_of(subject: Subject) -> Numbers:
    """The architecture's numbers, under the names that they have in the file."""
    found = architecture_of(subject)
    return {f"{found.name}.{key}": value for key, value in found.numbers(subject.base.config).items()}


# Tensors ----------------------------------------------------------------------------------------------------------


def places(subject: Subject, kind: Kind) -> list[Place]:
    """Every tensor of the file in its order: one for each parameter; a head that is tied to the embedding is not written."""
    found, tied = architecture_of(subject), subject.tied
    names = get_tensor_name_map(found.kind, subject.depth)
    embedding, head = subject.embedding.weight, subject.head.weight
    result: list[Place] = []
    for source, parameter in subject.base.named_parameters():
        role: Role = "embedding" if parameter is embedding else "head" if parameter is head else "matrix"
        name = names.get_name(source, try_suffixes=(".weight", ".bias"))
        if name is None:
            raise InputError(f"{subject.source}: llama.cpp's {found.name} has no place for the tensor {source}, so it would be another model")
        result.append(Place(name, source, _format(parameter, name, kind, role, tied), tuple(parameter.shape)))
    return result


def _format(parameter: Tensor, name: str, kind: Kind, role: Role, tied: bool) -> GGMLQuantizationType:
    if parameter.dim() == 1 or name.endswith("_norm.weight"):
        return GGMLQuantizationType.F32
    wanted = stored_as(kind, role, tied)
    return wanted if parameter.shape[1] % block(wanted) == 0 else GGMLQuantizationType.F16


def to_file(subject: Subject, place: Place, weight: Tensor) -> Tensor:
    """The weight in llama.cpp's layout, in float32."""
    found = architecture_of(subject)
    weight = weight.detach().to("cpu", torch.float32)
    if heads := _heads(subject, found, place):
        half = weight.shape[0] // heads // 2
        weight = weight.reshape(heads, 2, half, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)
    return weight + found.norm_shift if found.norm_shift and place.name.endswith("_norm.weight") else weight


def from_file(subject: Subject, place: Place, weight: Tensor) -> Tensor:
    """What `to_file` did, undone."""
    found = architecture_of(subject)
    if found.norm_shift and place.name.endswith("_norm.weight"):
        weight = weight - found.norm_shift
    if heads := _heads(subject, found, place):
        half = weight.shape[0] // heads // 2
        weight = weight.reshape(heads, half, 2, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)
    return weight.reshape(place.shape)


def _heads(subject: Subject, found: Architecture, place: Place) -> int:
    """How many heads' rows are to be reordered; 0 for a tensor without rotary rows."""
    config: Any = subject.base.config
    if not found.interleaved:
        return 0
    if ".attn_q." in place.name:
        return config.num_attention_heads
    return (config.num_key_value_heads or config.num_attention_heads) if ".attn_k." in place.name else 0


def extra_tensors(subject: Subject) -> Iterator[tuple[str, Tensor]]:
    """Tensors of the file that are no parameters: the factors of Llama 3's rotary scaling."""
    config: Any = subject.base.config
    parameters = rope(config)
    if parameters["rope_type"] != "llama3":
        return
    width, original = head_width(config), parameters["original_max_position_embeddings"]
    low, high, factor = parameters["low_freq_factor"], parameters["high_freq_factor"], parameters["factor"]
    waves = 2 * math.pi * cast(float, parameters["rope_theta"]) ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
    smooth = ((original / waves - low) / (high - low)).clamp(0, 1)
    yield ROPE_FACTORS, (1 / ((1 - smooth) / factor + smooth)).float()
