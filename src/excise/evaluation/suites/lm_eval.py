"""The suite that is another evaluation harness."""

from __future__ import annotations

from types import MappingProxyType

from excise.evaluation.harness import Harness
from excise.evaluation.suites.suite import Suite


def lm_eval(
    tasks: tuple[str, ...] = ("arc_easy",), folder: str | None = None, fewshot: int | None = None, chat: bool = False, batch: int = 8
) -> Suite:
    """Any task of EleutherAI's lm-evaluation-harness, on the model as it is in memory.

    The harness brings its own data (from the hub, or ``folder`` with task files of your own) and leaves no records; its values, directions
    and standard errors become scores ``<task>.<metric>``. Needs ``excise[lm-eval]``.

    Paper: Gao et al. 2021, A framework for few-shot language model evaluation (lm-evaluation-harness).
    """
    return Suite("lm_eval", MappingProxyType({}), (), live=(Harness(tuple(tasks), folder, fewshot, chat, batch),))
