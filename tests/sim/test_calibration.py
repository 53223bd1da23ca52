"""What a live run tells the simulator comes back out of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bench.load.plan import Workload
from bench.load.record import Records
from bench.sim.calibration import Calibration, calibrate, correlation, pooled
from bench.sim.model import two_variants
from bench.sim.result import Ending
from controlplane.policy.records import Shape
from tests.sim.worlds import workload, world

MODEL = two_variants()
TEXTS = Workload(("a", "b"), (0, 1), tokens=(10, 40))
MEASURED = Calibration(
    ratios={"": (1.0, 1.0)},
    shared=0.5,
    memory_s=0.1,
    trip_ns=1_000_000,
    lag_ns=500_000,
    hops_ns=(1e6, 2e6, 6e6),
    runs=100,
)


def records(ratios: np.ndarray, variant: int = 0) -> Records:
    """Answers every 10 ms whose services are `ratios` times what the profile says."""
    count = len(ratios)
    text = np.arange(count, dtype=np.int32) % 2
    profile = MODEL.candidates[variant].profile
    nominal = np.array([profile.predict(Shape.of_lengths([TEXTS.tokens[t]])) for t in text])
    execute = (ratios * nominal).astype(np.int64)
    due = np.arange(count) * 10_000_000
    sent, total = due + 400_000, execute + 5_000_000 + 1_500_000
    return Records(
        due_ns=due,
        sent_ns=sent,
        done_ns=sent + total + 2_000_000,
        budget_ns=np.full(count, 10**9),
        queue_ns=np.full(count, 5_000_000),
        execute_ns=execute,
        total_ns=total,
        batch=np.ones(count, np.int32),
        ending=np.full(count, Ending.ON_TIME, np.int8),
        tenant=np.zeros(count, np.int32),
        code=np.zeros(count, np.int32),
        text=text,
        variant=np.zeros(count, np.int32),
        predicted=np.zeros(count, np.int32),
        variants=(MODEL.candidates[variant].name,),
        cpu_s={"driver": 0.0},
        window_ns=(0, count * 10_000_000),
    )


def test_ratios_and_messages_are_told_apart() -> None:
    ratios = np.random.default_rng(1).uniform(1.0, 3.0, 500)
    found = calibrate(records(ratios), TEXTS, MODEL)
    assert found is not None and found.runs == 500
    assert found.ratios["accurate"][20] == pytest.approx(2.0, abs=0.1)
    assert found.ratios["accurate"][0] == pytest.approx(1.0, abs=0.02)
    assert found.ratios[""] == found.ratios["accurate"]
    assert (found.trip_ns, found.lag_ns) == (1_500_000, 400_000)
    assert found.hops_ns == pytest.approx([2e6] * 41)
    assert found.front_ns == 2_400_000
    # Independent services share next to nothing.
    assert found.shared < 0.25
    early = calibrate(records(ratios), TEXTS, MODEL, until_ns=1_000_000_000)
    assert early is not None and early.runs == 100


def test_the_sum_of_two_runs_is_no_service() -> None:
    escalated = np.arange(400) % 4 == 0
    seen = records(np.where(escalated, 3.0, 1.0))
    found = calibrate(replace(seen, escalated=escalated), TEXTS, MODEL)
    assert found is not None and found.runs == 300
    assert found.ratios[""] == pytest.approx([1.0] * 41, abs=0.001)


def test_nothing_to_learn_from_is_none() -> None:
    seen = records(np.ones(50))
    assert calibrate(replace(seen, code=np.full(50, 8)), TEXTS, MODEL) is None
    assert calibrate(replace(seen, batch=np.full(50, 2)), TEXTS, MODEL) is None
    assert calibrate(replace(seen, variants=("stranger",)), TEXTS, MODEL) is None
    assert calibrate(seen, replace(TEXTS, tokens=()), MODEL) is None


def test_slow_phases_are_measured_and_played_again() -> None:
    at = np.sort(np.random.default_rng(1).integers(0, 60 * 10**9, 6000))
    luck = MEASURED.luck(np.random.default_rng(2), at)
    assert luck.mean() == pytest.approx(0.0, abs=0.15)
    assert luck.std() == pytest.approx(1.0, abs=0.1)
    shared, memory_s = correlation(at / 1e9, luck)
    assert shared == pytest.approx(0.5, abs=0.1)
    assert 0.05 < memory_s < 0.25
    alone = replace(MEASURED, shared=0.0).luck(np.random.default_rng(2), at)
    assert correlation(at / 1e9, alone)[0] < 0.1


def test_a_calibration_comes_back_from_json_and_pools_by_runs() -> None:
    assert Calibration.from_point(MEASURED.as_point()) == MEASURED
    other = replace(MEASURED, trip_ns=5_000_000, runs=300, ratios={"": (1.0, 3.0), "a": (2.0, 2.0)})
    both = pooled([MEASURED, other])
    assert both is not None and both.runs == 400
    assert both.trip_ns == 4_000_000
    assert both.ratios == {"": (1.0, 2.5), "a": (2.0, 2.0)}
    assert pooled([]) is None


def test_time_lost_on_the_way_makes_answers_late_that_left_in_time() -> None:
    traffic = workload(1.1, seconds=4.0)
    hops = MEASURED.hops(np.random.default_rng(3), len(traffic))
    assert hops.min() >= 1e6 and hops.max() <= 6e6
    lossy = world(replace(traffic, reply_ns=hops)).run()
    whole = world(traffic).run()
    assert lossy.late > whole.late
    assert lossy.offered == whole.offered
