"""The model folder's signature in the OpenSSF model-signing format, which other tools check too."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from excise.certificate.content import CARD
from excise.errors import InputError
from excise.files import file_beside

NAME = "model.sig"


def sign_model(model: Path, key: Path, *, overwrite: bool = False) -> Path:
    """Signs a model folder with an elliptic-curve key (PEM, P-256, P-384 or P-521), offline; the signature stands beside the folder.

    The model card is left out, as in the certificate.

    Raises:
        InputError: the package is not there; the key cannot be used.
    """
    library = _library()
    place = model.parent / NAME
    if not key.is_file():
        raise InputError(f"there is no file {key}")
    with file_beside(place, overwrite) as part:
        try:
            config = library.signing.Config().use_elliptic_key_signer(private_key=key)
            config.set_hashing_config(_hashing(library, model)).sign(model, part)
        except (ValueError, TypeError) as error:
            raise InputError(
                f"{key} cannot sign the model ({_line(error)}): model-signing takes an unlocked elliptic-curve key in PEM form"
            ) from None
    return place


def check_model(model: Path, signature: Path, key: Path) -> str:
    """Checks such a signature against a public key, and says so.

    Raises:
        InputError: the package is not there; the model is another one, or signed by another key.
    """
    library = _library()
    for file in (signature, key):
        if not file.is_file():
            raise InputError(f"there is no file {file}")
    try:
        config = library.verifying.Config().use_elliptic_key_verifier(public_key=key)
        config.set_hashing_config(_hashing(library, model)).verify(model, signature)
    except Exception as error:  # noqa: BLE001  (the library raises whatever its parts raise; every one of them means: not this model, or not this key)
        raise InputError(f"{signature} does not fit {model} and the key {key}: {_line(error) or type(error).__name__}") from None
    return f"model signature: {signature.name} fits, by the key {key.name}."


def _hashing(library: Any, model: Path) -> Any:
    return library.hashing.Config().set_ignored_paths(paths=[model / CARD], ignore_git_paths=True)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _library() -> Any:
    try:
        return importlib.import_module("model_signing")
    except ImportError:
        raise InputError('signing the model folder needs the package model-signing: pip install "excise[model-signing]"') from None
