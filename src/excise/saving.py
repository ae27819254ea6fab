"""Saving a model so that it comes back the same, and saying what was done to it."""

from __future__ import annotations

import copy
import importlib.metadata
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import torch
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils import ModulesToSaveWrapper, get_peft_model_state_dict
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from excise.errors import InputError
from excise.files import folder_beside, read_json, write_json, write_text
from excise.fingerprint import model_fingerprint, tokenizer_fingerprint
from excise.subject import Subject, mark_untied, quiet, untie

RECORD = "excise.json"
CARD = "README.md"
TOLERANCE = 1e-4
"""Largest difference of logits that float32 rounding may make in a merge, relative to the largest logit (or 1).

Measured: 3e-6 at 30 layers (SmolLM2), 5e-6 for Gemma 3 270M; a merge that went wrong is off by 1e-2 and more.
"""


def save(subject: Subject, folder: Path, *, provenance: Mapping[str, Any], merge: bool = False, overwrite: bool = False) -> Path:
    """Saves the model, its tokenizer, a model card and ``excise.json`` into ``folder``, all or nothing.

    An adapter is saved as an adapter, or with ``merge`` as an ordinary model in float32 (the given subject is
    not changed). What was written is loaded again and must give the same logits before the folder gets its name.
    ``provenance`` is written as it is; the card shows only its method, data fingerprint, seed and scores.
    """
    folder = Path(folder)
    with folder_beside(folder, overwrite) as part:
        write(subject, part, provenance=provenance, merge=merge)
    return folder


def write(subject: Subject, part: Path, *, provenance: Mapping[str, Any], merge: bool = False) -> None:
    """What `save` does inside the new folder: write everything and check it."""
    with quiet():
        expected = probe(subject)
        if not torch.isfinite(expected).all():
            raise RuntimeError("the model gives NaN or infinite logits, so it was not saved")
        if subject.is_adapter and not merge:
            _write_adapter(subject, part)
        else:
            subject = merged(subject) if subject.is_adapter else subject
            _write_model(subject, part)
        subject.tokenizer.save_pretrained(part)
        _verify(subject, part)
    write_json(part / RECORD, _record(subject, provenance))
    write_card(part)


def update_card(folder: Path, scores: Mapping[str, float]) -> None:
    """Puts scores, known only after saving, into ``excise.json`` and the model card of a saved model."""
    record = read_json(folder / RECORD)
    write_json(folder / RECORD, {**record, "scores": dict(scores)})
    write_card(folder)


# Writing ----------------------------------------------------------------------------------------------------------


def _write_model(subject: Subject, part: Path) -> None:
    if subject.quantised:
        raise InputError(f"{subject.source}: a quantised base cannot be saved as a model of its own: save the adapter (merge off)")
    base = subject.base
    if not subject.tied:
        mark_untied(subject)
    working = base.generation_config
    base.generation_config = subject.generation or working
    try:
        base.save_pretrained(part)
    finally:
        base.generation_config = working


def _write_adapter(subject: Subject, part: Path) -> None:
    model = cast(PeftModel, subject.model)
    if len(model.active_adapters) != 1:
        raise InputError(
            f"{len(model.active_adapters)} adapters are active ({', '.join(model.active_adapters)}): combine them into one or save with merge"
        )
    name = model.active_adapters[0]
    base = _base_path(subject)
    model.save_pretrained(str(part), selected_adapters=[name], save_embedding_layers=False)
    if (part / name).is_dir():
        for file in (part / name).iterdir():
            file.rename(part / file.name)
        (part / name).rmdir()
    config = read_json(part / "adapter_config.json")
    write_json(part / "adapter_config.json", {**config, "base_model_name_or_path": base})


def _base_path(subject: Subject) -> str:
    """What the adapter's base was loaded from; an adapter is worth nothing without it."""
    if not subject.base.name_or_path:
        raise InputError("this adapter sits on a model that was never saved: save that first and load it, or save with merge")
    return subject.base.name_or_path


def merged(subject: Subject) -> Subject:
    """An ordinary model with the adapter's change added in float32; a copy."""
    if subject.quantised:
        raise InputError(f"{subject.source}: merging into a quantised base loses the change: load the base with model.quantise=none, then merge")
    twin = Subject(copy.deepcopy(subject.model).float().eval(), subject.tokenizer, subject.template, subject.source, subject.generation)
    expected = probe(twin)
    if any(isinstance(module, (BaseTunerLayer, ModulesToSaveWrapper)) for module in (twin.head, twin.embedding)):
        untie(twin)
    twin.model = cast(PreTrainedModel, cast(Any, twin.model).merge_and_unload(safe_merge=True))
    error = float((probe(twin) - expected).abs().max()) / max(1.0, float(expected.abs().max()))
    if not error <= TOLERANCE:
        raise RuntimeError(f"merging the adapter changed the logits (relative error {error:.1e}, allowed {TOLERANCE:.0e}), so it was not saved")
    return twin


# Checking ---------------------------------------------------------------------------------------------------------


@torch.no_grad()
def probe(subject: Subject) -> Tensor:
    """Logits for two fixed rows of tokens that are spread over the vocabulary."""
    ids = (torch.arange(24, device=subject.device) * 7919 % subject.vocabulary).view(2, 12)
    training = subject.model.training
    subject.model.eval()
    logits = subject.model(input_ids=ids, use_cache=False).logits.float()
    subject.model.train(training)
    return logits


def _verify(subject: Subject, part: Path) -> None:
    """Loads what was written and compares; anything that does not come back is an error, before the folder has its name."""
    if tokenizer_fingerprint(AutoTokenizer.from_pretrained(part)) != tokenizer_fingerprint(subject.tokenizer):
        raise RuntimeError("the tokenizer does not come back the same after saving, so the model was not saved")
    if subject.is_adapter and subject.quantised:
        _verify_adapter_weights(cast(PeftModel, subject.model), part)
        return
    again = Subject(_reload(subject, part), subject.tokenizer, subject.template, str(part))
    expected, got = probe(subject), probe(again)
    if torch.equal(expected, got):
        return
    error = float((expected - got).abs().max())
    # the same numbers at other addresses in memory may take another code path in the matrix product
    if error <= TOLERANCE * max(1.0, float(expected.abs().max())) and model_fingerprint(again.model) == model_fingerprint(subject.model):
        return
    hint = "; weights of its base were changed too, which an adapter cannot hold: save with merge" if subject.is_adapter else ""
    raise RuntimeError(f"the saved model gives other logits when loaded again (largest difference {error:.1e}), so it was not saved{hint}")


def _reload(subject: Subject, part: Path) -> PreTrainedModel | PeftModel:
    dtype = subject.base.dtype
    where = _base_path(subject) if subject.is_adapter else str(part)
    if where.endswith(".gguf"):
        from excise.loading import load

        base = load(where, dtype=str(dtype).removeprefix("torch."), device=str(subject.device)).base
    else:
        base = AutoModelForCausalLM.from_pretrained(where, dtype=dtype, use_safetensors=True)
    base = cast(Any, base).to(subject.device)
    return (PeftModel.from_pretrained(base, str(part)) if subject.is_adapter else base).eval()


def _verify_adapter_weights(model: PeftModel, part: Path) -> None:
    """On a quantised base only the adapter's own tensors are compared: the base is not written, and is costly to load twice."""
    written = load_file(part / "adapter_model.safetensors")
    current = get_peft_model_state_dict(model, adapter_name=model.active_adapters[0], save_embedding_layers=False)
    if written.keys() != current.keys() or any(not torch.equal(written[name], current[name].cpu()) for name in written):
        raise RuntimeError("the adapter's weights do not come back the same after saving, so it was not saved")


# Telling ----------------------------------------------------------------------------------------------------------


def _record(subject: Subject, provenance: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **provenance,
        "excise": _version(),
        "fingerprint": subject.fingerprint(),
        "tokenizer_fingerprint": tokenizer_fingerprint(subject.tokenizer),
        "kind": "adapter" if subject.is_adapter else "model",
        "base": _named_base(subject),
        "tied": subject.tied,
        "dtype": str(subject.base.dtype).removeprefix("torch."),
        "template": asdict(subject.template),
    }


def _named_base(subject: Subject) -> str:
    """The base by a name that holds elsewhere too: embedded:NAME instead of a folder in somebody's cache."""
    path = subject.base.name_or_path or subject.source
    record = Path(path) / RECORD
    embedded = read_json(record).get("embedded") if record.is_file() else None
    return f"embedded:{embedded}" if embedded else path


def _version() -> str:
    try:
        return importlib.metadata.version("excise")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def write_card(folder: Path) -> None:
    """The model card, from what ``excise.json`` says. It shows no prompt and no answer."""
    write_text(folder / CARD, card(read_json(folder / RECORD)))


def card(record: Mapping[str, Any]) -> str:
    """The text of a model card."""
    adapter = record["kind"] == "adapter"
    base = Path(record["base"]).name if Path(record["base"]).is_absolute() else record["base"]
    licence = record.get("licence")
    head = ["---", f"library_name: {'peft' if adapter else 'transformers'}", "pipeline_tag: text-generation", f'base_model: "{base}"']
    head += ["tags:", "- unlearning", "- excise", "---"]
    what = "An adapter for" if adapter else "A version of"
    lines = [*head, "", "# Model card", "", f"{what} `{base}`, written by excise {record['excise']}.", ""]
    lines += [f"* {label}: {value}" for label, value in _facts(record)]
    if note := record.get("note"):
        lines += ["", str(note)]
    if scores := record.get("scores"):
        lines += ["", "## Scores", "", "| score | value |", "|---|---|"]
        lines += [f"| {name} | {'not available' if value is None else f'{value:.4g}'} |" for name, value in scores.items()]
    terms = f"The weights are under {licence}." if licence else "The base model's licence applies to these weights as well."
    return "\n".join([*lines, "", "## Licence", "", terms, ""])


def _facts(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    method, data = record.get("method"), record.get("data")
    data_print = record.get("data_fingerprint") or (data.get("fingerprint") if isinstance(data, Mapping) else None)
    facts = [
        ("method", method),
        ("seed", record.get("seed")),
        ("data fingerprint", data_print),
        ("model fingerprint", record["fingerprint"]),
        ("output head", "tied to the embedding" if record["tied"] else "its own weights (untied)"),
        ("number format", record["dtype"]),
        ("prompt template", record["template"]["style"]),
    ]
    return [(label, str(value)) for label, value in facts if value is not None]
