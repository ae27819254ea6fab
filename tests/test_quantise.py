"""Quantisation as an attack: the right numbers, and everything back in its place afterwards."""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Callable
from typing import Any, Literal, cast

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, PrefixTuningConfig, get_peft_model
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from conftest import KINDS, Kind, adapted, logits, tiny, tiny_tokenizer
from excise.attacks.quantise import Quantise
from excise.data.encode import Template
from excise.errors import InputError
from excise.loading import load
from excise.saving import save
from excise.subject import Subject, quiet, untie

Method = Literal["int8", "int4", "q8_0", "q4_0"]
METHODS: tuple[Method, ...] = ("int8", "int4", "q8_0", "q4_0")
HALF = 1e-4
"""How near to the middle between two steps float32 may round to the other side."""


def needs_torchao(method: str) -> None:
    if method.startswith("int"):
        pytest.importorskip("torchao", reason="torchao is not installed (pip install 'excise[quantise]')")


def matrices(subject: Subject) -> dict[str, Tensor]:
    layers = {name: cast(Tensor, layer.weight).detach() for name, layer in subject.decoder.named_modules() if isinstance(layer, nn.Linear)}
    return {**layers, "embedding": cast(Tensor, subject.embedding.weight).detach(), "head": cast(Tensor, subject.head.weight).detach()}


# From the definitions ---------------------------------------------------------------------------------------------


def naive_torchao(values: list[float], lowest: int, highest: int) -> list[tuple[float, float]]:
    """Symmetric: step = largest magnitude / half the range; (value, step) with the middle rounded to even, then cut off."""
    step = max(abs(v) for v in values) / ((highest - lowest) / 2)
    return [(step * min(max(round(v / step), lowest), highest), step) for v in values]


def naive_q8_0(values: list[float]) -> list[tuple[float, float]]:
    step = max(abs(v) for v in values) / 127
    stored = float(np.float16(step))
    return [(stored * math.copysign(math.floor(abs(v / step) + 0.5), v), stored) for v in values]


def naive_q4_0(values: list[float]) -> list[tuple[float, float]]:
    """The value of largest magnitude becomes -8 steps."""
    step = max(values, key=abs) / -8
    stored = float(np.float16(step))
    return [(stored * (min(math.floor(v / step + 8.5), 15) - 8), abs(stored)) for v in values]


def naive(weight: Tensor, group: int, formula: Callable[[list[float]], list[tuple[float, float]]]) -> tuple[Tensor, Tensor]:
    """What the weight becomes, and the step of each value."""

    def block(values: list[float]) -> list[tuple[float, float]]:
        return formula(values) if any(values) else [(0.0, 1.0)] * len(values)

    rows = [[pair for start in range(0, len(row), group) for pair in block(row[start : start + group])] for row in weight.double().tolist()]
    pairs = torch.tensor(rows, dtype=torch.float64)
    return pairs[..., 0], pairs[..., 1]


def naive_for(method: Method, name: str, weight: Tensor, tied: bool) -> tuple[Tensor, Tensor]:
    width = weight.shape[1]
    if method == "int8":
        return naive(weight, width, lambda values: naive_torchao(values, -128, 127))
    if method == "int4":
        return naive(weight, 16, lambda values: naive_torchao(values, -8, 7))
    if method == "q4_0" and not (name == "head" or (name == "embedding" and tied)):
        return naive(weight, 32, naive_q4_0)
    return naive(weight, 32, naive_q8_0)


def agree(got: Tensor, weight: Tensor, expected: tuple[Tensor, Tensor]) -> None:
    """Equal, but for values that stand in the middle between two steps: those may go either way."""
    value, step = expected
    error = (got.double() - value).abs()
    place = weight.double() / step
    middle = (place - place.floor() - 0.5).abs() < HALF * (1 + place.abs())
    assert float(error[~middle].max()) <= 1e-5 * float(weight.abs().max())
    assert float((error / step).max()) < 1 + HALF
    assert float(middle.double().mean()) < 0.1


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("method", METHODS)
def test_the_numbers_are_those_of_the_definition(method: Method, tied: bool) -> None:
    needs_torchao(method)
    subject = tiny("llama", tied=tied)
    before = {name: weight.clone() for name, weight in matrices(subject).items()}
    untouched = ("embedding", "head") if method.startswith("int") else ()
    with Quantise(method, group=16).applied(subject):
        for name, weight in matrices(subject).items():
            if name in untouched:
                assert torch.equal(weight, before[name])
            else:
                assert not torch.equal(weight, before[name])
                agree(weight, before[name], naive_for(method, name, before[name], tied))


@pytest.mark.parametrize("head", [False, True])
@pytest.mark.parametrize("method", ["int8", "int4"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_logits_are_those_of_torchao(kind: Kind, method: Literal["int8", "int4"], head: bool) -> None:
    needs_torchao(method)
    from torchao.quantization import Int8WeightOnlyConfig, IntxWeightOnlyConfig, PerGroup, quantize_

    subject = tiny(kind)
    theirs = copy.deepcopy(subject)
    config = Int8WeightOnlyConfig(set_inductor_config=False) if method == "int8" else IntxWeightOnlyConfig(cast(Any, torch).int4, PerGroup(32))
    quantize_(theirs.base, config, lambda layer, name: isinstance(layer, nn.Linear) and (head or name != "lm_head"))
    with Quantise(method, head=head).applied(subject):
        torch.testing.assert_close(logits(subject), logits(theirs), rtol=1e-5, atol=2e-5)
        if head:
            assert not subject.tied


# Back again -------------------------------------------------------------------------------------------------------


def everything(subject: Subject) -> dict[str, Any]:
    """Each tensor object by name, its bits and whether it is trained; tied names appear twice."""
    found = dict(subject.model.named_parameters(remove_duplicate=False))
    return {name: (id(p), p.requires_grad, p.detach().clone()) for name, p in found.items()}


def same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, (identity, trained, bits) in one.items():
        assert other[name][:2] == (identity, trained), name
        assert torch.equal(other[name][2], bits), name


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", KINDS)
def test_everything_is_back_afterwards(kind: Kind, method: Method, tied: bool) -> None:
    needs_torchao(method)
    subject = tiny(kind, tied=tied)
    cast(Any, subject.embedding).weight.requires_grad = False
    before, said = everything(subject), logits(subject)
    with Quantise(method).applied(subject) as attacked:
        assert attacked is subject
        assert subject.tied is tied
        assert not cast(Any, subject.embedding).weight.requires_grad
        assert not torch.equal(logits(subject), said)
    same(before, everything(subject))
    assert torch.equal(logits(subject), said)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("method", METHODS)
def test_everything_is_back_after_an_exception(method: Method, error: type[BaseException], tiny_llama: Subject) -> None:
    needs_torchao(method)
    before = everything(tiny_llama)

    def spoil() -> None:
        """Whatever is done to the quantised weights is gone as well."""
        for weight in [cast(Any, layer).weight for layer in tiny_llama.decoder.modules() if isinstance(layer, nn.Linear)]:
            weight.data.zero_()
        raise error

    with pytest.raises(error), Quantise(method).applied(tiny_llama):
        spoil()
    same(before, everything(tiny_llama))


def test_everything_is_back_when_it_is_interrupted_on_the_way(tiny_llama: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    import excise.attacks.quantise as module

    before, original, calls = everything(tiny_llama), module.round_trip, []

    def interrupted(*arguments: Any) -> Tensor:
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return original(*arguments)

    monkeypatch.setattr(module, "round_trip", interrupted)
    with pytest.raises(KeyboardInterrupt), Quantise("q8_0").applied(tiny_llama):
        pytest.fail("not reached")
    same(before, everything(tiny_llama))


def test_fewer_bits_do_more_harm(tiny_subject: Subject) -> None:
    needs_torchao("int8")
    said = logits(tiny_subject)
    harm = {}
    for method in METHODS:
        with Quantise(method).applied(tiny_subject):
            harm[method] = float((logits(tiny_subject) - said).square().mean())
    assert 0 < harm["int8"] < harm["int4"] / 10
    assert 0 < harm["q8_0"] < harm["q4_0"] / 10


def test_larger_groups_do_more_harm() -> None:
    needs_torchao("int4")
    subject = tiny("llama", width=128)
    before = {name: weight.clone() for name, weight in matrices(subject).items()}
    harm = []
    for group in (16, 32, 64, 128):
        with Quantise("int4", group=group).applied(subject):
            harm.append(sum(float((weight - before[name]).square().sum()) for name, weight in matrices(subject).items()))
    assert harm == sorted(harm)


def test_a_bfloat16_model_stays_bfloat16() -> None:
    subject = load(tiny("llama").source, dtype="bfloat16")
    before = everything(subject)
    with Quantise("q8_0").applied(subject):
        assert {parameter.dtype for parameter in subject.model.parameters()} == {torch.bfloat16}
        assert torch.isfinite(logits(subject)).all()
    same(before, everything(subject))


# Adapters ---------------------------------------------------------------------------------------------------------


def plain_twin(subject: Subject, tmp_path: Any) -> Subject:
    return load(save(subject, tmp_path / "merged", provenance={}, merge=True))


def state(subject: Subject) -> list[Any]:
    """What the adapter's layers say of themselves."""
    layers = [layer for layer in subject.model.modules() if hasattr(layer, "merged_adapters")]
    return [(id(layer), list(cast(Any, layer).merged_adapters), cast(Any, layer).disable_adapters) for layer in layers]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", KINDS)
def test_an_adapter_is_merged_first(kind: Kind, method: Method, tmp_path: Any) -> None:
    needs_torchao(method)
    subject = adapted(tiny(kind))
    twin = plain_twin(subject, tmp_path)
    before, layers, said = everything(subject), state(subject), logits(subject)
    with Quantise(method).applied(subject), Quantise(method).applied(twin):
        assert subject.is_adapter
        torch.testing.assert_close(logits(subject), logits(twin), rtol=1e-4, atol=1e-4)
        assert not torch.allclose(logits(subject), said, rtol=1e-4, atol=1e-4)
    same(before, everything(subject))
    assert state(subject) == layers
    assert torch.equal(logits(subject), said)


@pytest.mark.parametrize(("target", "save_too"), [(["embed_tokens"], None), (["lm_head"], None), (["q_proj"], ["lm_head"])])
@pytest.mark.parametrize("method", ["q8_0", "q4_0"])
def test_an_adapter_on_embedding_or_head(method: Method, target: list[str], save_too: list[str] | None, tmp_path: Any) -> None:
    base = tiny("llama", tied=True)
    untie(base)
    base.base.name_or_path = str(save(base, tmp_path / "base", provenance={}))
    subject = adapted(base, target, save_too)
    before, said = everything(subject), logits(subject)
    twin = plain_twin(subject, tmp_path)
    with Quantise(method).applied(subject), Quantise(method).applied(twin):
        torch.testing.assert_close(logits(subject), logits(twin), rtol=1e-4, atol=1e-4)
    same(before, everything(subject))
    assert torch.equal(logits(subject), said)


def test_an_adapter_that_is_merged_already(tiny_llama: Subject, tmp_path: Any) -> None:
    subject = adapted(tiny_llama)
    twin = plain_twin(subject, tmp_path)
    cast(Any, subject.model).merge_adapter()
    before, layers = everything(subject), state(subject)
    with Quantise("q8_0").applied(subject), Quantise("q8_0").applied(twin):
        torch.testing.assert_close(logits(subject), logits(twin), rtol=1e-4, atol=1e-4)
    same(before, everything(subject))
    assert state(subject) == layers


def test_an_adapter_that_is_switched_off_stays_off(tiny_llama: Subject) -> None:
    alone = copy.deepcopy(tiny_llama)
    subject = adapted(tiny_llama)
    with cast(PeftModel, subject.model).disable_adapter(), Quantise("q8_0").applied(subject), Quantise("q8_0").applied(alone):
        torch.testing.assert_close(logits(subject), logits(alone), rtol=1e-5, atol=1e-5)


def test_a_dora_adapter_keeps_nothing_of_the_merge(tiny_llama: Subject) -> None:
    config = LoraConfig(r=2, target_modules="all-linear", use_dora=True, task_type="CAUSAL_LM")
    with quiet():
        tiny_llama.model = get_peft_model(tiny_llama.base, config).eval()
    for name, parameter in tiny_llama.model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(std=0.1)
    before, said = everything(tiny_llama), logits(tiny_llama)
    with Quantise("q8_0").applied(tiny_llama):
        assert float((logits(tiny_llama) - said).abs().max()) < 0.2
    same(before, everything(tiny_llama))
    assert torch.equal(logits(tiny_llama), said)


# Refusals ---------------------------------------------------------------------------------------------------------


def refused(subject: Subject, attack: Quantise, *words: str) -> None:
    before = everything(subject)
    with pytest.raises(InputError) as caught, attack.applied(subject):
        pytest.fail("not reached")
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)
    same(before, everything(subject))


def test_a_width_that_is_no_multiple_of_the_group() -> None:
    needs_torchao("int4")
    refused(tiny("llama"), Quantise("int4", group=24), "q_proj", "32 wide", "multiple of the 24", "another group")
    refused(tiny("llama", width=24), Quantise("q4_0"), "24 wide", "use int8")
    refused(adapted(tiny("llama", width=24)), Quantise("q8_0"), "24 wide")
    with pytest.raises(InputError, match="group=0"):
        Quantise(group=0)


def test_torchao_is_missing(tiny_llama: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao.quantization", None)
    refused(tiny_llama, Quantise("int4"), "excise[quantise]", "kind=q4_0")
    with Quantise("q4_0").applied(tiny_llama):
        pass


def test_a_quantised_model(tiny_llama: Subject) -> None:
    tiny_llama.base.config.quantization_config = {"quant_method": "gptq"}
    refused(tiny_llama, Quantise("q8_0"), "quantised already", "model.quantise=none")


def test_weights_that_torchao_has_quantised(tiny_llama: Subject) -> None:
    needs_torchao("int8")
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    quantize_(tiny_llama.base, Int8WeightOnlyConfig(set_inductor_config=False))
    with pytest.raises(InputError, match="quantised already"), Quantise("q8_0").applied(tiny_llama):
        pytest.fail("not reached")


def test_a_model_without_linear_layers() -> None:
    network = GPT2LMHeadModel(GPT2Config(vocab_size=400, n_embd=32, n_layer=2, n_head=2, n_positions=64)).eval()
    refused(Subject(network, tiny_tokenizer(), Template("plain"), "gpt2"), Quantise("q8_0"), "linear layers only", "GPT2LMHeadModel")


def test_an_adapter_that_cannot_be_merged(tiny_llama: Subject) -> None:
    with quiet():
        tiny_llama.model = get_peft_model(tiny_llama.base, PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2))
    refused(tiny_llama, Quantise("q8_0"), "PREFIX_TUNING", "cannot be merged")


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_the_real_small_model(method: Method, smollm2_folder: Any) -> None:
    needs_torchao(method)
    subject = load(smollm2_folder)
    text = "The capital of France is Paris. Water boils at 100 degrees, and the sun rises in the east."
    ids = subject.tokenizer(text, return_tensors="pt").input_ids

    @torch.no_grad()
    def loss() -> float:
        return float(subject.model(input_ids=ids, labels=ids).loss)

    fingerprint, before = subject.fingerprint(), loss()
    with Quantise(method).applied(subject):
        assert abs(loss() - before) < (0.1 if method in ("int8", "q8_0") else 1.0)
        assert loss() != before
    assert subject.fingerprint() == fingerprint
    assert loss() == before
