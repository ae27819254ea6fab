"""Sparse autoencoders: the formulas against loops, training on made activations, folders, and sae-lens."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from typer.testing import CliRunner

from conftest import refused, tiny
from excise.cli import app
from excise.data.encode import encode
from excise.data.example import Example
from excise.factorise.autoencoder import Autoencoder, reconstruction
from excise.factorise.topk_sae import TopKTraining
from excise.hidden import replaced
from excise.sae.folder import CONFIG, WEIGHTS, load_sae, save_sae
from excise.sae.text import hidden_states, loss_with
from excise.sae.train import train_sae
from excise.stages.salience import Choice, counted, density


def random_autoencoder(width: int = 6, features: int = 9, seed: int = 0, **more: Any) -> Autoencoder:
    draw = torch.Generator().manual_seed(seed)
    shapes = ((width, features), (features,), (features, width), (width,))
    encoder, encoder_bias, decoder, decoder_bias = (torch.randn(*shape, generator=draw) for shape in shapes)
    return Autoencoder(encoder, encoder_bias, decoder, decoder_bias, **more)


def naive(a: Autoencoder, x: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Activations and reconstruction in float64 loops."""
    enc, be, dec, bd = (v.double().numpy() for v in (a.encoder, a.encoder_bias, a.decoder, a.decoder_bias))
    activations, again = np.zeros((len(x), a.features)), np.zeros(x.shape)
    for i, row in enumerate(x.double().numpy()):
        pre = [sum((row[d] - bd[d] * a.centred) * enc[d, f] for d in range(a.width)) + be[f] for f in range(a.features)]
        kept = sorted(range(a.features), key=lambda f: -pre[f])[: a.k or a.features]
        for f in kept:
            limit = 0.0 if a.threshold is None else float(a.threshold[f])
            activations[i, f] = max(pre[f], 0.0) if pre[f] > limit else 0.0
        again[i] = bd + sum(activations[i, f] * dec[f] for f in range(a.features))
    return activations, again


FORMS: list[dict[str, Any]] = [{"k": 3}, {}, {"threshold": torch.linspace(0.0, 2.0, 9)}, {"k": 20, "centred": False}]


@pytest.mark.parametrize("form", FORMS, ids=["topk", "relu", "jumprelu", "not centred"])
def test_the_formulas_are_those_of_the_loops(form: dict[str, Any]) -> None:
    a, x = random_autoencoder(**form), torch.randn(7, 6, generator=torch.Generator().manual_seed(1))
    activations, again = naive(a, x)
    np.testing.assert_allclose(a.encode(x).numpy(), activations, atol=1e-5)
    np.testing.assert_allclose(a(x).numpy(), again, atol=1e-4)
    told = reconstruction(a, x, rows=2)
    expected = 1 - ((x.double().numpy() - again) ** 2).sum() / ((x.double() - x.double().mean(0)) ** 2).sum().item()
    assert told.explained_variance == pytest.approx(expected, abs=1e-5)
    assert told.active == pytest.approx((activations > 0).sum(1).mean())
    assert told.dead == pytest.approx((activations.max(0) == 0).mean())


# Training ------------------------------------------------------------------------------------------------------------


def sparse_data(n: int = 3000, width: int = 16, true: int = 24, active: int = 3) -> tuple[Tensor, Tensor]:
    """Tokens that are sums of a few of ``true`` directions, far from the origin, and the directions."""
    draw = torch.Generator().manual_seed(5)
    directions = torch.nn.functional.normalize(torch.randn(true, width, generator=draw), dim=-1)
    x = torch.zeros(n, width)
    for i in range(n):
        chosen = torch.randperm(true, generator=draw)[:active]
        x[i] = ((1 + torch.rand(active, generator=draw))[:, None] * directions[chosen]).sum(0)
    return 40 * x + 100, directions


TRAINING = TopKTraining(width=48, k=3, steps=400, batch=128, lr=1e-2, dead_after=1000)


def test_training_finds_the_directions_that_the_data_are_made_of() -> None:
    x, directions = sparse_data()
    seen: list[float] = []
    a = TRAINING(x[:2500], seen.append)
    assert len(seen) == 400
    assert np.mean(seen[-20:]) < 0.3 * np.mean(seen[:20])
    told = reconstruction(a, x[2500:])
    assert told.explained_variance > 0.9
    assert 2.0 < told.active <= 3.0
    torch.testing.assert_close(a.decoder.norm(dim=-1), torch.ones(48), rtol=1e-5, atol=1e-5)
    found = (directions @ a.decoder.T).max(-1).values
    assert float((found > 0.9).double().mean()) > 0.8


def test_the_auxiliary_loss_wakes_dead_features() -> None:
    x, _ = sparse_data(1500)
    dead = [reconstruction(TopKTraining(**{**vars(TRAINING), "auxiliary": weight, "steps": 300})(x), x).dead for weight in (0.0, 1 / 32)]
    assert dead[1] < dead[0]


def test_training_repeats_itself_to_the_bit_and_the_seed_matters() -> None:
    x = sparse_data(400)[0]
    runs = [TopKTraining(width=20, k=3, steps=20, batch=64, seed=seed)(x) for seed in (1, 1, 2)]
    assert torch.equal(runs[0].encoder, runs[1].encoder)
    assert torch.equal(runs[0].decoder_bias, runs[1].decoder_bias)
    assert not torch.equal(runs[0].encoder, runs[2].encoder)


def test_where_the_data_are_moved_and_scaled_the_autoencoder_moves_with_them() -> None:
    x = sparse_data(400)[0]
    training = TopKTraining(width=20, k=3, steps=50, batch=64)
    plain, moved = training(x), training(1000 * x - 7)
    torch.testing.assert_close(1000 * plain.encode(x), moved.encode(1000 * x - 7), rtol=1e-2, atol=30.0)


@pytest.mark.parametrize(
    ("x", "parts"),
    [
        (torch.ones(1, 4), ["1 activation(s)", "more text"]),
        (torch.ones(9, 4), ["all activations are the same"]),
        (torch.full((9, 4), torch.nan), ["not finite"]),
    ],
)
def test_activations_that_cannot_be_learned_from(x: Tensor, parts: list[str]) -> None:
    refused(lambda: TopKTraining(width=8, k=2, steps=2)(x), *parts)


def test_settings_out_of_bounds() -> None:
    refused(lambda: TopKTraining(width=8, k=9), "k = 9", "only 8 features")
    refused(lambda: TopKTraining(batch=0), "batch = 0")


# Hidden states --------------------------------------------------------------------------------------------------------

TEXTS = ("The book about the river was written by Anna Brandt.", "A grey fox lives in the forest near Elm Lake.", "It opened in 1887.")


def encoded(subject: Any) -> list[Any]:
    return [encode(subject.tokenizer, subject.template, Example(f"t{i}", "", text)) for i, text in enumerate(TEXTS)]


def test_hidden_states_come_in_order_whatever_the_batches(tiny_subject: Any) -> None:
    texts = encoded(tiny_subject)
    together, apart = (hidden_states(tiny_subject, texts, 1, max_tokens=n) for n in (4096, 8))
    assert [len(part) for part in together] == [text.scored for text in texts]
    for a, b in zip(together, apart, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_the_loss_with_something_else_in_place(tiny_subject: Any) -> None:
    texts = encoded(tiny_subject)
    plain = loss_with(tiny_subject, texts, 0, None)
    assert loss_with(tiny_subject, texts, 0, lambda x: x) == pytest.approx(plain, abs=1e-5)
    assert abs(loss_with(tiny_subject, texts, 0, torch.zeros_like) - plain) > 1e-3
    assert loss_with(tiny_subject, texts, 0, None) == pytest.approx(plain, abs=1e-6)  # the hook is gone
    assert loss_with(tiny_subject, texts, 0, torch.zeros_like, max_tokens=8) == pytest.approx(
        loss_with(tiny_subject, texts, 0, torch.zeros_like), abs=1e-4
    )
    with replaced(tiny_subject.layers, 0, None):
        pass
    refused(lambda: loss_with(tiny_subject, texts, 7, None), "layer 7 does not exist")


# Folders --------------------------------------------------------------------------------------------------------------


def saved(folder: Path, subject: Any, layer: int = 1, **more: Any) -> Path:
    width = subject.base.config.hidden_size
    return save_sae(random_autoencoder(width, 24, k=4), subject, layer, folder / "sae", quality={}, settings={}, overwrite=True, **more)


def test_a_saved_autoencoder_comes_back(tmp_path: Path, tiny_llama: Any) -> None:
    folder = saved(tmp_path, tiny_llama)
    again = load_sae(str(folder))
    x = torch.randn(5, 32)
    assert torch.equal(again.autoencoder.encode(x), random_autoencoder(32, 24, k=4).encode(x))
    assert again.fits(tiny_llama) == 1
    assert again.model["fingerprint"] == tiny_llama.fingerprint()


def rewrite(folder: Path, change: Any = None, tensors: Any = None) -> str:
    config = json.loads((folder / CONFIG).read_text())
    values = load_file(folder / WEIGHTS)
    if change is not None:
        change(config)
    if tensors is not None:
        tensors(values)
    (folder / CONFIG).write_text(json.dumps(config))
    save_file(values, folder / WEIGHTS)
    return str(folder)


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (lambda c: c.update(architecture="gated"), ["architecture 'gated'", "standard, topk, jumprelu"]),
        (lambda c: c.update(normalize_activations="layer_norm"), ["normalize_activations = 'layer_norm'"]),
        (lambda c: c["metadata"].update(hook_name="blocks.1.hook_mlp_out"), ["blocks.1.hook_mlp_out", "hook_resid_post"]),
        (lambda c: c.pop("k"), ["does not say k"]),
        (lambda c: c.update(architecture="jumprelu"), ["no tensor 'threshold'"]),
    ],
)
def test_a_folder_that_excise_cannot_use(tmp_path: Path, tiny_llama: Any, change: Any, parts: list[str]) -> None:
    folder = saved(tmp_path, tiny_llama)
    refused(lambda: load_sae(rewrite(folder, change)), str(folder), *parts)


def test_a_folder_that_is_broken(tmp_path: Path, tiny_llama: Any) -> None:
    refused(lambda: load_sae(str(tmp_path / "no")), "there is no SAE folder", "excise sae train")
    folder = saved(tmp_path, tiny_llama)
    refused(lambda: load_sae(rewrite(folder, tensors=lambda t: t.update(b_dec=torch.zeros(3)))), "do not fit together", "b_dec [3]")
    (folder / WEIGHTS).write_bytes(b"none")
    refused(lambda: load_sae(str(folder)), "is not a safetensors file")
    (folder / WEIGHTS).unlink()
    refused(lambda: load_sae(str(folder)), "there is no file", WEIGHTS)


def test_the_wrong_model_or_layer_is_one_clear_line(tmp_path: Path, tiny_llama: Any) -> None:
    sae = load_sae(str(saved(tmp_path, tiny_llama)))
    refused(lambda: sae.fits(tiny("llama", width=64)), "reads 32 values", "hidden states of 64", "excise sae train")
    refused(lambda: sae.fits(tiny("qwen3")), "trained on another model", "class LlamaForCausalLM against Qwen3ForCausalLM")
    refused(lambda: sae.fits(tiny("llama", layers=3)), "layers 2 against 3")
    refused(lambda: sae.fits(tiny_llama, 0), "reads after layer 1, not 0")
    nowhere = load_sae(rewrite(tmp_path / "sae", lambda c: c["metadata"].pop("hook_name")))
    refused(lambda: nowhere.fits(tiny_llama), "does not say which layer", "sae_layer")
    assert nowhere.fits(tiny_llama, 0) == 0
    refused(lambda: nowhere.fits(tiny_llama, 5), "layer 5 does not exist")


@pytest.mark.parametrize(("hook", "layer"), [("blocks.1.hook_resid_post", 1), ("blocks.1.hook_resid_pre", 0), ("model.layers.1", 1)])
def test_hooks_name_layers(tmp_path: Path, tiny_llama: Any, hook: str, layer: int) -> None:
    folder = saved(tmp_path, tiny_llama)
    assert load_sae(rewrite(folder, lambda c: c["metadata"].update(hook_name=hook))).layer == layer


def test_older_files_and_decoder_norms(tmp_path: Path, tiny_llama: Any) -> None:
    folder = saved(tmp_path, tiny_llama)
    plain = load_sae(str(folder)).autoencoder
    x = torch.randn(5, 32)

    def old(config: dict[str, Any]) -> None:
        config.update(
            architecture="standard", activation_fn_str="topk", activation_fn_kwargs={"k": config.pop("k")}, hook_name="blocks.1.hook_resid_post"
        )
        config.pop("metadata")

    again = load_sae(rewrite(folder, old))
    assert again.layer == 1
    assert torch.equal(again.autoencoder.encode(x), plain.encode(x))
    scaled = load_sae(rewrite(folder, lambda c: c.update(rescale_acts_by_decoder_norm=True))).autoencoder
    torch.testing.assert_close(scaled.decoder.norm(dim=-1), torch.ones(24))
    pre = plain.pre(x) * plain.decoder.norm(dim=-1)
    torch.testing.assert_close(scaled.pre(x), pre)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("sae_lens") is None, reason='sae-lens is not installed: pip install "excise[sae]"')
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("architecture", ["topk", "standard", "jumprelu"])
def test_sae_lens_reads_our_folders_and_we_read_its(tmp_path: Path, tiny_llama: Any, architecture: str) -> None:
    from sae_lens import SAE  # pyright: ignore[reportMissingImports]

    from excise.sae.lens import from_lens

    x = torch.randn(5, 32)

    def change(config: dict[str, Any]) -> None:
        config["architecture"] = architecture
        if architecture != "topk":
            del config["k"], config["rescale_acts_by_decoder_norm"]

    def more(tensors: dict[str, Tensor]) -> None:
        if architecture == "jumprelu":
            tensors["threshold"] = torch.linspace(0.0, 3.0, 24)

    folder = rewrite(saved(tmp_path, tiny_llama), change, more)
    ours = load_sae(folder)
    theirs: Any = SAE.load_from_disk(folder)
    torch.testing.assert_close(theirs.encode(x), ours.autoencoder.encode(x), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(theirs(x), ours.autoencoder(x), rtol=1e-4, atol=1e-4)
    theirs.save_model(tmp_path / "theirs")
    for again in (load_sae(str(tmp_path / "theirs")), from_lens(theirs, "saelens:x/y")):
        assert again.layer == 1
        torch.testing.assert_close(again.autoencoder.encode(x), ours.autoencoder.encode(x))


def test_without_sae_lens_published_names_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sae_lens", None)
    refused(lambda: load_sae("saelens:gemma/x"), "excise[sae]")
    refused(lambda: load_sae("saelens:gemma"), "expected saelens:RELEASE/ID")


# `excise sae train` ---------------------------------------------------------------------------------------------------


def text_file(folder: Path) -> str:
    file = folder / "text.txt"
    file.write_text("\n\n".join(f"The {a} near the {b} was old, and nobody knew who built it in {n}." for n in range(12) for a, b in
                                (("mill", "river"), ("bridge", "lake"), ("tower", "forest"))))  # fmt: skip
    return str(file)


def test_an_autoencoder_of_ones_own_text(tmp_path: Path, tiny_llama: Any) -> None:
    training = TopKTraining(width=64, k=8, steps=150, batch=64, lr=3e-3)
    quality = train_sae(tiny_llama, [text_file(tmp_path)], 0, tmp_path / "sae", training)
    assert quality.explained_variance > 0.7
    assert quality.loss_zero > quality.loss
    assert quality.loss_recovered > 0.5
    assert 0 <= quality.dead < 1
    assert 0 < quality.active <= 8
    told = json.loads((tmp_path / "sae" / "quality.json").read_text())
    assert told["loss_recovered"] == pytest.approx(quality.loss_recovered)
    assert "river" not in (tmp_path / "sae" / CONFIG).read_text() + json.dumps(told)
    again = load_sae(str(tmp_path / "sae"))
    assert again.fits(tiny_llama) == 0
    refused(lambda: train_sae(tiny_llama, [text_file(tmp_path)], 0, tmp_path / "sae", training), "exists", "--overwrite")
    refused(lambda: train_sae(tiny_llama, [text_file(tmp_path)], 9, tmp_path / "x", training), "layer 9 does not exist")
    (tmp_path / "short.txt").write_text("Only one sentence stands here, and that is all.")
    refused(lambda: train_sae(tiny_llama, [str(tmp_path / "short.txt")], 0, tmp_path / "x", training), "1 passage(s)", "more text")


def test_the_command(tmp_path: Path, tiny_llama: Any) -> None:
    given = ["sae", "train", tiny_llama.source, "--text", text_file(tmp_path), "--layer", "0", "--out", str(tmp_path / "sae")]
    result = CliRunner().invoke(app, [*given, "--width", "32", "--k", "4", "--steps", "3", "--batch", "16"])
    assert result.exit_code == 0, result.output
    for part in ("explained variance", "loss recovered", "dead features", str(tmp_path / "sae")):
        assert part in result.output
    assert load_sae(str(tmp_path / "sae")).autoencoder.k == 4


# Which features -------------------------------------------------------------------------------------------------------


def test_features_are_chosen_by_count_and_ratio() -> None:
    a = Autoencoder(torch.eye(5), torch.zeros(5), torch.eye(5), torch.zeros(5))
    target = [torch.tensor([[9.0, 1, 0, 3, 1], [9.0, 1, 0, 3, 0]]), torch.tensor([[0.0, 1, 0, 3, 0]])]
    benign = [torch.tensor([[0.0, 1, 5, 0, 0]] * 6)]
    on, off = counted(a, target), counted(a, benign)
    assert (on.tokens, on.count.tolist(), on.total.tolist()) == (3, [2, 3, 0, 3, 1], [18, 3, 0, 9, 1])
    assert off.for_tokens(3).count.tolist() == [0, 3, 3, 0, 0]
    assert [f.index for f in Choice(k=5)(on, off)] == [0, 3]  # 18 / 1, 9 / 1; feature 4 has 1 / 1
    assert [f.index for f in Choice(k=5, rank_by="count")(on, off)] == [3, 0]
    assert [f.index for f in Choice(k=1)(on, off)] == [0]
    assert [f.index for f in Choice(k=5, candidates=1)(on, off)] == [3]
    assert Choice(ratio=100.0)(on, off) == ()
    assert density(a, target, (0, 3)) == pytest.approx(5 / 3)
