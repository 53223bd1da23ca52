"""How many requests an identity may send: a token bucket, as one number."""

from __future__ import annotations

from dataclasses import dataclass

_SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Rate:
    """`per_second` requests on average and `burst` at once; 0 a second is no bound."""

    per_second: float = 0.0
    burst: int = 1

    @property
    def bounded(self) -> bool:
        """Whether there is a bound."""
        return self.per_second > 0.0


class TokenBucket:
    """Lets requests through at a `Rate` that is bounded.

    It keeps the time at which the bucket would be full again. Source: the generic cell rate
    algorithm, ITU-T I.371, annex A.
    """

    def __init__(self, rate: Rate, before: TokenBucket | None = None) -> None:
        """Full, or as empty as the one `before` it under another rate."""
        self.rate = rate
        self._interval_ns = max(1, round(_SECOND_NS / rate.per_second))
        self._tolerance_ns = self._interval_ns * (rate.burst - 1)
        self._full_ns: int = 0 if before is None else before._full_ns

    def take(self, now_ns: int) -> int:
        """0 lets a request through and counts it; else the time in ns until one may come."""
        early_ns = self._full_ns - self._tolerance_ns - now_ns
        if early_ns > 0:
            return early_ns
        self._full_ns = max(self._full_ns, now_ns) + self._interval_ns
        return 0
