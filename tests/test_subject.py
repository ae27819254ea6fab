"""Loading: from everywhere it should work, and one clear line from everywhere it cannot."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from gguf import GGUFWriter, TokenType
from transformers import GenerationConfig

from conftest import adapted, logits, refused, tiny, tiny_tokenizer
from excise.data.encode import Template
from excise.errors import InputError
from excise.fingerprint import model_fingerprint, tokenizer_fingerprint
from excise.loading import ModelSpec, load
from excise.saving import save
from excise.subject import Subject, require_trainable_in_full, untie

IDS = torch.arange(3, 23).view(2, 10)


def copied(subject: Subject, folder: Path) -> Path:
    """The subject's folder, copied file by file, to be spoilt."""
    folder.mkdir()
    for file in Path(subject.source).iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def test_a_folder_gives_the_same_model(tiny_subject: Subject) -> None:
    again = load(tiny_subject.source)
    assert torch.equal(logits(again), logits(tiny_subject))
    assert again.fingerprint() == tiny_subject.fingerprint()
    assert tokenizer_fingerprint(again.tokenizer) == tokenizer_fingerprint(tiny_subject.tokenizer)
    assert again.template == Template("chat")
    assert again.source == tiny_subject.source
    assert not again.model.training
    assert not again.is_adapter
    assert not again.quantised
    assert again.base.config._attn_implementation == "sdpa"


def test_its_parts_are_found_by_structure(tiny_subject: Subject) -> None:
    assert tiny_subject.depth == 2 == len(tiny_subject.layers)
    assert tiny_subject.decoder is tiny_subject.base.get_decoder()
    assert tiny_subject.head is tiny_subject.base.get_output_embeddings()
    assert tiny_subject.tied == (tiny_subject.base.config.model_type != "phi")
    layer = tiny_subject.layers[0]
    wrapped = adapted(tiny_subject)
    assert wrapped.is_adapter
    assert wrapped.layers[0] is layer
    assert wrapped.depth == 2


@pytest.mark.parametrize("kind", ["llama", "gemma3", "qwen3", "phi"])
def test_untying_keeps_the_logits_to_the_bit_and_survives(kind, tmp_path: Path) -> None:
    subject = tiny(kind, tied=True)
    before = logits(subject)
    untie(subject)
    assert not subject.tied
    assert torch.equal(logits(subject), before)
    subject.base.tie_weights()
    assert not subject.tied
    cast(Any, subject.head).weight.data.mul_(2)
    again = load(save(subject, tmp_path / "untied", provenance={}))
    assert not again.tied
    assert torch.equal(logits(again), logits(subject))


def test_an_adapter_folder_brings_its_base(tiny_llama: Subject, tmp_path: Path) -> None:
    folder = save(adapted(tiny_llama), tmp_path / "adapter", provenance={})
    alone = load(folder)
    named = load(ModelSpec(path=tiny_llama.source, adapter=str(folder)))
    assert alone.is_adapter
    assert alone.source == str(folder)
    assert torch.equal(logits(alone), logits(tiny_llama))
    assert torch.equal(logits(named), logits(tiny_llama))


def test_an_adapter_whose_base_is_gone_says_how_to_name_it(tiny_llama: Subject, tmp_path: Path) -> None:
    folder = save(adapted(tiny_llama), tmp_path / "adapter", provenance={})
    for name in ("adapter_config.json", "excise.json"):
        text = (folder / name).read_text().replace(tiny_llama.source, "/nowhere/base")
        (folder / name).write_text(text)
    with pytest.raises(InputError, match=r"/nowhere/base.*model\.path=BASE model\.adapter="):
        load(folder)
    assert torch.equal(logits(load(tiny_llama.source, adapter=str(folder))), logits(tiny_llama))


def test_an_adapter_for_another_model_is_refused(tiny_llama: Subject, tmp_path: Path) -> None:
    folder = save(adapted(tiny_llama), tmp_path / "adapter", provenance={})
    with pytest.raises(InputError, match="does not fit this base model"):
        load(tiny("llama", width=64).source, adapter=str(folder))


def test_an_adapter_is_no_base(tiny_llama: Subject, tmp_path: Path) -> None:
    folder = save(adapted(tiny_llama), tmp_path / "adapter", provenance={})
    with pytest.raises(InputError, match="adapter itself"):
        load(folder, adapter=str(folder))
    with pytest.raises(InputError, match="not an adapter folder"):
        load(tiny_llama.source, adapter=tiny_llama.source)


def test_a_pickled_adapter_is_refused(tiny_llama: Subject, tmp_path: Path) -> None:
    folder = save(adapted(tiny_llama), tmp_path / "adapter", provenance={})
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    with pytest.raises(InputError, match="safetensors only"):
        load(folder)


def test_the_template_can_be_chosen(tiny_llama: Subject, tmp_path: Path) -> None:
    assert load(tiny_llama.source, template="plain", system="Be brief.").template == Template("plain", "Be brief.")
    folder = copied(tiny_llama, tmp_path / "base")
    (folder / "chat_template.jinja").unlink()
    assert load(folder).template == Template("plain")
    with pytest.raises(InputError, match=r"model\.template=plain"):
        load(folder, template="chat")


def test_a_missing_pad_token_becomes_the_end_of_sequence(tiny_llama: Subject, tmp_path: Path) -> None:
    folder = copied(tiny_llama, tmp_path / "model")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config.pop("pad_token")
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    assert load(folder).tokenizer.pad_token == "<|im_end|>"


def test_dtype_is_float32_on_the_cpu_unless_chosen(tiny_llama: Subject) -> None:
    assert load(tiny_llama.source).base.dtype == torch.float32
    assert load(tiny_llama.source, dtype="bfloat16").base.dtype == torch.bfloat16


def test_greedy_decoding_warns_of_nothing_and_the_authors_settings_are_kept(
    tiny_llama: Subject, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = copied(tiny_llama, tmp_path / "model")
    settings = GenerationConfig(do_sample=True, temperature=0.3, top_p=0.9, top_k=7, eos_token_id=0)
    settings.save_pretrained(folder)
    subject = load(folder)
    assert subject.base.generation_config is not None
    assert subject.base.generation_config.eos_token_id == [0, 2]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cast(Any, subject.base).generate(input_ids=IDS, attention_mask=torch.ones_like(IDS), do_sample=False, max_new_tokens=2)
    said = capfd.readouterr()
    assert not caplog.records
    assert not said.out
    assert not said.err
    kept = GenerationConfig.from_pretrained(save(subject, tmp_path / "saved", provenance={}))
    assert (kept.do_sample, kept.temperature, kept.top_p, kept.top_k, kept.eos_token_id) == (True, 0.3, 0.9, 7, 0)


def test_loading_and_saving_print_nothing(tiny_llama: Subject, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    load(save(load(tiny_llama.source), tmp_path / "model", provenance={}))
    said = capfd.readouterr()
    assert not said.out
    assert not said.err


# GGUF -------------------------------------------------------------------------------------------------------------


def write_gguf(subject: Subject, file: Path) -> Path:
    """A tiny Llama as a float32 GGUF file, as llama.cpp would write it."""
    config, tokenizer = subject.base.config, tiny_tokenizer()
    writer = GGUFWriter(file, "llama")
    writer.add_context_length(512)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    tokens = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL if index < 3 else TokenType.NORMAL for index in range(len(tokens))])
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(str(tokenizer.chat_template))
    names = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, parameter in subject.base.named_parameters():
        weight = parameter.detach()
        for part, count in heads.items():  # llama.cpp stores rotary pairs side by side
            if part in name:
                weight = weight.view(count, 2, weight.shape[0] // count // 2, -1).transpose(1, 2).reshape(weight.shape)
        target = name.replace("model.layers.", "blk.").replace("model.embed_tokens", "token_embd").replace("model.norm", "output_norm")
        for ours, theirs in names.items():
            target = target.replace(ours, theirs)
        writer.add_tensor(target, weight.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def test_a_gguf_file_becomes_an_ordinary_model(tiny_llama: Subject, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = write_gguf(tiny_llama, tmp_path / "tiny.gguf")
    subject = load(file)
    torch.testing.assert_close(logits(subject), logits(tiny_llama), rtol=1e-4, atol=1e-4)
    assert subject.template.style == "chat"
    assert subject.base.dtype == torch.float32
    require_trainable_in_full(subject)
    folder = save(subject, tmp_path / "ordinary", provenance={})
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    again = load(folder)
    assert torch.equal(logits(again), logits(subject))
    assert not again.quantised
    adapter = save(adapted(subject), tmp_path / "adapter", provenance={})
    assert torch.equal(logits(load(adapter)), logits(subject))
    assert not capfd.readouterr().err


@pytest.mark.parametrize("kept", [0.99, 0.5, 0.02])
def test_a_truncated_gguf_file_is_refused(tiny_llama: Subject, tmp_path: Path, kept: float) -> None:
    file = write_gguf(tiny_llama, tmp_path / "tiny.gguf")
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * kept)])
    with pytest.raises(InputError, match="corrupt or truncated"):
        load(file)


def test_what_is_no_gguf_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"not a model")
    with pytest.raises(InputError, match="not a GGUF file"):
        load(file)
    with pytest.raises(InputError, match="there is no file"):
        load(tmp_path / "absent.gguf")


# Refusals ---------------------------------------------------------------------------------------------------------


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"neither config\.json nor adapter_config\.json"):
        load(tmp_path)
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(InputError, match=r"name the file: .*model\.gguf"):
        load(tmp_path)
    with pytest.raises(InputError, match="there is no folder"):
        load(tmp_path / "absent")
    with pytest.raises(InputError, match="cannot load"):
        load(__file__)


def test_a_hub_model_out_of_reach_is_refused_with_the_way_out() -> None:
    for name in ("somebody/some-model", "gpt2"):
        with pytest.raises(InputError, match="give the folder's path"):
            load(name)
    with pytest.raises(InputError, match="smollm2"):
        load("embedded:smolm2")


def test_pickled_weights_are_refused(tiny_llama: Subject, tmp_path: Path) -> None:
    folder = copied(tiny_llama, tmp_path / "pickled")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"pickled weights.*convert them to safetensors"):
        load(folder)
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(InputError, match="no weights"):
        load(folder)


def test_truncated_weights_are_refused(tiny_llama: Subject, tmp_path: Path) -> None:
    folder = copied(tiny_llama, tmp_path / "cut")
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[:-100])
    with pytest.raises(InputError, match=r"corrupt or truncated.*again"):
        load(folder)


def test_a_missing_shard_is_refused(tiny_llama: Subject, tmp_path: Path) -> None:
    folder = copied(tiny_llama, tmp_path / "shards")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}))
    with pytest.raises(InputError, match=r"model-2\.safetensors is missing"):
        load(folder)


def test_weights_that_would_start_at_random_are_refused(tmp_path: Path) -> None:
    subject = tiny("llama", tied=True)
    folder = copied(subject, tmp_path / "flag")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    with pytest.raises(InputError, match=r"lm_head\.weight.*at random"):
        load(folder)
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 48}))
    with pytest.raises(InputError, match="shapes"):
        load(folder)


def test_broken_or_foreign_configurations_are_refused(tiny_llama: Subject, tmp_path: Path) -> None:
    folder = copied(tiny_llama, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "llama99"}))
    with pytest.raises(InputError, match="upgrade"):
        load(folder)
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "llama99", "auto_map": {"AutoConfig": "code.Configuration"}}))
    with pytest.raises(InputError, match=r"model\.trust_remote_code=true"):
        load(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "vit"}))
    with pytest.raises(InputError, match="not a causal language model"):
        load(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(InputError, match="not valid JSON"):
        load(folder)


def test_a_missing_or_too_large_tokenizer_is_refused(tiny_llama: Subject, tmp_path: Path) -> None:
    folder = copied(tiny_llama, tmp_path / "bare")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    with pytest.raises(InputError, match="tokenizer cannot be loaded"):
        load(folder)
    with pytest.raises(InputError, match="do not belong together"):
        load(tiny("llama", vocab=300).source)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_no_numbers_are_refused(tiny_llama: Subject, tmp_path: Path, bad: float) -> None:
    folder = copied(tiny_llama, tmp_path / "nan")
    cast(Any, tiny_llama.layers[1]).mlp.down_proj.weight.data[3, 5] = bad
    tiny_llama.base.save_pretrained(folder)
    with pytest.raises(InputError, match=r"NaN or infinity \(model\.layers\.1\.mlp\.down_proj"):
        load(folder)


def test_half_precision_on_gemma_is_refused() -> None:
    with pytest.raises(InputError, match=r"model\.dtype=bfloat16"):
        load(tiny("gemma3").source, dtype="float16")
    assert load(tiny("llama").source, dtype="float16").base.dtype == torch.float16


def test_a_quantised_base_is_not_trained_in_full(tiny_llama: Subject) -> None:
    require_trainable_in_full(tiny_llama)
    tiny_llama.base.config.quantization_config = {"quant_method": "gptq"}
    with pytest.raises(InputError, match="adapter"):
        require_trainable_in_full(tiny_llama)


def test_wrong_settings_are_refused_with_a_hint(tiny_llama: Subject) -> None:
    with pytest.raises(InputError, match=r"model\.templat.*did you mean 'template'"):
        load(tiny_llama.source, templat="chat")
    with pytest.raises(InputError, match=r"model\.dtype"):
        load(ModelSpec(path=tiny_llama.source), dtype="float8")
    with pytest.raises(InputError, match=r"model\.device=cuda:7|no such device|has none"):
        load(tiny_llama.source, device="cuda:7" if not torch.cuda.is_available() else "tpu")
    with pytest.raises(InputError, match="allowed"):
        load(tiny_llama.source, device="gpu")


# Fingerprints -----------------------------------------------------------------------------------------------------


def test_the_fingerprint_sees_every_parameter_and_nothing_else(tiny_llama: Subject) -> None:
    before = tiny_llama.fingerprint()
    assert tiny("llama").fingerprint() == before == model_fingerprint(tiny_llama.model)
    assert tiny("llama", seed=1).fingerprint() != before
    cast(Any, tiny_llama.layers[1]).input_layernorm.weight.data[0] += 1e-6
    assert tiny_llama.fingerprint() != before
    assert adapted(tiny("llama")).fingerprint() != before
    assert load(tiny("llama").source, dtype="bfloat16").fingerprint() != before


def test_the_tokenizer_fingerprint_ignores_how_it_was_last_called(tiny_llama: Subject) -> None:
    tokenizer = tiny_llama.tokenizer
    before = tokenizer_fingerprint(tokenizer)
    tokenizer(["a", "b c d"], padding=True, truncation=True, max_length=2)
    assert tokenizer_fingerprint(tokenizer) == before
    tokenizer.chat_template = "{{ messages }}"
    assert tokenizer_fingerprint(tokenizer) != before


@pytest.mark.parametrize("change", [{"tie_word_embeddings": -1}, {"vocab_size": []}, {"dtype": "float32}{", "torch_dtype": "float32}{"}])
def test_a_damaged_configuration_is_one_line(tmp_path: Path, change: dict[str, Any]) -> None:
    folder = save(tiny("llama"), tmp_path / "model", provenance={})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **change}))
    refused(lambda: load(folder), str(folder))
