"""A model from wherever it lies: a folder, an adapter, a GGUF file, the hub, or a package."""

from __future__ import annotations

import dataclasses
import io
import json
import struct
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import torch
from peft import PeftConfig, PeftModel, get_peft_model
from pydantic import ConfigDict, ValidationError
from pydantic.dataclasses import dataclass as validated
from safetensors import SafetensorError, safe_open
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import quantization_config as quantisers
from transformers.utils.peft_utils import find_adapter_config_file

from excise.data.encode import Template
from excise.errors import InputError, did_you_mean
from excise.files import read_json
from excise.parallel import ranks
from excise.subject import Subject, decode_greedily, quiet

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")

REMEDIES = (
    ("trust_remote_code", "it brings its own Python code, which is run only if you say so: read that code, then set model.trust_remote_code=true"),
    ("gated repo", "it is gated on the hub: accept its licence there and log in (`hf auth login`), or give the path of a local folder"),
    ("Unrecognized configuration class", "it is not a causal language model"),
    ("does not recognize this architecture", "the installed transformers does not know this architecture: upgrade it (pip install -U transformers)"),
    ("Unrecognized model", "its config.json names no model_type that the installed transformers knows"),
    ("ignore_mismatched_sizes", "the weights do not have the shapes that config.json announces: the folder mixes two models"),
    ("size mismatch", "the adapter does not fit this base model: name the right one with model.path=BASE model.adapter=FOLDER"),
    ("not found in the base model", "the adapter does not fit this base model: name the right one with model.path=BASE model.adapter=FOLDER"),
    ("and thus cannot be loaded with `safetensors`", "it has no safetensors weights, and excise reads no pickles: convert it first"),
    ("not supported yet", "the installed transformers cannot read this GGUF architecture: give the original model folder instead"),
    ("bitsandbytes", "model.quantise needs the bitsandbytes package (pip install bitsandbytes) and a device that it supports"),
)


@validated(frozen=True, config=ConfigDict(extra="forbid"))
class ModelSpec:
    """Which model to load, and how."""

    path: str
    """A hub id, a folder, an adapter folder (PEFT), a .gguf file, or embedded:NAME."""
    adapter: str | None = None
    """An adapter to put on top of ``path``, unmerged."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """auto: float32 on the CPU, the checkpoint's own type on an accelerator."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, mps."""
    system: str | None = None
    """The system turn; None leaves it to the chat template."""
    template: Literal["auto", "chat", "plain"] = "auto"
    """auto: chat if the tokenizer has a chat template, else plain."""
    revision: str | None = None
    """Branch, tag or commit on the hub."""
    trust_remote_code: bool = False
    """Whether Python code that comes with the model may run."""
    quantise: Literal["none", "4bit", "8bit"] = "none"
    """Load the base in 4 or 8 bits (bitsandbytes), to train an adapter on it."""


def load(model: str | Path | ModelSpec, **overrides: Any) -> Subject:
    """Loads a model from wherever it lies; ``overrides`` are fields of `ModelSpec`."""
    spec = _spec(model, overrides)
    with quiet(), _remedied(spec.path):
        where = _locate(spec)
        network, tokenizer = _read(where, spec)
    _prepare_tokenizer(tokenizer)
    subject = Subject(network, tokenizer, _template(tokenizer, spec), source=str(model) if isinstance(model, (str, Path)) else spec.path)
    _check(subject)
    decode_greedily(subject)
    return subject


def outline(model: str | Path | ModelSpec) -> Subject:
    """The model without its weights (on torch's meta device), with tokenizer and template: for looking, not for running."""
    spec = _spec(model, {})
    with quiet(), _remedied(spec.path):
        where = _locate(spec)
        options: dict[str, Any] = {"gguf_file": where.gguf} if where.gguf else {}
        config = AutoConfig.from_pretrained(where.base, revision=spec.revision, trust_remote_code=spec.trust_remote_code, **options)
        with torch.device("meta"):
            network = AutoModelForCausalLM.from_config(config, trust_remote_code=spec.trust_remote_code, dtype=DTYPES.get(spec.dtype, torch.float32))
            if where.adapter is not None:
                network = cast(PeftModel, get_peft_model(network, PeftConfig.from_pretrained(where.adapter)))
        tokenizer = AutoTokenizer.from_pretrained(
            where.adapter or where.base, revision=spec.revision, trust_remote_code=spec.trust_remote_code, **options
        )
    _prepare_tokenizer(tokenizer)
    return Subject(network, tokenizer, _template(tokenizer, spec), source=spec.path)


# Where the files are ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Where:
    """What `_locate` found: a folder or hub id, and what else is needed to read it."""

    base: str
    adapter: str | None = None
    gguf: str | None = None
    """Name of the GGUF file inside the folder ``base``."""


def _spec(model: str | Path | ModelSpec, overrides: dict[str, Any]) -> ModelSpec:
    try:
        if isinstance(model, ModelSpec):
            return dataclasses.replace(model, **overrides)
        return ModelSpec(path=str(model), **overrides)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        allowed = {field.name for field in dataclasses.fields(ModelSpec)}
        detail = first["msg"] if name in allowed else f"there is no such setting, {did_you_mean(name, allowed)}"
        raise InputError(f"model.{name}: {detail}") from None


def _locate(spec: ModelSpec) -> _Where:
    where = _locate_base(spec.path, spec)
    if spec.adapter is None:
        return where
    if where.adapter is not None:
        raise InputError(f"{spec.path} is an adapter itself: model.path must name its base when model.adapter is given")
    return dataclasses.replace(where, adapter=_adapter_folder(spec.adapter, spec))


def _locate_base(path: str, spec: ModelSpec) -> _Where:
    if path.startswith("embedded:"):
        from excise.embedded import pull

        return _Where(str(pull(path.removeprefix("embedded:"))))
    local = Path(path).expanduser()
    if local.is_dir():
        return _locate_folder(local, spec)
    if local.suffix.lower() == ".gguf":
        _check_gguf(local)
        return _Where(str(local.resolve().parent), gguf=local.name)
    if local.exists():
        raise InputError(f"{path} is a file that excise cannot load: give a model folder, an adapter folder or a .gguf file")
    if path.startswith((".", "/", "~")) or path.count("/") > 1:
        raise InputError(f"there is no folder {path}: give a model folder, a .gguf file, a hub id (owner/name) or embedded:NAME")
    if find_adapter_config_file(path, revision=spec.revision):
        return _with_adapter(path, spec)
    return _Where(path)


def _locate_folder(folder: Path, spec: ModelSpec) -> _Where:
    if (folder / "adapter_config.json").is_file():
        return _with_adapter(str(folder.resolve()), spec)
    if not (folder / "config.json").is_file():
        inside = sorted(file.name for file in folder.glob("*.gguf"))
        steps = sorted(folder.glob("checkpoint-*/config.json")) + sorted(folder.glob("checkpoint-*/adapter_config.json"))
        hint = f"name the file: {folder / inside[0]}" if inside else "it has neither config.json nor adapter_config.json"
        hint = f"name one of its checkpoints, such as {steps[-1].parent}" if steps else hint
        raise InputError(f"{folder} is not a model folder: {hint}")
    read_json(folder / "config.json")
    _check_weights(folder)
    return _Where(str(folder.resolve()))


def _with_adapter(adapter: str, spec: ModelSpec) -> _Where:
    """An adapter named alone: its base is the one that it was trained on."""
    file = find_adapter_config_file(adapter, revision=spec.revision)
    named = read_json(Path(cast(str, file))).get("base_model_name_or_path")
    record = Path(adapter) / "excise.json"
    recorded = read_json(record).get("base") if record.is_file() else None
    base = named if named and (recorded is None or Path(named).exists()) else recorded
    remedy = f"name it with model.path=BASE model.adapter={adapter}"
    if not base:
        raise InputError(f"{adapter} is an adapter that does not say what its base model is: {remedy}")
    try:
        where = _locate_base(base, spec)
    except InputError as error:
        raise InputError(f"{adapter}: the adapter's base model cannot be used ({error}); {remedy}") from None
    return dataclasses.replace(where, adapter=_adapter_folder(adapter, spec))


def _adapter_folder(path: str, spec: ModelSpec) -> str:
    folder = Path(path).expanduser()
    if not folder.exists() and find_adapter_config_file(path, revision=spec.revision):
        return path
    if not (folder / "adapter_config.json").is_file():
        raise InputError(f"{path} is not an adapter folder: it has no adapter_config.json")
    if not (folder / "adapter_model.safetensors").is_file():
        raise InputError(f"{path} has no adapter_model.safetensors: excise reads safetensors only, pickles can run code; convert it first")
    _check_safetensors(folder / "adapter_model.safetensors")
    return str(folder.resolve())


def _check_weights(folder: Path) -> None:
    index = folder / "model.safetensors.index.json"
    files = {folder / name for name in read_json(index)["weight_map"].values()} if index.is_file() else set(folder.glob("*.safetensors"))
    if not files:
        pickles = [file.name for pattern in PICKLES for file in folder.glob(pattern)]
        if pickles:
            raise InputError(
                f"{folder} has only pickled weights ({pickles[0]}), which can run code when read: convert them to safetensors "
                "(load and save_pretrained with transformers, where you trust the file)"
            )
        raise InputError(f"{folder} has a config.json but no weights (*.safetensors)")
    for file in sorted(files):
        _check_safetensors(file)


def _check_safetensors(file: Path) -> None:
    if not file.is_file():
        raise InputError(f"{file} is missing, though the index of its folder names it: copy or download the model again")
    try:
        with safe_open(file, framework="pt"):
            pass
    except SafetensorError as error:
        raise InputError(f"{file} is corrupt or truncated ({error}): copy or download it again") from None


def _check_gguf(file: Path) -> None:
    if not file.is_file():
        raise InputError(f"there is no file {file}")
    with file.open("rb") as opened:
        if opened.read(4) != b"GGUF":
            raise InputError(f"{file} is not a GGUF file, or it is corrupt: its first bytes are not GGUF")


# Reading them -----------------------------------------------------------------------------------------------------


@contextmanager
def _remedied(path: str) -> Iterator[None]:
    """One clear line for what the libraries say in twenty."""
    try:
        yield
    except (OSError, ValueError, RuntimeError, ImportError, SafetensorError) as error:
        text = str(error)
        for mark, remedy in REMEDIES:
            if mark in text:
                raise InputError(f"{path}: {remedy}") from error
        if isinstance(error, OSError) and error.errno is None:
            if Path(path).expanduser().exists():
                raise InputError(f"{path}: {text.strip().splitlines()[0]}") from error
            reason = "not a local folder, and it cannot be had from the hub (no such model, or no connection)"
            raise InputError(f"{path}: {reason}: download it where there is one and give the folder's path") from error
        raise
    except Exception as error:  # checks of the configuration, whose errors have a class of their own in each version
        if type(error).__name__.startswith("StrictDataclass") or (isinstance(error, AttributeError) and "module 'torch'" in str(error)):
            raise InputError(f"{path}: config.json holds a value that cannot be used ({' '.join(str(error).split())})") from error
        raise


def _read(where: _Where, spec: ModelSpec) -> tuple[PreTrainedModel | PeftModel, PreTrainedTokenizerBase]:
    device = _device(spec.device)
    hub = {"revision": spec.revision, "trust_remote_code": spec.trust_remote_code}
    if where.gguf is not None:
        model, tokenizer = _read_gguf(Path(where.base) / where.gguf, spec, device)
    else:
        model = _read_model(where.base, spec, device, hub)
        tokenizer = _read_tokenizer(where.base, hub)
    if where.adapter is None:
        return model, tokenizer
    adapted = PeftModel.from_pretrained(model, where.adapter, is_trainable=False)
    if (Path(where.adapter) / "tokenizer_config.json").is_file():
        tokenizer = _read_tokenizer(where.adapter, hub)
    return adapted.eval(), tokenizer


def _read_model(base: str, spec: ModelSpec, device: torch.device, hub: dict[str, Any]) -> PreTrainedModel:
    config = AutoConfig.from_pretrained(base, **hub)
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        base,
        config=config,
        dtype=_dtype(spec, config, device),
        device_map=None if device.type == "cpu" and spec.quantise == "none" else {"": device},
        quantization_config=_quantisation(spec),
        use_safetensors=True,
        output_loading_info=True,
        **hub,
    )
    model, report = cast(tuple[PreTrainedModel, dict[str, Any]], loaded)
    missing = sorted(report["missing_keys"])
    if missing:
        raise InputError(
            f"{base}: {len(missing)} weight(s) are missing from the checkpoint (first: {missing[0]}) and would start at random: "
            "the folder is incomplete, or its config.json belongs to another model"
        )
    if Path(base).is_dir():
        model.name_or_path = base
    return model.eval()


def _read_gguf(file: Path, spec: ModelSpec, device: torch.device) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Dequantises a GGUF file into an ordinary model, with no trace left of the quantiser."""
    if spec.quantise != "none":
        raise InputError(f"{file}: model.quantise does not apply to a .gguf file, which is dequantised: leave it out")
    unpack = getattr(quantisers, "GgufConfig", None)  # older versions have no such class and always unpack
    try:
        config = AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
        with redirect_stderr(io.StringIO()):  # its progress bar obeys no switch
            model: Any = AutoModelForCausalLM.from_pretrained(
                file.parent,
                gguf_file=file.name,
                dtype=_dtype(spec, config, device),
                **({"quantization_config": unpack(dequantize=True)} if unpack else {}),
            )
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    except (ValueError, IndexError, KeyError, RuntimeError, OverflowError, MemoryError, struct.error) as error:
        if any(mark in str(error) for mark, _ in REMEDIES):
            raise
        raise InputError(f"{file} cannot be read as GGUF ({type(error).__name__}): it is corrupt or truncated, copy or download it again") from error
    for name in ("hf_quantizer", "quantization_method", "is_quantized"):
        vars(model).pop(name, None)
    vars(model.config).pop("quantization_config", None)
    model.name_or_path = str(file)
    return model.to(device).eval(), tokenizer


def _read_tokenizer(base: str, hub: dict[str, Any]) -> PreTrainedTokenizerBase:
    try:
        return AutoTokenizer.from_pretrained(base, **hub)
    except (OSError, ValueError, json.JSONDecodeError) as error:
        if any(mark in str(error) for mark, _ in REMEDIES):
            raise
        raise InputError(
            f"{base}: the tokenizer cannot be loaded: save it into the model's folder (tokenizer.json, tokenizer_config.json)"
        ) from error


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device(ranks.own_device() or ("cuda" if torch.cuda.is_available() else "cpu"))
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"model.device={name}: no such device; allowed: auto, cpu, cuda, cuda:N, mps") from None
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not available.get(device.type, False):
        raise InputError(f"model.device={name}: this machine (or this build of torch) has none; use model.device=cpu")
    return device


def _dtype(spec: ModelSpec, config: Any, device: torch.device) -> torch.dtype:
    gemma = str(config.get_text_config().model_type).startswith("gemma")
    if spec.dtype == "float16" and gemma:
        raise InputError(f"{spec.path}: Gemma models overflow in float16 (the logits become NaN): set model.dtype=bfloat16 or float32")
    if spec.dtype != "auto":
        return DTYPES[spec.dtype]
    if device.type == "cpu":
        return torch.float32
    own = config.dtype or torch.float32
    return torch.bfloat16 if gemma and own == torch.float16 else own


def _quantisation(spec: ModelSpec) -> BitsAndBytesConfig | None:
    if spec.quantise == "none":
        return None
    if spec.quantise == "8bit":
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=torch.bfloat16)


# Making it usable -------------------------------------------------------------------------------------------------


def _prepare_tokenizer(tokenizer: PreTrainedTokenizerBase) -> None:
    """A pad token always exists. Where it is EOS, nothing may tell padding by its id: batches carry explicit masks."""
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token


def _template(tokenizer: PreTrainedTokenizerBase, spec: ModelSpec) -> Template:
    if spec.template == "chat" and not tokenizer.chat_template:
        raise InputError(f"{spec.path}: the tokenizer has no chat template, so model.template=chat cannot work: set model.template=plain")
    recorded = _recorded_template(spec)
    system = spec.system if spec.system is not None else recorded.get("system")
    if spec.template != "auto":
        return Template(spec.template, system)
    return Template(recorded.get("style") or ("chat" if tokenizer.chat_template else "plain"), system)


def _recorded_template(spec: ModelSpec) -> dict[str, Any]:
    """How a model that excise saved was used when it was trained."""
    record = Path(spec.adapter or spec.path).expanduser() / "excise.json"
    return dict(read_json(record).get("template", {})) if record.is_file() else {}


def _check(subject: Subject) -> None:
    if (tokens := len(subject.tokenizer)) > subject.vocabulary:
        raise InputError(f"{subject.source}: the tokenizer has {tokens} tokens, the model {subject.vocabulary}: they do not belong together")
    for name, parameter in subject.model.named_parameters():
        if parameter.dtype in DTYPES.values() and parameter.numel() and not all(torch.isfinite(end) for end in torch.aminmax(parameter.detach())):
            raise InputError(f"{subject.source}: the weights contain NaN or infinity ({name}): this copy of the model is broken")
