"""An estimate as lines for a table."""

from __future__ import annotations

from typing import Any

import torch

from excise.estimate.needs import Estimate


def lines(value: Estimate) -> list[tuple[str, Any]]:
    """Labels and values for a table."""
    memory = (
        ("process", value.process_mb),
        ("weights", value.weights_mb),
        ("gradients", value.gradients_mb),
        ("optimiser", value.optimiser_mb),
        ("activations", value.activations_mb),
        ("logits", value.logits_mb),
        ("reference", value.reference_mb),
    )
    fits = "" if value.fits else f"; this does NOT fit into the {value.memory_gib:.0f} GiB of {value.machine}"
    how = "calibrated here" if value.calibrated else "a rule of thumb; --calibrate measures this machine"
    return [
        ("parameters", f"{value.parameters:,}"),
        ("trained", f"{value.trainable:,} ({100 * value.trainable / max(1, value.parameters):.2f} %)"),
        ("optimiser steps", value.steps),
        ("tokens per step", value.tokens_per_step),
        ("machine", f"{value.machine}, {value.memory_gib:.0f} GiB, {torch.get_num_threads()} torch threads"),
        *((f"memory: {label}", f"{mb:,.0f} MiB") for label, mb in memory),
        ("memory: loading and saving", f"{value.load_mb:,.0f} MiB"),
        ("memory: total", f"about {value.total_mb:,.0f} MiB{fits}"),
        ("time: one step", f"about {value.seconds_per_step:.2g} s ({how})"),
        ("time: training", f"about {duration(value.seconds)}"),
    ]


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
