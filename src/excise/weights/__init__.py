"""Which tokens count, and how much: mean 1 over each sequence."""

from excise.weights.attribution import Attribution, Facts
from excise.weights.uniform import Uniform

WEIGHTS: dict[str, type] = {"uniform": Uniform, "attribution": Attribution, "facts": Facts}

__all__ = ["WEIGHTS", "Attribution", "Facts", "Uniform"]
