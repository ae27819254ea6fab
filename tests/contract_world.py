"""A small world for the contract: a random model of two layers over thirty-five words, questions, and views of them."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from excise.data.encode import Encoded, Template, encode
from excise.data.example import Benchmark, Example
from excise.subject import Subject, quiet
from excise.tokens import Layout, Scored, collate, score
from excise.view import View

WORDS = tuple(f"w{i}" for i in range(30))
NOUN = "w3"
"""A word of every question; what a token weight that looks for words may be told to hide."""


@functools.cache
def _tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {word: i for i, word in enumerate(("<pad>", "<unk>", "<end>", "Question:", "Answer:", *WORDS))}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", unk_token="<unk>", eos_token="<end>")


@functools.cache
def _network(seed: int) -> LlamaForCausalLM:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        shape = LlamaConfig(
            vocab_size=5 + len(WORDS),
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=64,
            tie_word_embeddings=False,
            initializer_range=0.3,
            bos_token_id=None,
            eos_token_id=2,
            pad_token_id=0,
        )
        return LlamaForCausalLM(shape).eval()


def small_subject(seed: int = 0, dtype: torch.dtype = torch.float32) -> Subject:
    """A random two-layer Llama over thirty-five words; yours to change."""
    return Subject(cast(Any, copy.deepcopy(_network(seed))).to(dtype), copy.deepcopy(_tokenizer()), Template("plain"), "contract")


def with_adapter(subject: Subject, rank: int = 4) -> Subject:
    """The same with a LoRA adapter of random values on every linear layer."""
    config = LoraConfig(r=rank, lora_alpha=rank, target_modules="all-linear", task_type="CAUSAL_LM")
    with quiet(), torch.random.fork_rng():
        torch.manual_seed(1)
        subject.model = cast(Any, get_peft_model(subject.base, config).eval())
        for name, parameter in subject.model.named_parameters():
            parameter.requires_grad_(False)
            if "lora_B" in name:
                parameter.data.add_(torch.randn_like(parameter), alpha=0.1)
    return subject


def small_benchmark() -> Benchmark:
    """Six questions to forget and six to retain, with answers of one to nine words and an alternative each."""

    def example(side: str, n: int) -> Example:
        shift = 6 if side == "forget" else 17
        question = " ".join(WORDS[(5 * n + i * i + shift) % 30] for i in range(2 + n)) + f" {NOUN}"
        answer = " ".join(WORDS[(7 * n + 3 * i + shift) % 30] for i in range((1, 3, 9, 2, 5, 6)[n]))
        return Example(f"{side}-{n}", question, answer, alternative=" ".join(WORDS[(n + i) % 30] for i in range(1 + n % 3)))

    return Benchmark("contract", {side: tuple(example(side, n) for n in range(6)) for side in ("forget", "retain")})


@functools.cache
def texts() -> tuple[tuple[Encoded, ...], tuple[Encoded, ...]]:
    rows = small_benchmark().forget
    return (
        tuple(encode(_tokenizer(), Template("plain"), e) for e in rows),
        tuple(encode(_tokenizer(), Template("plain"), e, answer=e.alternative) for e in rows),
    )


def weights_for(text: Encoded) -> Tensor:
    """Token weights of mean 1, the last of several zero."""
    n = text.scored
    raw = torch.tensor([0.5 + ((3 * i + n) % 5) for i in range(n)], dtype=torch.float64)
    raw[-1] = 0.0 if n > 1 else raw[-1]
    return raw * n / raw.sum()


@dataclass
class World:
    """The small model now, the model as it was, and the texts."""

    layers: tuple[int, ...]
    now: Subject = field(default_factory=lambda: small_subject(0, torch.float64))
    then: Subject = field(default_factory=lambda: small_subject(1, torch.float64))

    def view(self, chosen: Sequence[int], layout: Layout, totals: tuple[float, float] | None = None) -> View:
        chosen_texts, alternatives = ([side[i] for i in chosen] for side in texts())
        return self._of(
            chosen_texts, layout, totals, lambda: self._of(alternatives, layout, (float(len(alternatives)), totals[1]) if totals else None, None)
        )

    def _of(self, rows: list[Encoded], layout: Layout, totals: tuple[float, float] | None, other: Callable[[], View] | None) -> View:
        tokens, examples = totals or (None, None)
        batch = collate(rows, layout)

        def reference() -> Scored:
            with torch.no_grad():
                known = score(self.then, batch, layers=self.layers, total_tokens=tokens, total_rows=examples)
                _ = known.logits
                return known

        parts: dict[str, Any] = {} if other is None else {"get_alternative": other}
        return View(lambda: score(self.now, batch, layers=self.layers, total_tokens=tokens, total_rows=examples), reference, **parts)


LENGTHS = (1, 2, 5, 9)
"""Scored tokens of the sequences of :func:`synthetic_view`."""


def synthetic_view(order: Sequence[int], scale: float = 1.0) -> View:
    """Sequences of :data:`LENGTHS` with random predictions now, with masked prompts, and of a contrast model."""
    target, row, now, masked, contrast, copies, words = ([] for _ in range(7))
    for place, i in enumerate(order):
        draw = torch.Generator().manual_seed(100 + i)
        n = LENGTHS[i]
        for store in (now, masked, contrast):
            store.append(scale * torch.randn(n, 7, generator=draw))
        target.append(torch.randint(7, (n,), generator=draw))
        copies.append(torch.rand(n, generator=draw) < 0.3)
        row.append(torch.full((n,), place))
        words.append(10 * place + torch.arange(n) // 2)  # two tokens make a word
    shape = (torch.cat(target), torch.cat(row), len(order))
    joined = [torch.cat(part) for part in (now, masked, contrast)]
    # the same values, now as something to train: a weight must not pass a gradient on
    joined[0].requires_grad_()
    scored = [Scored.of(part, *shape) for part in joined]
    return View(
        lambda: scored[0],
        get_masked=lambda: scored[1],
        get_contrast=lambda: scored[2],
        get_copies=lambda: torch.cat(copies),
        get_words=lambda: torch.cat(words),
        get_reference=lambda: scored[1],
    )
