"""One tenant's requests take twice what their size says: what that costs the others."""

from __future__ import annotations

import numpy as np
import pytest

from bench.sim.arrivals import Poisson
from bench.sim.model import mean_service_ns, routable, two_variants
from bench.sim.result import Ending
from bench.sim.service import Noise
from bench.sim.settings import SimSettings
from bench.sim.workload import (
    REVIEW_LENGTHS,
    Deadlines,
    FixedLength,
    Lengths,
    draw_workload,
    together,
)
from bench.sim.world import World
from controlplane.policy.records import RequestClass

TABLE = two_variants().table()
STEADY, DEAR = RequestClass(tenant="steady"), RequestClass(tenant="dear")
LENGTHS = FixedLength(27)


def play(
    seconds: float,
    seed: int = 1,
    *,
    loads: tuple[float, float] = (0.45, 0.20),
    lengths: Lengths = LENGTHS,
    factor: float = 2.0,
    **settings: object,
) -> World:
    """The two tenants before two workers; `loads` of the fastest variant are what sizes say."""
    generator = np.random.default_rng(seed)
    fastest = min(mean_service_ns(candidate, lengths) for candidate in routable(TABLE))
    capacity = 2 * 1e9 / fastest
    deadlines = Deadlines(120.0)
    steady, dear = (
        draw_workload(generator, Poisson(load * capacity), lengths, deadlines, seconds)
        for load in loads
    )
    hidden = Noise(hidden={"dear": factor})
    made = World(
        together([steady, dear], [STEADY, DEAR]),
        TABLE,
        SimSettings(policy="price", noise=hidden, **settings),  # type: ignore[arg-type]
    )
    made.run()
    assert made.violations() == []
    return made


def on_time(made: World, number: int) -> float:
    who = made.workload.who
    assert who is not None
    return float((made.endings().ending[who == number] == Ending.ON_TIME).mean())


def test_the_others_are_on_time_all_the_same() -> None:
    made = play(8.0)
    assert on_time(made, 0) >= 0.97
    assert on_time(made, 1) >= 0.9
    assert made.pool.cohorts is not None
    (price,) = made.pool.cohorts.prices(int(8e9))
    assert price.tenant == "dear"
    assert price.price == pytest.approx(2.0, rel=0.15)


@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("load", [0.98, 1.0])
def test_where_all_cannot_be_answered_the_dear_ones_give_way(load: float, seed: int) -> None:
    loads = (load * 2 / 3, load / 3)
    made = play(8.0, seed, loads=loads, lengths=REVIEW_LENGTHS)
    assert on_time(made, 0) >= 0.97
    # They are not kept out for good: of the time they have what their sizes ask for.
    assert on_time(made, 1) >= 0.5


def test_where_the_others_alone_are_too_many_the_dear_ones_have_their_part() -> None:
    made = play(8.0, loads=(1.0, 0.5), lengths=REVIEW_LENGTHS)
    assert 0.75 < on_time(made, 0) < 0.95
    assert on_time(made, 1) > 0.4 * on_time(made, 0)


def test_who_is_predicted_rightly_gives_no_way() -> None:
    made = play(4.0, loads=(0.8, 0.4), lengths=REVIEW_LENGTHS, factor=1.0)
    assert on_time(made, 0) == pytest.approx(on_time(made, 1), abs=0.03)
    assert made.pool.door.way == 0.0


def test_the_price_is_right_within_fifty_requests() -> None:
    # 0.2 of 384 a second: about 50 in 0.65 s.
    made = play(0.65)
    who = made.workload.who
    assert who is not None and 30 <= int((who == 1).sum()) <= 70
    assert made.pool.cohorts is not None
    (price,) = made.pool.cohorts.prices(int(0.65e9))
    assert (price.tenant, price.runs <= 60) == ("dear", True)
    assert price.price == pytest.approx(2.0, rel=0.2)


def test_without_prices_predictions_are_as_the_size_says() -> None:
    made = play(1.0, cohort_prices=False)
    assert made.pool.cohorts is None
