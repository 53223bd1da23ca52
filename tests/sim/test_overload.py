"""The overload ladder in the simulated world: deferring relieves, and nothing flaps."""

from __future__ import annotations

from bench.sim.ladder import most_moves, play_bursts
from controlplane.policy.ladder import Rung

SECONDS = 8.0


def test_deferring_a_batch_class_keeps_interactive_requests_in_time() -> None:
    shared = play_bursts(deferrable=False, seconds=SECONDS)
    deferred = play_bursts(deferrable=True, seconds=SECONDS)
    assert shared.on_time < 0.85
    assert deferred.on_time > shared.on_time + 0.1
    assert shared.world.pool.ladder.kept_out == 0
    assert deferred.world.pool.ladder.kept_out > 100
    for played in (shared, deferred):
        ladder = played.world.pool.ladder
        assert 0 < ladder.changes <= most_moves(SECONDS, len(ladder.rungs))


def test_on_every_rung_those_that_were_let_in_are_on_time() -> None:
    by_rung = play_bursts(deferrable=True, seconds=SECONDS).by_rung
    assert min(by_rung.values()) >= 0.98, by_rung
    assert {Rung.SMALLER, Rung.DEFER} <= set(by_rung)
