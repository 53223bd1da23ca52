"""Queueing formulas for provisioning: how many workers for a rate, a deadline and a percentile.

They are fed with the *admitted* rate and never refuse a request. Times are in seconds,
rates per second; any one unit works throughout.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

# More workers than this for one pool is a mistake in the input.
_MOST_WORKERS = 100_000


def erlang_b(servers: int, offered: float) -> float:
    """Probability that all servers are busy when nobody waits (Erlang loss, M/G/c/c).

    Recursion `B(0) = 1, B(k) = a B(k-1) / (k + a B(k-1))` for a = `offered` erlangs
    (A. K. Erlang, 1917; the stable recursion is in Cooper, "Introduction to Queueing
    Theory", 1981).
    """
    if servers < 0 or offered < 0.0:
        raise ValueError(f"servers and offered must not be negative, got {servers}, {offered}")
    blocked = 1.0
    for k in range(1, servers + 1):
        blocked = offered * blocked / (k + offered * blocked)
    return blocked


def erlang_c(servers: int, offered: float) -> float:
    """Probability that an arrival waits in M/M/c; 1 at or beyond capacity.

    `C = B / (1 - rho (1 - B))` with `rho = a / c` (Kleinrock, "Queueing Systems" vol. 1,
    1975, section 3.5).
    """
    if servers < 1:
        raise ValueError(f"servers must be at least 1, got {servers}")
    rho = offered / servers
    if rho >= 1.0:
        return 1.0
    blocked = erlang_b(servers, offered)
    return blocked / (1.0 - rho * (1.0 - blocked))


@dataclass(frozen=True, slots=True)
class Demand:
    """A stream of work: admitted rate, mean service, and squared coefficients of variation.

    `arrival_scv` is 1 for Poisson arrivals and larger for bursts; `service_scv` is 0 for
    constant and 1 for exponential service.
    """

    rate: float
    service: float
    arrival_scv: float = 1.0
    service_scv: float = 0.0

    def __post_init__(self) -> None:
        if self.rate < 0.0 or self.service <= 0.0:
            raise ValueError(f"rate {self.rate} and service {self.service} must be positive")
        if self.arrival_scv < 0.0 or self.service_scv < 0.0:
            raise ValueError("squared coefficients of variation must not be negative")

    @property
    def offered(self) -> float:
        """Offered load in erlangs: busy workers on average."""
        return self.rate * self.service


def mean_wait(demand: Demand, workers: int) -> float:
    """Mean wait in the queue of G/G/c, infinite at or beyond capacity.

    `C / (c mu - lambda) * (scv_a + scv_s) / 2`: M/M/c corrected by Allen and Cunneen
    (Allen, "Probability, Statistics, and Queueing Theory", 2nd ed. 1990, section 5.7).
    Exact for M/M/c, and for M/G/1 (Pollaczek-Khinchine).
    """
    spare = workers / demand.service - demand.rate
    if spare <= 0.0:
        return math.inf
    variability = (demand.arrival_scv + demand.service_scv) / 2.0
    return erlang_c(workers, demand.offered) / spare * variability


def wait_exceeds(demand: Demand, workers: int, time: float) -> float:
    """Probability that the wait exceeds `time`.

    `C exp(-C t / W)`: exponential given that it waits, with the mean of `mean_wait`, which
    is exact for M/M/c and the usual tail approximation otherwise (Tijms, "A First Course
    in Stochastic Models", 2003, section 9.6).
    """
    if time < 0.0:
        return 1.0
    waits = erlang_c(workers, demand.offered)
    mean = mean_wait(demand, workers)
    if math.isinf(mean):
        return 1.0
    if mean <= 0.0:
        return 0.0
    return waits * math.exp(-waits * time / mean)


def on_time_share(demand: Demand, workers: int, deadline: float) -> float:
    """Share of requests answered within `deadline`: wait plus one mean service."""
    return 1.0 - wait_exceeds(demand, workers, deadline - demand.service)


@dataclass(frozen=True, slots=True)
class Provision:
    """Workers needed and what they give: utilisation, mean wait and on-time share."""

    workers: int
    utilisation: float
    mean_wait: float
    on_time: float


def workers_for(demand: Demand, deadline: float, percentile: float) -> Provision:
    """Fewest workers that answer the share `percentile` (0 to 1) within `deadline`.

    Raises ValueError when no number of workers can: the service alone is longer.
    """
    if not 0.0 < percentile < 1.0:
        raise ValueError(f"percentile must be between 0 and 1, got {percentile}")
    if deadline < demand.service:
        raise ValueError(
            f"a service of {demand.service:g} cannot be done within a deadline of {deadline:g}"
        )
    for workers in range(max(1, math.ceil(demand.offered)), _MOST_WORKERS + 1):
        on_time = on_time_share(demand, workers, deadline)
        if on_time >= percentile:
            return Provision(workers, demand.offered / workers, mean_wait(demand, workers), on_time)
    raise ValueError(f"more than {_MOST_WORKERS} workers would be needed")
