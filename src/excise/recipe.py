"""A run as one YAML file: read, checked before anything is loaded, and written back with every default filled in."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from excise import registry
from excise.errors import InputError, did_you_mean
from excise.evaluation.plan import ANSWERS_AT_ONCE
from excise.settings import build, call, number_like, overridden, plain, read_yaml, refuse_unknown


@dataclass(frozen=True)
class Evaluation:
    """What is measured before and after."""

    suite: str | Mapping[str, Any] | None = None
    """Name of the suite, or a mapping of ``name`` and its settings; None takes the one named like the benchmark."""
    retrained: str | None = None
    """A model that never saw the forget split (`excise teach` makes one), or a run folder that holds its records."""
    limit: int | None = None
    """Only the first so many examples of each split."""
    before: bool = True
    """Also evaluate the model before unlearning."""
    max_new_tokens: int | None = None
    """Length of generated answers; None: the suite's own."""
    batch: int = ANSWERS_AT_ONCE
    """Answers that are generated at once."""


@dataclass(frozen=True)
class Recipe:
    """One run: a model, data, a method, and how to judge the result."""

    model: Any
    """A hub id, a folder, an adapter folder, a .gguf file, embedded:NAME; or a mapping with path, adapter, dtype, system, template."""
    data: Mapping[str, Any]
    """``name`` of the benchmark and its settings."""
    method: Any
    """``name`` of the method (``a+b`` runs a, then b) and its settings; or a list of such mappings."""
    evaluation: Evaluation = field(default_factory=Evaluation)
    attacks: tuple[str | Mapping[str, Any], ...] = ()
    """What is tried to bring the knowledge back: names, or mappings with ``name``, settings and perhaps a ``label``."""
    privacy: Literal["keep", "redact"] = "keep"
    """redact: no prompt, answer or generation is written anywhere, only ids, keyed hashes and scores."""
    seed: int = 0
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """bfloat16: matrix products in bf16 over float32 weights; auto: where the processor is good at it."""
    merge: bool = False
    """Save a trained adapter merged into the model."""
    parallel: Literal["auto", "copies", "shards"] = "auto"
    """Where several processes run this (torchrun, accelerate launch): copies of the model, or shards of it while it trains (FSDP2)."""

    @staticmethod
    def load(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
        """Reads and checks a recipe file. ``overrides`` are ``a.b=value`` assignments."""
        return Recipe.parse(read_yaml(Path(path)), overrides)

    @staticmethod
    def parse(settings: Mapping[str, Any], overrides: Sequence[str] = ()) -> Recipe:
        """Checks settings that are already in memory."""
        values = overridden(number_like(dict(settings)), overrides)
        refuse_unknown(values, [f.name for f in dataclasses.fields(Recipe)], "")
        for needed in ("model", "data", "method"):
            if needed not in values:
                raise InputError(f"the recipe has no {needed!r}: it needs model, data and method")
        if isinstance(values["data"], str):
            values["data"] = {"name": values["data"]}
        recipe = build(Recipe, values, "")
        recipe.benchmark_loader()
        recipe.methods()
        recipe.suite()
        recipe.model_spec()
        recipe.attack_list()
        return recipe

    # --- what the parts stand for -------------------------------------------------------------------------------------

    def model_spec(self) -> Any:
        """Which model to load."""
        from excise.loading import ModelSpec

        given = {"path": self.model} if isinstance(self.model, str) else self.model
        if not isinstance(given, Mapping):
            raise InputError(f"model: expected a name or a mapping with 'path', got {type(given).__name__}")
        return build(ModelSpec, dict(given), "model")

    def benchmark_loader(self) -> Any:
        """The benchmark's loader with its settings; call it to read the data."""
        settings = dict(self.data)
        if "name" not in settings:
            raise InputError(f"data: no 'name'; {did_you_mean('', registry.names('benchmarks'))}")
        return build(registry.find("benchmarks", str(settings.pop("name"))), settings, "data")

    def methods(self) -> list[tuple[str, tuple[Any, ...]]]:
        """Name and stages of each method in the chain."""
        entries = self.method if isinstance(self.method, list) else [self.method]
        if not entries:
            raise InputError("method: the list is empty")
        chain: list[tuple[str, tuple[Any, ...]]] = []
        for entry in entries:
            settings = {"name": entry} if isinstance(entry, str) else entry
            if not isinstance(settings, Mapping) or "name" not in settings:
                raise InputError("method: expected a name or a mapping with 'name'")
            chain += build_methods(str(settings["name"]), {k: v for k, v in settings.items() if k != "name"})
        return chain

    def suite(self) -> Any:
        """The suite that judges the result."""
        from excise.evaluation.suites import SUITE_OF

        benchmark = str(self.data["name"])
        given = self.evaluation.suite
        settings = dict(given) if isinstance(given, Mapping) else {"name": given} if given else {}
        name = str(settings.pop("name", SUITE_OF.get(benchmark, benchmark)))
        if name not in registry.names("suites"):
            hint = did_you_mean(name, registry.names("suites"))
            if given is None:
                raise InputError(f"evaluation.suite: there is no suite named like the benchmark {benchmark!r}; say which one to use, {hint}")
            raise InputError(f"evaluation.suite: unknown suite {name!r}: {hint}")
        suite: Callable[..., Any] = registry.find("suites", name)
        length = self.evaluation.max_new_tokens
        if length is not None and "max_new_tokens" in inspect.signature(suite).parameters:
            settings = {"max_new_tokens": length, **settings}
        return call(suite, settings, "evaluation.suite")

    def attack_list(self) -> Any:
        """The attacks with their labels (``excise.attacks.series.Named``)."""
        from excise.attacks.series import build_attacks

        return build_attacks(self.attacks)

    # --- writing ------------------------------------------------------------------------------------------------------

    def expanded(self) -> dict[str, Any]:
        """Every setting with its value, as plain data."""
        loader = self.benchmark_loader()
        from excise.attacks.series import expanded

        values = plain(dataclasses.replace(self, model=None, data={}, method=None, attacks=()))
        values["attacks"] = expanded(self.attack_list())
        values["model"] = plain(self.model_spec())
        values["data"] = {"name": self.data["name"], **plain(loader)}
        entries = self.method if isinstance(self.method, list) else [self.method]
        full = [part for e in entries for part in expanded_methods({"name": e} if isinstance(e, str) else e)]
        values["method"] = full[0] if len(full) == 1 else full
        return values

    def to_yaml(self) -> str:
        """The expanded recipe; it runs again."""
        return yaml.safe_dump(self.expanded(), sort_keys=False, allow_unicode=True)


def build_methods(name: str, settings: Mapping[str, Any]) -> list[tuple[str, tuple[Any, ...]]]:
    """Stages of ``a+b``: each setting goes to every part of the chain that knows it."""
    parts = [part.strip() for part in name.split("+")]
    functions = [(part, registry.find("methods", part)) for part in parts]
    known = {part: _known(function) for part, function in functions}
    refuse_unknown(settings, sorted(set().union(*known.values())), "method")
    return [(part, _build(function, {k: v for k, v in settings.items() if k in known[part]})) for part, function in functions]


def _known(function: Any) -> set[str]:
    return (set(inspect.signature(function).parameters) - {"training"}) | _shared(function)


def _shared(function: Any) -> set[str]:
    """The settings of training, for a method that trains."""
    from excise.methods import Training

    return {f.name for f in dataclasses.fields(Training)} if "training" in inspect.signature(function).parameters else set()


def _build(function: Any, settings: Mapping[str, Any]) -> tuple[Any, ...]:
    from excise.methods import Training

    shared = _shared(function)
    given: dict[str, Any] = {}
    if shared:
        given["training"] = build(Training, {k: v for k, v in settings.items() if k in shared}, "method")
    if "weight" in settings:
        given["weight"] = component("weights", settings["weight"], "method.weight")
    return call(function, {k: v for k, v in settings.items() if k not in shared | set(given)}, "method", **given)


def component(kind: str, value: Any, place: str) -> Any:
    """A registered component from its name, or from a mapping of name and settings."""
    settings = {"name": value} if isinstance(value, str) else value
    if not isinstance(settings, Mapping) or "name" not in settings:
        raise InputError(f"{place}: expected a name or a mapping with 'name'")
    return build(registry.find(kind, str(settings["name"])), {k: v for k, v in settings.items() if k != "name"}, place)


def expanded_methods(entry: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A method's settings with every default; a chain ``a+b`` becomes one entry for each part, with its own defaults."""
    settings = {k: v for k, v in entry.items() if k != "name"}
    return [_expanded(part.strip(), settings) for part in str(entry["name"]).split("+")]


def _expanded(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    from excise.methods import Training

    function = registry.find("methods", name)
    shared = _shared(function)
    training = build(Training, {k: v for k, v in settings.items() if k in shared}, "method")
    values: dict[str, Any] = {"name": name}
    for key, parameter in inspect.signature(function).parameters.items():
        if key == "training" or (key == "weight" and key not in settings):
            continue
        default, given = plain(parameter.default), settings.get(key)
        values[key] = {**default, **plain(given)} if isinstance(default, dict) and isinstance(given, Mapping) else plain(settings.get(key, default))
    return {**values, **plain(training)} if shared else values
