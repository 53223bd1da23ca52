"""Means, intervals and pairs of a comparison, its order of runs, its file and its table."""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bench.compare.figures import cells, estimate, student_t, summary_of
from bench.compare.settings import CompareSettings, Job, known_policies
from bench.compare.store import Store, StoreMismatchError
from bench.sim.model import two_variants
from bench.sweep import Baseline
from deploy.cli.compare_table import compare_table

BASELINE = Baseline("accurate", 10.0, 30.0, 100.0, ("accurate", "cheap"))
SETTINGS = CompareSettings(model="m", policies=("price", "cheap", "early"), loads=(0.5, 1.0))


def point(policy: str, seed: int, goodput: float, load: float = 1.0, **more: Any) -> dict[str, Any]:
    return {
        "policy": policy,
        "load_factor": load,
        "seed": seed,
        "kind": "live",
        "accurate_goodput": goodput,
        "right_share": goodput,
        "on_time": goodput + 0.05,
        "on_time_of_admitted": 0.99,
        "accuracy": 0.9,
        "quality": 0.9,
        "variant_share": {"accurate": 0.75, "cheap": 0.25},
        "latency": {"p95_ms": 20.0},
        "cpu_cost_ms": 5.0,
        "expired_executed": 0,
        "calibration": None,
        **more,
    }


def test_intervals_are_students() -> None:
    found = estimate([0.90, 0.92, 0.94])
    assert found.n == 3 and found.mean == pytest.approx(0.92)
    assert found.stderr == pytest.approx(0.02 / 3**0.5)
    assert found.high - found.mean == pytest.approx(4.303 * found.stderr)
    one = estimate([0.5])
    assert (one.low, one.mean, one.high, one.stderr) == (0.5, 0.5, 0.5, 0.0)
    tabled = {1: 12.706, 6: 2.447, 10: 2.228, 30: 2.042}
    for degrees, value in tabled.items():
        assert student_t(degrees) == pytest.approx(value, abs=0.004)


def test_differences_are_taken_within_a_seed() -> None:
    """Seeds differ by far more than the policies: only pairs show who is ahead."""
    points = [point("price", seed, g) for seed, g in ((1, 0.90), (2, 0.60), (3, 0.30))]
    points += [point("cheap", seed, g) for seed, g in ((1, 0.88), (2, 0.585), (3, 0.28))]
    points += [point("cheap", 4, 0.99)]
    orchid, cheap = cells(points, "accurate")
    assert orchid.ahead is None and cheap.ahead is not None
    assert cheap.ahead.n == 3
    assert cheap.ahead.mean == pytest.approx((0.02 + 0.015 + 0.02) / 3)
    assert cheap.ahead.low > 0
    assert cheap.figures["share_most_accurate"].mean == 0.75


def test_the_summary_has_every_key_and_the_two_ratios() -> None:
    simulated: dict[str, Any] = {"kind": "simulated", "p95_ms": 18.0, "cpu_ms": 4.0}
    points = [point("price", 1, 0.8), point("cheap", 1, 0.7)]
    points += [point("sim-price", 1, 0.84, **simulated), point("bound", 1, 0.88, **simulated)]
    summary = summary_of(cells(points, "accurate"))
    for policy in ("price", "cheap", "sim-price", "bound"):
        for figure in ("accurate_goodput", "goodput", "on_time", "accuracy", "p95_ms", "cpu_cost"):
            assert f"{policy}@1.{figure}" in summary
        assert f"{policy}@1.share_most_accurate" in summary
    assert summary["sim_over_live@1"] == pytest.approx(0.84 / 0.8)
    assert summary["live_over_bound@1"] == pytest.approx(0.8 / 0.88)
    assert summary["cheap@1.price_ahead"] == pytest.approx(0.1)
    assert "cheap@1.price_ahead_low" not in summary
    assert summary["sim-price@1.p95_ms"] == 18.0


def test_policies_take_turns_inside_a_load_and_seed() -> None:
    jobs = list(SETTINGS.jobs())
    assert len(jobs) == len(set(jobs)) == 3 * 2 * 3
    for start in range(0, len(jobs), 3):
        group = jobs[start : start + 3]
        assert {(job.load, job.seed) for job in group} == {(group[0].load, group[0].seed)}
    first = Counter(jobs[start].policy for start in range(0, len(jobs), 3))
    assert set(first.values()) == {2}


def test_all_policies_get_the_same_traffic_and_seeds_another() -> None:
    plans = [SETTINGS.plan(Job(p, 1.0, s), BASELINE) for p, s in (("price", 1), ("cheap", 1))]
    assert plans[0] == plans[1]
    assert SETTINGS.plan(Job("price", 1.0, 2), BASELINE).seed == 2
    assert plans[0].rate_per_s == 100.0 and plans[0].deadline_ms == 30.0
    assert replace(SETTINGS, deadline_ms=50.0).plan(Job("a", 1.0, 1), BASELINE).deadline_ms == 50.0


def test_the_policies_there_are_are_compared() -> None:
    known = known_policies()
    assert known[0] == "price"
    assert {"accurate", "cheap", "published-accurate", "published-adaptive", "early"} <= set(known)


def test_a_file_is_taken_up_only_when_it_was_measured_alike(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    store = Store(path, "sweep", SETTINGS)
    assert store.resume() == 0
    slower = replace(BASELINE, capacity_per_s=80.0, deadline_ms=40.0)
    store.baselines, store.served = {1: BASELINE, 2: slower}, two_variants()
    store.keep([point("price", 1, 0.8)])
    store.keep([point("price", 1, 0.9), point("price", 2, 0.7)])
    store.save({"x": 1.0})

    wider = replace(SETTINGS, policies=("price", "accurate"), seeds=(1, 2, 3, 4))
    taken = Store(path, "sweep", wider)
    assert taken.resume() == 2
    assert taken.has(Job("price", 1.0, 1)) and not taken.has(Job("price", 1.0, 3))
    assert taken.baselines == {1: BASELINE, 2: slower}
    assert (taken.baseline.capacity_per_s, taken.baseline.deadline_ms) == (90.0, 35.0)
    assert taken.served == two_variants()
    assert {p["accurate_goodput"] for p in taken.points} == {0.9, 0.7}
    for other, bench in ((replace(SETTINGS, seconds=9.0), "sweep"), (SETTINGS, "scenario")):
        with pytest.raises(StoreMismatchError):
            Store(path, bench, other).resume()


def test_the_table_shows_pairs_and_fits_a_terminal() -> None:
    points = [point("price", s, 0.8 + s / 100) for s in (1, 2)]
    points += [point("published-accurate", s, 0.7, latency=None) for s in (1, 2)]
    console = Console(file=io.StringIO(), width=90)
    console.print(compare_table(cells(points, "accurate")))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "+11.5 ± 6.4" in text
    assert max(map(len, text.splitlines())) <= 88
