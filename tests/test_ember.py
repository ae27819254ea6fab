"""EditEmbeddings: what it changes and what it must not, on every shape of model; the search for a strength; chains; bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch

import learning
from concept_world import CONCEPT, EMBER, SNMF, benchmark, state_of, texts
from conftest import Kind, adapted, logits, refused, tiny
from excise.data.example import Benchmark, Example
from excise.evaluation.records import Record, Records, TextScore
from excise.features.embedding import embedding_scale
from excise.loading import load
from excise.objectives import HiddenMSE
from excise.recipe import Recipe, build_methods
from excise.run import run_stages, unlearn
from excise.saving import save
from excise.stages import strength as strengths
from excise.stages.chain import in_chain, require_savable
from excise.stages.guard import Guard
from excise.stages.state import State
from excise.stages.strength import Found, Search, search_strength
from excise.stages.train import Term, Train
from excise.stages.undo import undo
from excise.subject import Subject
from test_features import concept_folder

SHAPES: tuple[tuple[Kind, bool], ...] = tuple((kind, tied) for kind in ("llama", "gemma3", "qwen3") for tied in (True, False))
every_shape = pytest.mark.parametrize(("kind", "tied"), SHAPES)


def stages(name: str = "ember", **settings: Any) -> list[Any]:
    return [stage for _, part in build_methods(name, {**(EMBER if "ember" in name else {}), **settings}) for stage in part]


def run(subject: Subject, folder: Path | None = None, data: Benchmark | None = None, **settings: Any) -> State:
    """Runs EMBER without the checkpoints of a whole run."""
    state = state_of(subject, data, folder=folder)
    (stage,) = stages(**settings)
    stage(state)
    return state


def rows(subject: Subject) -> torch.Tensor:
    """The input table."""
    return cast(torch.Tensor, subject.embedding.weight).detach()


def head(subject: Subject) -> torch.Tensor:
    return cast(torch.Tensor, subject.head.weight).detach()


def edited(state: State) -> dict[str, Any]:
    return state.records[-1]["edit"]


# --- what changes -----------------------------------------------------------------------------------------------------


@every_shape
def test_only_the_listed_rows_of_the_input_table_change(kind: Kind, tied: bool, tmp_path: Path) -> None:
    subject = tiny(kind, tied=tied)
    before = {name: p.detach().clone() for name, p in subject.model.named_parameters()}
    table, output, used = rows(subject).clone(), head(subject).clone(), subject.embedding(torch.arange(400))
    state = run(subject, tmp_path)
    listed = [token["id"] for token in json.loads((tmp_path / "edits" / "000-embeddings.json").read_text())["tokens"]]
    moved = (rows(subject) != table).any(dim=1).nonzero()[:, 0].tolist()
    assert moved == sorted(listed)
    assert edited(state)["moved"]["tokens"] == len(listed) > 0
    assert edited(state)["moved"]["share_of_vocabulary"] == len(listed) / 400
    assert torch.equal(head(subject), output)
    assert not subject.tied
    assert not subject.base.config.tie_word_embeddings
    for name, parameter in subject.model.named_parameters():
        if parameter is not subject.embedding.weight and name in before:
            assert torch.equal(parameter, before[name]), name
    distances = (subject.embedding(torch.tensor(listed)) - used[listed]).norm(dim=1)
    expected = [token["moved"] for token in json.loads((tmp_path / "edits" / "000-embeddings.json").read_text())["tokens"]]
    torch.testing.assert_close(distances.detach(), torch.tensor(expected), rtol=1e-4, atol=1e-5)


@every_shape
def test_an_edited_model_saves_loads_and_speaks(kind: Kind, tied: bool, tmp_path: Path) -> None:
    subject = tiny(kind, tied=tied)
    original = logits(subject)
    run(subject)
    again = load(save(subject, tmp_path / "model", provenance={}))
    assert torch.equal(logits(again), logits(subject))
    assert not torch.allclose(logits(again), original, atol=1e-3)
    assert not again.tied
    assert json.loads((tmp_path / "model" / "config.json").read_text())["tie_word_embeddings"] is False
    ids = torch.tensor([subject.tokenizer("The lighthouse")["input_ids"]])
    said = again.base.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=5)  # type: ignore[operator]
    assert said.shape[1] > ids.shape[1]


def test_the_rows_are_those_of_the_formula() -> None:
    from excise.factorise.sparse_mf import SparseMF
    from excise.features.embedding import localise

    subject = tiny("gemma3")
    found = localise(subject, CONCEPT, [e.answer for e in benchmark().retain], SparseMF(rank=6, keep=0.1))
    chosen = [f.index for f in found.table.features if f.ratio >= 0.5]
    before = rows(subject).double()
    g, f = found.factors.g.double(), found.factors.f.double()
    expected = before.clone()
    for place, token in enumerate(found.classes.ids):
        if found.classes.mask("concept_only")[place]:
            expected[token] -= 2.0 / embedding_scale(subject) * sum(g[place, k] * f[:, k] for k in chosen)
    run(subject)
    torch.testing.assert_close(rows(subject).double(), expected, rtol=1e-5, atol=1e-6)


def test_a_half_precision_model_is_edited_in_float32_and_rounded_once() -> None:
    subject = tiny("llama")
    subject.model.bfloat16()
    exact = tiny("llama")
    exact.model.bfloat16().float()
    run(subject)
    run(exact)
    assert torch.equal(rows(subject), rows(exact).bfloat16())


@pytest.mark.parametrize("tied", [True, False])
def test_a_strength_of_zero_leaves_every_bit(tied: bool) -> None:
    subject = tiny("llama", tied=tied)
    before = subject.fingerprint()
    state = run(subject, strength=0)
    assert subject.fingerprint() == before
    assert subject.tied == tied
    assert state.records[-1]["changed_parameters"] == 0
    assert edited(state)["moved"]["tokens"] == 0


@every_shape
def test_an_edit_is_undone_from_what_it_saved(kind: Kind, tied: bool, tmp_path: Path) -> None:
    subject = tiny(kind, tied=tied)
    before = subject.fingerprint()
    state = run(subject, tmp_path)
    assert subject.fingerprint() != before
    again = load(save(subject, tmp_path / "model", provenance={}))
    place = tmp_path / next(file for file in edited(state)["files"] if file.endswith(".safetensors"))
    undo(again, place)
    assert again.fingerprint() == before
    assert again.tied == tied
    assert again.base.config.tie_word_embeddings == tied
    once_more = load(save(again, tmp_path / "undone", provenance={}))
    assert once_more.tied == tied
    assert torch.equal(logits(once_more), logits(tiny(kind, tied=tied)))


def test_a_file_that_does_not_fit_undoes_nothing(tmp_path: Path) -> None:
    run(tiny("llama"), tmp_path)
    place = tmp_path / "edits" / "000-embeddings.safetensors"
    refused(lambda: undo(tiny("llama", width=64), place), "belongs to another model")
    refused(lambda: undo(tiny("llama"), tmp_path / "none"), "no file")
    (tmp_path / "torn").write_bytes(place.read_bytes()[:40])
    refused(lambda: undo(tiny("llama"), tmp_path / "torn"), "not what an edit")


def test_the_record_says_who_chose_what_and_how_much(tmp_path: Path) -> None:
    state = run(tiny("llama"), tmp_path)
    record = edited(state)
    assert (record["chosen_by"], record["strength"]) == ("ratio", 2.0)
    assert [f["index"] for f in record["features"]] == json.loads(state.plan[-1].split("features ")[1].split(" (")[0])
    assert all(f["words"] for f in record["features"])
    assert record["strongest"][0]["moved"] == max(token["moved"] for token in record["strongest"])
    by_hand = run(tiny("llama"), features=[record["features"][0]["index"]])
    assert edited(by_hand)["chosen_by"] == "manual"
    assert len(edited(by_hand)["features"]) == 1


def test_nothing_that_names_a_word_is_written_where_texts_must_not_be(tmp_path: Path) -> None:
    state = state_of(tiny("llama"), folder=tmp_path, redact=True)
    stages()[0](state)
    assert not (tmp_path / "edits").exists()
    assert "words" not in json.dumps(edited(state))
    assert "text" not in json.dumps(edited(state))


# --- the search -------------------------------------------------------------------------------------------------------


def questions(name: str, n: int = 20) -> tuple[Example, ...]:
    return tuple(Example(f"{name}-{i}", f"{name} {i}?", "a", options=("a", "b", "c", "d"), gold=0) for i in range(n))


def tuned(**more: tuple[Example, ...]) -> Benchmark:
    return benchmark(tuning_concept=questions("concept"), tuning_similar=questions("similar"), **more)


PROMPTS = tuple(Example(f"c-{i}", "The lighthouse of Marrow", "Lighthouse", bare=True) for i in range(10))


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[str, float], float]], Callable[[float], None]]:
    """A model that is right as often as a function of what is asked and of the strength says."""

    def install(rate: Callable[[str, float], float]) -> Callable[[float], None]:
        now = [0.0]

        def asked(search: Search, state: State, kinds: list[str]) -> Records:
            found: dict[str, list[Record]] = {}
            for kind in kinds:
                rows = state.benchmark.split(strengths.SPLITS[kind])
                right = round(rate(kind, now[0]) * len(rows))
                found[kind] = [record(kind, example, i < right) for i, example in enumerate(rows)]
            return found

        monkeypatch.setattr(strengths, "_asked", asked)

        def apply(strength: float) -> None:
            now[0] = strength

        return apply

    return install


def record(kind: str, example: Example, right: bool) -> Record:
    if kind == "coherence":
        return Record(example.id, example.prompt, example.answer, generation="The lighthouse stands by the sea." if right else "")
    options = tuple(TextScore(o, (-1.0 if (o == "a") == right else -3.0,), (True,)) for o in example.options)
    return Record(example.id, example.prompt, example.answer, options=options, gold=0)


def found(apply: Callable[[float], None], data: Benchmark, **settings: Any) -> Found:
    return search_strength(Search(grid=(1.0, 2.0, 4.0, 8.0), **settings), state_of(tiny("llama"), data), apply)


def test_the_search_takes_the_best_strength_that_passes_the_gates(pretended: Any) -> None:
    rates = {"concept": {0: 1.0, 1: 0.9, 2: 0.5, 4: 0.3, 8: 0.25}, "similar": {0: 1.0, 1: 1.0, 2: 1.0, 4: 0.95, 8: 0.6}}
    apply = pretended(lambda kind, s: 1.0 if kind == "coherence" else rates[kind][s])
    made = found(apply, tuned(coherence=PROMPTS))
    assert made.strength == 4
    assert made.measure == "accuracy"
    assert made.warning == ""
    best = made.trials[2]
    assert best.efficacy == pytest.approx(1 - 0.05 / 0.75)
    assert best.specificity == best.general == pytest.approx(0.7 / 0.75)
    assert best.overall == pytest.approx(3 / (1 / best.efficacy + 1 / best.specificity + 1))  # type: ignore[operator]
    assert made.trials[3].overall == 0
    assert "similar questions is left" in made.trials[3].note


def test_ties_go_to_the_smaller_strength_and_coherence_is_a_gate(pretended: Any) -> None:
    apply = pretended(lambda kind, s: 0.25 if kind == "concept" and s else 1.0)
    assert found(apply, tuned()).strength == 1
    apply = pretended(lambda kind, s: (0.25 if s else 1.0) if kind == "concept" else 0.8 if kind == "coherence" and 0 < s < 4 else 1.0)
    made = found(apply, tuned(coherence=PROMPTS))
    assert made.strength == 4
    assert "coherence is left" in made.trials[0].note


def test_the_search_warns_at_the_top_of_its_grid_and_edits_nothing_where_nothing_passes(pretended: Any) -> None:
    made = found(pretended(lambda kind, s: 1 - s / 10 if kind == "concept" else 1.0), tuned())
    assert made.strength == 8
    assert "top of its grid (8)" in made.warning
    made = found(pretended(lambda kind, s: 1 - s / 10), tuned())
    assert made.strength == 0
    assert "nothing was edited" in made.warning


def test_general_questions_are_the_gate_where_there_are_any(pretended: Any) -> None:
    rates = {"concept": lambda s: 0.25 if s else 1.0, "similar": lambda s: 0.7 if s else 1.0, "mmlu": lambda s: 1.0 if s < 4 else 0.7}
    made = found(pretended(lambda kind, s: rates[kind](s)), tuned(mmlu=questions("mmlu")))
    assert made.strength == 1
    assert made.trials[0].general == 1.0
    assert made.trials[0].specificity == pytest.approx(2 / (1 + 1 / 0.6))
    assert made.trials[2].overall == 0


def test_probabilities_stand_in_for_accuracies_at_chance(pretended: Any) -> None:
    made = found(pretended(lambda kind, s: 0.35 if s == 0 or kind != "concept" else 0.1), tuned())
    assert made.measure == "probability"
    assert made.strength == 1


def test_kinds_of_questions_that_say_nothing_are_left_out_or_refused(pretended: Any) -> None:
    chance = pretended(lambda kind, s: 0.0 if kind == "mmlu" else 0.25 if s and kind == "concept" else 1.0)
    assert found(chance, tuned(mmlu=questions("mmlu"))).strength == 1
    apply = pretended(lambda kind, s: 0.0)
    refused(lambda: found(apply, tuned()), "no better than chance", "give a number")
    refused(lambda: found(apply, benchmark()), "needs choice questions", "strength = 10")
    refused(lambda: Search(grid=()), "grid is empty")
    refused(lambda: Search(grid=(0.0,)), "above 0")
    refused(lambda: Search(gate=1.5), "gate")


def test_trials_that_were_finished_are_not_repeated(pretended: Any, tmp_path: Path) -> None:
    tried: list[float] = []
    inner = pretended(lambda kind, s: 1 - s / 10 if kind == "concept" else 1.0)

    def apply(strength: float) -> None:
        tried.append(strength)
        inner(strength)
        if strength == 4 and tried.count(4) == 1:
            raise KeyboardInterrupt

    state = state_of(tiny("llama"), tuned(), folder=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        search_strength(Search(grid=(1.0, 2.0, 4.0, 8.0)), state, apply)
    inner(0.0)
    state.resume = True
    assert search_strength(Search(grid=(1.0, 2.0, 4.0, 8.0)), state, apply).strength == 8
    assert tried == [1, 2, 4, 4, 8, 0.0]


def test_a_model_that_knows_a_concept_is_edited_by_search(tmp_path: Path) -> None:
    subject, data = learning.taught(), learning.benchmark()

    def asked(side: tuple[Example, ...], name: str) -> tuple[Example, ...]:
        answers = [e.answer for e in side]
        return tuple(
            Example(f"{name}-{i}", e.prompt, e.answer, options=tuple(answers[(i + k) % 4] for k in range(4)), gold=0) for i, e in enumerate(side)
        )

    splits = {"tuning_concept": asked(data.forget, "concept"), "tuning_similar": asked(data.retain, "similar")}
    whole = Benchmark("facts", {**data.splits, **splits})
    state = run(subject, tmp_path, whole, strength="search", search={"grid": [0.5, 4.0, 64.0], "gate": 0.5, "measure": "probability"}, ratio=0.0)
    search = edited(state)["search"]
    assert [trial["strength"] for trial in search["trials"]] == [0.5, 4.0, 64.0]
    best = max(search["trials"], key=lambda trial: trial["overall"])
    assert edited(state)["strength"] == (best["strength"] if best["overall"] else 0.0)
    assert search["trials"][-1]["efficacy"] > search["trials"][0]["efficacy"]


# --- chains -----------------------------------------------------------------------------------------------------------


def test_what_follows_an_edit_refers_to_the_edited_model() -> None:
    def references(name: str, **settings: Any) -> list[str]:
        return [stage.reference for stage in in_chain(stages(name, **settings)) if isinstance(stage, Train)]

    assert references("ember+rmu") == ["stage"]
    assert references("ember+t_npo") == ["stage"]
    assert references("rmu+ember") == ["run"]
    assert references("npo+rmu") == ["run", "run"]
    assert references("ember+rmu", reference="run") == ["run"]
    assert references("npo+rmu", reference="stage") == ["stage", "stage"]


@pytest.mark.parametrize("reference", ["auto", "run"])
def test_the_reference_after_an_edit_is_the_edited_model_unless_asked_otherwise(reference: Any, tmp_path: Path) -> None:
    kept = Train((Term(HiddenMSE(1), "forget"),), reference=reference, steps=1, guard=Guard(every=0))
    run_stages(state_of(tiny("llama"), folder=tmp_path), [*stages(), kept])
    (row,) = [json.loads(line) for line in (tmp_path / "train.jsonl").read_text().splitlines()]
    distance = row["terms"]["forget.hiddenmse"]
    assert distance == pytest.approx(0.0, abs=1e-9) if reference == "auto" else distance > 1e-4


CHAINS: dict[str, dict[str, Any]] = {
    "ember+rmu": {"layer": 1, "steps": 2, "batch": 3, "lr": 1e-3},
    "ember+t_npo": {"steps": 2, "batch": 3, "lr": 1e-3, "attribution": {"nouns": {"words": ["lighthouse", "ships"]}}},
    "ember+snmf": SNMF,
}


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_that_was_interrupted_goes_on_to_the_same_bits(name: str, tmp_path: Path) -> None:
    def chain() -> list[Any]:
        return stages(name, **CHAINS[name])

    whole = state_of(tiny("llama"), folder=tmp_path / "whole")
    run_stages(whole, chain())
    broken = state_of(tiny("llama"), folder=tmp_path / "parts")
    with pytest.raises(KeyboardInterrupt):
        run_stages(broken, [chain()[0], Interrupted()])
    resumed = state_of(tiny("llama"), folder=tmp_path / "parts", resume=True)
    run_stages(resumed, chain())
    assert resumed.subject.fingerprint() == whole.subject.fingerprint()
    assert [r["name"] for r in resumed.records] == [r["name"] for r in whole.records]
    assert resumed.subject.tied is False


class Interrupted:
    """A stage that the person who watches ends."""

    def check(self, state: State) -> None: ...

    def prepare(self, state: State) -> None: ...

    def structure(self, state: State) -> None: ...

    def __call__(self, state: State) -> None:
        raise KeyboardInterrupt


def test_a_whole_run_of_ember_and_rmu_leaves_its_account(tmp_path: Path) -> None:
    folder = concept_folder(tmp_path / "data")
    method = {"name": "ember+rmu", **EMBER, "layer": 1, "steps": 2, "batch": 2, "lr": 1e-3}
    values = {"model": tiny("llama").source, "data": {"name": "concepts", "path": folder, "concept": "Lighthouse"}, "method": method}
    recipe = Recipe.parse({**values, "evaluation": {"limit": 2, "max_new_tokens": 2, "suite": "text"}})
    result = unlearn(recipe, tmp_path / "run")
    assert [stage["name"] for stage in result["stages"]] == ["edit_embeddings", "train"]
    edit = result["stages"][0]["edit"]
    assert all((tmp_path / "run" / file).is_file() for file in edit["files"])
    assert any(line.startswith("edit_embeddings: features") for line in result["plan"])
    assert not load(tmp_path / "run" / "model").tied
    assert Recipe.load(tmp_path / "run" / "recipe.yaml").methods() == recipe.methods()


# --- bad input --------------------------------------------------------------------------------------------------------


def test_what_cannot_work_is_refused_before_anything_is_computed() -> None:
    def check(subject: Subject, data: Benchmark | None = None, **settings: Any) -> Callable[[], None]:
        return lambda: stages(**settings)[0].check(state_of(subject, data))

    shared = Benchmark("b", {"forget": texts("forget", ("The fox.",)), "retain": texts("retain", ("The fox. A fox.",))})
    refused(check(tiny("llama"), shared), "occur in the neutral texts too")
    refused(check(adapted(tiny("llama"))), "is an adapter", "merge")
    refused(check(tiny("llama"), rank=4000), "fewer than rank = 4000")
    refused(check(tiny("llama"), features=[6]), "no feature 6")
    refused(check(tiny("llama"), strength="search"), "needs choice questions", "tuning_concept")
    nameless = Benchmark("b", {"forget": (Example("f", "", CONCEPT[0]), *texts("forget", CONCEPT[1:])), "retain": benchmark().retain})
    refused(check(tiny("llama"), nameless, judge="model"), "concept = NAME")
    refused(lambda: stages(strength=-1.0), "strength")
    other = tiny("llama", tied=False)
    mlp: Any = other.layers[0].mlp
    mlp.extra = torch.nn.Linear(32, 400, bias=False)
    mlp.extra.weight = cast(torch.nn.Parameter, other.embedding.weight)
    refused(check(other), "shared with")


def test_a_ratio_that_no_feature_has_is_one_clear_line() -> None:
    refused(lambda: run(tiny("llama"), ratio=1e9), "no feature has a mass ratio")


def test_an_adapter_after_an_edit_needs_a_merge() -> None:
    chain = stages("ember+npo", lora={"r": 2})
    refused(lambda: require_savable(chain, merge=False), "merge = true")
    require_savable(chain, merge=True)
    require_savable(stages("npo", lora={"r": 2}), merge=False)


def test_settings_of_training_mean_nothing_to_an_edit() -> None:
    refused(lambda: stages(lr=1e-3), "unknown setting method.lr")
    assert stages("ember+rmu", lr=1e-3)[1].optimiser.lr == 1e-3
