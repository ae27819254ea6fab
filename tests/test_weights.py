"""Token weights against their naive twins, and how they are computed, masked and remembered."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import Float
from torch import Tensor

import contract
import naive
from conftest import tiny
from excise.data.encode import Encoded, Template, encode
from excise.data.example import Example
from excise.data.nouns import Nouns
from excise.errors import InputError
from excise.reference import key_of
from excise.stages.views import Views, Weigher, contrast_logp, name_pieces
from excise.subject import Subject
from excise.tokens import Scored, collate, score
from excise.view import View
from excise.weights import Attribution, Facts, Uniform
from excise.weights.attribution import hard, soft
from excise.weights.masking import Masking

NORMS = ("minmax", "zscore", "rank", "none")
Norm = Literal["minmax", "zscore", "rank", "none"]
WORDS = Nouns(words=("river", "book", "Anna Brandt"))
RIVER = Example("river", "Who wrote the book about the river?", "The book about the river was written by Anna Brandt, and the book sold.")
OPEN = Example("open", "When did it open?", "It opened in 1887.")
scores = st.lists(st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.7, 1.0]), min_size=1, max_size=12)


@given(scores, st.sampled_from([0.01, 0.2, 0.25, 0.5, 0.6, 1.0]))
def test_hard_selection_equals_its_naive_twin_with_ties(values: list[float], r: float) -> None:
    assert hard(torch.tensor(values), r).tolist() == pytest.approx(naive.hard(values, r))


@given(scores, st.sampled_from([0.05, 0.25, 1.0, 50.0]))
def test_soft_selection_equals_its_naive_twin(values: list[float], tau: float) -> None:
    assert soft(torch.tensor(values, dtype=torch.float64), tau).tolist() == pytest.approx(naive.soft(values, tau))


@pytest.mark.parametrize(
    ("n", "r", "count"), [(5, 0.2, 1), (10, 0.2, 2), (11, 0.2, 3), (1, 0.2, 1), (15, 0.2, 3), (3, 1.0, 3), (35, 0.2, 7), (7, 1e-9, 1)]
)
def test_hard_selection_takes_the_ceiling_of_the_share(n: int, r: float, count: int) -> None:
    weights = hard(torch.arange(n).float(), r)
    assert int((weights > 0).sum()) == count
    assert (weights[n - count :] == n / count).all()
    assert (weights[: n - count] == 0).all()


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("contrasted", [False, True])
@pytest.mark.parametrize("select", ["hard", "soft"])
def test_attribution_equals_its_naive_twin(norm: Norm, contrasted: bool, select: Literal["hard", "soft"]) -> None:
    alpha, r, tau = 0.6, 0.34, 0.4
    weight = Attribution(select=select, r=r, tau=tau, alpha=alpha, norm=norm, contrast="twin" if contrasted else None)
    view = contract.synthetic_view(range(4))
    with torch.no_grad():
        sizes = [int(n) for n in view.model.length]
        parts = [torch.split(x.logits, sizes) for x in (view.model, view.masked, view.contrast)]
    got = view.model.split(weight(view))
    for i, target in enumerate(view.model.split(view.model.target)):
        now, masked, other = (np.asarray(part[i].detach().double()) for part in cast(Any, parts))
        y = target.tolist()
        deltas = naive.contrast(now, other, y) if contrasted else naive.delta(now, masked, y)
        phi = naive.phi(deltas, [naive.entropy(row) for row in now], alpha, norm)
        expected = naive.hard(phi, r) if select == "hard" else naive.soft(phi, tau)
        assert got[i].tolist() == pytest.approx(expected, rel=2e-4, abs=1e-6)


def test_dropped_copies_have_score_zero() -> None:
    view = contract.synthetic_view(range(4))
    phi = Attribution(copies="drop").phi(view)
    kept = Attribution().phi(view)
    assert view.copies.any()
    assert (phi[view.copies] == 0).all()
    assert torch.equal(phi[~view.copies], kept[~view.copies])


@pytest.mark.parametrize("broken", [{"r": 0.0}, {"r": 1.01}, {"r": -0.2}, {"tau": 0.0}, {"alpha": 1.5}, {"alpha": -0.1}, {"tau": float("inf")}])
def test_an_impossible_attribution_is_refused(broken: dict[str, float]) -> None:
    with pytest.raises(InputError, match=f"attribution.{next(iter(broken))} = "):
        Attribution(**cast(Any, broken))


# On a model ----------------------------------------------------------------------------------------------------------


def encoded(subject: Subject, *examples: Example) -> list[Encoded]:
    return [encode(subject.tokenizer, subject.template, e) for e in examples]


def pieces(text: Encoded, indices: Sequence[int]) -> list[str]:
    return [text.text[slice(*text.chars[i])].strip() for i in indices]


def test_only_the_question_is_masked(tiny_llama: Subject) -> None:
    template = Template("chat", system="You write a book by the river.")
    text = encode(tiny_llama.tokenizer, template, RIVER)
    hidden = Masking(WORDS).hidden(text)
    joined = "".join(text.text[slice(*text.chars[i])] for i in hidden)
    assert "book" in joined
    assert "river" in joined
    begin, end = text.question
    assert all(text.chars[i][1] > begin and text.chars[i][0] < end for i in hidden)
    assert all(i < text.start for i in hidden)


def test_mentions_hide_the_later_repetitions_too(tiny_llama: Subject) -> None:
    (text,) = encoded(tiny_llama, RIVER)
    prompt_only, mentions = Masking(WORDS).hidden(text), Masking(WORDS, hide="mentions").hidden(text)
    added = sorted(set(mentions) - set(prompt_only))
    assert set(prompt_only) < set(mentions)
    assert all(i >= text.start for i in added)
    assert "".join(pieces(text, added)) == "bookriverbook"  # "Anna Brandt" is no word of the question


def test_copies_are_the_answer_tokens_that_repeat_the_question(tiny_llama: Subject) -> None:
    text, other = encoded(tiny_llama, RIVER, OPEN)
    copies = Masking(WORDS).copies(text)
    assert len(copies) == text.scored
    assert "".join(pieces(text, [text.start + i for i, c in enumerate(copies) if c])) == "bookriverbook"
    assert not any(Masking(WORDS).copies(other))


def test_in_plain_text_later_mentions_of_a_word_are_copies(tiny_llama: Subject) -> None:
    (text,) = encoded(tiny_llama, Example("t", "", "The book about the river: a book, the Book."))
    copies = Masking(Nouns(words=("book", "river"))).copies(text)
    assert "".join(pieces(text, [text.start + i for i, c in enumerate(copies) if c])) == "bookBook"


def test_the_first_token_of_a_text_is_never_hidden(tiny_llama: Subject) -> None:
    (text,) = encoded(tiny_llama, Example("t", "", "book about the book"))
    hidden = Masking(Nouns(words=("book",))).hidden(text)
    assert 0 not in hidden
    assert hidden


def test_without_nouns_the_score_is_entropy_alone(tiny_llama: Subject) -> None:
    texts = encoded(tiny_llama, OPEN, RIVER)
    weight = Attribution(nouns=WORDS, alpha=0.7)
    both = Views(tiny_llama, "float32", masking=weight.masking).of(texts)
    assert not both.model.split(weight.delta(both))[0].any()  # to the bit, also beside a text that has nouns
    assert both.model.split(weight.delta(both))[1].any()
    view = Views(tiny_llama, "float32", masking=weight.masking).of(texts[:1])
    assert not weight.delta(view).any()
    h = view.model.entropy.detach()
    torch.testing.assert_close(weight.phi(view), 0.3 * (h - h.min()) / (h.max() - h.min()))


@pytest.mark.parametrize("hide", ["prompt", "mentions"])
@pytest.mark.parametrize("mask", ["attention", "token", "names"])
def test_delta_is_the_shift_under_a_masked_prompt(
    mask: Literal["attention", "token", "names"], hide: Literal["prompt", "mentions"], tiny_subject: Subject
) -> None:
    weight = Attribution(nouns=WORDS, mask=mask, hide=hide)
    texts = encoded(tiny_subject, RIVER, OPEN)
    views = Views(tiny_subject, "float32", masking=weight.masking)
    view = views.of(texts)
    with torch.no_grad():
        for text, delta in zip(texts, view.model.split(weight.delta(view)), strict=True):
            hidden = weight.masking.hidden(text)
            ids = torch.tensor([text.ids])
            masked_ids, attention = ids.clone(), torch.ones_like(ids)
            if mask == "token":
                masked_ids[0, hidden] = cast(int, tiny_subject.tokenizer.pad_token_id)
            elif mask == "names":
                masked_ids[0, hidden] = torch.tensor(weight.masking.stand_ins(text, name_pieces(tiny_subject.tokenizer)), dtype=torch.long)
            else:
                attention[0, hidden] = 0
            ask: Any = tiny_subject.model
            asked = ((ids, torch.ones_like(ids)), (masked_ids, attention))
            now, then = (ask(input_ids=i, attention_mask=m, use_cache=False).logits[0, text.start - 1 : -1].double().numpy() for i, m in asked)
            expected = naive.delta(now, then, list(text.ids[text.start :]))
            assert delta.tolist() == pytest.approx(expected, rel=1e-3, abs=2e-4)
    first = view.model.split(weight.delta(view))[0]
    assert float(first.max()) > 1e-2


def test_stand_ins_are_pieces_of_names_and_the_same_for_the_same_token(tiny_llama: Subject) -> None:
    masking = Masking(WORDS, mask="names", hide="mentions")
    (text,) = encoded(tiny_llama, RIVER)
    pool = name_pieces(tiny_llama.tokenizer)
    hidden, pieces = masking.hidden(text), masking.stand_ins(text, pool)
    assert len(pieces) == len(hidden) > len({text.ids[i] for i in hidden}) > 0
    assert len({(text.ids[i], piece) for i, piece in zip(hidden, pieces, strict=True)}) == len({text.ids[i] for i in hidden})
    assert set(pieces) <= set(pool) - {text.ids[i] for i in hidden}
    assert pieces == masking.stand_ins(text, pool)


def test_the_tokens_of_a_word_share_its_highest_score(tiny_llama: Subject) -> None:
    texts = encoded(tiny_llama, RIVER, OPEN)
    views = Views(tiny_llama, "float32", masking=Masking(WORDS))
    view = views.of(texts)
    by_token, by_word = (view.model.split(Attribution(nouns=WORDS, unit=unit).phi(view)) for unit in ("token", "word"))
    for text, before, after in zip(texts, by_token, by_word, strict=True):
        pieces = [text.text[slice(*text.chars[i])] for i in range(text.start, len(text))]
        numbers = text.words()
        assert max(numbers.count(n) for n in numbers) > 1, "some word has several tokens"
        for number in set(numbers):
            members = [i for i, n in enumerate(numbers) if n == number]
            word = "".join(pieces[i] for i in members).strip()
            assert re.fullmatch(r"[\w'’-]+|\W*|<.*>", word), word
            assert after[members].tolist() == [float(before[members].max())] * len(members)


def test_only_proper_names_count_where_asked_for() -> None:
    question = "Where did Anna Brandt open the bakery?"
    assert [question[a:b] for a, b in Nouns(names_only=True)(question)] == ["Anna", "Brandt"]
    assert "bakery" in [question[a:b] for a, b in Nouns()(question)]


def test_a_chosen_mask_token_must_be_a_single_one(tiny_llama: Subject) -> None:
    texts = encoded(tiny_llama, RIVER)
    weight = Attribution(nouns=WORDS, mask="token", mask_token="<|im_start|>")
    assert weight(Views(tiny_llama, "float32", masking=weight.masking).of(texts)).shape == (texts[0].scored,)
    broken = Attribution(nouns=WORDS, mask="token", mask_token="several tokens here")
    with pytest.raises(InputError, match=r"mask_token 'several tokens here' is \d+ tokens"):
        broken(Views(tiny_llama, "float32", masking=broken.masking).of(texts))


def test_the_contrast_is_the_other_models_probability(tiny_llama: Subject) -> None:
    texts = encoded(tiny_llama, RIVER, OPEN)
    other = tiny("llama", seed=4)
    views = Views(tiny_llama, "float32", masking=Masking(WORDS))
    views.contrast = contrast_logp(views, other, "other", texts)
    view = views.of(texts)
    with torch.no_grad():
        direct = score(other, collate(texts)).token_logp
    torch.testing.assert_close(view.contrast.token_logp, direct, rtol=1e-5, atol=1e-5)
    expected = (view.model.token_logp.detach() - direct).clamp_min(0.0)
    torch.testing.assert_close(Attribution(nouns=WORDS, contrast="other").delta(view), expected, rtol=1e-4, atol=1e-5)
    assert (expected == 0).any()
    assert (expected > 0).any()


def test_a_contrast_model_with_another_tokenizer_is_refused(tiny_llama: Subject) -> None:
    other = tiny("llama")
    other.tokenizer.add_tokens(["<new>"])
    with pytest.raises(InputError, match="another tokenizer"):
        contrast_logp(Views(tiny_llama, "float32"), other, "other", encoded(tiny_llama, OPEN))


# Remembering ---------------------------------------------------------------------------------------------------------


def moved(subject: Subject) -> None:
    for parameter in subject.model.parameters():
        parameter.data.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(9)), alpha=0.1)


def weigher(subject: Subject, weight: Any) -> Weigher:
    return Weigher(weight, Views(subject, "float32", masking=Masking(WORDS)))


def test_weights_computed_once_stay_when_the_model_moves(tiny_llama: Subject) -> None:
    texts = encoded(tiny_llama, RIVER, OPEN)
    once = weigher(tiny_llama, Attribution(select="soft", nouns=WORDS))
    once.remember(texts)
    before = once.of(texts)
    moved(tiny_llama)
    assert torch.equal(once.of(texts), before)
    assert torch.equal(once.of(texts[::-1]), torch.cat([before[texts[0].scored :], before[: texts[0].scored]]))
    once.remember(texts)  # what refresh: epoch does
    assert not torch.equal(once.of(texts), before)


def test_weights_of_every_step_follow_the_model(tiny_llama: Subject) -> None:
    texts = encoded(tiny_llama, RIVER)
    each = weigher(tiny_llama, Attribution(select="soft", nouns=WORDS, refresh="step"))
    before = each.of(texts)
    moved(tiny_llama)
    assert not torch.equal(each.of(texts), before)


def test_remembered_weights_do_not_depend_on_the_batch(tiny_llama: Subject) -> None:
    texts = encoded(tiny_llama, RIVER, OPEN)
    small, large = (weigher(tiny_llama, Attribution(select="soft", nouns=WORDS)) for _ in range(2))
    small.max_tokens, large.max_tokens = 1, 4096
    advanced: list[int] = []
    small.remember(texts, advanced.append)
    large.remember(texts)
    assert advanced == [1, 1]
    torch.testing.assert_close(small.of(texts), large.of(texts), rtol=1e-3, atol=1e-4)
    assert set(small.known) == {key_of(t) for t in texts}


def test_a_weight_without_a_refresh_field_is_asked_at_every_step(tiny_llama: Subject) -> None:
    calls: list[int] = []

    @dataclass(frozen=True)
    class Counting:
        """Counts."""

        def __call__(self, view: View) -> Float[Tensor, " n"]:
            calls.append(len(view.model.row))
            return Uniform()(view)

    texts = encoded(tiny_llama, RIVER)
    counting = weigher(tiny_llama, Counting())
    for _ in range(2):
        assert torch.equal(counting.of(texts), torch.ones(texts[0].scored))
    assert calls == [texts[0].scored] * 2


def test_uniform_is_one_everywhere() -> None:
    scored = Scored.of(torch.zeros(3, 4), torch.tensor([0, 1, 2]), torch.tensor([0, 0, 1]), 2)
    assert Uniform()(View(lambda: scored)).tolist() == [1.0, 1.0, 1.0]


# spaCy ---------------------------------------------------------------------------------------------------------------


def test_nouns_and_names_are_found_by_part_of_speech() -> None:
    pytest.importorskip("spacy")
    question = "Where did Anna Brandt write the book about 1887?"
    words = [question[a:b] for a, b in Nouns()(question)]
    assert words == ["Anna", "Brandt", "book"]
    assert [question[a:b] for a, b in Nouns(numbers=True)(question)] == [*words, "1887"]


def test_a_list_of_words_is_matched_as_whole_words() -> None:
    text = "A book, the Bookshop; Book!"
    assert [text[a:b] for a, b in Nouns(words=("book",))(text)] == ["book", "Book"]


def test_a_missing_pipeline_is_one_line() -> None:
    pytest.importorskip("spacy")
    with pytest.raises(InputError, match=r"pipeline 'xx_none' is not installed.*excise\[nouns\]"):
        Nouns("xx_none")("text")


def test_facts_are_the_unsure_words_that_the_question_does_not_give_away(tiny_llama: Subject) -> None:
    view = Views(tiny_llama, "float32", masking=Masking(WORDS)).of(encoded(tiny_llama, RIVER))
    only = dataclasses.replace(view, get_masked=lambda: pytest.fail("nothing is hidden, so nothing is asked a second time"))
    weights = Facts(nouns=WORDS)(only)
    assert torch.equal(weights, Attribution(nouns=WORDS, r=0.3, alpha=0.0, copies="drop", unit="word")(view))
    entropy = view.model.entropy
    highest = {int(word): float(entropy[view.words == word].max()) for word in view.words.unique()}
    order = sorted((i for i in range(len(entropy)) if not view.copies[i]), key=lambda i: (-highest[int(view.words[i])], i))
    chosen = order[: math.ceil(0.3 * len(entropy) - 1e-9)]
    assert sorted(chosen) == weights.nonzero()[:, 0].tolist()
