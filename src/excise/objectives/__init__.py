"""Losses to minimise. Each is a frozen dataclass whose ``__call__`` is its formula; forget and retain share one type."""

from excise.objectives.distance import KL, HiddenCosine, HiddenMSE
from excise.objectives.likelihood import CEU, NLL, UNDIAL, WGA, Ascent, CappedAscent, Entropy, SatImp
from excise.objectives.parameters import TaskVectorCosine
from excise.objectives.preference import DPO, NPO, SimNPO
from excise.objectives.steering import RMU

OBJECTIVES: dict[str, type] = {
    "ascent": Ascent,
    "capped_ascent": CappedAscent,
    "wga": WGA,
    "satimp": SatImp,
    "nll": NLL,
    "kl": KL,
    "npo": NPO,
    "simnpo": SimNPO,
    "dpo": DPO,
    "undial": UNDIAL,
    "ceu": CEU,
    "rmu": RMU,
    "hidden_mse": HiddenMSE,
    "hidden_cosine": HiddenCosine,
    "entropy": Entropy,
}

__all__ = [
    "CEU",
    "DPO",
    "KL",
    "NLL",
    "NPO",
    "OBJECTIVES",
    "RMU",
    "UNDIAL",
    "WGA",
    "Ascent",
    "CappedAscent",
    "Entropy",
    "HiddenCosine",
    "HiddenMSE",
    "SatImp",
    "SimNPO",
    "TaskVectorCosine",
]
