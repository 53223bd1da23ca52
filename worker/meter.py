"""What the process and the host spend, sampled seldom and read often."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class LoadSample:
    """CPU use over the last window (process: 100 is one core; host: 0 to 100) and memory now."""

    process_cpu_percent: float
    host_cpu_percent: float
    resident_bytes: int
    throttled_periods: int


@dataclass(frozen=True, slots=True)
class HostTimes:
    """Seconds that all CPUs of the host have spent, and those of them that were not idle."""

    total_s: float
    busy_s: float


def host_times() -> HostTimes:
    """The host's CPU times since it started."""
    times = psutil.cpu_times()
    # Guest time is part of user time already.
    total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    return HostTimes(total, total - times.idle - getattr(times, "iowait", 0.0))


class LoadMeter:
    """Samples CPU use over windows of at least `window_ns`, and memory whenever it is asked.

    The kernel counts host time in ticks of some milliseconds, so short windows are noise.
    """

    def __init__(
        self,
        *,
        now_ns: Callable[[], int],
        process_cpu_ns: Callable[[], int],
        host: Callable[[], HostTimes],
        resident_bytes: Callable[[], int],
        throttled_periods: Callable[[], int],
        window_ns: int = 250_000_000,
    ) -> None:
        self._now_ns = now_ns
        self._process_cpu_ns = process_cpu_ns
        self._host = host
        self._resident_bytes = resident_bytes
        self._throttled_periods = throttled_periods
        self._window_ns = window_ns
        self._begun_ns = now_ns()
        self._process_ns = process_cpu_ns()
        self._host_before = host()
        self.latest = LoadSample(0.0, 0.0, resident_bytes(), throttled_periods())

    def process_cpu_ns(self) -> int:
        """CPU time that the process has used since its start, now."""
        return self._process_cpu_ns()

    def sample(self) -> LoadSample:
        """Takes a sample and keeps it as `latest`."""
        process, whole = self.latest.process_cpu_percent, self.latest.host_cpu_percent
        now = self._now_ns()
        elapsed = now - self._begun_ns
        if elapsed >= self._window_ns:
            spent, host = self._process_cpu_ns(), self._host()
            total = host.total_s - self._host_before.total_s
            busy = host.busy_s - self._host_before.busy_s
            process = 100.0 * (spent - self._process_ns) / elapsed
            whole = min(100.0, max(0.0, 100.0 * busy / total)) if total > 0 else whole
            self._begun_ns, self._process_ns, self._host_before = now, spent, host
        self.latest = LoadSample(process, whole, self._resident_bytes(), self._throttled_periods())
        return self.latest
