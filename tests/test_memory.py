"""The peak of this process, not of the one that started it."""

from __future__ import annotations

import subprocess
import sys

import numpy as np

from excise import memory

ASK = "from excise.memory import peak_memory_mb; print(peak_memory_mb())"


def test_a_child_does_not_begin_with_the_peak_of_its_parent() -> None:
    alone = float(subprocess.run([sys.executable, "-c", ASK], check=True, capture_output=True, text=True).stdout)
    held = np.ones(2**27)  # a GiB
    child = float(subprocess.run([sys.executable, "-c", ASK], check=True, capture_output=True, text=True).stdout)
    assert memory.peak_memory_mb() > 1024 * held[0]
    assert child < 1.2 * alone < 1024


def test_where_there_is_no_proc_the_system_is_asked(monkeypatch, tmp_path) -> None:
    exact = memory.peak_memory_mb()
    monkeypatch.setattr(memory, "STATUS", tmp_path / "status")
    assert memory.peak_memory_mb() >= 0.9 * exact > 50
    (tmp_path / "status").write_text("VmPeak:\t 9999 kB\nVmHWM:\t    2048 kB\nVmRSS:\t 1024 kB\n")
    assert memory.peak_memory_mb() == 2.0
