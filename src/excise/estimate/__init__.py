"""What a run will need, before anything is loaded: memory from the model's shape, time from a machine's rates or a calibration."""

from excise.estimate.needs import Estimate, estimate
from excise.estimate.table import lines

__all__ = ["Estimate", "estimate", "lines"]
