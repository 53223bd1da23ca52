"""What a comparison of policies runs, and in which order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from bench.load.plan import LoadPlan, Process
from bench.report import Report
from bench.sweep import Baseline, SweepSettings
from controlplane.policy.policies import build

LOADS = (0.4, 0.6, 0.8, 0.95, 1.1, 1.3, 2.0, 3.0)
REFERENCE = "price"
CASCADE = "orchid-cascade"
BOUND = "bound"
_COMPARED = (
    REFERENCE,
    CASCADE,
    "orchid",
    "accurate",
    "cheap",
    "published-accurate",
    "published-adaptive",
    "early",
)


def known_policies() -> tuple[str, ...]:
    """The policies that are compared by default, as far as this control plane has them."""
    return tuple(name for name in _COMPARED if _exists(name))


def check_policies(names: Sequence[str]) -> None:
    """Raises ValueError for a policy that no control plane would take, before anything starts."""
    for name in names:
        build(name, confidence_z=1.645, reserve=0.35)


def _exists(name: str) -> bool:
    try:
        check_policies([name])
    except ValueError:
        return False
    return True


class Job(NamedTuple):
    """One run: a policy at a multiple of the capacity, with the traffic of a seed."""

    policy: str
    load: float
    seed: int


@dataclass(frozen=True, slots=True)
class CompareSettings:
    """What to run; `loads` multiply the measured capacity of the most accurate variant.

    Every policy meets the same arrivals, texts and deadlines at a load and seed. The deadline
    is `deadline_factor` times that variant's solo p50, or `deadline_ms` when that is above
    0; a request gets it times one of `deadline_mix`, each as likely. `scenario` names what
    happens besides traffic.
    """

    model: str
    policies: tuple[str, ...]
    loads: tuple[float, ...] = LOADS
    seeds: tuple[int, ...] = (1, 2, 3)
    seconds: float = 20.0
    warmup_s: float = 2.0
    workers: int = 2
    arrivals: Process = "poisson"
    deadline_factor: float = 3.0
    deadline_ms: float = 0.0
    deadline_mix: tuple[float, ...] = (1.0,)
    solo_s: float = 4.0
    capacity_s: float = 8.0
    in_flight_per_worker: int = 4
    driver_processes: int = 1
    scenario: str = ""

    def __post_init__(self) -> None:
        if not (self.policies and self.loads and self.seeds) or min(self.loads) <= 0:
            raise ValueError("expected at least one policy, one seed and one load above 0")

    def jobs(self) -> Iterator[Job]:
        """All policies at a load and seed come one after the other, so that they share what
        the machine does in that minute; who comes first changes from one load to the next.
        """
        for turn, seed in enumerate(self.seeds):
            for step, load in enumerate(self.loads):
                first = (turn + step) % len(self.policies)
                for policy in (*self.policies[first:], *self.policies[:first]):
                    yield Job(policy, load, seed)

    def baseline_settings(self) -> SweepSettings:
        """How the capacity and the solo latency are measured."""
        return SweepSettings(
            model=self.model,
            policies=self.policies,
            load_factors=self.loads,
            deadline_factor=self.deadline_factor,
            solo_s=self.solo_s,
            capacity_s=self.capacity_s,
            in_flight_per_worker=self.in_flight_per_worker,
        )

    def plan(self, job: Job, baseline: Baseline, target: str = "") -> LoadPlan:
        """The traffic of a job; equal for all policies at a load and seed."""
        return LoadPlan(
            target=target,
            model=self.model,
            rate_per_s=job.load * baseline.capacity_per_s,
            arrivals=self.arrivals,
            duration_s=self.seconds,
            warmup_s=self.warmup_s,
            deadline_ms=self.deadline_ms or baseline.deadline_ms,
            deadline_factors=self.deadline_mix,
            seed=job.seed,
        )

    def identity(self) -> dict[str, Any]:
        """What must be equal for points of another session to be kept: all but the grid."""
        values = asdict(self)
        return {k: v for k, v in values.items() if k not in ("policies", "loads", "seeds")}


def settings_of(report: Report) -> CompareSettings:
    """The settings that a comparison's report was measured with."""
    values = {field.name: report.settings[field.name] for field in fields(CompareSettings)}
    return TypeAdapter(CompareSettings).validate_python(values)
