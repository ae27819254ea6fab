"""Another engine writes the answers: the same records as transformers' own, through a stand-in for vLLM (vLLM itself is not run here)."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

import contract
from conftest import refused
from excise.evaluation.collect import collect
from excise.evaluation.engines import Engine, engine_of
from excise.evaluation.generate import Sampling
from excise.evaluation.plan import Plan
from excise.evaluation.store import Journal


class StandIn:
    """vLLM's LLM as far as excise calls it: continues prompts one token at a time, greedily, with the contract's model."""

    made: ClassVar[list[dict[str, Any]]] = []

    def __init__(self, **settings: Any) -> None:
        StandIn.made.append(settings)
        self.model = contract.small_subject().model
        self.asked: list[Any] = []

    @torch.no_grad()
    def generate(self, prompts: list[dict[str, list[int]]], params: Any, use_tqdm: bool) -> list[Any]:
        self.asked.append(params)
        return [
            SimpleNamespace(outputs=[SimpleNamespace(token_ids=self._one(p["prompt_token_ids"], params)) for _ in range(params.n)]) for p in prompts
        ]

    def _one(self, ids: list[int], params: Any) -> list[int]:
        said: list[int] = []
        while len(said) < params.max_tokens:
            said.append(int(self.model(input_ids=torch.tensor([ids + said])).logits[0, -1].argmax()))
            if said[-1] in params.stop_token_ids:
                break
        return said


@dataclass
class Params:
    max_tokens: int
    stop_token_ids: list[int]
    detokenize: bool
    temperature: float
    top_p: float = 1.0
    n: int = 1
    seed: int | None = None


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("vllm")
    vars(module).update(LLM=StandIn, SamplingParams=Params)
    monkeypatch.setitem(sys.modules, "vllm", module)
    StandIn.made.clear()


@pytest.mark.usefixtures("vllm")
def test_an_engine_gives_the_same_records_and_its_answers_are_kept_apart(tmp_path: Path) -> None:
    engine = engine_of({"name": "vllm", "memory": 0.3}, "a/folder")
    assert isinstance(engine, Engine)
    assert StandIn.made == [{"model": "a/folder", "dtype": "auto", "gpu_memory_utilization": 0.3, "max_model_len": None, "seed": 0}]
    subject, data, plan = contract.small_subject(), contract.small_benchmark(), Plan(generation=True, max_new_tokens=6)
    own = collect(subject, data, {"forget": plan}, precision="float32", cache=tmp_path)
    theirs = collect(subject, data, {"forget": plan}, precision="float32", cache=tmp_path, engine=engine)
    assert theirs == own
    (journal,) = tmp_path.glob("*.jsonl")
    assert len(Journal(journal).values) == 6 + 6 + 6  # texts once, answers by each


@pytest.mark.usefixtures("vllm")
def test_random_answers_are_asked_with_the_plan_s_settings() -> None:
    engine = engine_of("vllm", "a/folder")
    assert engine is not None
    said = engine([[5, 6], [7]], 3, [2], Sampling(2, 0.7, 0.9, 11))
    assert [len(answers) for answers in said] == [2, 2]
    params = engine.model.asked[0]  # type: ignore[attr-defined]
    assert (params.n, params.temperature, params.top_p, params.seed, params.max_tokens, params.stop_token_ids) == (2, 0.7, 0.9, 11, 3, [2])


def test_an_engine_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine_of(None, "x") is None
    refused(lambda: engine_of("vlm", "x"), "did you mean 'vllm'")
    monkeypatch.setitem(sys.modules, "vllm", None)
    refused(lambda: engine_of("vllm", "x"), "not installed", "excise[vllm]")
