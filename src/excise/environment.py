"""What a result depends on besides its recipe: versions, machine, fingerprints."""

from __future__ import annotations

import hashlib
import hmac
import importlib.metadata
import os
import platform
import secrets
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from excise.data.encode import encode
from excise.data.example import Benchmark

if TYPE_CHECKING:
    from excise.subject import Subject

PACKAGES = ("excise", "torch", "transformers", "peft", "accelerate", "tokenizers", "safetensors", "numpy", "scipy", "spacy", "rouge-score")


def environment(subject: Subject, benchmark: Benchmark, *, seed: int, precision: str, redact: bool = False) -> dict[str, Any]:
    """A plain mapping for environment.json.

    Args:
        redact: write no prompt down, and no plain hash of the data, by which a guess could be confirmed: the data's
            fingerprint is keyed with ``$EXCISE_KEY``, or with a key that nobody knows afterwards.
    """
    device = subject.device
    values: dict[str, Any] = {
        "versions": {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
        "git_commit": git_commit(),
        "machine": {
            "platform": platform.platform(),
            "processor": processor(),
            "device": str(device)
            if device.type == "cpu"
            else f"{device} ({torch.cuda.get_device_name(device)})"
            if device.type == "cuda"
            else str(device),
            "threads": torch.get_num_threads(),
        },
        "seed": seed,
        "precision": precision,
        "model": {
            "source": subject.source,
            "fingerprint": subject.fingerprint(),
            "template": subject.template.style,
            "system": subject.template.system,
        },
        "data": {
            "name": benchmark.name,
            "fingerprint": keyed(benchmark.fingerprint) if redact else benchmark.fingerprint,
            "splits": {name: len(examples) for name, examples in benchmark.splits.items()},
        },
    }
    first = next((examples[0] for examples in benchmark.splits.values() if examples), None)
    if first is not None and not redact:
        values["example_prompt"] = encode(subject.tokenizer, subject.template, first).text
    if benchmark.notes:
        values["data"]["notes"] = list(benchmark.notes)
    return values


def keyed(fingerprint: str) -> str:
    """HMAC-SHA256 of a fingerprint."""
    key = os.environ.get("EXCISE_KEY", "").encode() or secrets.token_bytes(32)
    return "hmac-sha256:" + hmac.new(key, fingerprint.encode(), hashlib.sha256).hexdigest()


def version(package: str) -> str | None:
    """Installed version of a package, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def git_commit() -> str | None:
    """Commit of the checkout that excise runs from, with a plus sign if files were changed; None outside a checkout."""
    here = Path(__file__).resolve().parent
    if not (here.parent.parent / ".git").exists():
        return None
    try:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=True).stdout.strip()
        changed = subprocess.run(["git", "status", "--porcelain", "-uno"], cwd=here, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit + ("+" if changed else "")


def processor() -> str:
    """Name of the processor."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
