"""When to start a dead process again."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Exponential backoff in seconds that forgets once a process has lived long enough."""

    initial_s: float = 0.2
    factor: float = 2.0
    maximum_s: float = 15.0
    healthy_after_s: float = 20.0


def next_delay(policy: RestartPolicy, previous_s: float, lived_s: float) -> float:
    """Seconds to wait before the next start.

    `previous_s` is the delay before the last start (0 for the first), `lived_s` how
    long the process then ran.
    """
    if previous_s <= 0 or lived_s >= policy.healthy_after_s:
        return policy.initial_s
    return min(policy.maximum_s, previous_s * policy.factor)
