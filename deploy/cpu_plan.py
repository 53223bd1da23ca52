"""How many cores this process may really use: quota, cpuset and affinity, not the host's count.

A container sees every core of its host while its control group grants it a fraction;
sizing threads to what is seen makes them wait for each other.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_CGROUP_ROOT = Path("/sys/fs/cgroup")
_SELF_CGROUP = Path("/proc/self/cgroup")


@dataclass(frozen=True, slots=True)
class CpuPlan:
    """`cores` to use, with what it rests on.

    `affinity` counts the CPUs the scheduler may use (affinity and cpuset together),
    `quota` is the control group's bandwidth in cores (None without a limit), `visible`
    what the kernel shows. `throttled_periods` counts periods the quota held us back.
    """

    visible: int
    affinity: int
    quota: float | None
    throttled_periods: int

    @property
    def granted(self) -> float:
        """Cores' worth of CPU time this process may use."""
        return float(self.affinity) if self.quota is None else min(self.affinity, self.quota)

    @property
    def cores(self) -> int:
        """Single-threaded workers that do not contend: whole granted cores, at least one."""
        return max(1, int(self.granted + 1e-9))

    @property
    def binding(self) -> str:
        """Which limit decides: "quota", "affinity" or "machine"."""
        if self.quota is not None and self.quota < self.affinity:
            return "quota"
        return "affinity" if self.affinity < self.visible else "machine"


def read_cpu_plan(
    *,
    affinity: int | None = None,
    cgroup_root: Path = _CGROUP_ROOT,
    self_cgroup: Path = _SELF_CGROUP,
) -> CpuPlan:
    """Reads this process's limits; control groups that cannot be read count as no limit."""
    quota: float | None = None
    throttled = 0
    for folder in _own_groups(cgroup_root, self_cgroup):
        limit = _quota(folder)
        if limit is not None:
            quota = limit if quota is None else min(quota, limit)
            throttled = max(throttled, _throttled(folder))
    return CpuPlan(
        visible=os.cpu_count() or 1,
        affinity=len(os.sched_getaffinity(0)) if affinity is None else affinity,
        quota=quota,
        throttled_periods=throttled,
    )


def _own_groups(root: Path, self_cgroup: Path) -> Iterator[Path]:
    """The process's control group (version 2) and those around it, innermost first."""
    relative = ""
    with suppress(OSError):
        for line in self_cgroup.read_text().splitlines():
            if line.startswith("0::"):
                relative = line[3:].strip("/")
    folder = root / relative
    while True:
        yield folder
        if folder == root or root not in folder.parents:
            return
        folder = folder.parent


def _quota(folder: Path) -> float | None:
    """Cores of a group's `cpu.max`; None for "max" or when there is no such file."""
    with suppress(OSError, ValueError):
        limit, _, period = (folder / "cpu.max").read_text().strip().partition(" ")
        if limit != "max":
            return int(limit) / int(period)
    return None


def _throttled(folder: Path) -> int:
    with suppress(OSError, ValueError):
        for line in (folder / "cpu.stat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "nr_throttled":
                return int(value)
    return 0


class OversubscribedError(ValueError):
    """More threads than granted cores; the text says how many there are and which limit decides."""


def check_threads(plan: CpuPlan, workers: int, threads_each: int) -> None:
    """Raises OversubscribedError when the workers' threads outnumber the granted cores."""
    wanted = workers * threads_each
    if wanted > plan.cores:
        raise OversubscribedError(
            f"{workers} workers with {threads_each} thread(s) each need {wanted} cores, "
            f"{plan.granted:g} are granted (limit: {plan.binding}); "
            f"start at most {max(1, plan.cores // threads_each)} workers"
        )
