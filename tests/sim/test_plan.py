"""Plans against the simulator, which plays the same traffic with the live policy."""

from __future__ import annotations

from statistics import fmean

import numpy as np
import pytest

from bench.planning import bursty, simulated
from bench.sim.model import built_in
from bench.sim.workload import REVIEW_LENGTHS
from controlplane.config import ControlPlaneConfig
from controlplane.policy.provision import Outlook, Traffic, outlook, plan
from controlplane.policy.records import RequestClass, Shape

TABLE = built_in().table()
ELIGIBLE = TABLE.eligible(
    RequestClass(), {c.tokenizer: Shape.of_lengths([1]) for c in TABLE.candidates}
)
# The chain knows mean residuals, the simulator real ones: so far apart they may be.
TOLERANCE = 0.01


def traffic(rate: float, deadline_ms: float, burst: float = 1.0) -> Traffic:
    return Traffic(rate, int(deadline_ms * 1e6), REVIEW_LENGTHS.tokens, arrival_scv=burst)


def on_time(asked: Traffic, workers: int) -> tuple[float, float]:
    """On-time share and quality in the simulator under the rule that the chain knows."""
    results = simulated(TABLE, asked, REVIEW_LENGTHS, workers, seconds=8.0, seeds=(1, 2))
    return fmean(r.on_time for r in results), fmean(r.accuracy for r in results)


def needed(outlooks: tuple[Outlook, ...], percentile: float, quality: float) -> Outlook:
    return next(o for o in outlooks if o.on_time >= percentile and o.quality >= quality)


@pytest.mark.parametrize(("rate", "deadline_ms"), [(400.0, 60.0), (1000.0, 100.0)])
def test_the_planned_workers_are_enough_and_one_fewer_is_not(
    rate: float, deadline_ms: float
) -> None:
    asked = traffic(rate, deadline_ms)
    planned = needed(plan(TABLE, ELIGIBLE, asked, 0.99), 0.99, 0.0)
    assert planned.workers > 1
    assert on_time(asked, planned.workers)[0] >= 0.99 - TOLERANCE
    assert on_time(asked, planned.workers - 1)[0] < 0.99 - TOLERANCE


def test_a_wanted_quality_is_reached_in_the_simulator_too() -> None:
    asked = traffic(400.0, 100.0)
    planned = needed(plan(TABLE, ELIGIBLE, asked, 0.99, 0.915), 0.99, 0.915)
    share, quality = on_time(asked, planned.workers)
    assert share >= 0.99 - TOLERANCE
    assert quality == pytest.approx(planned.quality, abs=0.003)
    assert planned.quality >= 0.915
    fewer = outlook(TABLE, ELIGIBLE, asked, planned.workers - 1)
    assert fewer.quality < 0.915
    # One worker of eleven moves quality by 0.003: the simulator must see the step, not its foot.
    assert on_time(asked, planned.workers - 2)[1] < quality


def test_utilisation_and_mix_are_those_of_the_simulator() -> None:
    asked = traffic(400.0, 60.0)
    foretold = outlook(TABLE, ELIGIBLE, asked, 12)
    results = simulated(TABLE, asked, REVIEW_LENGTHS, 12, seconds=8.0, seeds=(1,))
    assert foretold.utilisation == pytest.approx(results[0].utilisation, abs=0.04)
    for name, share in foretold.mix.items():
        assert share == pytest.approx(results[0].variant_share[name], abs=0.06)


@pytest.mark.parametrize(
    ("rate", "deadline_ms", "workers"),
    [(100.0, 100.0, 1), (100.0, 100.0, 2), (400.0, 60.0, 8)],
)
def test_the_policy_of_a_server_keeps_what_is_planned_but_for_some_quality(
    rate: float, deadline_ms: float, workers: int
) -> None:
    """The chain knows the reserve rule; a server runs another one unless it is told."""
    asked = traffic(rate, deadline_ms)
    foretold = outlook(TABLE, ELIGIBLE, asked, workers)
    policy = ControlPlaneConfig().policy
    assert policy != "orchid"
    results = simulated(
        TABLE, asked, REVIEW_LENGTHS, workers, policy=policy, seconds=8.0, seeds=(1,)
    )
    assert results[0].on_time >= foretold.on_time - TOLERANCE
    assert -0.015 <= results[0].accuracy - foretold.quality <= 0.003
    assert results[0].utilisation == pytest.approx(foretold.utilisation, abs=0.08)


def test_bursts_have_the_dispersion_that_was_asked_for() -> None:
    process = bursty(200.0, 4.0)
    times = process.times_s(np.random.default_rng(1), 4000.0)
    counts = np.histogram(times, bins=np.arange(0.0, 4001.0, 5.0))[0]
    assert len(times) / 4000.0 == pytest.approx(200.0, rel=0.03)
    assert counts.var() / counts.mean() == pytest.approx(4.0, rel=0.25)
    with pytest.raises(ValueError, match="steadier than Poisson"):
        bursty(1.0, 0.5)
