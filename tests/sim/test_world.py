"""The simulated world: one seed one result, everybody ends once, faults do what they say."""

import pytest

from bench.sim.service import Faults, Noise, SlowDown, WorkerLoss
from bench.sim.sweep import POLICIES
from tests.sim.worlds import TABLE, workload, world

LOSS = Faults(losses=(WorkerLoss(at_s=1.0, detect_s=0.1, back_s=2.0),))


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_seed_gives_the_same_result(policy: str) -> None:
    first = world(workload(1.1, seconds=2.0), policy, faults=LOSS).run()
    again = world(workload(1.1, seconds=2.0), policy, faults=LOSS).run()
    assert first == again


def test_another_seed_gives_another_result() -> None:
    assert world(workload(1.1, seed=1)).run() != world(workload(1.1, seed=2)).run()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("arrivals", ["poisson", "mmpp", "flash"])
@pytest.mark.parametrize("faults", [Faults(), LOSS], ids=["sound", "loss"])
def test_every_offered_request_ends_once(policy: str, arrivals: str, faults: Faults) -> None:
    traffic = workload(1.5, seconds=3.0, arrivals=arrivals, factors=(0.5, 1.0, 2.0))
    made = world(traffic, policy, faults=faults, noise=Noise(tail_share=0.02))
    result = made.run()
    ended = result.on_time_answers + result.late + result.refused + result.shed + result.lost
    assert ended == result.offered == len(traffic)
    assert made.violations() == []


def test_no_worker_left_means_that_nobody_is_answered_but_everybody_ends() -> None:
    gone = Faults(losses=(WorkerLoss(0.0, 0, 0.0), WorkerLoss(0.0, 1, 0.0)))
    for policy in POLICIES:
        result = world(workload(0.5, seconds=1.0), policy, faults=gone).run()
        assert result.on_time_answers == 0
        assert result.late + result.refused + result.shed + result.lost == result.offered


def test_a_lost_worker_costs_less_the_sooner_it_is_missed() -> None:
    traffic = workload(0.8, seconds=4.0)

    def with_detection(detect_s: float) -> float:
        faults = Faults(losses=(WorkerLoss(1.0, 0, detect_s, back_s=2.0),))
        return world(traffic, faults=faults).run().accurate_goodput

    assert with_detection(0.02) > with_detection(0.8)


def test_orchid_answers_a_slow_down_with_faster_variants() -> None:
    traffic = workload(0.7, seconds=4.0)
    slow = Faults(slow_downs=(SlowDown(1.0, 3.0, 1.8),))
    sound, slowed = world(traffic).run(), world(traffic, faults=slow).run()
    assert slowed.share_most_accurate < sound.share_most_accurate
    assert slowed.on_time > 0.97


def test_a_policy_with_a_second_look_never_runs_what_has_expired() -> None:
    traffic = workload(3.0, seconds=2.0)
    for policy in ("orchid", "accurate", "cheap", "early"):
        assert world(traffic, policy, noise=Noise(tail_share=0.05)).run().expired_executed == 0


def test_the_warm_up_is_left_out_of_the_figures() -> None:
    traffic = workload(0.8, seconds=2.0)
    result = world(traffic, warmup_s=1.0).run()
    assert result.offered == int((traffic.arrived_ns >= 1_000_000_000).sum())


def test_an_empty_workload_has_no_figures_but_a_result() -> None:
    result = world(workload(0.001, seconds=0.01)).run()
    assert result.offered == 0
    assert result.as_point()["accuracy"] is None


def test_a_thousand_workers_share_the_work() -> None:
    traffic = workload(0.9, seconds=0.1, workers=1000)
    result = world(traffic, workers=1000).run()
    assert result.on_time > 0.995
    assert result.crossed_idle == 0
    # About seven runs a worker; with herding some would have had many more.
    assert result.worker_spread < 1.6


def test_a_worker_to_lose_must_exist() -> None:
    with pytest.raises(ValueError, match="there is no worker 5 of 2"):
        world(workload(0.1), faults=Faults(losses=(WorkerLoss(1.0, 5),)))


def test_qualities_add_up_to_the_accurate_goodput() -> None:
    result = world(workload(1.2, seconds=2.0)).run()
    quality = {c.name: c.quality for c in TABLE.candidates}
    mean = sum(share * quality[name] for name, share in result.variant_share.items())
    assert result.accuracy == pytest.approx(mean)
    assert result.accurate_goodput == pytest.approx(mean * result.on_time)
