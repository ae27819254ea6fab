"""How much memory this process has needed so far."""

from __future__ import annotations

import re
import resource
import sys
from pathlib import Path

import torch

STATUS = Path("/proc/self/status")


def peak_memory_mb(device: torch.device | None = None) -> float:
    """Highest memory use so far, in MiB: of the device for CUDA, else of this process.

    ``getrusage`` is asked only where there is no /proc: on Linux a child begins with the peak of the process that started it.
    """
    if device is not None and device.type == "cuda":
        return round(torch.cuda.max_memory_allocated(device) / 2**20, 1)
    found = re.search(r"^VmHWM:\s+(\d+) kB$", STATUS.read_text(), re.MULTILINE) if STATUS.exists() else None
    if found is not None:
        return round(int(found[1]) / 2**10, 1)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1)  # macOS counts bytes, others KiB
