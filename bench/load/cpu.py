"""CPU time of other processes, as the kernel accounts it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_CPUCLOCK_SCHED = 2


def process_cpu_s(pid: int) -> float:
    """User and system seconds of a process and its ended threads; 0.0 when it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    after_name = text.rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / _TICKS_PER_S


def process_cpu_ns(pid: int) -> int:
    """User and system time of a process and its ended threads, by its own clock, to the ns.

    Raises OSError when it is gone. Source: clock_getcpuclockid(3); MAKE_PROCESS_CPUCLOCK of Linux.
    """
    return time.clock_gettime_ns((~pid << 3) | _CPUCLOCK_SCHED)


def sample(watch: Mapping[str, int]) -> dict[str, float]:
    """CPU seconds so far by name."""
    return {name: process_cpu_s(pid) for name, pid in watch.items()}


def difference(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Seconds spent between two samples; a process that vanished counts 0."""
    return {name: max(0.0, value - before.get(name, 0.0)) for name, value in after.items()}
