"""Putting a model into a GGUF file, tensor by tensor."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import numpy as np
from gguf import GGML_QUANT_VERSION, GGMLQuantizationType, GGUFReader, GGUFWriter, LlamaFileType
from gguf.quants import quant_shape_to_byte_shape
from torch import Tensor

from excise.errors import InputError
from excise.ggml import Kind, decoded, encoded
from excise.gguf_format.architecture import Numbers, Place, architecture_of, extra_tensors, from_file, numbers_of, places, to_file
from excise.gguf_format.vocabulary import Vocabulary
from excise.subject import Subject

FILE_TYPES: dict[Kind, LlamaFileType] = {
    "f32": LlamaFileType.ALL_F32,
    "f16": LlamaFileType.MOSTLY_F16,
    "bf16": LlamaFileType.MOSTLY_BF16,
    "q8_0": LlamaFileType.MOSTLY_Q8_0,
    "q4_0": LlamaFileType.MOSTLY_Q4_0,
}
BIGGEST_HALF = 65504.0
PLAIN = {GGMLQuantizationType.F32: np.float32, GGMLQuantizationType.F16: np.float16}


def metadata(subject: Subject, vocabulary: Vocabulary, kind: Kind, about: Mapping[str, str]) -> Numbers:
    """Every key of the file but the architecture's name, in order."""
    general: Numbers = {"general.type": "model", **{f"general.{key}": value for key, value in about.items() if value}}
    facts: Numbers = {"general.file_type": int(FILE_TYPES[kind]), "general.quantization_version": int(GGML_QUANT_VERSION)}
    return general | numbers_of(subject) | facts | vocabulary.metadata() | {"excise.model_fingerprint": subject.fingerprint()}


def write(subject: Subject, file: Path, keys: Numbers, kind: Kind) -> None:
    """Writes the file; never more than one tensor at a time is held in its new form."""
    parameters = dict(subject.base.named_parameters())
    todo = places(subject, kind)
    extra = list(extra_tensors(subject))
    writer = GGUFWriter(file, architecture_of(subject).name)
    for key, value in keys.items():
        _put(writer, key, value)
    for name, tensor in extra:
        writer.add_tensor_info(name, list(tensor.shape), cast(Any, np.dtype(np.float32)), 4 * tensor.numel())
    for place in todo:
        _announce(writer, place)
    with ExitStack() as closing:
        closing.callback(writer.close)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for _, tensor in extra:
            writer.write_tensor_data(tensor.numpy())
        for place in todo:
            writer.write_tensor_data(_stored(subject, place, parameters[place.source]))


def read_weights(subject: Subject, file: Path, kind: Kind) -> dict[str, Tensor]:
    """The weights of a file that `write` made, under the names and in the layout of the model."""
    found = {tensor.name: tensor for tensor in GGUFReader(file).tensors}
    todo = places(subject, kind)
    expected = {place.name for place in todo} | {name for name, _ in extra_tensors(subject)}
    if found.keys() != expected:
        raise RuntimeError(f"the GGUF file has other tensors than were written ({sorted(found.keys() ^ expected)[0]}), so it was not kept")
    return {place.source: from_file(subject, place, decoded(found[place.name].data, found[place.name].tensor_type)) for place in todo}


def _put(writer: GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def _announce(writer: GGUFWriter, place: Place) -> None:
    if place.stored in PLAIN:
        dtype = np.dtype(PLAIN[place.stored])
        writer.add_tensor_info(place.name, place.shape, cast(Any, dtype), int(np.prod(place.shape)) * dtype.itemsize)
    else:
        shape = quant_shape_to_byte_shape(place.shape, place.stored)
        writer.add_tensor_info(place.name, shape, cast(Any, np.dtype(np.uint8)), int(np.prod(shape)), raw_dtype=place.stored)


def _stored(subject: Subject, place: Place, weight: Tensor) -> np.ndarray:
    if place.stored == GGMLQuantizationType.F16 and float(weight.detach().abs().max()) > BIGGEST_HALF:
        raise InputError(f"{subject.source}: {place.source} has values that float16 cannot hold: choose --type bf16 or f32")
    return encoded(to_file(subject, place, weight), place.stored)
