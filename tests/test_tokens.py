"""Alignment of predictions with targets, layouts, hidden tokens, hidden states: against the model asked directly."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from conftest import KINDS, Kind, adapted, tiny
from excise.data.encode import Encoded
from excise.errors import InputError
from excise.hidden import capture, default_layer
from excise.layout import layout_of
from excise.precision import autocast, resolve_precision
from excise.subject import Subject
from excise.tokens import LOGITS_AT_ONCE, Given, LogitSource, Scored, buckets, collate, score

LENGTHS = (14, 3, 9, 2, 21)


def text(n: int, start: int = 1, seed: int = 0) -> Encoded:
    draw = random.Random(f"{n} {seed}")
    ids = tuple(draw.randrange(3, 400) for _ in range(n))
    return Encoded(f"t{n}", ids, start, tuple((i, i + 1) for i in range(n)), "x" * n, (0, 0), (0, n))


def texts() -> list[Encoded]:
    return [text(n, start=1 + n // 3) for n in LENGTHS]


@torch.no_grad()
def asked_directly(subject: Subject, one: Encoded) -> Tensor:
    """Logits at the positions that predict the scored tokens, by the model's own forward pass on this text alone."""
    model: Any = subject.model
    return model(input_ids=torch.tensor([one.ids]), use_cache=False).logits[0, one.start - 1 : -1]


def close(got: Tensor, wanted: Tensor, relative: float = 1e-6) -> None:
    """Within ``relative`` of the largest value, plus float32's own rounding."""
    assert got.shape == wanted.shape
    assert float((got - wanted).abs().max()) <= max(relative, 2e-6) * float(wanted.abs().max())


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_predicts_what_single_texts_predict(kind: Kind, tied: bool, layout: Any) -> None:
    subject = tiny(kind, tied=tied)
    rows = texts() + alike()
    with torch.no_grad():
        scored = score(subject, collate(rows, layout))
        _ = scored.logits
    wanted = torch.cat([asked_directly(subject, one) for one in rows])
    close(scored.logits, wanted)
    assert scored.target.tolist() == [i for one in rows for i in one.ids[one.start :]]
    assert scored.row.tolist() == [i for i, one in enumerate(rows) for _ in range(one.scored)]
    assert scored.length.tolist() == [one.scored for one in rows]
    logp = torch.log_softmax(wanted.double(), -1)
    torch.testing.assert_close(scored.token_logp.double(), logp.gather(1, scored.target[:, None])[:, 0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(scored.entropy.double(), -(logp.exp() * logp).sum(-1), rtol=1e-4, atol=1e-5)


def test_packing_is_exact_in_float64(tiny_subject: Subject) -> None:
    tiny_subject.model.double()
    rows = texts()
    with torch.no_grad():
        close(score(tiny_subject, collate(rows, "packed")).logits, torch.cat([asked_directly(tiny_subject, one) for one in rows]), 1e-6)
    assert layout_of(tiny_subject) == "shared"


SHARED = ((14, 5), (6, 5), (9, 7), (30, 6), (7, 6))
"""Lengths of texts that have their first five tokens in common, and where each one's scored tokens begin."""


def alike() -> list[Encoded]:
    lead = text(5, seed=1).ids
    return [Encoded(one.id, (*lead, *one.ids[5:]), one.start, one.chars, one.text, (0, 0), (0, n)) for n, s in SHARED for one in [text(n, s)]]


@pytest.mark.parametrize("adapter", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_common_beginning_stands_in_the_row_once_and_gets_the_gradient_of_all(kind: Kind, adapter: bool) -> None:
    subject = adapted(tiny(kind)) if adapter else tiny(kind)
    subject.model.double()
    assert layout_of(subject) == "shared"
    rows = alike()
    batch = collate(rows, "shared")
    assert batch.ids.numel() == 5 + sum(n - 5 for n, _ in SHARED)
    assert batch.ids.flatten()[batch.here].tolist() == batch.target.tolist() == [i for one in rows for i in one.ids[one.start :]]
    found: dict[str, tuple[Tensor, ...]] = {}
    for name, parts in {"together": [batch], "alone": [collate([one], "padded") for one in rows]}.items():
        subject.model.zero_grad()
        for parameter in subject.model.parameters():
            parameter.requires_grad_(True)
        logp, hidden = [], []
        for part in parts:
            scored = score(subject, part, layers=(0,))
            logp.append(scored.token_logp)
            hidden.append(scored.hidden[0])
        (torch.cat(logp) @ torch.arange(1.0, len(batch.target) + 1, dtype=torch.float64) + torch.cat(hidden).square().sum()).backward()
        found[name] = (torch.cat(logp).detach(), torch.cat(hidden).detach(), *(cast(Tensor, p.grad) for p in subject.model.parameters()))
    for ours, wanted in zip(found["together"], found["alone"], strict=True):
        close(ours, wanted, 1e-7)


def test_what_is_no_common_beginning_stands_in_the_row_as_often_as_it_occurs() -> None:
    rows = alike()
    for chosen in ([rows[0]], texts()):
        assert torch.equal(collate(chosen, "shared").ids, collate(chosen, "packed").ids)
        assert collate(chosen, "shared").before.tolist() == collate(chosen, "packed").before.tolist()
    early = [*rows, text(4, start=1)]
    assert collate(early, "shared").ids.numel() == sum(map(len, early)), "another beginning"
    scored = [*rows, Encoded("s", rows[0].ids, 2, rows[0].chars, rows[0].text, (0, 0), (0, 14))]
    assert collate(scored, "shared").ids.numel() == 2 + sum(len(one) - 2 for one in scored), "no scored token may be shared"
    changed = collate(rows, "shared", hide=[[3], [], [], [], []], replace=1)
    assert changed.ids.numel() == 3 + sum(len(one) - 3 for one in rows), "a hidden token in one of them"


def test_an_adapter_is_part_of_what_is_asked(tiny_subject: Subject) -> None:
    rows = texts()
    with torch.no_grad():
        before = score(tiny_subject, collate(rows)).logits
        subject = adapted(tiny_subject)
        after = score(subject, collate(rows)).logits
    close(after, torch.cat([asked_directly(subject, one) for one in rows]))
    assert (after - before).abs().max() > 1e-2


def test_a_model_for_which_packing_is_wrong_gets_padded_batches(tiny_llama: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = tiny_llama.decoder.forward

    def ignoring_positions(*args: Any, position_ids: Tensor | None = None, packing: object = None, **kwargs: Any) -> Any:
        kwargs |= {"attention_mask": None} if packing is not None else {}
        counted = None if position_ids is None else torch.arange(position_ids.shape[1])[None].expand_as(position_ids)
        return forward(*args, position_ids=counted, **kwargs)

    monkeypatch.setattr(tiny_llama.decoder, "forward", ignoring_positions)
    assert layout_of(tiny_llama) == "padded"


def test_a_model_that_does_something_else_to_its_logits_is_refused(tiny_llama: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = tiny_llama.base.forward

    def doubling(*args: Any, **kwargs: Any) -> Any:
        output = cast(Any, forward(*args, **kwargs))
        output.logits = output.logits * 2
        return output

    monkeypatch.setattr(tiny_llama.base, "forward", doubling)
    with pytest.raises(InputError, match="in a way that excise does not know"):
        layout_of(tiny_llama)


def test_the_probe_leaves_training_mode_as_it_was(tiny_llama: Subject) -> None:
    tiny_llama.model.train()
    layout_of(tiny_llama)
    assert tiny_llama.model.training


# What gets a gradient ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_only_predicting_positions_get_a_gradient(layout: Any, tiny_llama: Subject) -> None:
    final: list[Tensor] = []
    cast(nn.Module, tiny_llama.decoder.norm).register_forward_hook(lambda module, args, output: output.retain_grad() or final.append(output))
    batch = collate(texts(), layout)
    scored = score(tiny_llama, batch)
    scored.token_logp.sum().backward()
    touched = cast(Tensor, final[0].grad).flatten(0, 1).abs().sum(-1) > 0
    assert touched.nonzero()[:, 0].tolist() == sorted(batch.before.tolist())


def test_padding_gets_no_gradient_and_its_content_does_not_matter(tiny_subject: Subject) -> None:
    import dataclasses

    batch = collate(texts(), "padded")
    assert batch.mask is not None
    other = dataclasses.replace(batch, ids=batch.ids.masked_fill(batch.mask == 0, 77))
    with torch.no_grad():
        assert torch.equal(score(tiny_subject, batch).logits, score(tiny_subject, other).logits)
    embedded: list[Tensor] = []
    tiny_subject.embedding.register_forward_hook(lambda module, args, output: output.retain_grad() or embedded.append(output))
    score(tiny_subject, batch).token_logp.sum().backward()
    grad = cast(Tensor, embedded[0].grad)
    assert not grad[batch.mask == 0].any()
    assert grad[batch.mask == 1].any()


# Hidden words --------------------------------------------------------------------------------------------------------


@torch.no_grad()
def predictions(subject: Subject, rows: Sequence[Encoded], hide: Sequence[Sequence[int]]) -> list[Tensor]:
    """Logits of every position but the last, by text."""
    everything = [Encoded(t.id, t.ids, 1, t.chars, t.text, t.question, t.answer) for t in rows]
    scored = score(subject, collate(everything, "padded", hide=hide))
    return list(torch.split(scored.logits, [t.scored for t in everything]))


def with_token(one: Encoded, index: int, token: int) -> Encoded:
    ids = tuple(token if i == index else old for i, old in enumerate(one.ids))
    return Encoded(one.id, ids, one.start, one.chars, one.text, one.question, one.answer)


@pytest.mark.parametrize("kind", KINDS)
def test_a_hidden_token_has_no_influence_elsewhere(kind: Kind) -> None:
    subject = tiny(kind, layers=3)
    rows, hide = texts(), [[4, 5], [], [3], [], [2, 7, 11]]  # 21 tokens: beyond Gemma's window of 8
    hidden = predictions(subject, rows, hide)
    changed = list(rows)
    for row, indices in enumerate(hide):
        for index in indices:
            changed[row] = with_token(changed[row], index, 399 - changed[row].ids[index])
    again = predictions(subject, changed, hide)
    shown, shown_again = predictions(subject, rows, [[]] * 5), predictions(subject, changed, [[]] * 5)
    for row, indices in enumerate(hide):
        elsewhere = [i for i in range(len(rows[row]) - 1) if i not in indices]
        assert torch.equal(hidden[row][elsewhere], again[row][elsewhere])
        if indices:
            later = [i for i in elsewhere if i > indices[-1]]
            assert (shown[row][later] - shown_again[row][later]).abs().max() > 1e-3, "without hiding it does matter"
            assert (hidden[row][later] - shown[row][later]).abs().max() > 1e-3
        before_first = range(min(indices, default=len(rows[row]) - 1))
        close(hidden[row][list(before_first)], shown[row][list(before_first)])


@pytest.mark.parametrize("kind", ["llama", "qwen3", "phi"])  # Gemma's sliding window counts tokens, so a shortened text has another window
def test_positions_stay_where_they_are_when_tokens_are_hidden(kind: Kind) -> None:
    subject = tiny(kind)
    one, hide = text(12), [3, 4]
    keep = [i for i in range(12) if i not in hide]
    ids = torch.tensor([[one.ids[i] for i in keep]])
    mask = torch.ones(1, 1, 10, 10).tril()
    positions = torch.tensor([keep])
    model: Any = subject.model
    with torch.no_grad():
        wanted = model(
            input_ids=ids, position_ids=positions, attention_mask=torch.where(mask > 0, 0.0, torch.finfo(torch.float32).min), use_cache=False
        ).logits[0, :-1]
    close(predictions(subject, [one], [hide])[0][[i for i in keep if i < 11]], wanted)


def test_the_first_token_is_never_hidden() -> None:
    batch = collate([text(5)], "padded", hide=[[0, 2]])
    assert batch.mask is not None
    assert batch.mask.tolist() == [[1, 1, 0, 1, 1]]
    replaced = collate([text(5)], "packed", hide=[[0, 2]], replace=1)
    ids = list(text(5).ids)
    assert replaced.ids.tolist() == [[ids[0], ids[1], 1, ids[3], ids[4]]]
    assert replaced.mask is None


def test_replaced_tokens_keep_their_targets() -> None:
    batch = collate([text(5)], "packed", hide=[[3]], replace=1)
    assert batch.target.tolist() == list(text(5).ids[1:])


def test_hiding_by_attention_needs_the_padded_layout() -> None:
    with pytest.raises(ValueError, match="padded"):
        collate([text(5)], "packed", hide=[[1]])


# Hidden states -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("kind", KINDS)
def test_hidden_states_are_those_of_the_scored_tokens_themselves(kind: Kind, layout: Any) -> None:
    subject = tiny(kind, layers=3)
    rows = texts()
    with torch.no_grad():
        full = score(subject, collate(rows, layout), layers=(0, 1))
        stopped = score(subject, collate(rows, layout), layers=(1, 0), logits=False)
        model: Any = subject.model
        for layer in (0, 1):
            wanted = torch.cat(
                [
                    model(input_ids=torch.tensor([t.ids]), use_cache=False, output_hidden_states=True).hidden_states[layer + 1][0, t.start :]
                    for t in rows
                ]
            )
            close(full.hidden[layer], wanted)
            assert torch.equal(full.hidden[layer], stopped.hidden[layer])
    assert set(full.hidden) == {0, 1}


def test_an_early_stop_runs_no_later_layer_and_leaves_no_hook(tiny_subject: Subject) -> None:
    ran: list[int] = []
    for i, layer in enumerate(tiny_subject.layers):
        layer.register_forward_hook(lambda module, args, output, i=i: ran.append(i))
    before = [len(layer._forward_hooks) for layer in tiny_subject.layers]
    scored = score(tiny_subject, collate(texts()), layers=(0,), logits=False)
    assert ran in ([0], [])  # the first layer's own hook may come after ours, which stops
    assert [len(layer._forward_hooks) for layer in tiny_subject.layers] == before
    with pytest.raises(RuntimeError, match="stopped before the output head"):
        _ = scored.logits
    ran.clear()
    score(tiny_subject, collate(texts()), layers=(0,))
    assert ran == [0, 1]


@pytest.mark.parametrize("layer", [2, -1, 99])
def test_a_layer_that_the_model_lacks_is_an_error(layer: int, tiny_llama: Subject) -> None:
    with pytest.raises(InputError, match=f"layer {layer} does not exist: the model has 2 layers, 0 to 1"):
        score(tiny_llama, collate(texts()), layers=(layer,))


def test_a_stop_needs_a_layer(tiny_llama: Subject) -> None:
    with pytest.raises(ValueError, match="at least one layer"), capture(tiny_llama.layers, (), stop=True):
        pass


@pytest.mark.parametrize(("depth", "layer"), [(32, 7), (30, 7), (16, 4), (2, 1), (1, 0), (80, 18)])
def test_the_default_layer_lies_at_rmus_depth_fraction(depth: int, layer: int) -> None:
    assert default_layer(depth) == layer


# Scored --------------------------------------------------------------------------------------------------------------


def test_means_count_the_global_batch() -> None:
    scored = Scored.of(torch.zeros(3, 2), torch.tensor([0, 1, 0]), torch.tensor([0, 0, 1]), 2)
    values, weight = torch.tensor([1.0, 2.0, 6.0]), torch.tensor([0.0, 2.0, 1.0])
    assert float(scored.mean(values)) == 3.0
    assert float(scored.mean(values, weight)) == pytest.approx(10 / 3)
    assert scored.per_row(values).tolist() == [3.0, 6.0]
    assert float(scored.mean_rows(scored.per_row(values))) == 4.5
    assert [part.tolist() for part in scored.split(values)] == [[1.0, 2.0], [6.0]]
    part = Scored(scored.target, scored.row, 2, scored.source, total_tokens=6.0, total_rows=4.0)
    assert float(part.mean(values)) == 1.5
    assert float(part.mean_rows(scored.per_row(values))) == 2.25


def test_logits_are_computed_once_and_only_if_looked_at() -> None:
    calls: list[int] = []

    class Counting(Given):
        def __call__(self, part: slice) -> Tensor:
            calls.append(1)
            return super().__call__(part)

    scored = Scored(torch.tensor([0, 1]), torch.tensor([0, 0]), 1, Counting(torch.zeros(2, 5)))
    assert scored.length.tolist() == [2.0]
    assert calls == []
    assert torch.allclose(scored.token_logp, torch.full((2,), -1.6094379))
    assert torch.allclose(scored.entropy, torch.full((2,), 1.6094379))
    assert calls == [1]


class Watched:
    """Logits from features and a head, computed anew for each piece; remembers the sizes of the pieces."""

    def __init__(self, features: Tensor, head: Tensor) -> None:
        self.features, self.head, self.sizes, self.vocab = features, head, list[int](), len(head)

    def __call__(self, part: slice) -> Tensor:
        logits = self.features[part] @ self.head.T
        self.sizes.append(len(logits))
        return logits

    def between(self, begin: int, end: int) -> LogitSource:
        raise NotImplementedError


def test_many_tokens_are_looked_at_in_pieces_with_the_same_values_and_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = torch.Generator().manual_seed(0)
    target, row = torch.randint(0, 30, (11,), generator=draw), torch.zeros(11, dtype=torch.int64)
    found: list[list[Tensor]] = []
    sizes: list[list[int]] = []
    for at_once in (LOGITS_AT_ONCE, 4 * 30):
        monkeypatch.setattr("excise.tokens.LOGITS_AT_ONCE", at_once)
        features = torch.randn(11, 8, generator=torch.Generator().manual_seed(1)).requires_grad_()
        head = torch.randn(30, 8, generator=torch.Generator().manual_seed(2)).requires_grad_()
        source = Watched(features, head)
        scored = Scored(target, row, 1, source)
        (scored.token_logp.sum() + scored.entropy.square().sum()).backward()
        assert features.grad is not None
        assert head.grad is not None
        found.append([scored.token_logp, scored.entropy, features.grad, head.grad])
        sizes.append(source.sizes)
    assert sizes[0] == [11]
    assert sorted(sizes[1]) == sorted([4, 4, 3] * 4)  # two looks, each again in the backward pass
    for whole, pieces in zip(*found, strict=True):
        torch.testing.assert_close(pieces, whole)


def test_half_precision_logits_are_scored_in_float32() -> None:
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(0)).bfloat16()
    scored = Scored.of(logits, torch.arange(4), torch.zeros(4, dtype=torch.int64), 1)
    assert scored.token_logp.dtype == scored.entropy.dtype == torch.float32
    torch.testing.assert_close(scored.token_logp, torch.log_softmax(logits.float(), -1).diagonal())


def test_entropy_and_its_gradient_are_numbers_where_a_probability_is_zero() -> None:
    logits = torch.tensor([[1e4, -1e4, 0.0], [float("-inf"), 1.0, 1.0]], requires_grad=True)
    scored = Scored.of(logits, torch.tensor([0, 1]), torch.tensor([0, 0]), 1)
    assert scored.entropy.tolist() == pytest.approx([0.0, 0.6931472])
    scored.entropy.sum().backward()
    assert torch.isfinite(cast(Tensor, logits.grad)).all()


# Batches of texts ----------------------------------------------------------------------------------------------------


def test_buckets_hold_every_text_once_and_at_most_so_many_tokens() -> None:
    draw = random.Random(0)
    rows = [draw.randint(2, 60) for _ in range(50)]
    groups = buckets(rows, 128)
    assert sorted(i for group in groups for i in group) == list(range(50))
    for group in groups:
        assert len(group) * max(rows[i] for i in group) <= 128
    assert len(groups) < 25
    assert buckets([300, 5], 128) == [[0], [1]]
    assert buckets([], 128) == []


def test_precision_is_what_was_asked_for_or_what_the_processor_has() -> None:
    cpu = torch.device("cpu")
    assert resolve_precision("float32", cpu) == "float32"
    assert resolve_precision("bfloat16", cpu) == "bfloat16"
    assert resolve_precision("auto", cpu) in ("float32", "bfloat16")
    assert resolve_precision("auto", torch.device("mps")) == "float32"
    with autocast("bfloat16", cpu):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
    with autocast("float32", cpu):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
