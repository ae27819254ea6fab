"""Settings as a person writes them: YAML in, typed components out, and one clear line where something is wrong."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import yaml
from pydantic import ConfigDict, TypeAdapter, ValidationError, create_model
from pydantic_core import ErrorDetails

from excise.errors import InputError, did_you_mean

T = TypeVar("T")


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file that holds a mapping."""
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"there is no file {path}") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder, and a YAML file was expected") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text (byte {error.start})") from None
    except yaml.YAMLError as error:
        raise InputError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(value, dict):
        raise InputError(f"{path}: expected settings as 'name: value' lines, got {type(value).__name__}")
    return cast("dict[str, Any]", value)


def override(settings: Mapping[str, Any], assignment: str) -> dict[str, Any]:
    """A copy with one ``a.b=value`` applied; the value is read as YAML."""
    place, equals, text = assignment.partition("=")
    if not equals or not place:
        raise InputError(f"--set {assignment!r}: expected name=value, such as --set method.lr=1e-5")
    try:
        value = number_like(yaml.safe_load(text))
    except yaml.YAMLError:
        raise InputError(f"--set {assignment!r}: the value is not valid YAML") from None
    return put(settings, place, value, f"--set {assignment!r}")


def overridden(settings: Mapping[str, Any], assignments: Sequence[str] | None) -> dict[str, Any]:
    """A copy with every ``a.b=value`` applied, in order."""
    values = dict(settings)
    for assignment in assignments or ():
        values = override(values, assignment)
    return values


def put(settings: Mapping[str, Any], place: str, value: Any, said: str) -> dict[str, Any]:
    """A copy with the value at ``a.b``; ``settings`` stay as they are. ``said`` begins the message where there is no such place."""
    copy = dict(settings)
    here = copy
    *parents, last = place.split(".")
    for name in parents:
        below = here.get(name)
        if isinstance(below, str):
            below = {"path" if name == "model" else "name": below}
        if below is not None and not isinstance(below, dict):
            raise InputError(f"{said}: {name!r} is {below!r} and has no parts")
        here[name] = dict(below or {})
        here = here[name]
    here[last] = value
    return copy


def number_like(value: Any) -> Any:
    """YAML 1.1 reads 1e-5 as text; a person means the number."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    if isinstance(value, dict):
        return {key: number_like(v) for key, v in value.items()}
    if isinstance(value, list):
        return [number_like(v) for v in value]
    return value


def build(kind: type[T], values: Any, place: str) -> T:
    """A component from its settings, validated by its type annotations.

    Raises:
        InputError: an unknown name (with a suggestion), a missing or ill-typed value; the message has the full path.
    """
    if isinstance(values, Mapping) and dataclasses.is_dataclass(kind):
        refuse_unknown(values, [f.name for f in dataclasses.fields(kind)], place)
        values = _nested(kind, values, place)
    try:
        return TypeAdapter(kind).validate_python(values)
    except ValidationError as error:
        raise InputError(explain(error, place)) from None


def _nested(kind: Any, values: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Builds dataclasses inside a dataclass one by one, so that their errors carry the path."""
    hints = typing.get_type_hints(kind)
    built = dict(values)
    for name, value in values.items():
        inner = dataclass_in(hints.get(name))
        if inner is not None and isinstance(value, Mapping):
            built[name] = build(inner, value, f"{place}.{name}".strip("."))
    return built


def dataclass_in(annotation: Any) -> Any:
    """The dataclass of an annotation such as ``Guard`` or ``AddAdapter | None``; None where there is no single one."""
    options = [a for a in (typing.get_args(annotation) or (annotation,)) if inspect.isclass(a) and dataclasses.is_dataclass(a)]
    return options[0] if len(options) == 1 else None


def call(function: Callable[..., T], values: Mapping[str, Any], place: str, **given: Any) -> T:
    """Calls a function with settings validated by its parameters' annotations."""
    hints = typing.get_type_hints(inspect.unwrap(function))
    parameters = {n: p for n, p in inspect.signature(function).parameters.items() if n not in given}
    refuse_unknown(values, list(parameters), place)
    fields: dict[str, Any] = {}
    for name, parameter in parameters.items():
        required = parameter.default is inspect.Parameter.empty
        if required or name in values:
            fields[name] = (hints.get(name, type(parameter.default)), ... if required else parameter.default)
    ready = {name: _component(fields[name], value, f"{place}.{name}") for name, value in values.items()}
    model = create_model("Settings", __config__=ConfigDict(extra="forbid", arbitrary_types_allowed=True), **fields)
    try:
        checked = model.model_validate(ready)
    except ValidationError as error:
        raise InputError(explain(error, place)) from None
    return function(**given, **{name: getattr(checked, name) for name in values})


def _component(field: tuple[Any, Any], value: Any, place: str) -> Any:
    """A dataclass-typed setting from a mapping; what the mapping leaves out is taken from the default."""
    annotation, default = field
    inner: Any = dataclass_in(annotation) or (type(default) if dataclasses.is_dataclass(default) else None)
    if inner is None or not isinstance(value, Mapping):
        return value
    known = {f.name: getattr(default, f.name) for f in dataclasses.fields(inner)} if isinstance(default, inner) else {}
    refuse_unknown(value, [f.name for f in dataclasses.fields(inner)], place)
    return build(inner, {**known, **value}, place)


def refuse_unknown(values: Mapping[str, Any], allowed: list[str], place: str) -> None:
    """An error for the first name that is not allowed."""
    for name in values:
        if name not in allowed:
            where = f"{place}.{name}" if place else str(name)
            raise InputError(f"unknown setting {where}: {did_you_mean(str(name), allowed)}")


def explain(error: ValidationError, place: str) -> str:
    """The first complaint of pydantic as one line with the full path."""
    first: ErrorDetails = error.errors()[0]
    path = ".".join([place, *(str(part) for part in first["loc"] if not str(part).startswith(("function-", "tagged-", "union")))]).strip(".")
    reason = first["msg"].removeprefix("Value error, ")
    given = first.get("input")
    shown = f" (got {given!r})" if isinstance(given, (str, int, float, bool, type(None))) and first["type"] != "missing" else ""
    return f"{path}: {reason[0].lower()}{reason[1:]}{shown}"


def plain(value: Any) -> Any:
    """Components as what YAML and JSON can hold."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(v) for v in value]
    if isinstance(value, Path):
        return str(value)
    return value
