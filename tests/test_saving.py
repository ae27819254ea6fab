"""Saving: it comes back the same, or it is not saved at all."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from peft import LoraConfig, PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, GenerationConfig

import excise.saving
from conftest import KINDS, Kind, adapted, logits, tiny
from excise.errors import InputError
from excise.fingerprint import tokenizer_fingerprint
from excise.loading import load
from excise.saving import save, update_card
from excise.subject import Subject, quiet, untie

IDS = torch.arange(3, 23).view(2, 10)
PROVENANCE = {"method": "npo", "data": {"fingerprint": "abc123"}, "seed": 7, "example": "Who is Anna Brandt?"}


def left_in(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_model_comes_back_with_equal_logits(kind: Kind, tied: bool, tmp_path: Path) -> None:
    subject = tiny(kind, tied=tied)
    for parameter in subject.model.parameters():
        parameter.data.mul_(1.01)
    folder = save(subject, tmp_path / "model", provenance=PROVENANCE)
    again = load(folder)
    assert torch.equal(logits(again), logits(subject))
    assert again.tied is tied
    assert again.fingerprint() == subject.fingerprint()
    assert tokenizer_fingerprint(again.tokenizer) == tokenizer_fingerprint(subject.tokenizer)
    with quiet():
        bare = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    assert torch.equal(bare(input_ids=IDS, use_cache=False).logits, logits(subject))
    assert not [file for file in folder.iterdir() if file.suffix in (".bin", ".pt", ".pkl")]


def test_an_output_head_that_was_replaced_is_not_tied_again(tmp_path: Path) -> None:
    subject = tiny("llama", tied=True)
    head: Any = subject.head
    head.weight = torch.nn.Parameter(head.weight.detach() * 2)  # and nobody told the configuration
    again = load(save(subject, tmp_path / "model", provenance={}))
    assert not again.tied
    assert torch.equal(logits(again), logits(subject))


def test_bfloat16_stays_bfloat16(tmp_path: Path) -> None:
    subject = load(tiny("gemma3").source, dtype="bfloat16")
    folder = save(subject, tmp_path / "model", provenance={})
    assert {tensor.dtype for tensor in load_file(folder / "model.safetensors").values()} == {torch.bfloat16}
    assert torch.equal(logits(load(folder, dtype="bfloat16")), logits(subject))


def test_an_adapter_is_saved_as_an_adapter(tiny_subject: Subject, tmp_path: Path) -> None:
    subject = adapted(tiny_subject)
    folder = save(subject, tmp_path / "adapter", provenance=PROVENANCE)
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == tiny_subject.source
    assert not (folder / "model.safetensors").exists()
    again = load(folder)
    assert again.is_adapter
    assert torch.equal(logits(again), logits(subject))
    with quiet():
        bare = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(config["base_model_name_or_path"]), str(folder)).eval()
    assert torch.equal(bare(input_ids=IDS, use_cache=False).logits, logits(subject))


def test_an_adapter_of_another_name_lies_where_it_is_looked_for(tiny_llama: Subject, tmp_path: Path) -> None:
    subject = adapted(tiny_llama, name="forget")
    folder = save(subject, tmp_path / "adapter", provenance={})
    assert "forget" not in left_in(folder)
    assert torch.equal(logits(load(folder)), logits(subject))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_merged_adapter_is_an_ordinary_model(kind: Kind, tied: bool, tmp_path: Path) -> None:
    subject = adapted(tiny(kind, tied=tied))
    before = subject.fingerprint()
    folder = save(subject, tmp_path / "merged", provenance={}, merge=True)
    assert subject.is_adapter
    assert subject.fingerprint() == before
    again = load(folder)
    assert not again.is_adapter
    assert again.tied is tied
    torch.testing.assert_close(logits(again), logits(subject), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("target", "save_too"), [(["embed_tokens"], None), (["lm_head"], None), (["q_proj"], ["lm_head"])])
def test_an_adapter_on_a_tied_embedding_or_head_merges_exactly(target: list[str], save_too: list[str] | None, tmp_path: Path) -> None:
    subject = tiny("llama", tied=True)
    untie(subject)
    subject.base.name_or_path = str(save(subject, tmp_path / "base", provenance={}))
    subject = adapted(subject, target, save_too)
    again = load(save(subject, tmp_path / "merged", provenance={}, merge=True))
    assert not again.tied
    torch.testing.assert_close(logits(again), logits(subject), rtol=1e-5, atol=1e-4)
    assert torch.equal(logits(load(save(subject, tmp_path / "adapter", provenance={}))), logits(subject))


def test_merging_into_bfloat16_keeps_the_change_in_float32(tmp_path: Path) -> None:
    subject = adapted(load(tiny("llama").source, dtype="bfloat16"))
    folder = save(subject, tmp_path / "merged", provenance={}, merge=True)
    assert {tensor.dtype for tensor in load_file(folder / "model.safetensors").values()} == {torch.float32}
    assert subject.base.dtype == torch.bfloat16


def test_an_adapter_over_changed_base_weights_is_not_saved_alone(tiny_llama: Subject, tmp_path: Path) -> None:
    subject = adapted(tiny_llama)
    cast(Any, subject.embedding).weight.data.mul_(1.1)
    with pytest.raises(RuntimeError, match=r"base were changed too.*merge"):
        save(subject, tmp_path / "adapter", provenance={})
    assert left_in(tmp_path) == []
    assert torch.equal(logits(load(save(subject, tmp_path / "merged", provenance={}, merge=True))).argmax(-1), logits(subject).argmax(-1))


def test_an_adapter_without_a_saved_base_is_refused(tiny_llama: Subject, tmp_path: Path) -> None:
    tiny_llama.base.name_or_path = ""
    with pytest.raises(InputError, match="save with merge"):
        save(adapted(tiny_llama), tmp_path / "adapter", provenance={})
    save(tiny_llama, tmp_path / "merged", provenance={}, merge=True)


def test_several_active_adapters_are_refused(tiny_llama: Subject, tmp_path: Path) -> None:
    subject = adapted(tiny_llama)
    assert isinstance(subject.model, PeftModel)
    subject.model.add_adapter("second", LoraConfig(r=2, target_modules=["q_proj"]))
    cast(Any, subject.model.base_model).set_adapter(["default", "second"])
    with pytest.raises(InputError, match="2 adapters are active"):
        save(subject, tmp_path / "adapter", provenance={})


def test_a_quantised_base_is_neither_saved_nor_merged(tiny_llama: Subject, tmp_path: Path) -> None:
    tiny_llama.base.config.quantization_config = {"quant_method": "gptq"}
    with pytest.raises(InputError, match="save the adapter"):
        save(tiny_llama, tmp_path / "model", provenance={})
    subject = adapted(tiny_llama)
    with pytest.raises(InputError, match=r"model\.quantise=none"):
        save(subject, tmp_path / "merged", provenance={}, merge=True)
    save(subject, tmp_path / "adapter", provenance={})  # compared tensor by tensor


def test_a_model_that_does_not_come_back_is_not_saved(tiny_llama: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tiny("llama", seed=1)
    monkeypatch.setattr(excise.saving, "_reload", lambda subject, part: other.model)
    with pytest.raises(RuntimeError, match="other logits"):
        save(tiny_llama, tmp_path / "model", provenance={})
    assert left_in(tmp_path) == []


def test_a_model_of_nan_is_not_saved(tiny_llama: Subject, tmp_path: Path) -> None:
    cast(Any, tiny_llama.head).weight.data.fill_(float("nan"))
    with pytest.raises(RuntimeError, match="NaN"):
        save(tiny_llama, tmp_path / "model", provenance={})
    assert left_in(tmp_path) == []


def test_an_interrupted_save_leaves_nothing(tiny_llama: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(subject: Subject, part: Path) -> None:
        assert (part / "model.safetensors").exists()
        raise KeyboardInterrupt

    monkeypatch.setattr(excise.saving, "_verify", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save(tiny_llama, tmp_path / "model", provenance={})
    assert left_in(tmp_path) == []


def test_a_full_disk_is_one_clear_line(tiny_llama: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(subject: Subject, part: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(excise.saving, "_write_model", full)
    with pytest.raises(InputError, match="disk is full"):
        save(tiny_llama, tmp_path / "model", provenance={})
    assert left_in(tmp_path) == []


def test_an_existing_folder_is_replaced_only_when_asked(tiny_llama: Subject, tmp_path: Path) -> None:
    folder = save(tiny_llama, tmp_path / "model", provenance={"run": 1})
    with pytest.raises(InputError, match="not empty"):
        save(tiny_llama, folder, provenance={"run": 2})
    assert json.loads((folder / "excise.json").read_text())["run"] == 1
    save(tiny_llama, folder, provenance={"run": 2}, overwrite=True)
    assert json.loads((folder / "excise.json").read_text())["run"] == 2
    assert left_in(tmp_path) == ["model"]


def test_saving_does_not_change_the_subject(tiny_llama: Subject, tmp_path: Path) -> None:
    working = tiny_llama.base.generation_config
    tiny_llama.generation = GenerationConfig(temperature=0.5, do_sample=True)
    tiny_llama.model.train()
    save(tiny_llama, tmp_path / "model", provenance={})
    assert tiny_llama.base.generation_config is working
    assert tiny_llama.model.training
    assert GenerationConfig.from_pretrained(tmp_path / "model").temperature == 0.5


def test_the_record_and_the_card(tiny_llama: Subject, tmp_path: Path) -> None:
    folder = save(tiny_llama, tmp_path / "model", provenance={**PROVENANCE, "licence": "Apache-2.0"})
    record = json.loads((folder / "excise.json").read_text())
    assert record.items() >= PROVENANCE.items()
    assert record["fingerprint"] == tiny_llama.fingerprint()
    assert record["tied"] is True
    assert record["kind"] == "model"
    assert record["template"] == {"style": "chat", "system": None, "bare": False}
    text = (folder / "README.md").read_text()
    for expected in ("npo", "abc123", record["fingerprint"], "Apache-2.0", "seed: 7"):
        assert expected in text
    assert "Anna Brandt" not in text
    assert "Scores" not in text


def test_scores_come_later(tiny_llama: Subject, tmp_path: Path) -> None:
    folder = save(tiny_llama, tmp_path / "model", provenance=PROVENANCE)
    update_card(folder, {"forget.rouge_l_recall": 0.12345, "model_utility": 0.5})
    assert "| forget.rouge_l_recall | 0.1235 |" in (folder / "README.md").read_text()
    record = json.loads((folder / "excise.json").read_text())
    assert record["scores"] == {"forget.rouge_l_recall": 0.12345, "model_utility": 0.5}
    assert record["seed"] == 7


def test_an_adapter_card_names_peft(tiny_llama: Subject, tmp_path: Path) -> None:
    text = (save(adapted(tiny_llama), tmp_path / "adapter", provenance={}) / "README.md").read_text()
    assert "library_name: peft" in text
    assert "An adapter for" in text
    assert "base model's licence" in text


def test_an_adapter_of_an_embedded_model_finds_its_base_again(tiny_llama: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = save(tiny_llama, tmp_path / "cache-folder", provenance={"embedded": "smollm2"})
    folder = save(adapted(load(base)), tmp_path / "adapter", provenance={})
    assert json.loads((folder / "excise.json").read_text())["base"] == "embedded:smollm2"
    expected = logits(load(folder))
    base.rename(tmp_path / "moved")
    monkeypatch.setattr("excise.embedded.pull", lambda name: tmp_path / "moved")
    assert torch.equal(logits(load(folder)), expected)
