"""The one exception that means: the input was wrong, and here is what to do about it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(Exception):
    """Something that the user gave cannot be used.

    The message is one line: what was given, where, and what is allowed or what to do. The command line prints
    it without a traceback and exits with code 2.
    """


class Collapse(Exception):
    """Training left the region in which the model still works; the last good state has been put back."""


def did_you_mean(given: str, allowed: Iterable[str]) -> str:
    """A hint for a misspelt name, or the list of what is allowed where nothing is close."""
    names = sorted(allowed)
    close = difflib.get_close_matches(given, names, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"allowed: {', '.join(names)}" if names else "nothing is allowed here"
