"""What was to be forgotten, as a certificate names it: by hashes, or in words where that is allowed."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from excise.certificate.signing import canonical
from excise.data.example import Benchmark
from excise.environment import keyed
from excise.errors import InputError
from excise.evaluation.store import read_records
from excise.recipe import Recipe

SPLIT = "forget"
KEY = "EXCISE_KEY"


def example_hash(prompt: str, answer: str, key: bytes | None = None) -> str:
    """SHA-256 of the canonical JSON ``{"answer": ..., "prompt": ...}``, or HMAC-SHA256 with a key; in hexadecimal."""
    content = canonical({"prompt": prompt, "answer": answer})
    return hashlib.sha256(content).hexdigest() if key is None else hmac.new(key, content, hashlib.sha256).hexdigest()


def asked(folder: Path, recipe: Recipe, fingerprint: str, *, redacted: bool, include_text: bool) -> dict[str, Any]:
    """The forget examples of a run: from its data where that is still what it was, else from its records.

    Args:
        fingerprint: of the data, as the run recorded it.
        redacted: the run promised to keep no text: hashes are keyed with ``$EXCISE_KEY``, else with a key that nobody keeps.

    Raises:
        InputError: texts were asked for of a redacted run.
    """
    if redacted and include_text:
        raise InputError(f"{folder} was run with privacy: redact, which promises that no text is kept: leave out --include-text")
    given = os.environ.get(KEY, "").encode()
    key = (given or secrets.token_bytes(32)) if redacted else None
    form = "sha256" if key is None else f"hmac-sha256 with ${KEY}" if given else "hmac-sha256 with a key that was not kept"
    rows, source = _examples(folder, recipe, fingerprint, redacted)
    texts = [{"prompt": prompt, "answer": answer} if include_text else {} for _, prompt, answer in rows]
    items = [{"id": id, "hash": example_hash(prompt, answer, key), **text} for (id, prompt, answer), text in zip(rows, texts, strict=True)]
    return {"split": SPLIT, "count": len(items), "hash": form, "source": source, "items": items}


def matches(benchmark: Benchmark, fingerprint: str) -> bool | None:
    """Whether data is what a run recorded; None where that cannot be told: the run kept a keyed fingerprint, and the key is not here."""
    if not fingerprint.startswith("hmac-"):
        return benchmark.fingerprint == fingerprint
    return True if os.environ.get(KEY) and keyed(benchmark.fingerprint) == fingerprint else None


def _examples(folder: Path, recipe: Recipe, fingerprint: str, redacted: bool) -> tuple[Sequence[tuple[str, str, str]], str]:
    try:
        benchmark = recipe.benchmark_loader()()
        found = [(e.id, e.prompt, e.answer) for e in benchmark.split(SPLIT)]
        same = matches(benchmark, fingerprint)
        problem = "the recipe's data is not what it was when the run was made"
    except InputError as error:
        found, same, problem = [], False, f"the recipe's data cannot be read now ({error})"
    if same:
        return found, "all examples of the recipe's data, whose fingerprint is the recorded one"
    if same is None:
        return found, f"all examples of the recipe's data; whether it is still the same data cannot be told without the run's ${KEY}"
    if redacted:
        return [], f"{problem}, and the run kept no texts"
    for phase in ("after", "before"):
        if (folder / "records" / phase / f"{SPLIT}.jsonl").is_file():
            rows = read_records(folder, phase)[SPLIT]
            return [(r.id, r.prompt, r.answer) for r in rows], f"the examples that the model was asked about; {problem}"
    return [], f"{problem}, and the run holds no records of it"
