"""What the bench asks of a lane."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from bench.isolation.seen import Seen
from deploy.cluster import LocalCluster

STEADY, OTHER = "steady", "other"
Begin = Callable[[], int]
"""When a driver begins, in monotonic ns, once all of a phase are prepared."""


@dataclass(frozen=True, slots=True)
class IsolationSettings:
    """`rounds` of each phase, in each of which the steady tenant asks for `seconds`.

    It has `reserved` of the lane and uses `used` of that; the other one has the rest and asks for
    `times` its share, beginning `lead_s` before. Encoder requests take `scale` of the drill's
    and `deadline_ms` is theirs, the two targets those of generations.
    """

    lane: str
    rounds: int = 20
    seconds: float = 10.0
    lead_s: float = 0.7
    reserved: float = 0.5
    used: float = 0.6
    times: float = 10.0
    workers: int = 1
    scale: float = 0.1
    deadline_ms: float = 250.0
    decoder: str = ""
    vocabulary: int = 0
    first_token_ms: float = 500.0
    token_ms: float = 50.0


class Lane(Protocol):
    """One lane of a cluster that runs: how each tenant asks there."""

    @property
    def cluster(self) -> LocalCluster:
        """The cluster."""

    @property
    def deadline_ns(self) -> int:
        """The time within which what was lent must be back."""

    def ask(self, tenant: str, load: float, seconds: float, seed: int, begin: Begin) -> list[Seen]:
        """Has a tenant ask for `load` times its share, and returns what it saw, in due order.

        Blocks until all is over. Raises DriverError.
        """

    def flood(self, tenant: str, seconds: float, seed: int, begin: Begin) -> list[Seen]:
        """Has a tenant ask for the flood's part of its share, of the kind that both may ask for."""
