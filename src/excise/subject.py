"""The model under the knife: what it is."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import torch
import transformers.utils.logging as transformers_logging
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn
from transformers import (
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from excise.data.encode import Template, end_of_turn
from excise.errors import InputError
from excise.fingerprint import model_fingerprint

SAMPLING = ("do_sample", "temperature", "top_k", "top_p", "top_h", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff")


@dataclass
class Subject:
    """A model with the tokenizer and the template that it is used with."""

    model: PreTrainedModel | PeftModel
    tokenizer: PreTrainedTokenizerBase
    template: Template
    source: str
    """What the user named."""
    generation: GenerationConfig | None = None
    """The generation settings as the model's authors wrote them, kept for saving; the model itself decodes greedily."""

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def is_adapter(self) -> bool:
        return isinstance(self.model, PeftModel)

    @property
    def base(self) -> PreTrainedModel:
        """The causal language model itself; the layers of an adapter sit inside it."""
        return cast(PreTrainedModel, self.model.get_base_model()) if isinstance(self.model, PeftModel) else self.model

    @property
    def decoder(self) -> nn.Module:
        """The stack without the output head: from token ids to the last hidden state."""
        return cast(nn.Module, self.base.get_decoder())

    @property
    def layers(self) -> nn.ModuleList:
        """The decoder layers in order, found by structure."""
        depth = self.base.config.get_text_config().num_hidden_layers
        found = [child for child in self.decoder.children() if isinstance(child, nn.ModuleList) and len(child) == depth]
        if len(found) != 1:
            raise InputError(f"{self.source}: cannot tell the decoder layers of a {type(self.base).__name__}; this architecture is not supported")
        return found[0]

    @property
    def depth(self) -> int:
        return len(self.layers)

    @property
    def embedding(self) -> nn.Module:
        return self.base.get_input_embeddings()

    @property
    def head(self) -> nn.Module:
        """The output head, bias and all."""
        head = self.base.get_output_embeddings()
        if head is None:
            raise InputError(f"{self.source}: a {type(self.base).__name__} has no output head; a causal language model is needed")
        return cast(nn.Module, head)

    @property
    def tied(self) -> bool:
        """Whether head and input embedding are the same tensor in fact, whatever the configuration says."""
        return self.head.weight is self.embedding.weight

    @property
    def vocabulary(self) -> int:
        """Rows of the embedding: the tokens that the model knows, padding rows included."""
        return cast(Tensor, self.embedding.weight).shape[0]

    @property
    def quantised(self) -> bool:
        return "quantization_config" in vars(self.base.config) or vars(self.base).get("hf_quantizer") is not None

    def fingerprint(self) -> str:
        """SHA-256 over all parameters, those of an adapter included."""
        return model_fingerprint(self.model)


def untie(subject: Subject) -> None:
    """Gives the output head its own copy of the embedding. The logits stay the same to the bit.

    The configuration is told as well: without it, saving and loading would tie the two again; with the
    configuration alone, loading would start the head at random.
    """
    if subject.tied:
        head = subject.head.get_base_layer() if isinstance(subject.head, BaseTunerLayer) else subject.head
        weight = cast(nn.Parameter, head.weight)
        head.weight = nn.Parameter(weight.detach().clone(), requires_grad=weight.requires_grad)
    mark_untied(subject)


def tie(subject: Subject) -> None:
    """Makes the output head the embedding again, the inverse of :func:`untie`; what the head held is lost."""
    subject.head.weight = subject.embedding.weight
    for config in (subject.base.config, subject.base.config.get_text_config()):
        config.tie_word_embeddings = True
    names = getattr(subject.base, "get_expanded_tied_weights_keys", None)  # older versions of transformers keep no such table
    if names is not None:
        vars(subject.base)["all_tied_weights_keys"] = names(all_submodels=True)


def mark_untied(subject: Subject) -> None:
    """Makes the configuration say that head and embedding are two tensors."""
    for config in (subject.base.config, subject.base.config.get_text_config()):
        config.tie_word_embeddings = False
    vars(subject.base).get("all_tied_weights_keys", {}).clear()


def require_trainable_in_full(subject: Subject) -> None:
    """Refuses a quantised base: its own weights cannot be trained, only an adapter on top of it."""
    if subject.quantised:
        raise InputError(
            f"{subject.source}: the base model is quantised, so its weights cannot be trained in full: "
            "train an adapter (method.lora={r: 16}) or load it with model.quantise=none"
        )


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars and no chatter from transformers and PEFT inside; everything as it was afterwards."""
    level, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            # PEFT still asks transformers by the old name
            warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated", category=FutureWarning)
            yield
    finally:
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()


def decode_greedily(subject: Subject) -> None:
    """Sets the generation defaults to plain greedy decoding that ends where an answer ends, and keeps the original."""
    base, tokenizer = subject.base, subject.tokenizer
    original = base.generation_config or GenerationConfig()
    subject.generation = copy.deepcopy(original)
    neutral = GenerationConfig()
    for name in SAMPLING:
        setattr(original, name, getattr(neutral, name, None))
    ends = original.eos_token_id if isinstance(original.eos_token_id, list) else [original.eos_token_id]
    last = tokenizer.convert_tokens_to_ids(end_of_turn(tokenizer, subject.template))
    original.eos_token_id = list(dict.fromkeys(end for end in (*ends, last) if end is not None))
    original.pad_token_id = tokenizer.pad_token_id
    base.generation_config = original
