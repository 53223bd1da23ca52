"""Orchid's default policy: late binding with a reserve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.policy.admission import Admission
from controlplane.policy.arrival import Arrival
from controlplane.policy.records import Decision
from controlplane.policy.selector import Estimate, Situation, late_binding, reserve_share


@dataclass(frozen=True, slots=True)
class Orchid:
    """Late binding with a reserve (see `selector.late_binding`)."""

    confidence_z: float = 1.645
    reserve: float = 0.35
    name: str = "orchid"
    by_deadline: bool = True
    second_look: bool = True

    def of_pool(self) -> Orchid:
        """Keeps nothing between decisions, so one serves every pool."""
        return self

    def refresh(self, now_ns: int) -> None:
        """Has nothing to prepare."""

    def admit(self, arrival: Arrival) -> Admission:
        """Refuse what would be late even on its fastest eligible variant."""
        return arrival.admit(arrival.fastest(), arrival.eligible, self.confidence_z, arrival.margin)

    def decide(self, estimates: Sequence[Estimate], situation: Situation) -> Decision:
        """The design's rule for the head of the queue."""
        reserve = reserve_share(self.reserve, situation.utilisation)
        return late_binding(estimates, situation, z=self.confidence_z, reserve=reserve)
