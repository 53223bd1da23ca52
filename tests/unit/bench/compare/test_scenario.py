"""Recovery times from timelines, faults of the simulated counterparts, and the hog."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bench.compare.hog import Hog, burn
from bench.compare.scenario import SCENARIOS, disturbance, faults_of
from bench.compare.settings import CompareSettings
from bench.compare.timeline import Timeline, recovery, rolling_share, summed, timeline

SETTINGS = CompareSettings(
    model="m", policies=("price",), seconds=28.0, warmup_s=2.0, scenario="kill"
)


def line(*phases: tuple[float, float], per_bin: float = 25.0) -> Timeline:
    """A timeline of (seconds, on-time share) phases."""
    shares = np.concatenate([np.full(round(4 * seconds), share) for seconds, share in phases])
    offered = np.full(len(shares), per_bin)
    return Timeline(tuple(offered), tuple(offered * shares), tuple(offered * shares * 0.9))


def test_requests_are_counted_where_they_were_due() -> None:
    due = np.array([0, 100, 300, 900]) * 1_000_000
    on_time = np.array([True, False, True, True])
    found = timeline(due, on_time, np.array([0.9, 0.9, 0.8, 0.7]), 1.0)
    assert found.offered == (2, 1, 0, 1)
    assert found.on_time == (1, 1, 0, 1)
    assert found.worth == pytest.approx((0.9, 0.8, 0.0, 0.7))
    back = Timeline.from_point(found.as_point())
    assert back.on_time == found.on_time and back.worth == pytest.approx(found.worth)
    assert summed([found, found]).offered == (4, 2, 0, 2)
    assert rolling_share(found.on_time, found.offered) == pytest.approx([0.75])


def test_the_recovery_lasts_until_the_last_bad_second() -> None:
    """Down from 10 s to 13 s: the first whole good second ends at 14 s."""
    found = recovery(line((10.0, 0.98), (3.0, 0.5), (17.0, 0.98)), 2.0, 10.0, 10.0)
    assert found.before == pytest.approx(0.98)
    assert found.during == pytest.approx((3 * 0.5 + 2 * 0.98) / 5)
    assert found.lowest == pytest.approx(0.5)
    # A second with one bad quarter (0.86) is still down.
    assert found.recovery_s == pytest.approx(4.0)


def test_a_dip_within_the_noise_is_none() -> None:
    found = recovery(line((10.0, 0.98), (3.0, 0.965), (17.0, 0.98)), 2.0, 10.0, 10.0)
    assert found.recovery_s == 0.0
    few = recovery(line((10.0, 0.98), (3.0, 0.9), (17.0, 0.98), per_bin=2.0), 2.0, 10.0, 10.0)
    assert few.recovery_s == 0.0


def test_who_falls_again_at_once_has_not_recovered() -> None:
    shaky = line((10.0, 1.0), (2.0, 0.5), (1.25, 1.0), (2.0, 0.5), (14.75, 1.0))
    assert recovery(shaky, 2.0, 10.0, 10.0).recovery_s == pytest.approx(6.25)


def test_what_is_not_seen_is_not_claimed() -> None:
    found = recovery(line((10.0, 0.98), (20.0, 0.5)), 2.0, 10.0, 15.0)
    assert found.recovery_s is None
    assert found.during == pytest.approx(0.5)


def test_every_scenario_has_its_disturbance_and_its_simulated_fault() -> None:
    spans = {name: disturbance(replace(SETTINGS, scenario=name)) for name in SCENARIOS}
    assert spans["mmpp"] is None and spans["mixed"] is None
    assert spans["flash"] == (10.0, 15.0)
    assert spans["hog"] == (10.0, 20.0)
    assert spans["kill"] == (10.0, 10.0)
    (hog,) = faults_of(replace(SETTINGS, scenario="hog"), 2, None).slow_downs
    assert (hog.begin_s, hog.end_s) == (10.0, 20.0)
    assert hog.factor == pytest.approx(4 / 3)
    (loss,) = faults_of(SETTINGS, 2, 17.5).losses
    assert (loss.at_s, loss.back_s) == (10.0, 17.5)
    assert faults_of(SETTINGS, 2, None).losses[0].back_s == 0.0
    assert not faults_of(replace(SETTINGS, scenario="flash"), 2, None)


def test_a_hog_takes_its_share_and_no_more() -> None:
    used = burn(0.3, 0.3)
    # Others may keep it from its share, nothing makes it take more than a burst beyond.
    assert 0.0 < used <= 0.3 * 0.3 + 0.02


def test_a_hog_ends_when_it_is_told_to() -> None:
    with Hog(0.1, 60.0) as hog:
        hog.start()
        process = hog._process
        assert process is not None and process.poll() is None
    assert process.poll() is not None
