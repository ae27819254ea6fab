"""Exporting a model to GGUF, the file that llama.cpp, Ollama and LM Studio run; what was written is read back and compared."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

import torch
from gguf import GGMLQuantizationType
from torch import Tensor
from transformers import AutoConfig, AutoTokenizer

from excise.embedded import find
from excise.errors import InputError, did_you_mean
from excise.files import file_beside, read_json
from excise.ggml import Kind
from excise.gguf_format.architecture import architecture_of, head_width, places, rope
from excise.gguf_format.vocabulary import Vocabulary, vocabulary_of
from excise.gguf_format.writing import metadata, read_weights, write
from excise.loading import load
from excise.saving import RECORD, TOLERANCE, merged, probe
from excise.subject import Subject, quiet, untie

TEXTS = (
    "Where was she born? In Marrow, in 1931, near the old lighthouse.",
    "  two  spaces,\ttabs\n\n\nand   lines  \r\n  end ",
    "Zoë's café — naïve: 42 %, (x + y) / 2 = z! don't I'LL WE'VE",
    "日本語, русский, العربية, 😀👍🏽 ½ ² №",
    "1234567 3.14 0x1F 10,000",
    "def f(x):\n    return x ** 2  # twice\n",
    "  7 and  12",
)
"""What the vocabulary in the file must read as the tokenizer does."""
LARGEST_ERROR: dict[GGMLQuantizationType, float] = {
    GGMLQuantizationType.F32: 1e-6,
    GGMLQuantizationType.F16: 2.0**-11,
    GGMLQuantizationType.BF16: 2.0**-8,
    GGMLQuantizationType.Q8_0: 0.6 / 127,
    GGMLQuantizationType.Q4_0: 1.02 / 8,
}
"""What a number format may change a value by, relative to the largest value of the tensor."""
SEEN = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "rms_norm_eps",
    "layer_norm_eps",
    "attention_bias",
    "mlp_bias",
    "sliding_window",
    "layer_types",
    "query_pre_attn_scalar",
    "final_logit_softcapping",
    "vocab_size",
)
"""Settings by which transformers would compute something else if it read them wrongly."""


@dataclass(frozen=True)
class Exported:
    """What was written, and what reading it back has shown."""

    file: Path
    architecture: str
    bytes: int
    formats: Mapping[str, int]
    """Number format -> how many tensors."""
    logit_error: float
    """Largest difference of logits to the source on a fixed batch, relative to its largest logit."""
    divergence: float
    """Mean Kullback-Leibler divergence, in nats for each token of ordinary text, from the source to the file."""
    read_by: str
    """Who has read the file back: transformers, or excise itself where transformers cannot read it rightly."""
    notes: tuple[str, ...]

    def lines(self) -> list[str]:
        """For a person."""
        formats = ", ".join(f"{count} {name}" for name, count in self.formats.items())
        return [
            f"{self.file}: {self.architecture}, {self.bytes / 1e6:.1f} MB, tensors: {formats}",
            f"read back by {self.read_by}: logits differ by {self.logit_error:.1e} of the largest, {self.divergence:.1e} nats a token",
            *self.notes,
        ]


def export(source: str | Path, file: str | Path, *, kind: str = "f16", overwrite: bool = False) -> Exported:
    """Writes any model that `excise.load` reads as one GGUF file, all or nothing; an adapter is merged in float32 first.

    ``kind`` is the number format of the matrices: f32, f16, bf16, q8_0 or q4_0.
    """
    return _export(source, Path(file).expanduser(), _kind(kind), overwrite)


def _kind(name: str) -> Kind:
    if name not in get_args(Kind):
        raise InputError(f"--type {name}: {did_you_mean(name, get_args(Kind))}")
    return cast(Kind, name)


def _export(source: str | Path, file: Path, kind: Kind, overwrite: bool) -> Exported:
    if file.suffix != ".gguf":
        raise InputError(f"{file}: the name of a GGUF file ends in .gguf")
    with file_beside(file, overwrite) as part, quiet(), torch.no_grad():
        subject = load(source, dtype="float32", device="cpu")
        found = architecture_of(subject)
        subject = merged(subject) if subject.is_adapter else subject
        if found.own_head:
            untie(subject)
        vocabulary = _vocabulary(subject)
        write(subject, part, metadata(subject, vocabulary, kind, _about(subject)), kind)
        checked = _check(subject, part, kind)
        return Exported(file, found.name, part.stat().st_size, _formats(subject, kind), *checked)


def _vocabulary(subject: Subject) -> Vocabulary:
    """The vocabulary, once it has read some texts as the tokenizer reads them."""
    vocabulary = vocabulary_of(subject.tokenizer, subject.vocabulary, subject.source)
    for text in _texts(subject):
        if vocabulary.ids(text) != _ids(subject.tokenizer, text):
            raise InputError(
                f"{subject.source}: llama.cpp would read {text[:40]!r} as other tokens than this tokenizer does, so it cannot be exported"
            )
    return vocabulary


def _texts(subject: Subject) -> list[str]:
    """Ordinary texts, special tokens inside a text, and a conversation."""
    tokenizer = subject.tokenizer
    texts = [*TEXTS, "".join(f"a {token} b" for token in tokenizer.all_special_tokens)]
    if subject.template.style == "chat":
        turns = [{"role": "user", "content": "Who are you?"}, {"role": "assistant", "content": "A model, since 2024."}]
        texts.append(cast(str, tokenizer.apply_chat_template(turns, tokenize=False)))
    return texts


def _ids(tokenizer: Any, text: str) -> list[int]:
    return cast(list[int], tokenizer(text, add_special_tokens=False).input_ids)


def _about(subject: Subject) -> dict[str, str]:
    """Name and licence; of a path only the last part, since the rest says where it lay."""
    path = Path(subject.source.removeprefix("embedded:"))
    record = read_json(path / RECORD) if (path / RECORD).is_file() else {}
    embedded = record.get("embedded") or (path.name if subject.source.startswith("embedded:") else None)
    return {"name": embedded or path.stem, "license": find(embedded).licence if embedded else str(record.get("licence") or "")}


def _formats(subject: Subject, kind: Kind) -> dict[str, int]:
    return dict(collections.Counter(place.stored.name.lower() for place in places(subject, kind)))


# Reading back -----------------------------------------------------------------------------------------------------


def _check(subject: Subject, part: Path, kind: Kind) -> tuple[float, float, str, tuple[str, ...]]:
    """Compares the file with the model, whose weights are those of the file afterwards."""
    rows = torch.tensor([_ids(subject.tokenizer, " ".join(TEXTS))])
    before, spoken = probe(subject), _log_probabilities(subject, rows)
    _compare_weights(subject, part, kind)
    after, said = probe(subject), _log_probabilities(subject, rows)
    scale = max(1.0, float(before.abs().max()))
    error = float((after - before).abs().max()) / scale
    if kind == "f32" and not error <= TOLERANCE:
        raise RuntimeError(f"the GGUF file gives other logits than the model (relative error {error:.1e}), so it was not kept")
    divergence = float((spoken.exp() * (spoken - said)).sum(-1).mean())
    reason, again = _unread(subject, part), None
    try:
        again = None if reason else load(part, dtype="float32", device="cpu")
    except InputError as refusal:
        reason = str(refusal).removeprefix(f"{part}: ")
    if again is None:
        return error, divergence, "excise", (f"transformers cannot read this file rightly ({reason}); what llama.cpp needs is in it",)
    if not float((probe(again) - after).abs().max()) <= TOLERANCE * scale:
        raise RuntimeError("transformers reads other logits from the GGUF file than were written, so it was not kept")
    return error, divergence, "transformers", tuple(_tokenizer_notes(subject, part))


def _compare_weights(subject: Subject, part: Path, kind: Kind) -> None:
    """Each weight within what its number format allows; the model then takes those of the file."""
    parameters: dict[str, Tensor] = dict(subject.base.named_parameters())
    formats = {place.source: place.stored for place in places(subject, kind)}
    for source, weight in read_weights(subject, part, kind).items():
        shift = architecture_of(subject).norm_shift
        largest = float(parameters[source].abs().max()) + shift
        error = float((weight - parameters[source]).abs().max())
        if not error <= LARGEST_ERROR[formats[source]] * largest:
            raise RuntimeError(f"{source} does not come back from the GGUF file (off by {error:.1e}), so the file was not kept")
        parameters[source].copy_(weight)


def _log_probabilities(subject: Subject, rows: Tensor) -> Tensor:
    return subject.model(input_ids=rows, use_cache=False).logits.double().log_softmax(-1)


def _unread(subject: Subject, part: Path) -> str:
    """Why transformers cannot read the file back as the same model; empty if it can."""
    try:
        config = AutoConfig.from_pretrained(part.parent, gguf_file=part.name)
    except (ValueError, KeyError) as error:
        return str(error).splitlines()[0].removeprefix("GGUF model with ").rstrip(".")
    ours: Any = subject.base.config
    wrong = [name for name in SEEN if not _same(vars(config).get(name), vars(ours).get(name))]
    if head_width(config) != head_width(ours):
        wrong.append("head_dim")
    for layers in ("full_attention", "sliding_attention"):
        one, other = rope(config, layers), rope(ours, layers)
        if any(not _same(one.get(key), other.get(key)) for key in ("rope_theta", "rope_type", "factor", "partial_rotary_factor")):
            wrong.append("rope")
    return f"it takes another value for {', '.join(dict.fromkeys(wrong))}" if wrong else ""


def _same(one: Any, other: Any) -> bool:
    numbers = isinstance(one, (int, float)) and isinstance(other, (int, float))
    return abs(one - other) <= 1e-6 * abs(other) if numbers else (one or None) == (other or None)


def _tokenizer_notes(subject: Subject, part: Path) -> list[str]:
    again = AutoTokenizer.from_pretrained(part.parent, gguf_file=part.name)
    other = [text for text in _texts(subject) if _ids(again, text) != _ids(subject.tokenizer, text)]
    return [f"transformers, reading this file, splits texts like {other[0][:20]!r} into other tokens; llama.cpp does not"] if other else []
