"""Machines: how much memory they have and how fast they are, by data sheet, by hand, or as this one measures."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import torch

from excise.errors import InputError, did_you_mean

GIB = 2**30


@dataclass(frozen=True)
class Hardware:
    """One accelerator, or one machine without any."""

    name: str
    memory_gib: float
    tflops: float
    """Dense bf16 matrix products per second by the data sheet, in 1e12 operations."""
    tflops32: float
    """The same in float32 (TF32 where it is on by default: it is not)."""
    bandwidth: float
    """Memory bandwidth in 1e9 bytes per second."""
    share: float = 0.35
    """Share of ``tflops`` that training reaches; what it is without a calibration is a rule of thumb."""
    launch: float = 8e-6
    """Seconds of one small operation."""
    cpu: bool = False


TABLE: dict[str, Hardware] = {
    machine.name: machine
    for machine in (
        Hardware("t4", 16.0, 65.0, 8.1, 320.0),
        Hardware("rtx3090", 24.0, 71.0, 35.6, 936.0),
        Hardware("rtx4090", 24.0, 165.0, 82.6, 1008.0),
        Hardware("l4", 24.0, 121.0, 30.3, 300.0),
        Hardware("l40s", 48.0, 362.0, 91.6, 864.0),
        Hardware("a100-40g", 40.0, 312.0, 19.5, 1555.0),
        Hardware("a100", 80.0, 312.0, 19.5, 2039.0),
        Hardware("h100", 80.0, 989.0, 67.0, 3350.0),
        Hardware("h200", 141.0, 989.0, 67.0, 4800.0),
        Hardware("b200", 180.0, 2250.0, 80.0, 8000.0),
    )
}
"""By NVIDIA's data sheets: dense bf16 (float16 for the T4), float32, memory bandwidth."""
FIELDS = {"memory": "memory_gib", "tflops": "tflops", "tflops32": "tflops32", "bandwidth": "bandwidth", "share": "share"}


def hardware(line: str | None) -> Hardware:
    """A machine from its name, from a line such as ``memory=80,tflops=300,bandwidth=2000`` (or ``h100,share=0.4``), or this one.

    Raises:
        InputError: an unknown name or field.
    """
    if line is None:
        return this_machine()
    parts = [part.strip() for part in line.split(",") if part.strip()]
    names = [part for part in parts if "=" not in part]
    if len(names) > 1:
        raise InputError(f"--hardware {line!r}: one machine is expected, got {', '.join(names)}")
    if names and names[0].lower() not in TABLE:
        raise InputError(f"--hardware: unknown machine {names[0]!r}: {did_you_mean(names[0].lower(), TABLE)}; or memory=GiB,tflops=N,bandwidth=GB/s")
    values: dict[str, float] = {}
    for part in parts:
        if "=" not in part:
            continue
        key, _, text = part.partition("=")
        if key.strip() not in FIELDS:
            raise InputError(f"--hardware: unknown field {key.strip()!r}: {did_you_mean(key.strip(), FIELDS)}")
        try:
            values[FIELDS[key.strip()]] = float(text)
        except ValueError:
            raise InputError(f"--hardware: {part!r} has no number") from None
        if not values[FIELDS[key.strip()]] > 0:
            raise InputError(f"--hardware: {part!r} must be above 0")
    if names:
        return replace(TABLE[names[0].lower()], **values)
    if missing := next((name for name in ("memory", "tflops", "bandwidth") if FIELDS[name] not in values), None):
        raise InputError(f"--hardware {line!r}: {missing}=... is missing; memory, tflops and bandwidth are needed, or the name of a machine")
    return replace(Hardware("as given", 0.0, 0.0, values["tflops"] / 2, 0.0), **values)


def this_machine() -> Hardware:
    """The machine that this runs on; its rates are guesses until they are calibrated."""
    if torch.cuda.is_available():
        device = torch.cuda.get_device_properties(0)
        known = next((m for name, m in TABLE.items() if name in device.name.lower().replace(" ", "")), TABLE["a100"])
        return replace(known, name=device.name, memory_gib=device.total_memory / GIB)
    cores = torch.get_num_threads()
    amx = torch.cpu._is_amx_tile_supported()
    wide = torch.cpu._is_avx512_bf16_supported()
    half = 1.0 if amx else 0.15 if wide else 0.02
    return Hardware("this CPU", memory_of_machine() / GIB, half * cores, 0.08 * cores, 10.0 * min(cores, 8), share=0.5, launch=6e-6, cpu=True)


def memory_of_machine() -> float:
    """Bytes of main memory."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (ValueError, OSError, AttributeError):
        return 16.0 * GIB
