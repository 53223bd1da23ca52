"""How long a run takes in the simulated world, and what may go wrong there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bench.sim.workload import Workload
from controlplane.policy.profiles import Candidate
from controlplane.policy.records import Shape


@dataclass(frozen=True, slots=True)
class Noise:
    """Measured over predicted service: lognormal of mean 1, with a heavy tail on request.

    `sigma` is the relative spread (None takes each profile's own). A share `tail_share` of
    the requests takes `tail_factor` times as long on every variant. Where `measured` has a
    variant (or "" for all others), its quantiles of measured over predicted, at evenly spaced
    probabilities from 0 to 1, stand in place of the lognormal. Requests of a tenant in `hidden`
    take so many times as long as their size says, on every variant.
    """

    sigma: float | None = None
    tail_share: float = 0.0
    tail_factor: float = 5.0
    measured: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    hidden: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if any(factor <= 0.0 for factor in self.hidden.values()):
            raise ValueError("hidden: factors are above 0")
        if not 0.0 <= self.tail_share <= 1.0 or self.tail_factor <= 0.0:
            raise ValueError("tail_share must be in [0, 1] and tail_factor above 0")
        for name, quantiles in self.measured.items():
            if len(quantiles) < 2 or min(quantiles) <= 0.0:
                raise ValueError(f"measured[{name!r}]: expected two or more numbers above 0")

    def factor(self, candidate: Candidate, luck: float, tail: float) -> float:
        """Real over nominal service for a request's luck, a standard normal number."""
        quantiles = self.measured.get(candidate.name) or self.measured.get("")
        if quantiles is not None:
            factor = _at(quantiles, 0.5 * math.erfc(-luck / math.sqrt(2.0)))
        else:
            sigma = candidate.profile.sigma if self.sigma is None else self.sigma
            scale = math.sqrt(math.log1p(sigma * sigma))
            factor = math.exp(scale * luck - scale * scale / 2.0)
        return factor * self.tail_factor if tail < self.tail_share else factor


def _at(quantiles: Sequence[float], probability: float) -> float:
    """The quantile at a probability, linear between those given."""
    place = probability * (len(quantiles) - 1)
    low = min(int(place), len(quantiles) - 2)
    return quantiles[low] + (place - low) * (quantiles[low + 1] - quantiles[low])


@dataclass(frozen=True, slots=True)
class SlowDown:
    """From `begin_s` until `end_s` runs take `factor` times as long.

    `workers` are the worker indices concerned; none given means all. A run is as slow as
    the moment it starts in.
    """

    begin_s: float
    end_s: float
    factor: float
    workers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.factor <= 0.0 or self.end_s < self.begin_s:
            raise ValueError("a slow-down needs a factor above 0 and an end after its begin")


@dataclass(frozen=True, slots=True)
class WorkerLoss:
    """A worker dies at `at_s` with everything it holds; a new one joins at `back_s`.

    The control plane learns of it `detect_s` later; until then it goes on sending work
    there. `back_s` 0 means that nobody replaces it.
    """

    at_s: float
    worker: int = 0
    detect_s: float = 0.05
    back_s: float = 0.0

    def __post_init__(self) -> None:
        if self.detect_s < 0.0 or (self.back_s and self.back_s < self.at_s):
            raise ValueError("a loss is detected and replaced after it happens")


@dataclass(frozen=True, slots=True)
class Faults:
    """Everything that goes wrong in one run."""

    slow_downs: tuple[SlowDown, ...] = ()
    losses: tuple[WorkerLoss, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.slow_downs or self.losses)

    def slowness(self, worker: int, now_ns: int) -> float:
        """How many times as long a run takes that this worker starts now."""
        factor = 1.0
        for fault in self.slow_downs:
            inside = fault.begin_s * 1e9 <= now_ns < fault.end_s * 1e9
            if inside and (not fault.workers or worker in fault.workers):
                factor *= fault.factor
        return factor


class Services:
    """The true service time of every request of a workload on every variant."""

    def __init__(self, workload: Workload, noise: Noise) -> None:
        self._noise = noise
        self._luck: list[float] = workload.luck.tolist()
        self._tail: list[float] = workload.tail.tolist()
        self._workload = workload

    def run_ns(self, candidate: Candidate, shapes: Sequence[Shape], numbers: Sequence[int]) -> int:
        """Service of one run of the requests with these numbers; it has the first one's luck."""
        first = numbers[0]
        nominal: float = candidate.profile.predict(shapes[0], shapes[1:])
        if self._noise.hidden:
            for number, shape in zip(numbers, shapes, strict=True):
                tenant = self._workload.klass(number).tenant
                hidden = self._noise.hidden.get(tenant, 1.0)
                nominal += (hidden - 1.0) * candidate.profile.predict(shape)
        factor = self._noise.factor(candidate, self._luck[first], self._tail[first])
        return max(1, int(nominal * factor))
