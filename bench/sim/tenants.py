"""A steady tenant beside one that floods: what reservations keep of the steady one's service."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.sim.arrivals import MarkovModulated, Poisson
from bench.sim.model import mean_service_ns, routable
from bench.sim.result import Ending
from bench.sim.settings import SimSettings
from bench.sim.workload import Deadlines, Lengths, Workload, draw_workload, together
from bench.sim.world import World
from controlplane.policy.profiles import VariantTable
from controlplane.policy.records import RequestClass
from controlplane.tenants import TenantConfig, TenantsConfig

STEADY, BURSTY = RequestClass(tenant="steady"), RequestClass(tenant="bursty")


@dataclass(frozen=True, slots=True)
class Scene:
    """Two tenants before some workers; loads are of what the fastest variant carries.

    `steady_load` is what the steady tenant offers, inside its reservation of `reserved` of the
    workers' time; `bursty_load` what the other one offers on average, in bursts.
    """

    workers: int = 2
    deadline_ms: float = 200.0
    steady_load: float = 0.25
    bursty_load: float = 5.0
    reserved: float = 0.5
    seconds: float = 30.0
    warmup_s: float = 2.0
    policy: str = "price"
    bound_ms: float = 5.0


@dataclass(frozen=True, slots=True)
class Share:
    """What one tenant had of a run: counts of the offered, latencies of answers in ms."""

    tenant: str
    setting: str
    offered: int
    on_time: float
    refused: float
    quality: float
    p50_ms: float
    p99_ms: float
    charged_cores: float

    def as_point(self) -> dict[str, Any]:
        """JSON values; what is not a number becomes null."""
        return {k: None if v != v else v for k, v in asdict(self).items()}


def terms(scene: Scene) -> TenantsConfig:
    """Both tenants by name; the steady one has its reservation, the other one the rest."""
    whole = scene.workers * 1000
    steady = round(scene.reserved * whole)
    return TenantsConfig(
        named={
            "steady": TenantConfig(cpu_ms_per_s=steady),
            "bursty": TenantConfig(cpu_ms_per_s=whole - steady),
        },
        bound_ms=scene.bound_ms,
    )


def play(scene: Scene, table: VariantTable, lengths: Lengths, seed: int) -> list[Share]:
    """The steady tenant alone, then beside the flood without tenants and with them.

    The steady tenant's requests and their services are the same in each.
    """
    steady, bursty = _traffic(scene, table, lengths, seed)
    both = together([steady, bursty], [STEADY, BURSTY])
    alone = together([steady], [STEADY])
    found = _shares(scene, table, alone, TenantsConfig(), "alone")
    found += _shares(scene, table, both, TenantsConfig(), "without")
    found += _shares(scene, table, both, terms(scene), "with")
    return found


def _traffic(
    scene: Scene, table: VariantTable, lengths: Lengths, seed: int
) -> tuple[Workload, Workload]:
    generator = np.random.default_rng(seed)
    fastest = min(mean_service_ns(table.candidates[k], lengths) for k in _eligible(table))
    capacity = scene.workers * 1e9 / fastest
    deadlines = Deadlines(scene.deadline_ms)
    steady = Poisson(scene.steady_load * capacity)
    bursty = MarkovModulated(scene.bursty_load * capacity)
    return (
        draw_workload(generator, steady, lengths, deadlines, scene.seconds),
        draw_workload(generator, bursty, lengths, deadlines, scene.seconds),
    )


def _eligible(table: VariantTable) -> list[int]:
    return [table.numbers[candidate.name] for candidate in routable(table)]


def _shares(
    scene: Scene, table: VariantTable, traffic: Workload, tenants: TenantsConfig, setting: str
) -> list[Share]:
    settings = SimSettings(workers=scene.workers, policy=scene.policy, tenants=tenants)
    world = World(traffic, table, settings)
    world.run()
    faults = world.violations()
    if faults:
        raise AssertionError("; ".join(faults))
    assert traffic.who is not None
    counted = traffic.arrived_ns >= int(scene.warmup_s * 1e9)
    found = []
    for number, klass in enumerate(traffic.classes):
        charged = float("nan")
        if world.tenancy is not None:
            account = world.tenancy.account(klass.tenant)
            charged = account.charged_ns / 1e9 / scene.seconds
        mine = counted & (traffic.who == number)
        found.append(_share(world, table, traffic, mine, klass.tenant, setting, charged))
    return found


def _share(
    world: World,
    table: VariantTable,
    traffic: Workload,
    mine: NDArray[np.bool_],
    tenant: str,
    setting: str,
    charged: float,
) -> Share:
    endings = world.endings()
    ending = endings.ending[mine]
    good = ending == Ending.ON_TIME
    answered = endings.answered[mine]
    took = (endings.done_ns - traffic.arrived_ns)[mine][answered] / 1e6
    p50, p99 = np.percentile(took, (50, 99)) if len(took) else (float("nan"), float("nan"))
    qualities = np.array([candidate.quality for candidate in table.candidates])
    kept_out = (ending == Ending.REFUSED) | (ending == Ending.SHED)
    return Share(
        tenant=tenant,
        setting=setting,
        offered=int(mine.sum()),
        on_time=float(good.mean()) if len(good) else float("nan"),
        refused=float(kept_out.mean()) if len(good) else float("nan"),
        quality=float(qualities[endings.variant[mine][good]].mean())
        if good.any()
        else float("nan"),
        p50_ms=float(p50),
        p99_ms=float(p99),
        charged_cores=charged,
    )
