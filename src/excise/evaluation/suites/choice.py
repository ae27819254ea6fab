"""The suite for choice questions."""

from __future__ import annotations

from types import MappingProxyType

from excise.evaluation.plan import Plan
from excise.evaluation.suites.suite import Suite, measures

ANSWERS = ("choice_accuracy", "choice_margin", "choice_probability")
LETTERS = ("letter_accuracy", "letter_margin", "letter_probability")


def choice(letters: bool = True, forget: bool = False, split: str = "questions") -> Suite:
    """Choice questions, by the likelihood of the answers and by letters, overall and for each subject.

    ``choice_...`` scores take each option as the answer to the question (length-normalised; what works for models under
    1B parameters); ``letter_...`` scores are lm-evaluation-harness's form of MMLU and WMDP: the options stand in the prompt
    without a chat template, and the letters are scored. ``letters=False`` leaves these out; ``forget=True`` says that the
    questions ask for what is to be forgotten (WMDP), so that lower is better.

    Paper: Hendrycks et al. 2021, MMLU (arXiv 2009.03300), as run by lm-evaluation-harness (Gao et al. 2021).
    """
    wanted = measures((split,), *ANSWERS, *(LETTERS if letters else ()), by_label=True)
    plans = {split: Plan(true=False, options=True, letters=letters)}
    return Suite(
        "choice",
        MappingProxyType(plans),
        tuple(wanted),
        forgotten=(split,) if forget else (),
        instead={split: "real_world"},
    )
