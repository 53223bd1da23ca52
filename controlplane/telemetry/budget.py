"""A bound on how many requests a second are recorded or kept. Pure."""

from __future__ import annotations


class Budget:
    """A token bucket: `per_s` a second in the long run, at most that many (or one) at once.

    A time that is before one that it was told earns nothing.
    """

    def __init__(self, per_s: float) -> None:
        self._per_ns = per_s / 1e9
        self._most = max(1.0, per_s) if per_s > 0.0 else 0.0
        self._left = self._most
        self._since_ns = 0

    def take(self, now_ns: int) -> bool:
        """Whether one more may be had now."""
        # Messages of a stream may be taken in later than others that came after them.
        since_ns = now_ns - self._since_ns
        if since_ns > 0:
            self._left = min(self._most, self._left + since_ns * self._per_ns)
            self._since_ns = now_ns
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True
