"""The benchmarks by name. Nothing is imported until it is asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Protocol, cast, runtime_checkable

from excise.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from excise.data.example import Benchmark

BENCHMARKS: dict[str, str] = {
    "choice": "excise.data.benchmarks.choice:Choice",
    "concepts": "excise.data.benchmarks.concepts:Concepts",
    "easyedit": "excise.data.benchmarks.easyedit:EasyEdit",
    "fivew": "excise.data.benchmarks.fivew:FiveW",
    "jsonl": "excise.data.benchmarks.jsonl:Jsonl",
    "muse": "excise.data.benchmarks.muse:Muse",
    "request": "excise.data.benchmarks.request:Request",
    "strangers": "excise.data.benchmarks.strangers:Strangers",
    "text": "excise.data.benchmarks.text:Corpus",
    "tofu": "excise.data.benchmarks.tofu:Tofu",
    "wmdp": "excise.data.benchmarks.wmdp:Wmdp",
}
"""Name in a recipe (``data.name``) -> module and class."""


@runtime_checkable
class Loader(Protocol):
    """What every benchmark class is: a frozen dataclass whose fields are its settings and whose call reads the data."""

    def __call__(self) -> Benchmark: ...


def benchmark(name: str) -> type[Loader]:
    """The class of a benchmark; an unknown name is an error that suggests a known one."""
    if name not in BENCHMARKS:
        raise InputError(f"there is no benchmark {name!r}: {did_you_mean(name, BENCHMARKS)}")
    module, _, attribute = BENCHMARKS[name].partition(":")
    return cast("type[Loader]", getattr(importlib.import_module(module), attribute))
