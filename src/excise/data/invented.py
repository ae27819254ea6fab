"""Invented names: words that nobody was taught anything about."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable


def _listed(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"\w+", text))


STARTS = _listed("Bel Cor Dal El Fen Gar Hal Is Jor Kel Lor Mar Nev Or Pel Quor Ral Sel Tor Ul Var Wes Yor Zel")
MIDDLES = _listed("a e i o u an en in or el ar il")
ENDS = _listed("bek dran fell gast holm jen kova lith mond nath pry rusk sten tova vane wick xen yard zor")


def invented(count: int, avoid: Iterable[str], seed: int = 0) -> list[str]:
    """Words that look like names and are none of ``avoid``."""
    taken = {word.casefold() for word in avoid}
    draw = random.Random(seed)
    found: list[str] = []
    while len(found) < count:
        name = draw.choice(STARTS) + draw.choice(MIDDLES) + draw.choice(ENDS)
        if name.casefold() not in taken:
            taken.add(name.casefold())
            found.append(name)
    return found
