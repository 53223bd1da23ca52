"""What goes into a pool and comes out of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from controlplane.policy.admission import Bounds
from controlplane.policy.profiles import Candidate
from controlplane.policy.records import Decision, Request


@dataclass(frozen=True, slots=True)
class Settings:
    """What the pools and the workers' hands are tuned by; see `config.ControlPlaneConfig`.

    `response_ns` is kept free of every deadline for the answer's way to its caller.
    `cohort_prices` False predicts every request by its size alone.
    """

    bounds: Bounds
    confidence_z: float = 1.645
    reserve: float = 0.35
    prefetch: int = 1
    max_batch: int = 16
    response_ns: int = 0
    cohort_prices: bool = True


class Entry(NamedTuple):
    """A queued request with its nominal predictions, parallel to `request.eligible`.

    `mask` holds the eligible variants as bits, `best` the most accurate one that was
    eligible before admission narrowed the choice.
    """

    request: Request
    nominal_ns: list[int]
    fastest: int
    fastest_ns: int
    mask: int
    best: int


class Taker(NamedTuple):
    """A worker that would take work: its ready variants as a bit mask, and when it can start.

    `start_ns` is from now; `takers` counts the workers of the pool in the same position.
    """

    mask: int
    start_ns: float
    start_spread_ns: float
    takers: int


class Choice(NamedTuple):
    """What a worker that would take work gets: requests that left the queue, and why.

    `nominal_ns` is the uncorrected prediction of the run, 0 for a drop. `approximations`
    says of each request whether a more accurate variant was eligible for it.
    """

    decision: Decision
    candidate: Candidate | None
    requests: tuple[Request, ...]
    nominal_ns: int
    approximations: tuple[bool, ...]
