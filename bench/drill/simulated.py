"""A scene on the virtual clock: the live scheduler, workers that only take time."""

from __future__ import annotations

import numpy as np

from bench.drill.arithmetic import Fixture
from bench.drill.model import lines, table
from bench.drill.scene import (
    LATE,
    LOST,
    ON_TIME,
    REFUSED,
    SURPRISE,
    TOKENS,
    Answered,
    Ask,
    Scene,
    classes,
    tenants,
)
from bench.sim.result import Ending
from bench.sim.service import Faults, Noise, WorkerLoss
from bench.sim.settings import SimSettings
from bench.sim.workload import Workload
from bench.sim.world import World
from controlplane.policy.records import RequestClass

_WORDS = {
    Ending.ON_TIME: ON_TIME,
    Ending.LATE: LATE,
    Ending.REFUSED: REFUSED,
    # A caller cannot tell a request that was dropped from one that was refused.
    Ending.SHED: REFUSED,
    Ending.LOST: LOST,
}
_SIGMA = 0.02


def play(scene: Scene, fixture: Fixture, workers: int, deadline_ms: float) -> list[Answered]:
    """What becomes of each request; raises AssertionError when the scheduler's books are wrong."""
    variants = table(fixture, scene.compact_quality)
    asks = scene.asks
    asked = list(dict.fromkeys(_key(ask) for ask in asks))
    numbers = {key: number for number, key in enumerate(asked)}
    floors = {name: each.minimum_quality for name, each in classes(fixture).items()}
    arrived = np.array([ask.at_ns for ask in asks], np.int64)
    workload = Workload(
        arrived_ns=arrived,
        tokens=np.array([TOKENS[ask.kind] for ask in asks], np.int64),
        deadline_ns=arrived + int(deadline_ms * 1e6),
        luck=np.random.default_rng(1).standard_normal(len(asks)),
        tail=np.array([0.0 if ask.heavy else 1.0 for ask in asks]),
        classes=tuple(
            RequestClass(tenant=tenant, name=klass, minimum_quality=floors[klass], variant=variant)
            for tenant, klass, variant in asked
        ),
        who=np.array([numbers[_key(ask)] for ask in asks], np.int16),
    )
    losses = (WorkerLoss(scene.loses_at_s),) if scene.loses_at_s else ()
    settings = SimSettings(
        workers=workers,
        policy="price",
        max_batch=1,
        noise=Noise(sigma=_SIGMA, tail_share=0.5, tail_factor=SURPRISE),
        faults=Faults(losses=losses),
        tenants=tenants(workers),
    )
    world = World(workload, variants, settings)
    world.run()
    faults = world.violations()
    if faults:
        raise AssertionError("; ".join(faults))
    endings = world.endings()
    costs = lines(fixture)
    found = []
    for number, ask in enumerate(asks):
        word = _WORDS[Ending(int(endings.ending[number]))]
        if not endings.answered[number]:
            found.append(Answered(ask, word))
            continue
        candidate = variants.candidates[int(endings.variant[number])]
        line = costs[candidate.name]
        took_ms = (int(endings.done_ns[number]) - ask.at_ns) / 1e6
        found.append(
            Answered(
                ask,
                word,
                candidate.name,
                candidate.quality,
                (line.fixed + line.per_token * TOKENS[ask.kind]) * (SURPRISE if ask.heavy else 1.0),
                took_ms,
            )
        )
    return found


def _key(ask: Ask) -> tuple[str, str, str]:
    return ask.tenant, ask.klass, ask.variant
