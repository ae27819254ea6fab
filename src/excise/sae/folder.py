"""Sparse autoencoders as folders, in the layout of sae-lens: cfg.json and sae_weights.safetensors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from excise.errors import InputError
from excise.factorise.autoencoder import Autoencoder
from excise.files import folder_beside, read_json, write_json
from excise.hidden import require_layer

if TYPE_CHECKING:
    from excise.subject import Subject

CONFIG, WEIGHTS, QUALITY = "cfg.json", "sae_weights.safetensors", "quality.json"
ARCHITECTURES = ("standard", "topk", "jumprelu")
NEEDED = ("W_enc", "W_dec", "b_dec")


@dataclass(frozen=True)
class Sae:
    """An autoencoder and the place in a model that it was made for."""

    autoencoder: Autoencoder
    source: str
    """The folder, or the name in sae-lens."""
    layer: int | None
    """The decoder layer (0-based) after which it reads; None: its folder does not say."""
    model: Mapping[str, Any] = field(default_factory=dict)
    """What is known of its model: name, shape (class, depth, width, vocabulary), fingerprint."""

    def fits(self, subject: Subject, layer: int | None = None) -> int:
        """The layer at which it belongs into a model.

        Raises:
            InputError: another width, another model, a layer that is not there or not the one that was asked for.
        """
        place = self.layer if layer is None else layer
        if self.layer is not None and layer not in (None, self.layer):
            raise InputError(f"the SAE {self.source} reads after layer {self.layer}, not {layer}: leave sae_layer out, or give another SAE")
        if place is None:
            raise InputError(f"the SAE {self.source} does not say which layer it reads: give sae_layer")
        config = subject.base.config.get_text_config()
        if self.autoencoder.width != config.hidden_size:
            raise InputError(
                f"the SAE {self.source} reads {self.autoencoder.width} values, but {subject.source} has hidden states of {config.hidden_size}: "
                "train one for this model with `excise sae train`"
            )
        require_layer(place, subject.depth)
        shape = shape_of(subject)
        other = next(
            (f"{name} {value} against {shape[name]}" for name, value in self.model.get("shape", {}).items() if shape.get(name) != value), None
        )
        if other is not None:
            raise InputError(f"the SAE {self.source} was trained on another model than {subject.source} ({other}): train one with `excise sae train`")
        return place


def shape_of(subject: Subject) -> dict[str, Any]:
    """What two models must have in common for the same autoencoder."""
    config = subject.base.config.get_text_config()
    return {
        "class": type(subject.base).__name__,
        "layers": config.num_hidden_layers,
        "width": config.hidden_size,
        "vocabulary": subject.vocabulary,
    }


def save_sae(
    autoencoder: Autoencoder, subject: Subject, layer: int, final: Path, *, quality: Mapping[str, Any], settings: Mapping[str, Any], overwrite: bool
) -> Path:
    """Writes an autoencoder of this model so that excise and sae-lens can read it."""
    if autoencoder.k is None:
        raise ValueError("only TopK autoencoders are trained and saved here")
    config = {
        "architecture": "topk",
        "d_in": autoencoder.width,
        "d_sae": autoencoder.features,
        "k": autoencoder.k,
        "rescale_acts_by_decoder_norm": False,
        "dtype": "float32",
        "device": "cpu",
        "apply_b_dec_to_input": autoencoder.centred,
        "normalize_activations": "none",
        "reshape_activations": "none",
        "metadata": {
            "model_name": subject.source,
            "hook_name": f"blocks.{layer}.hook_resid_post",
            "hf_hook_name": f"model.layers.{layer}",
            "prepend_bos": False,
            "excise": {"shape": shape_of(subject), "fingerprint": subject.fingerprint(), "settings": dict(settings)},
        },
    }
    tensors = {
        "W_enc": autoencoder.encoder,
        "b_enc": autoencoder.encoder_bias,
        "W_dec": autoencoder.decoder,
        "b_dec": autoencoder.decoder_bias,
    }
    with folder_beside(final, overwrite) as part:
        save_file({name: value.detach().float().cpu().contiguous() for name, value in tensors.items()}, part / WEIGHTS)
        write_json(part / CONFIG, config)
        write_json(part / QUALITY, dict(quality))
    return final


def load_sae(name: str) -> Sae:
    """An autoencoder from a folder in sae-lens' layout, or ``saelens:RELEASE/ID`` through the sae-lens package.

    Raises:
        InputError: nothing there, not in this layout, or of a kind that excise cannot use.
    """
    if name.startswith("saelens:"):
        from excise.sae.lens import load_from_lens

        return load_from_lens(name)
    folder = Path(name).expanduser()
    if not folder.is_dir():
        raise InputError(f"there is no SAE folder {name}: give one with {CONFIG} and {WEIGHTS} (`excise sae train` makes one), or saelens:RELEASE/ID")
    config = read_json(folder / CONFIG)
    if not isinstance(config, dict):
        raise InputError(f"{folder / CONFIG}: expected an object, got {type(config).__name__}")
    weights = folder / WEIGHTS
    if not weights.is_file():
        raise InputError(f"there is no file {weights}")
    try:
        tensors = load_file(weights)
    except SafetensorError as error:
        raise InputError(f"{weights} is not a safetensors file ({error})") from None
    return from_parts(config, tensors, name)


def from_parts(config: Mapping[str, Any], tensors: Mapping[str, Tensor], source: str) -> Sae:
    """An autoencoder from sae-lens' configuration and tensors."""
    metadata = {**config, **config.get("metadata", {})}
    known = metadata.get("excise") or {}
    return Sae(
        _autoencoder(config, tensors, source),
        source,
        _layer(str(metadata.get("hook_name") or metadata.get("hook_point") or ""), source),
        {"name": metadata.get("model_name"), "shape": known.get("shape", {}), "fingerprint": known.get("fingerprint")},
    )


def _autoencoder(config: Mapping[str, Any], tensors: Mapping[str, Tensor], source: str) -> Autoencoder:
    architecture = _architecture(config, source)
    lacking = [name for name in (*NEEDED, *(("threshold",) if architecture == "jumprelu" else ())) if name not in tensors]
    if lacking:
        raise InputError(f"the SAE {source} has no tensor {lacking[0]!r}; it has: {', '.join(sorted(tensors))}")
    values = {name: tensor.float() for name, tensor in tensors.items()}
    encoder, decoder = values["W_enc"], values["W_dec"]
    sizes = [values[name].shape for name in ("b_enc", "threshold") if name in values]
    fitting = encoder.dim() == 2 and decoder.shape == encoder.T.shape and values["b_dec"].shape == encoder.shape[:1]
    if not fitting or any(size != encoder.shape[1:] for size in sizes):
        shapes = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in sorted(tensors.items()))
        raise InputError(f"the SAE {source}: its tensors do not fit together ({shapes})")
    bias = values.get("b_enc", torch.zeros(encoder.shape[1]))
    threshold = values["threshold"] if architecture == "jumprelu" else None
    if config.get("rescale_acts_by_decoder_norm"):
        norms = decoder.norm(dim=-1).clamp(min=1e-8)
        encoder, bias, decoder = encoder * norms, bias * norms, decoder / norms[:, None]
    k = _k(config, source) if architecture == "topk" else None
    return Autoencoder(encoder, bias, decoder, values["b_dec"], k, threshold, bool(config.get("apply_b_dec_to_input", True)))


def _architecture(config: Mapping[str, Any], source: str) -> str:
    """Which of the known kinds it is; older files say topk in their activation function."""
    kind = str(config.get("architecture", "standard"))
    if kind == "standard" and str(config.get("activation_fn") or config.get("activation_fn_str") or "relu").startswith("topk"):
        kind = "topk"
    if kind not in ARCHITECTURES:
        raise InputError(f"the SAE {source} has the architecture {kind!r}, which excise cannot use; it can use {', '.join(ARCHITECTURES)}")
    for name in ("normalize_activations", "reshape_activations"):
        if config.get(name, "none") not in ("none", None, False):
            raise InputError(f"the SAE {source} needs {name} = {config[name]!r}, which excise does not do: save it with that folded in")
    return kind


def _k(config: Mapping[str, Any], source: str) -> int:
    k = config.get("k") or (config.get("activation_fn_kwargs") or {}).get("k")
    if not isinstance(k, int) or k < 1:
        raise InputError(f"the SAE {source} is a topk one, and its {CONFIG} does not say k")
    return k


def _layer(hook: str, source: str) -> int | None:
    """The decoder layer after which a hook of TransformerLens or Transformers reads; None where nothing is said."""
    if not hook:
        return None
    if found := re.fullmatch(r"blocks\.(\d+)\.hook_resid_(post|pre)", hook):
        layer = int(found[1]) - (found[2] == "pre")
        if layer >= 0:
            return layer
    elif found := re.fullmatch(r"(?:\w+\.)*layers\.(\d+)", hook):
        return int(found[1])
    raise InputError(f"the SAE {source} reads at {hook}; excise needs one of the hidden states after a layer (blocks.L.hook_resid_post)")
