"""Finding components by name: excise's own, those of installed packages (entry points), and those registered by hand.

A kind is one of :data:`KINDS`. An installed package adds to it with an entry point in the group ``excise.<kind>``::

    [project.entry-points."excise.objectives"]
    my_loss = "my_package.losses:MyLoss"

and a script or notebook with :func:`register`.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from collections.abc import Callable
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from excise.errors import InputError, did_you_mean

KINDS: dict[str, str] = {
    "methods": "excise.methods:METHODS",
    "objectives": "excise.objectives:OBJECTIVES",
    "weights": "excise.weights:WEIGHTS",
    "stages": "excise.stages:STAGES",
    "benchmarks": "excise.data.benchmarks:BENCHMARKS",
    "suites": "excise.evaluation.suites:SUITES",
    "metrics": "excise.evaluation.metrics:METRICS",
    "judges": "excise.evaluation.judges:JUDGES",
    "attacks": "excise.attacks:ATTACKS",
    "models": "excise.embedded:EMBEDDED",
}
"""Kind -> the table of excise's own components."""

_by_hand: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}


def register(kind: str, name: str, component: Any) -> None:
    """Adds a component under a name that is not taken yet."""
    if name in names(kind):
        raise InputError(f"{kind}: the name {name!r} is taken")
    _by_hand[kind][name] = component


def unregister(kind: str, name: str) -> None:
    """Takes back what :func:`register` added."""
    _by_hand[kind].pop(name)


def names(kind: str) -> list[str]:
    """Every name of a kind: excise's own first, in their order, then entry points, then those added by hand."""
    return [*_own(kind), *_installed(kind), *_by_hand[kind]]


def find(kind: str, name: str) -> Any:
    """The component of that name, imported on demand.

    Raises:
        InputError: no such component; the message suggests a close name.
    """
    table = _own(kind)
    if name in table:
        value = table[name]
        return _import(value) if isinstance(value, str) else value
    if name in _installed(kind):
        return _import(_installed(kind)[name])
    if name in _by_hand[kind]:
        return _by_hand[kind][name]
    raise InputError(f"unknown {_singular(kind)} {name!r}: {did_you_mean(name, names(kind))}")


def name_of(kind: str, component: type) -> str:
    """The name under which a class is registered."""
    for name in names(kind):
        if find(kind, name) is component:
            return name
    raise KeyError(f"{component.__name__} is not registered under {kind}")


def summary(component: Any) -> str:
    """The first line of the docstring."""
    return (inspect.getdoc(component) or "").split("\n")[0]


def paper(component: Any) -> str:
    """What the docstring's ``Paper:`` paragraph says, as one line; empty where there is none."""
    match = re.search(r"^Paper:\s*(.+?)(?:\n\s*\n|\n\S+:|\Z)", inspect.getdoc(component) or "", flags=re.S | re.M)
    return " ".join(match.group(1).split()) if match else ""


def fields(component: Any) -> list[tuple[str, str, str]]:
    """(name, type, default) of each setting of a component: dataclass fields, or the parameters of a function."""
    if dataclasses.is_dataclass(component):
        rows: list[tuple[str, str, str]] = []
        for f in dataclasses.fields(component):
            default = f.default if f.default is not dataclasses.MISSING else f.default_factory() if callable(f.default_factory) else "required"
            rows.append((f.name, _type_text(f.type), repr(default) if default != "required" else default))
        return rows
    parameters = inspect.signature(component).parameters.values() if callable(component) else []
    return [(p.name, _type_text(p.annotation), "required" if p.default is inspect.Parameter.empty else repr(p.default)) for p in parameters]


def settings_of(kind: str, component: Any) -> list[tuple[str, str, str]]:
    """The settings that a person can give: those of the component, and for a method those of every training too."""
    own = fields(component)
    if kind != "methods" or not any(name == "training" for name, _, _ in own):
        return own
    from excise.methods import Training

    return [row for row in own if row[0] not in ("training", "weight")] + fields(Training)


def _type_text(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def _own(kind: str) -> dict[str, Any]:
    if kind not in KINDS:
        raise InputError(f"unknown kind {kind!r}: {did_you_mean(kind, KINDS)}")
    return _import(KINDS[kind])


@cache
def _installed(kind: str) -> dict[str, str]:
    return {entry.name: entry.value for entry in entry_points(group=f"excise.{kind}")}


@cache
def _import(path: str) -> Any:
    module, _, attribute = path.partition(":")
    loaded = importlib.import_module(module)
    value: Callable[..., Any] = getattr(loaded, attribute)
    return value


def _singular(kind: str) -> str:
    return {"suites": "suite", "weights": "token weight"}.get(kind, kind.removesuffix("s"))
