"""The policies a pool can run, behind one protocol: Orchid's own and those it is measured against.

The live server and the simulator use these same objects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from controlplane.policy.admission import Admission
from controlplane.policy.arrival import Arrival
from controlplane.policy.early import Early
from controlplane.policy.orchid import Orchid
from controlplane.policy.orchid_cascade import FixedCascade, OrchidCascade
from controlplane.policy.price import Price
from controlplane.policy.published import Published
from controlplane.policy.records import Decision
from controlplane.policy.selector import Estimate, Reason, Situation, fixed


class Policy(Protocol):
    """Decides at the door and when a worker frees; holds no clock and no queue."""

    @property
    def name(self) -> str:
        """The name under which it is selected."""

    @property
    def by_deadline(self) -> bool:
        """Whether the queue is ordered by deadline (else by arrival)."""

    @property
    def second_look(self) -> bool:
        """Whether a request whose time is up is dropped rather than run."""

    def of_pool(self) -> Policy:
        """The policy for one more pool: itself, unless it remembers arrivals."""

    def refresh(self, now_ns: int) -> None:
        """Prepare for decisions to come, between decisions; cheap enough to be called often."""

    def admit(self, arrival: Arrival) -> Admission:
        """Admit or refuse; an admission may leave fewer variants than were eligible."""

    def decide(self, estimates: Sequence[Estimate], situation: Situation) -> Decision:
        """Run the head on one of the estimates, or drop it."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """One variant fixed at arrival, honest admission, first come first served.

    Refused when the exact residual work ahead plus the own predicted service exceeds the
    deadline; what has expired is dropped at dispatch.
    """

    name: str
    reason: str
    cheapest: bool
    by_deadline: bool = False
    second_look: bool = True

    def of_pool(self) -> Fixed:
        """Keeps nothing between decisions, so one serves every pool."""
        return self

    def refresh(self, now_ns: int) -> None:
        """Has nothing to prepare."""

    def admit(self, arrival: Arrival) -> Admission:
        """Refuse when work ahead plus own service is more than the deadline leaves."""
        places = range(len(arrival.estimates))
        place = min(places, key=lambda i: arrival.nominal_ns[i]) if self.cheapest else 0
        chosen = arrival.estimates[place]
        return arrival.admit(place, (chosen.variant,), z=0.0)

    def decide(self, estimates: Sequence[Estimate], situation: Situation) -> Decision:
        """Run the fixed variant unless the request has expired."""
        return fixed(estimates[0], situation, self.reason)


def build(name: str, *, confidence_z: float, reserve: float) -> Policy:
    """The policy called `name`; ValueError names the known ones.

    `cascade-fixed:C` asks again below a confidence of C instead of its own.
    """
    kind, _, threshold = name.partition(":")
    makers: dict[str, Callable[[], Policy]] = {
        "orchid": lambda: Orchid(confidence_z, reserve),
        "price": lambda: Price(Orchid(confidence_z, reserve)),
        "orchid-cascade": lambda: OrchidCascade(Orchid(confidence_z, reserve)),
        "cascade-fixed": lambda: FixedCascade(Orchid(confidence_z, reserve)),
        "accurate": lambda: Fixed("accurate", Reason.FIXED_ACCURATE, cheapest=False),
        "cheap": lambda: Fixed("cheap", Reason.FIXED_CHEAP, cheapest=True),
        "published-adaptive": lambda: Published(accurate_only=False),
        "published-accurate": lambda: Published(accurate_only=True),
        "early": lambda: Early(confidence_z),
    }
    if kind == "cascade-fixed" and threshold:
        return FixedCascade(Orchid(confidence_z, reserve), float(threshold))
    if name not in makers:
        raise ValueError(f"unknown policy {name!r}; policies: {', '.join(sorted(makers))}")
    return makers[name]()
