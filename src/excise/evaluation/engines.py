"""Other programs that write a model's answers, faster than transformers does: what they are asked, and vLLM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from excise.errors import InputError, did_you_mean
from excise.objectives.check import within
from excise.settings import build

if TYPE_CHECKING:
    from excise.evaluation.generate import Sampling


@runtime_checkable
class Engine(Protocol):
    """Continues prompts with one model. The name stands in the keys of what is remembered, since its rounding is its own."""

    @property
    def name(self) -> str: ...

    def __call__(
        self, prompts: Sequence[Sequence[int]], max_new_tokens: int, stops: Sequence[int], sampling: Sampling | None
    ) -> list[list[list[int]]]:
        """For each prompt (token ids) its continuations as token ids: the greedy one, or ``sampling.count`` random ones.

        A continuation ends before, or with, the first of ``stops``.
        """
        ...


@dataclass
class VLLM:
    """Answers by vLLM, which loads the model from its folder beside the one that excise holds.

    Differs: a prediction that is not a number is not noticed here (the likelihoods, which excise computes itself, notice it); random
        answers are drawn by vLLM, so that a seed gives other ones than without it.
    """

    folder: str
    """A model folder or hub id."""
    memory: float = 0.45
    """Share of the accelerator's memory for vLLM."""
    dtype: str = "auto"
    length: int | None = None
    """Longest prompt and answer together; None: what the model allows."""
    name = "vllm"

    def __post_init__(self) -> None:
        within("engine.memory", self.memory, 0.01, 1.0)
        try:
            import vllm  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise InputError('engine: vllm is not installed: pip install "excise[vllm]" (Linux with a GPU), or leave the engine out') from None
        self.library: Any = vllm
        self.model: Any = vllm.LLM(model=self.folder, dtype=self.dtype, gpu_memory_utilization=self.memory, max_model_len=self.length, seed=0)

    def __call__(
        self, prompts: Sequence[Sequence[int]], max_new_tokens: int, stops: Sequence[int], sampling: Sampling | None
    ) -> list[list[list[int]]]:
        how: dict[str, Any] = {"temperature": 0.0}
        if sampling is not None:
            how = {"temperature": sampling.temperature, "top_p": sampling.top_p, "n": sampling.count, "seed": sampling.seed}
        settings = self.library.SamplingParams(max_tokens=max_new_tokens, stop_token_ids=list(stops), detokenize=False, **how)
        found = self.model.generate([{"prompt_token_ids": list(prompt)} for prompt in prompts], settings, use_tqdm=False)
        return [[list(output.token_ids) for output in answer.outputs] for answer in found]


ENGINES = {"vllm": VLLM}


def engine_of(value: str | Mapping[str, Any] | None, folder: str) -> Engine | None:
    """An engine for the model in ``folder``, from its name or a mapping of ``name`` and settings; None: transformers.

    Raises:
        InputError: an unknown engine or setting; one that is not installed.
    """
    if value is None:
        return None
    settings = {"name": value} if isinstance(value, str) else dict(value)
    name = str(settings.pop("name", ""))
    if name not in ENGINES:
        raise InputError(f"engine: unknown engine {name!r}: {did_you_mean(name, ENGINES)}")
    return build(ENGINES[name], {"folder": folder, **settings}, "engine")
