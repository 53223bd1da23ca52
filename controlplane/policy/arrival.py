"""What a policy is told when a request stands at the door."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from controlplane.policy.admission import Admission, Bounds, Load, admit
from controlplane.policy.cascade import Cascade
from controlplane.policy.profiles import VariantTable
from controlplane.policy.selector import Estimate


class Arrival(NamedTuple):
    """A newcomer at the door. `eligible` are variant numbers, most accurate first.

    `estimates` are their predictions, `nominal_ns` the same without the online correction,
    `slack_ns` the time until its deadline, `trip_ns` the way to a worker and back.
    `margin` stretches what is foretold of the wait, for policies that keep one (`DoorMargin`).
    `table` holds the variants' profiles, `in_flight` counts the requests that workers hold,
    `cpu_percent` is the smoothed use of the workers' whole machines, 0 to 100; `cascade` is what
    the newcomer may take.
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
    margin: float = 1.0
    in_flight: int = 0
    cpu_percent: float = 0.0
    cascade: Cascade | None = None

    def fastest(self) -> int:
        """Place of the eligible variant with the least prediction."""
        predicted = [estimate.predicted_ns for estimate in self.estimates]
        return predicted.index(min(predicted))

    def admit(
        self, place: int, variants: tuple[int, ...], z: float, margin: float = 1.0
    ) -> Admission:
        """Admit for `variants` if the estimate at `place` is in time; see `admission.admit`."""
        estimate = self.estimates[place]
        return admit(
            variants,
            service_ns=estimate.predicted_ns,
            hopeful_ns=min(estimate.predicted_ns, self.nominal_ns[place]),
            sigma=estimate.sigma,
            slack_ns=self.slack_ns,
            trip_ns=self.trip_ns,
            load=self.load,
            bounds=self.bounds,
            z=z,
            margin=margin,
        )
