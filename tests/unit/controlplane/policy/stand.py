"""A price policy by itself: it sees arrivals, and is asked what to run for a head."""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.policy.admission import Bounds, Load
from controlplane.policy.arrival import Arrival
from controlplane.policy.cascade import Cascade
from controlplane.policy.foresight import Foresight
from controlplane.policy.price import Price
from controlplane.policy.profiles import VariantTable
from controlplane.policy.records import Decision
from controlplane.policy.selector import Situation, Stage
from tests.unit.controlplane.policy.world import MS

DEADLINE = 90 * MS


@dataclass
class Stand:
    """Two workers, deadlines of 90 ms; `nominal_ns` are the services of all variants."""

    policy: Price
    table: VariantTable
    nominal_ns: list[int]
    foresight: Foresight
    cascade: Cascade | None = None
    now_ns: int = 0

    @property
    def variants(self) -> tuple[int, ...]:
        """All of them, most accurate first."""
        return tuple(range(len(self.nominal_ns)))

    def arrive(
        self, gap_ms: float, table: VariantTable | None = None, deadline_ns: int = DEADLINE
    ) -> bool:
        """One arrival, `gap_ms` after the last; whether it is admitted."""
        self.now_ns += int(gap_ms * MS)
        admission = self.policy.admit(
            Arrival(
                now_ns=self.now_ns,
                slack_ns=deadline_ns,
                trip_ns=1.0 * MS,
                eligible=self.variants,
                estimates=self.foresight.estimates(self.variants, self.nominal_ns),
                nominal_ns=self.nominal_ns,
                load=Load(0.0, 0.0, 0, 2, 1),
                bounds=Bounds(100, 10**12),
                table=table or self.table,
                cascade=self.cascade,
            )
        )
        return admission.admitted

    def arrivals(self, gap_ms: float, count: int) -> None:
        """So many of them, all admitted."""
        for _ in range(count):
            assert self.arrive(gap_ms)
            self.policy.refresh(self.now_ns)

    def decide(self, slack_ms: float, waiting: int, stage: Stage | None = None) -> Decision:
        """What a worker that is free is to run for a head with so much time left."""
        situation = at(slack_ms, waiting, self.cascade)._replace(stage=stage)
        return self.policy.decide(
            self.foresight.estimates(self.variants, self.nominal_ns), situation
        )


def at(slack_ms: float, waiting: int, cascade: Cascade | None = None) -> Situation:
    """A head with so much time left, so many behind it, idle workers."""
    return Situation(
        slack_ns=int(slack_ms * MS),
        deadline_ns=DEADLINE,
        busy_ns=0.0,
        queued_ns=waiting * 4.0 * MS,
        waiting=waiting,
        workers=2,
        hopeful_ns=4.0 * MS,
        trip_ns=1.0 * MS,
        cascade=cascade,
    )
