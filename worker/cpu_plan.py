"""The CPU plan: how many cores this process may really use, and which limit says so.

A container sees every core of its host while its control group grants a fraction; threads sized
to what is seen wait for each other. The plan takes the tightest of the CPU bandwidth quota
(cgroup v2 `cpu.max`, or version 1's CFS files), the cpuset, and the scheduler's affinity.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from worker.cgroups import CGROUP_ROOT, SELF_CGROUP, own_groups, statistics

# A quota of 1.999 cores is two cores; kernel periods do not divide evenly.
_ROUNDING = 1e-2


@dataclass(frozen=True, slots=True)
class Throttling:
    """Counters of a quota since its group was made; differences of two readings are what counts."""

    periods: int = 0
    throttled_periods: int = 0
    throttled_us: int = 0


@dataclass(frozen=True, slots=True)
class CpuPlan:
    """What may be used, with what it rests on.

    `visible` counts the CPUs the kernel shows; `cpus` are those that affinity and cpuset both
    allow; `cpuset` counts those the cpuset allows (None without one); `quota` is the control
    group's bandwidth in cores (None without a limit).
    """

    visible: int
    cpus: tuple[int, ...]
    cpuset: int | None = None
    quota: float | None = None
    throttling: Throttling = Throttling()

    @property
    def affinity(self) -> int:
        """Number of CPUs the scheduler may use."""
        return len(self.cpus)

    @property
    def granted(self) -> float:
        """Cores' worth of CPU time this process may use."""
        allowed = float(len(self.cpus))
        return allowed if self.quota is None else min(allowed, self.quota)

    @property
    def cores(self) -> int:
        """Threads that do not contend: whole granted cores, at least one."""
        return max(1, int(self.granted + _ROUNDING))

    @property
    def binding(self) -> str:
        """The limit that decides: "quota", "cpuset", "affinity" or "machine"."""
        if self.quota is not None and self.quota < len(self.cpus):
            return "quota"
        if len(self.cpus) == self.visible:
            return "machine"
        return "cpuset" if self.cpuset == len(self.cpus) else "affinity"

    @property
    def throttled_periods(self) -> int:
        """Periods in which the quota held this process back, since its group was made."""
        return self.throttling.throttled_periods


class OversubscribedError(ValueError):
    """More threads than granted cores; the text has the numbers and the limit that decides."""


def check_threads(
    plan: CpuPlan, workers: int, threads_each: int, *, oversubscribe: bool = False
) -> None:
    """Refuse more worker threads than granted cores, unless told to `oversubscribe`.

    Raises:
        OversubscribedError: `workers * threads_each` is above `plan.cores`.
        ValueError: either is below one.
    """
    if workers < 1 or threads_each < 1:
        raise ValueError(f"{workers} workers with {threads_each} threads: each must be at least 1")
    wanted = workers * threads_each
    if wanted > plan.cores and not oversubscribe:
        raise OversubscribedError(
            f"{workers} workers with {threads_each} thread(s) each need {wanted} cores, "
            f"{plan.granted:g} are granted (limit: {plan.binding}); "
            f"start at most {max(1, plan.cores // threads_each)} workers"
        )


def read_cpu_plan(
    *,
    affinity: Sequence[int] | None = None,
    visible: int | None = None,
    cgroup_root: Path = CGROUP_ROOT,
    self_cgroup: Path = SELF_CGROUP,
) -> CpuPlan:
    """Read this process's limits; what cannot be read is no limit.

    The parameters stand in for the system's answers: CPU numbers of the affinity mask, number of
    CPUs, and the places of the control group tree and of the process's position in it.
    """
    cpus = frozenset(os.sched_getaffinity(0) if affinity is None else affinity)
    quota: float | None = None
    cpuset: frozenset[int] | None = None
    throttling = Throttling()
    for folder in own_groups("cpu", "cpuset", root=cgroup_root, self_cgroup=self_cgroup):
        limit = _quota(folder)
        if limit is not None and (quota is None or limit < quota):
            quota, throttling = limit, read_throttling(folder)
        allowed = _cpuset(folder)
        if allowed is not None:
            cpuset = allowed if cpuset is None else cpuset & allowed
    usable = cpus if cpuset is None else cpus & cpuset
    return CpuPlan(
        visible=visible or os.cpu_count() or 1,
        # Masks that contradict each other are a torn reading: the scheduler's own answer holds.
        cpus=tuple(sorted(usable or cpus)),
        cpuset=None if cpuset is None else len(cpuset),
        quota=quota,
        throttling=throttling,
    )


def read_throttling(folder: Path) -> Throttling:
    """The counters in a group's `cpu.stat`; zeros where there are none.

    Version 2 counts microseconds, version 1 nanoseconds.
    """
    values = statistics(folder / "cpu.stat")
    return Throttling(
        periods=values.get("nr_periods", 0),
        throttled_periods=values.get("nr_throttled", 0),
        throttled_us=values.get("throttled_usec", values.get("throttled_time", 0) // 1000),
    )


def throttle_reader(
    cgroup_root: Path = CGROUP_ROOT, self_cgroup: Path = SELF_CGROUP
) -> Callable[[], Throttling]:
    """Returns a function that reads the counters of the quota that held the process back most.

    Which files to read is found out once, here; a host without quotas costs nothing later.
    """
    groups = own_groups("cpu", root=cgroup_root, self_cgroup=self_cgroup)
    limited = [folder for folder in groups if _quota(folder) is not None]

    def read() -> Throttling:
        found = map(read_throttling, limited)
        return max(found, key=lambda each: each.throttled_periods, default=Throttling())

    return read


def throttle_counter(
    cgroup_root: Path = CGROUP_ROOT, self_cgroup: Path = SELF_CGROUP
) -> Callable[[], int]:
    """Returns a function that counts the periods in which a CPU quota held the process back."""
    read = throttle_reader(cgroup_root, self_cgroup)
    return lambda: read().throttled_periods


def parse_cpus(text: str) -> frozenset[int]:
    """CPU numbers of a kernel list such as `0-3,8`; raises ValueError when it is none."""
    cpus: set[int] = set()
    for part in text.strip().split(","):
        if not part:
            continue
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def parse_quota(quota: str, period: str) -> float | None:
    """Cores that `quota` of every `period` (microseconds) is; None for "max", -1 or nonsense."""
    with suppress(ValueError):
        limit, length = int(quota), int(period)
        if limit > 0 and length > 0:
            return limit / length
    return None


def _quota(folder: Path) -> float | None:
    with suppress(OSError):
        quota, _, period = (folder / "cpu.max").read_text().strip().partition(" ")
        return parse_quota(quota, period)
    with suppress(OSError):
        quota = (folder / "cpu.cfs_quota_us").read_text()
        return parse_quota(quota, (folder / "cpu.cfs_period_us").read_text())
    return None


def _cpuset(folder: Path) -> frozenset[int] | None:
    for name in ("cpuset.cpus.effective", "cpuset.effective_cpus"):
        with suppress(OSError, ValueError):
            return parse_cpus((folder / name).read_text()) or None
    return None
