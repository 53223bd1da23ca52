"""What a policy is told when a request stands at the door."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from controlplane.policy.admission import Bounds, Load
from controlplane.policy.profiles import VariantTable
from controlplane.policy.selector import Estimate


class Arrival(NamedTuple):
    """A newcomer at the door. `eligible` are variant numbers, most accurate first.

    `estimates` are their predictions, `nominal_ns` the same without the online correction,
    `slack_ns` the time until its deadline, `trip_ns` the way to a worker and back.
    `table` holds the variants' profiles, `in_flight` counts the requests that workers hold,
    `cpu_percent` is the smoothed use of the workers' whole machines, 0 to 100.
    """

    now_ns: int
    slack_ns: int
    trip_ns: float
    eligible: tuple[int, ...]
    estimates: Sequence[Estimate]
    nominal_ns: Sequence[int]
    load: Load
    bounds: Bounds
    table: VariantTable
    in_flight: int = 0
    cpu_percent: float = 0.0
