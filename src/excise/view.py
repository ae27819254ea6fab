"""What an objective or a weight sees of one batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

from jaxtyping import Bool, Float, Int
from torch import Tensor

from excise.tokens import Scored


class NotAvailable(RuntimeError):
    """A part of a view was looked at that the caller did not provide."""


def _missing(part: str) -> Callable[[], Scored]:
    def fail() -> Scored:
        raise NotAvailable(f"this view has no {part}")

    return fail


_NO_REFERENCE, _NO_MASKED, _NO_CONTRAST = _missing("reference model"), _missing("masked prompts"), _missing("contrast model")


def _no_alternative() -> View:
    raise NotAvailable("this view has no alternative answers: the examples need an 'alternative' field")


@dataclass(frozen=True)
class View:
    """One batch, seen from several sides. A part is computed only if looked at, and once."""

    get_model: Callable[[], Scored]
    get_reference: Callable[[], Scored] = _NO_REFERENCE
    get_masked: Callable[[], Scored] = _NO_MASKED
    get_contrast: Callable[[], Scored] = _NO_CONTRAST
    get_alternative: Callable[[], View] = _no_alternative
    get_copies: Callable[[], Bool[Tensor, " n"]] | None = None
    get_words: Callable[[], Int[Tensor, " n"]] | None = None

    @cached_property
    def model(self) -> Scored:
        """The model as it is now, with gradient in training."""
        return self.get_model()

    @cached_property
    def reference(self) -> Scored:
        """The model as it was, without gradient."""
        return self.get_reference()

    @cached_property
    def masked(self) -> Scored:
        """The same batch with the knowledge-bearing words of the prompt hidden, without gradient."""
        return self.get_masked()

    @cached_property
    def contrast(self) -> Scored:
        """The same batch seen by a model that lacks the knowledge, without gradient."""
        return self.get_contrast()

    @cached_property
    def alternative(self) -> View:
        """The same prompts with another answer ("I don't know", a false answer)."""
        return self.get_alternative()

    @cached_property
    def copies(self) -> Bool[Tensor, " n"]:
        """Which scored tokens repeat a noun of their prompt."""
        if self.get_copies is None:
            raise NotAvailable("this view does not know which tokens repeat the prompt")
        return self.get_copies()

    @cached_property
    def words(self) -> Int[Tensor, " n"]:
        """The word that each scored token belongs to, numbered over the batch."""
        if self.get_words is None:
            raise NotAvailable("this view does not know which tokens make up a word")
        return self.get_words()


@runtime_checkable
class Objective(Protocol):
    """A loss to minimise. Forget and retain objectives have the same type.

    An objective that looks at more than ``view.model``'s predictions says so in class attributes, because these things
    are prepared before training:

    * ``reads_reference``: a tuple of "logp", "logits", "hidden", for ``view.reference``;
    * ``needs_alternative = True``, for ``view.alternative``;
    * ``positions``: "scored" (the default), "all" for the prompt's tokens too, "every" for the very first one as well, which
      no prediction belongs to and only hidden states exist for;
    * ``layers``: a tuple of decoder layers, for ``view.model.hidden``; ``needs_logits = False`` if it looks at nothing else;
    * ``resolved(depth, median_norm)``: returns itself with settings filled in that depend on the model.
    """

    def __call__(self, view: View, weight: Float[Tensor, " n"]) -> Float[Tensor, ""]:
        """``weight`` has mean 1 over each sequence (one entry per scored token)."""
        ...


@runtime_checkable
class ParameterObjective(Protocol):
    """A loss on the parameters themselves."""

    @property
    def reads(self) -> str:
        """The name under which an earlier stage kept the tensors that the parameters are compared with."""
        ...

    def __call__(self, parameters: Mapping[str, Tensor], known: Mapping[str, Tensor]) -> Float[Tensor, ""]:
        """``known`` are the kept tensors by parameter name, ``parameters`` those of the model with the same names."""
        ...


@runtime_checkable
class Weight(Protocol):
    """How much each scored token counts: mean 1 over each sequence, zero where a token must not be touched."""

    def __call__(self, view: View) -> Float[Tensor, " n"]: ...
