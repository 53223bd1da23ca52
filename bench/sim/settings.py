"""What is simulated: a deployment and the settings of its control plane."""

from __future__ import annotations

from dataclasses import dataclass, field

from bench.sim.service import Faults, Noise
from controlplane.policy.admission import Bounds
from controlplane.policy.entries import Settings
from controlplane.policy.policies import build
from controlplane.policy.scheduler import Scheduler
from controlplane.policy.tenancy.tenancy import Tenancy
from controlplane.tenants import TenantsConfig


@dataclass(frozen=True, slots=True)
class SimSettings:
    """The deployment that is simulated; the policy's settings are the control plane's.

    `trip_ns` is the way to a worker and back, half each way. `timer_ns` is the shortest
    rest of the control plane's timer. `neighbours` is the share of the machines' CPUs that
    somebody else takes, as the CPU reports show it; slow-downs are faults of their own.
    `warmup_s` is left out of the figures. `cohort_prices` is as in `policy.entries.Settings`.
    """

    workers: int = 2
    policy: str = "orchid"
    trip_ns: int = 1_200_000
    timer_ns: int = 1_000_000
    confidence_z: float = 1.645
    response_ns: int = 0
    reserve: float = 0.35
    prefetch: int = 1
    max_batch: int = 16
    max_items: int = 10_000
    max_work_ms: int = 60_000
    neighbours: float = 0.0
    warmup_s: float = 0.0
    noise: Noise = field(default_factory=Noise)
    faults: Faults = field(default_factory=Faults)
    tenants: TenantsConfig = field(default_factory=TenantsConfig)
    cohort_prices: bool = True

    def __post_init__(self) -> None:
        if self.workers < 1 or self.trip_ns < 0:
            raise ValueError(f"expected workers >= 1 and trip_ns >= 0, got {self}")
        for fault in self.faults.losses:
            if fault.worker >= self.workers:
                raise ValueError(f"there is no worker {fault.worker} of {self.workers} to lose")


def scheduler_of(settings: SimSettings) -> Scheduler:
    """The live server's scheduler under these settings."""
    policy = build(settings.policy, confidence_z=settings.confidence_z, reserve=settings.reserve)
    return Scheduler(
        policy,
        Settings(
            Bounds(settings.max_items, settings.max_work_ms * 1_000_000),
            confidence_z=settings.confidence_z,
            response_ns=settings.response_ns,
            reserve=settings.reserve,
            prefetch=settings.prefetch,
            max_batch=settings.max_batch,
            cohort_prices=settings.cohort_prices,
        ),
        Tenancy(settings.tenants) if settings.tenants else None,
    )
