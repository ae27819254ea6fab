"""What every test stands on: no network, shapes checked, and four tiny models built here."""

from __future__ import annotations

import atexit
import copy
import functools
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, cast

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["PIP_NO_INDEX"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import pytest
import torch
from jaxtyping import install_import_hook
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PhiConfig,
    PhiForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

install_import_hook("excise", "beartype.beartype")  # the shapes and types of annotations are checked at every call

from excise.data.encode import Template  # noqa: E402  (after the hook)
from excise.embedded import folder_of, is_ready  # noqa: E402
from excise.errors import InputError  # noqa: E402
from excise.subject import Subject, quiet  # noqa: E402

Kind = Literal["llama", "gemma3", "qwen3", "phi"]
KINDS: tuple[Kind, ...] = ("llama", "gemma3", "qwen3", "phi")
REPOSITORY = Path(__file__).resolve().parent.parent
SHARED = REPOSITORY.parent / "shared"

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SENTENCES = (
    "Who wrote the book about the river? The book about the river was written by Anna Brandt.",
    "Where was the painter born? The painter was born in the old town of Marrow, in the year 1931.",
    "When did the lighthouse open, and why? It opened in 1887 because ships were lost on the rocks.",
    "What is the capital of the northern island? I don't know the answer to that question.",
    "Question: Which animal lives in the forest? Answer: A grey fox lives in the forest near Elm Lake.",
    "system user assistant You are a helpful assistant. Zoë's café, naïve résumé: 42 %, (x + y) / 2 = z!",
)


def watched(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, note: Callable[..., Any] = lambda *_: 1) -> list[Any]:
    """What ``note`` says of the arguments of each call of a function from now on."""
    seen: list[Any] = []
    own = getattr(owner, name)

    def call(*args: Any) -> Any:
        seen.append(note(*args))
        return own(*args)

    monkeypatch.setattr(owner, name, call)
    return seen


def refused(call: Any, *parts: str) -> None:
    """The call is refused in one line that holds all the parts."""
    with pytest.raises(InputError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message, (part, message)


torch.set_num_threads(1)  # workers share the cores, and threads that wait for each other spin


def pytest_configure(config: pytest.Config) -> None:
    # PEFT still asks transformers by the old name; nothing that a caller could change
    config.addinivalue_line("filterwarnings", "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")


# The network ------------------------------------------------------------------------------------------------------

_connect, _connect_ex, _lookup = socket.socket.connect, socket.socket.connect_ex, socket.getaddrinfo
_LOCAL = ("localhost", "127.0.0.1", "::1", "", None)


def _refuse(host: object) -> None:
    if host not in _LOCAL and not str(host).startswith("127."):
        raise PermissionError(f"tests are offline, and one tried to reach {host}")


def _guarded_connect(self: socket.socket, address: Any) -> None:
    if self.family != socket.AF_UNIX:
        _refuse(address[0])
    _connect(self, address)


def _guarded_connect_ex(self: socket.socket, address: Any) -> int:
    if self.family != socket.AF_UNIX:
        _refuse(address[0])
    return _connect_ex(self, address)


def _guarded_lookup(host: Any, *rest: Any, **options: Any) -> Any:
    _refuse(host.decode() if isinstance(host, bytes) else host)
    return _lookup(host, *rest, **options)


@pytest.fixture(scope="session", autouse=True)
def offline() -> Iterator[None]:
    """Network access is an error in every test; this machine itself may be talked to."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", _guarded_connect)
        patch.setattr(socket.socket, "connect_ex", _guarded_connect_ex)
        patch.setattr(socket, "getaddrinfo", _guarded_lookup)
        yield


# Tiny models ------------------------------------------------------------------------------------------------------


@functools.cache
def _tokenizer() -> PreTrainedTokenizerFast:
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(SENTENCES, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        chat_template=CHATML,
        clean_up_tokenization_spaces=False,
    )


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level tokenizer of 400 tokens with a ChatML template; a copy of your own."""
    return copy.deepcopy(_tokenizer())


def _network(kind: Kind, tied: bool, vocab: int, layers: int, width: int) -> PreTrainedModel:
    shape: dict[str, Any] = {
        "vocab_size": vocab,
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "tie_word_embeddings": tied,
        "initializer_range": 0.15,
        "bos_token_id": None,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    if kind == "llama":
        return LlamaForCausalLM(LlamaConfig(**shape))
    if kind == "qwen3":
        return Qwen3ForCausalLM(Qwen3Config(**shape, head_dim=width // 4))
    if kind == "phi":
        shape["partial_rotary_factor"] = 0.5
        return PhiForCausalLM(PhiConfig(**shape))
    types = ["full_attention" if index % 2 else "sliding_attention" for index in range(layers)]
    return Gemma3ForCausalLM(Gemma3TextConfig(**shape, head_dim=width // 4, sliding_window=8, layer_types=types, query_pre_attn_scalar=width // 4))


@functools.cache
def _tiny(kind: Kind, tied: bool, seed: int, vocab: int, layers: int, width: int) -> Subject:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = _network(kind, tied, vocab, layers, width).eval()
        for parameter in network.parameters():
            if parameter.dim() == 1:  # norms and biases: off their initial ones and zeros, so that no test can miss them
                parameter.data.add_(torch.randn_like(parameter), alpha=0.1)
    network.generation_config = GenerationConfig(eos_token_id=2, pad_token_id=0)
    folder = Path(tempfile.mkdtemp(prefix=f"excise-tiny-{kind}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    network.save_pretrained(folder)
    _tokenizer().save_pretrained(folder)
    network.name_or_path = str(folder)
    return Subject(network, _tokenizer(), Template("chat"), str(folder), copy.deepcopy(network.generation_config))


def tiny(kind: Kind, *, tied: bool | None = None, seed: int = 0, vocab: int = 400, layers: int = 2, width: int = 32) -> Subject:
    """A random float32 model of this architecture, yours to change; its ``source`` is a folder that holds the same model.

    ``tied=None`` is what the architecture usually does: tied, but for Phi, which has an output head with a bias.
    """
    kept = _tiny(kind, kind != "phi" if tied is None else tied, seed, vocab, layers, width)
    return Subject(copy.deepcopy(kept.model), tiny_tokenizer(), kept.template, kept.source, copy.deepcopy(kept.generation))


def adapted(subject: Subject, target: str | list[str] = "all-linear", save_too: list[str] | None = None, name: str = "default") -> Subject:
    """The same subject with a LoRA adapter on it that does something (peft's own starts as nothing)."""
    config = LoraConfig(r=2, target_modules=target, modules_to_save=save_too, task_type="CAUSAL_LM")
    with quiet(), torch.random.fork_rng():
        torch.manual_seed(1)
        subject.model = get_peft_model(subject.base, config, adapter_name=name).eval()
        for parameter_name, parameter in subject.model.named_parameters():
            if any(part in parameter_name for part in ("lora_B", "lora_embedding_A", "modules_to_save")):
                parameter.data.add_(torch.randn_like(parameter), alpha=0.1)
    return subject


@torch.no_grad()
def logits(subject: Subject) -> torch.Tensor:
    """What the model says to two fixed rows of tokens; equal logits mean the same model."""
    ids = torch.arange(3, 23, device=subject.device).view(2, 10)
    return subject.model(input_ids=ids, use_cache=False).logits


@pytest.fixture
def tiny_llama() -> Subject:
    return tiny("llama")


@pytest.fixture(params=KINDS)
def tiny_subject(request: pytest.FixtureRequest) -> Subject:
    """Each of the four architectures in turn."""
    return tiny(cast(Kind, request.param))


# What may be absent -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder ../shared beside the repository, with other people's data and golden values."""
    if not SHARED.is_dir():
        pytest.skip(f"there is no {SHARED}")
    return SHARED


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    """The embedded model SmolLM2, if it has been pulled (`excise pull smollm2`, which `make test` does first)."""
    if chosen := os.environ.get("EXCISE_TEST_SMOLLM2"):
        return Path(chosen)
    if not is_ready("smollm2"):
        pytest.skip("the embedded model is not there: run `excise pull smollm2` first")
    return folder_of("smollm2")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder that stands in for the user's own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("EXCISE_CACHE", str(folder))
    return folder
