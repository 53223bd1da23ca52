"""What a flood moves of a tenant in the decode lane, on the virtual clock."""

from __future__ import annotations

from bench.isolation.simulated import SimulatedIsolation, simulate_isolation


def test_a_flood_is_as_a_neighbour_at_its_share() -> None:
    summary = simulate_isolation(SimulatedIsolation(rounds=4, seconds=30.0)).summary
    assert summary["alone.offered"] == summary["share.offered"] == summary["flood.offered"] > 400
    assert summary["on_time_moved_of_share"] <= 0.02
    # The bar; of so few requests the p99 of first tokens is surer from below.
    assert summary["token_ms_p99_ratio_of_share"] <= 1.1
    assert summary["first_token_ms_p99_ratio_of_share_low"] <= 1.1
    # The flood is refused, and not the steady one.
    assert summary["flood.refused"] <= 0.01
    assert summary["flood.other_on_time"] < summary["share.other_on_time"]


def test_longer_steps_are_felt_by_the_steady_one() -> None:
    short, long = [
        simulate_isolation(SimulatedIsolation(rounds=2, seconds=20.0, step_ms=step_ms)).summary
        for step_ms in (20.0, 40.0)
    ]
    assert short["flood.token_ms_p50"] < long["flood.token_ms_p50"]
    assert short["flood.first_token_ms_p50"] < long["flood.first_token_ms_p50"]


def test_the_same_is_simulated_again() -> None:
    settings = SimulatedIsolation(rounds=2, seconds=5.0)
    assert simulate_isolation(settings).summary == simulate_isolation(settings).summary
