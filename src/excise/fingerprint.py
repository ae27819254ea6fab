"""Fingerprints: two things with the same SHA-256 are the same, whatever they are called and wherever they lie."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedTokenizerBase

CHUNK = 1 << 20


def model_fingerprint(model: nn.Module) -> str:
    """SHA-256 over name, type, shape and bytes of every parameter, in the order of the names; tied ones count once."""
    import torch

    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters(), key=lambda item: item[0]):
        digest.update(f"{name}\0{parameter.dtype}\0{tuple(parameter.shape)}\0".encode())
        flat = parameter.detach().cpu().contiguous().reshape(-1)
        digest.update(cast(Any, flat.view(torch.uint8).numpy()))
    return digest.hexdigest()


def config_fingerprint(model: nn.Module) -> str:
    """SHA-256 over the model's configuration and the settings of the adapters on it, without where they lie and who wrote them."""
    base: Any = cast(Any, model).get_base_model() if hasattr(model, "get_base_model") else model
    parts: dict[str, Any] = {"model": base.config.to_dict(), "active": getattr(model, "active_adapters", None)}
    for name, config in getattr(model, "peft_config", {}).items():
        parts[f"adapter {name}"] = config.to_dict()
    aside = ("_name_or_path", "base_model_name_or_path", "transformers_version", "peft_version", "inference_mode", "revision")
    kept = {key: {k: v for k, v in value.items() if k not in aside} if isinstance(value, dict) else value for key, value in parts.items()}
    return hashlib.sha256(json.dumps(kept, sort_keys=True, default=_named).encode()).hexdigest()


def _named(value: object) -> object:
    """What JSON does not know: sets in order, the rest by its text."""
    return sorted(map(str, value)) if isinstance(value, set | frozenset) else str(value)


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """SHA-256 over all that decides how a text becomes tokens: the fast tokenizer, special tokens, chat template.

    Padding and truncation are left out: they are the settings of the last call, not the tokenizer's own.
    """
    parts = {
        "tokenizer": _serialised(tokenizer),
        "special": {name: str(token) for name, token in sorted(tokenizer.special_tokens_map.items())},
        "chat_template": tokenizer.chat_template,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _serialised(tokenizer: PreTrainedTokenizerBase) -> dict[str, object]:
    from transformers import PreTrainedTokenizerFast

    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        return {"vocabulary": tokenizer.get_vocab()}
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    return {key: value for key, value in content.items() if key not in ("padding", "truncation")}


@cache
def code_fingerprint() -> str:
    """SHA-256 over excise's own source: what another version of the code found out is not read."""
    root = Path(__file__).parent
    digest = hashlib.sha256()
    for source in sorted(root.rglob("*.py")):
        digest.update(f"{source.relative_to(root)}\0".encode() + source.read_bytes())
    return digest.hexdigest()


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(CHUNK):
            digest.update(block)
    return digest.hexdigest()
