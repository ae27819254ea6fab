"""EleutherAI's lm-evaluation-harness on the model that is already in memory, its results as our scores."""

from __future__ import annotations

import contextlib
import importlib
import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from excise.errors import InputError, did_you_mean
from excise.evaluation.score import Z95, Better, Score

if TYPE_CHECKING:
    from excise.subject import Subject

MISSING = 'the suite lm_eval needs the lm-evaluation-harness: pip install "excise[lm-eval]"'


@dataclass(frozen=True)
class Harness:
    """Runs tasks of the lm-evaluation-harness. Scores are called ``<task>.<metric>``, with ``.<filter>`` behind where a task has filters.

    Paper: Gao et al. 2021, A framework for few-shot language model evaluation (lm-evaluation-harness).
    """

    tasks: tuple[str, ...]
    """Names of tasks, groups or tags (``lm_eval --tasks list`` shows them)."""
    folder: str | None = None
    """A folder with task files (YAML) of your own."""
    fewshot: int | None = None
    """Solved examples before each question; None: what the task says."""
    chat: bool = False
    """Whether the model's chat template is applied; the harness's published numbers are mostly without."""
    batch: int = 8
    """Requests of one batch."""

    def __post_init__(self) -> None:
        if not self.tasks:
            raise InputError("the suite lm_eval has no tasks: name some with suite.tasks=[arc_easy, hellaswag]")
        if self.folder is not None and not Path(self.folder).expanduser().is_dir():
            raise InputError(f"suite.folder: there is no folder {self.folder}; give one with task files (YAML)")

    def __call__(self, subject: Subject, limit: int | None) -> dict[str, Score]:
        """Asks the model and gives its scores."""
        with _quiet():
            evaluator, tasks = _imported("lm_eval.evaluator"), _imported("lm_eval.tasks")
            manager = tasks.TaskManager(include_path=str(Path(self.folder).expanduser()) if self.folder else None)
            for task in self.tasks:
                if task not in manager.all_tasks:
                    raise InputError(f"the lm-evaluation-harness has no task {task!r}: {_hint(task, manager.all_tasks)}")
            model = _imported("lm_eval.models.huggingface").HFLM(
                pretrained=subject.model, tokenizer=subject.tokenizer, backend="causal", batch_size=self.batch
            )
            was_training = subject.model.training
            subject.model.eval()
            try:
                found = evaluator.simple_evaluate(
                    model=model,
                    tasks=list(self.tasks),
                    task_manager=manager,
                    num_fewshot=self.fewshot,
                    apply_chat_template=self.chat,
                    system_instruction=subject.template.system if self.chat else None,
                    limit=limit,
                    bootstrap_iters=1000,
                    log_samples=False,
                    random_seed=None,
                    numpy_random_seed=None,
                    torch_random_seed=None,
                )
            except (OSError, ValueError, KeyError) as error:
                reason = next(iter(str(error).splitlines()), type(error).__name__)
                raise InputError(f"the lm-evaluation-harness cannot run {', '.join(self.tasks)}: {reason}") from None
            finally:
                subject.model.train(was_training)
        return scores_of(found)


def scores_of(results: Mapping[str, Any]) -> dict[str, Score]:
    """The harness's results in our schema; the interval is the value and 1.96 of its standard errors to both sides."""
    found: dict[str, Score] = {}
    for task, values in {**results["results"], **results.get("groups", {})}.items():
        higher = results.get("higher_is_better", {}).get(task, {})
        n = _samples(results, task)
        for key, value in values.items():
            metric, comma, filter_ = key.partition(",")
            if not comma or metric.endswith("_stderr"):
                continue
            name = f"{task}.{metric}" if filter_ == "none" else f"{task}.{metric}.{filter_}"
            found[name] = _score(value, values.get(f"{metric}_stderr,{filter_}"), higher.get(metric), n)
    return found


def _score(value: object, error: object, higher: bool | None, n: int) -> Score:
    better: Better = "none" if higher is None else "higher" if higher else "lower"
    number, spread = _number(value), _number(error)
    if number is None:
        return Score.missing(f"the harness gives {value!r}", better)
    return Score(number, better, n, None if spread is None else (number - Z95 * spread, number + Z95 * spread))


def _number(value: object) -> float | None:
    """A finite number, or None: the harness writes "N/A" where it has none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def _samples(results: Mapping[str, Any], task: str) -> int:
    """Documents that a task was measured on; of a group, those of its tasks."""
    own = results.get("n-samples", {}).get(task)
    if own is not None:
        return int(own["effective"])
    return sum(_samples(results, part) for part in results.get("group_subtasks", {}).get(task, []) if part != task)


def _hint(task: str, known: list[str]) -> str:
    hint = did_you_mean(task, known)
    return hint if hint.startswith("did you mean") else f"`lm_eval --tasks list` shows the {len(known)} that it has; your own need suite.folder=DIR"


def _imported(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise InputError(MISSING) from None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The harness logs each of its steps."""
    logger = logging.getLogger("lm_eval")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
