"""The overload ladder in the simulated world: deferring relieves, and nothing flaps."""

from __future__ import annotations

import numpy as np

from bench.sim.arrivals import MarkovModulated, Poisson
from bench.sim.model import two_variants
from bench.sim.result import Ending
from bench.sim.settings import SimSettings
from bench.sim.workload import REVIEW_LENGTHS, Deadlines, Workload, draw_workload, together
from bench.sim.world import World
from controlplane.policy.ladder import FALL_NS, Rung
from controlplane.policy.records import RequestClass

TABLE = two_variants().table()
SECONDS = 8.0


def traffic(deferrable: bool) -> Workload:
    """Interactive requests that two workers can answer, and bursts of a batch class too many."""
    generator = np.random.default_rng(3)
    deadlines = Deadlines(100.0)
    interactive = draw_workload(generator, Poisson(120.0), REVIEW_LENGTHS, deadlines, SECONDS)
    batch = draw_workload(generator, MarkovModulated(500.0), REVIEW_LENGTHS, deadlines, SECONDS)
    classes = [RequestClass(name="interactive"), RequestClass(name="batch", deferrable=deferrable)]
    return together([interactive, batch], classes)


def play(deferrable: bool) -> tuple[World, float]:
    """The world after its run, and the share of interactive requests that were on time."""
    made = traffic(deferrable)
    assert made.who is not None
    world = World(made, TABLE, SimSettings(policy="price"))
    world.run()
    assert world.violations() == []
    ending = world.endings().ending[made.who == 0]
    return world, float((ending == Ending.ON_TIME).mean())


def test_deferring_a_batch_class_keeps_interactive_requests_in_time() -> None:
    together_world, shared = play(deferrable=False)
    deferring_world, deferred = play(deferrable=True)
    assert shared < 0.85
    assert deferred > shared + 0.1
    assert together_world.ladder.kept_out == 0
    assert deferring_world.ladder.kept_out > 100


def test_moves_under_bursts_are_few() -> None:
    for deferrable in (False, True):
        world, _ = play(deferrable)
        bound = 2 * (SECONDS * 1e9 / FALL_NS) + len(world.ladder.rungs) - 1
        assert 0 < world.ladder.changes <= bound


def test_on_every_rung_those_that_were_let_in_are_on_time() -> None:
    world, _ = play(deferrable=True)
    who = traffic(deferrable=True).who
    assert who is not None
    ending = world.endings().ending
    seen = set()
    for rung in world.ladder.rungs:
        there = (world.rungs() == rung) & (who == 0) & (ending != Ending.REFUSED)
        if there.sum() >= 30:
            seen.add(rung)
            assert (ending[there] == Ending.ON_TIME).mean() >= 0.98, rung
    assert {Rung.SMALLER, Rung.DEFER} <= seen
