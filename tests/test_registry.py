"""Components by name: excise's own, those registered by hand, those of an installed package."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from jaxtyping import Float
from torch import Tensor

import contract
import excise
from excise import registry
from excise.errors import InputError
from excise.methods import Training, ga
from excise.objectives import NPO
from excise.recipe import build_methods
from excise.stages.train import Train
from excise.view import View
from excise.weights import Attribution

OWN: dict[str, list[str]] = {
    "objectives": [
        "ascent", "wga", "satimp", "nll", "kl", "npo", "simnpo", "dpo", "undial", "ceu", "rmu", "hidden_mse", "entropy",
        "capped_ascent", "hidden_cosine",
    ],
    "weights": ["uniform", "attribution"],
    "methods": [
        "ga", "graddiff", "ga_kl", "wga", "npo", "simnpo", "dpo", "undial", "satimp", "ceu", "rmu", "compose",
        "t_ga", "t_wga", "t_npo", "t_rmu", "s_ga", "s_wga", "s_npo", "s_rmu", "maat", "adapter_negation", "retain_only",
    ],
}  # fmt: skip


@dataclass(frozen=True)
class Halved:
    """Half of gradient ascent.

    Paper: none, a test.
    """

    factor: float = 0.5
    """What it is multiplied with."""

    def __call__(self, view: View, weight: Float[Tensor, " n"]) -> Float[Tensor, ""]:
        return self.factor * view.model.mean(view.model.token_logp, weight)


@pytest.fixture
def halved() -> Iterator[None]:
    registry.register("objectives", "halved", Halved)
    yield
    registry.unregister("objectives", "halved")


@pytest.mark.parametrize("kind", OWN)
def test_what_excise_promises_is_there(kind: str) -> None:
    assert set(OWN[kind]) <= set(registry.names(kind))
    for name in OWN[kind]:
        component = registry.find(kind, name)
        assert registry.summary(component)
        assert registry.paper(component) or name == "compose"


def test_names_are_unique() -> None:
    for kind in ("objectives", "weights", "methods", "stages"):
        names = registry.names(kind)
        assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        ("methods", "nop", "unknown method 'nop': did you mean 'npo'?"),
        ("objectives", "assent", "unknown objective 'assent': did you mean 'ascent'?"),
        ("weights", "attributon", "unknown token weight 'attributon': did you mean 'attribution'?"),
        ("weights", "xyz", "unknown token weight 'xyz': allowed: "),
        ("methods", "t-npo", "did you mean 't_npo'?"),
    ],
)
def test_a_misspelt_name_gets_a_suggestion(kind: str, given: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        registry.find(kind, given)
    assert message in str(caught.value)


def test_an_unknown_kind_gets_a_suggestion() -> None:
    with pytest.raises(InputError, match="unknown kind 'metric': did you mean 'metrics'"):
        registry.names("metric")


def test_a_component_can_be_registered_and_taken_back(halved: None) -> None:
    assert registry.names("objectives")[-1] == "halved"
    assert registry.find("objectives", "halved") is Halved
    assert registry.name_of("objectives", Halved) == "halved"
    assert registry.paper(Halved) == "none, a test."
    assert registry.fields(Halved) == [("factor", "float", "0.5")]
    with pytest.raises(InputError, match="the name 'halved' is taken"):
        registry.register("objectives", "halved", Halved)
    with pytest.raises(InputError, match="the name 'npo' is taken"):
        registry.register("objectives", "npo", Halved)
    assert registry.find("objectives", "npo") is NPO
    registry.unregister("objectives", "halved")
    with pytest.raises(InputError, match="unknown objective 'halved'"):
        registry.find("objectives", "halved")
    registry.register("objectives", "halved", Halved)


def test_a_registered_objective_is_used_by_name_and_keeps_the_contract(halved: None, tmp_path: Path) -> None:
    terms = [{"objective": {"name": "halved", "factor": 0.25}, "data": "forget"}, {"objective": "kl", "data": "retain"}]
    ((_, stages),) = build_methods("compose", {"terms": terms, "steps": 1})
    train = stages[0]
    assert isinstance(train, Train)
    assert train.terms[0].objective == Halved(0.25)
    assert train.terms[0].name == "forget.halved"
    contract.check_objective(Halved())
    contract.check_method("compose", tmp_path, {"terms": terms})


def test_a_registered_method_is_built_by_name(tmp_path: Path) -> None:
    def mine(training: Training, strength: float = 2.0) -> Any:
        """Ascent, stronger.

        Paper: none, a test.
        """
        return ga(training)

    registry.register("methods", "mine", mine)
    try:
        assert [name for name, _ in build_methods("mine+npo", {"strength": 3.0, "steps": 1})] == ["mine", "npo"]
        with pytest.raises(InputError, match=r"unknown setting method\.strenght: did you mean 'strength'"):
            build_methods("mine", {"strenght": 3.0})
        contract.check_method("mine", tmp_path)
    finally:
        registry.unregister("methods", "mine")


def test_settings_are_listed_with_types_and_defaults() -> None:
    rows = {name: (kind, default) for name, kind, default in registry.fields(Attribution)}
    assert rows["r"] == ("float", "0.2")
    assert rows["select"][1] == "'hard'"
    assert "Nouns" in rows["nouns"][0]
    method = {name: default for name, _, default in registry.fields(registry.find("methods", "t_npo"))}
    assert "weight" not in method
    assert method["beta"] == "0.1"
    assert "Attribution(select='hard'" in method["attribution"]


PACKAGE = '''
"""Another team's losses."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Squared:
    """Minimises the mean squared log-probability, backwards.

    Paper: none, a test.
    """

    power: float = 2.0

    def __call__(self, view, weight):
        return -view.model.mean((-view.model.token_logp) ** self.power, weight)


@dataclass(frozen=True)
class LastOnly:
    """All of the weight on the last token of each answer.

    Paper: none, a test.
    """

    def __call__(self, view):
        ends = [torch.zeros(len(part)).index_fill(0, torch.tensor([len(part) - 1]), float(len(part))) for part in view.model.split(view.model.row)]
        return torch.cat(ends)
'''

SCRIPT = """
import sys, tempfile
from pathlib import Path
import contract
from excise import registry
from excise.recipe import build_methods

assert "squared" in registry.names("objectives"), registry.names("objectives")
assert "last_only" in registry.names("weights")
assert registry.names("objectives")[0] == "ascent"
terms = [{"objective": {"name": "squared", "power": 1.5}, "data": "forget", "weight": "last_only"}, {"objective": "kl", "data": "retain"}]
stages = build_methods("compose", {"terms": terms})[0][1]
assert type(stages[0].terms[0].objective).__module__ == "team_losses", stages
contract.check_objective(registry.find("objectives", "squared")())
contract.check_weight(registry.find("weights", "last_only")())
contract.check_method("compose", Path(tempfile.mkdtemp()), {"terms": terms})
try:
    build_methods("compose", {"terms": [{"objective": {"name": "squared", "pwer": 1.0}, "data": "forget"}]})
except Exception as error:
    assert "did you mean 'power'" in str(error), error
else:
    raise AssertionError("an unknown setting of a plug-in was accepted")
try:
    registry.register("objectives", "squared", object)
except Exception as error:
    assert "is taken" in str(error), error
else:
    raise AssertionError("a plug-in's name was taken again")
print("kept")
"""


def test_an_installed_package_adds_components_by_its_entry_points(tmp_path: Path) -> None:
    site = tmp_path / "site"
    information = site / "team_losses-1.0.dist-info"
    information.mkdir(parents=True)
    (site / "team_losses.py").write_text(PACKAGE)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: team-losses\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(
        textwrap.dedent("""
            [excise.objectives]
            squared = team_losses:Squared

            [excise.weights]
            last_only = team_losses:LastOnly
        """)
    )
    paths = [str(site), str(Path(excise.__file__).parent.parent), str(Path(__file__).parent)]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)}, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip() == "kept"
    assert "squared" not in registry.names("objectives")


def test_no_public_name_is_hidden_by_a_module() -> None:
    import excise

    places = {path.stem for path in Path(excise.__file__).parent.iterdir()}
    assert not places & set(excise.__all__), "import excise.NAME would put the module in the name's place"
