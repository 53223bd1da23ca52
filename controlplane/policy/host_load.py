"""How busy the machines are, smoothed as the published system smooths it."""

from __future__ import annotations

SAMPLE_NS = 250_000_000
GAIN = 0.3


class HostLoad:
    """EWMA of whole-machine CPU use, 0 to 100: gain 0.3, one sample every 0.25 s.

    A sample is the mean of what was reported since the sample before, so that several
    machines count alike. Orchid's own policy does not read it: the online correction
    sees contention where it matters, in service times.
    """

    __slots__ = ("_begun_ns", "_count", "_sum", "percent")

    def __init__(self) -> None:
        self.percent = 0.0
        self._sum = 0.0
        self._count = 0
        self._begun_ns = 0

    def report(self, percent: float, now_ns: int) -> None:
        """Take one worker's report of its machine's CPU use."""
        if not self._count:
            self._begun_ns = max(self._begun_ns, now_ns - SAMPLE_NS)
        self._sum += percent
        self._count += 1
        if now_ns - self._begun_ns >= SAMPLE_NS:
            self.percent += GAIN * (self._sum / self._count - self.percent)
            self._sum, self._count = 0.0, 0
            self._begun_ns = now_ns
