"""Recovery times from timelines, faults of the simulated counterparts, and the hog."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.compare.hog import Hog, burn
from bench.compare.scenario import SCENARIOS, disturbance, faults_of, scenario_summary
from bench.compare.settings import CompareSettings
from bench.compare.store import Store
from bench.compare.timeline import Timeline, bursts, recovery, rolling_share, summed, timeline

SETTINGS = CompareSettings(
    model="m", policies=("price",), seconds=28.0, warmup_s=2.0, scenario="kill"
)
PHASES = ("busy", "after_busy", "quiet")


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
    assert found.before.on_time == pytest.approx(0.98)
    assert found.during.on_time == pytest.approx((3 * 0.5 + 2 * 0.98) / 5)
    assert found.during.accurate_goodput == pytest.approx(0.9 * found.during.on_time)
    assert found.after.on_time == pytest.approx(0.98)
    assert found.after.accurate_goodput == pytest.approx(0.9 * 0.98)
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


def test_a_dip_long_after_the_disturbance_has_another_cause() -> None:
    found = recovery(line((20.0, 1.0), (1.0, 0.5), (9.0, 1.0)), 2.0, 10.0, 10.0)
    assert found.recovery_s == 0.0
    assert found.lowest == pytest.approx(0.5)


def test_what_is_not_seen_is_not_claimed() -> None:
    found = recovery(line((10.0, 0.98), (20.0, 0.5)), 2.0, 10.0, 15.0)
    assert found.recovery_s is None
    assert found.during.on_time == pytest.approx(0.5)


def test_requests_in_bursts_after_them_and_in_quiet_are_told_apart() -> None:
    """A burst of 1 s, a bad second after it, and the same in another order in the other run."""
    quiet, busy, behind = (10.0, 1.0), (50.0, 0.5), (10.0, 0.8)

    def run(*phases: tuple[tuple[float, float], float]) -> Timeline:
        offered = np.concatenate([np.full(round(4 * s), rate) for (rate, _), s in phases])
        shares = np.concatenate([np.full(round(4 * s), share) for (_, share), s in phases])
        return Timeline(tuple(offered), tuple(offered * shares), tuple(offered * shares * 0.9))

    runs = [
        # The warm-up's burst counts for nobody.
        run((busy, 1.0), (quiet, 2.0), (busy, 1.0), (behind, 1.0), (quiet, 5.0)),
        run((quiet, 6.0), (busy, 1.0), (behind, 1.0), (quiet, 2.0)),
    ]
    found = bursts(runs, 2.0)
    assert found.busy.on_time == pytest.approx(0.5)
    assert found.after.on_time == pytest.approx(0.8)
    assert found.quiet.on_time == pytest.approx(1.0)
    assert found.quiet.accurate_goodput == pytest.approx(0.9)
    even = bursts([line((10.0, 0.9))], 2.0)
    assert even.quiet.on_time == pytest.approx(0.9)
    assert even.busy.on_time == 1.0, "where nothing was offered nothing was late"


def stored(tmp_path: Path, settings: CompareSettings, *points: dict[str, Any]) -> Store:
    store = Store(tmp_path / "s.json", "scenario", settings)
    store.keep([{"load_factor": 0.8, "kind": "live", **point} for point in points])
    return store


def test_the_summary_of_a_kill_has_each_phase_and_when_the_worker_was_replaced(
    tmp_path: Path,
) -> None:
    felt = line((10.0, 0.98), (3.0, 0.5), (17.0, 0.98)).as_point()
    lasting = line((10.0, 0.98), (20.0, 0.5)).as_point()
    store = stored(
        tmp_path,
        SETTINGS,
        {"policy": "price", "seed": 1, "timeline": felt, "back_s": 18.0},
        {"policy": "price", "seed": 2, "timeline": felt, "back_s": 20.0},
        {"policy": "early", "seed": 1, "timeline": lasting, "back_s": 41.0},
        {"policy": "sim-price", "seed": 1, "timeline": felt, "kind": "simulated"},
    )
    found = scenario_summary(store, SETTINGS)
    assert found["price@0.8.replaced_s"] == pytest.approx(9.0)
    assert found["early@0.8.replaced_s"] == pytest.approx(31.0), "after the run's end"
    assert "sim-price@0.8.replaced_s" not in found
    assert found["price@0.8.recovery_s"] == pytest.approx(4.0)
    assert (found["early@0.8.recovered"], found["early@0.8.recovery_s"]) == (0.0, 20.0)
    assert found["price@0.8.on_time_before"] == pytest.approx(0.98)
    assert found["price@0.8.on_time_after"] == pytest.approx(0.98)
    assert found["early@0.8.accurate_goodput_during"] == pytest.approx(0.45)
    assert found["sim-price@0.8.accurate_goodput_after"] == pytest.approx(0.9 * 0.98)


def test_the_summary_of_bursts_has_their_phases_and_no_recovery(tmp_path: Path) -> None:
    settings = replace(SETTINGS, scenario="mmpp", arrivals="mmpp")
    even = line((30.0, 0.9)).as_point()
    found = scenario_summary(
        stored(tmp_path, settings, {"policy": "price", "seed": 1, "timeline": even}), settings
    )
    figures = [f"{f}_{p}" for f in ("on_time", "accurate_goodput") for p in PHASES]
    assert set(found) == {f"price@0.8.{figure}" for figure in figures}
    assert found["price@0.8.on_time_quiet"] == pytest.approx(0.9)


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
