"""Ed25519 keys and signatures, and the one form of JSON that is signed."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from excise.errors import InputError
from excise.files import explained

VARIABLE = "EXCISE_SIGNING_KEY"
PASSPHRASE = "EXCISE_SIGNING_PASSPHRASE"
ALGORITHM = "Ed25519"


def canonical(value: Any) -> bytes:
    """The bytes that are hashed and signed: UTF-8 JSON, keys sorted, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def digest(value: Any) -> str:
    """SHA-256 of the canonical form, in hexadecimal."""
    return hashlib.sha256(canonical(value)).hexdigest()


@dataclass(frozen=True)
class Signer:
    """A private key that is ready to sign."""

    key: Any

    @property
    def public(self) -> str:
        """The public key's 32 bytes in hexadecimal."""
        return _raw(self.key.public_key())

    def sign(self, value: Any) -> dict[str, str]:
        """The signature of a value's canonical form, with the key that checks it."""
        return {"algorithm": ALGORITHM, "public_key": self.public, "value": self.key.sign(canonical(value)).hex()}


def signer(file: Path | None) -> Signer | None:
    """The key in a PEM file, else the one in ``$EXCISE_SIGNING_KEY``, else None.

    A key that is locked with a passphrase takes it from ``$EXCISE_SIGNING_PASSPHRASE``.

    Raises:
        InputError: no such file, no PEM, another kind of key, no or a wrong passphrase.
    """
    if file is not None:
        return Signer(_private(_read(file), str(file)))
    text = os.environ.get(VARIABLE, "")
    if not text.strip():
        return None
    return Signer(_private(text.replace("\\n", "\n").encode(), f"${VARIABLE}"))


def new_key(file: Path) -> Signer:
    """Makes a key and writes it to a new PEM file that only its owner may read, and the public half to ``<file>.pub``.

    Raises:
        InputError: one of the files exists.
    """
    serialization, ed25519 = _library()
    public = file.with_name(f"{file.name}.pub")
    for there in (file, public):
        if there.exists():
            raise InputError(f"{there} exists: a key is never overwritten, choose another name")
    key = ed25519.Ed25519PrivateKey.generate()
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    _write(file, key.private_bytes(pem, form, serialization.NoEncryption()), 0o600)
    _write(public, key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo), 0o644)
    return Signer(key)


def readable_by_others(file: Path) -> bool:
    """Whether a key file can be read by somebody else than its owner."""
    return os.name == "posix" and bool(file.stat().st_mode & 0o077)


def public_key(file: Path) -> str:
    """The hexadecimal form of the public key in a PEM file."""
    serialization, ed25519 = _library()
    try:
        key = serialization.load_pem_public_key(_read(file))
    except ValueError:
        raise InputError(f"{file} is not a public key in PEM form (-----BEGIN PUBLIC KEY-----)") from None
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise InputError(f"{file} is not an {ALGORITHM} key")
    return _raw(key)


def genuine(value: Any, signature: Mapping[str, Any]) -> bool:
    """Whether a signature is that of a value's canonical form under the key that it names.

    Raises:
        InputError: the signature has another form than :meth:`Signer.sign` gives it.
    """
    _, ed25519 = _library()
    key, signed = signature.get("public_key"), signature.get("value")
    if set(signature) != {"algorithm", "public_key", "value"} or signature.get("algorithm") != ALGORITHM:
        raise InputError(f"the signature has another form than excise writes ({ALGORITHM}, public_key and value)")
    if not (isinstance(key, str) and re.fullmatch("[0-9a-f]{64}", key) and isinstance(signed, str) and re.fullmatch("[0-9a-f]{128}", signed)):
        raise InputError("the signature is damaged: its key and value are not 32 and 64 bytes in hexadecimal")
    exceptions = importlib.import_module("cryptography.exceptions")
    try:
        ed25519.Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(bytes.fromhex(signed), canonical(value))
    except (exceptions.InvalidSignature, ValueError):
        return False
    return True


def _private(pem: bytes, where: str) -> Any:
    serialization, ed25519 = _library()
    passphrase = os.environ.get(PASSPHRASE, "").encode() or None
    locked = b"ENCRYPTED" in pem
    if locked and passphrase is None:
        raise InputError(f"{where} is locked with a passphrase: put it into ${PASSPHRASE}")
    try:
        key = serialization.load_pem_private_key(pem, passphrase if locked else None)
    except (ValueError, TypeError):
        reason = f"the passphrase in ${PASSPHRASE} does not open it, or it is damaged" if locked else "it is not a private key in PEM form"
        raise InputError(f"{where} cannot be used for signing: {reason}; `excise certify --new-key FILE` makes one") from None
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise InputError(f"{where} cannot be used for signing: it is not an {ALGORITHM} key; `excise certify --new-key FILE` makes one")
    return key


def _raw(key: Any) -> str:
    serialization, _ = _library()
    return key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw).hex()


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        raise InputError(f"there is no file {file}") from None
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}") from None


def _write(file: Path, content: bytes, mode: int) -> None:
    with explained(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(handle, "wb") as opened:
            opened.write(content)


def _library() -> tuple[Any, Any]:
    try:
        serialization = importlib.import_module("cryptography.hazmat.primitives.serialization")
        return serialization, importlib.import_module("cryptography.hazmat.primitives.asymmetric.ed25519")
    except ImportError:
        raise InputError('signatures need the package cryptography: pip install "excise[certify]"') from None
