"""excise: remove chosen knowledge from a causal language model, keep the rest, and prove both.

>>> import excise
>>> recipe = excise.Recipe.load("recipe.yaml")        # doctest: +SKIP
>>> result = excise.unlearn(recipe, "runs/first")     # doctest: +SKIP
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

# Large tensors in large pages, where Linux has them: torch reads this at its first allocation. A training step has half as many page faults.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

if TYPE_CHECKING:
    from excise.data.example import Benchmark, Example
    from excise.errors import InputError
    from excise.evaluate_model import evaluate_model as evaluate
    from excise.lesson import Lesson, teach
    from excise.loading import ModelSpec, load
    from excise.methods import METHODS
    from excise.recipe import Recipe
    from excise.registry import register
    from excise.report.html import write_report
    from excise.run import unlearn
    from excise.saving import save
    from excise.subject import Subject
    from excise.token_scores import attribute

__version__ = "0.1.0"

_PLACES = {
    "Benchmark": "excise.data.example",
    "Example": "excise.data.example",
    "InputError": "excise.errors",
    "Lesson": "excise.lesson",
    "METHODS": "excise.methods",
    "ModelSpec": "excise.loading",
    "Recipe": "excise.recipe",
    "Subject": "excise.subject",
    "attribute": "excise.token_scores",
    "evaluate": "excise.evaluate_model:evaluate_model",
    "load": "excise.loading",
    "register": "excise.registry",
    "save": "excise.saving",
    "teach": "excise.lesson",
    "unlearn": "excise.run",
    "write_report": "excise.report.html",
}

__all__ = [
    "METHODS",
    "Benchmark",
    "Example",
    "InputError",
    "Lesson",
    "ModelSpec",
    "Recipe",
    "Subject",
    "attribute",
    "evaluate",
    "load",
    "register",
    "save",
    "teach",
    "unlearn",
    "write_report",
]


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used, so that ``import excise`` stays quick."""
    if name not in _PLACES:
        raise AttributeError(f"module 'excise' has no attribute {name!r}")
    module, _, attribute_name = _PLACES[name].partition(":")
    value = getattr(importlib.import_module(module), attribute_name or name)
    globals()[name] = value
    return value
