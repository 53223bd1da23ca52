"""Arrivals are Poisson, reproducible, and keep their rate when they are shared out."""

from __future__ import annotations

import numpy as np
import pytest

from bench.load.plan import LoadPlan, Workload, poisson_arrivals, shard_generator


def test_gaps_have_the_mean_and_spread_of_an_exponential() -> None:
    arrivals = poisson_arrivals(shard_generator(7, 0), 500.0, 40.0, 10)
    gaps = np.diff(arrivals.due_ns) / 1e9
    assert gaps.mean() == pytest.approx(1 / 500, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, rel=0.05)
    assert arrivals.due_ns[-1] < 40e9
    assert set(arrivals.text) == set(range(10))


def test_the_same_seed_gives_the_same_run_and_another_shard_another() -> None:
    first, again = (poisson_arrivals(shard_generator(3, 0), 50.0, 5.0, 4) for _ in range(2))
    other = poisson_arrivals(shard_generator(3, 1), 50.0, 5.0, 4)
    assert np.array_equal(first.due_ns, again.due_ns) and np.array_equal(first.text, again.text)
    assert not np.array_equal(first.due_ns[:20], other.due_ns[:20])


def test_shards_together_keep_the_rate() -> None:
    shards = [poisson_arrivals(shard_generator(1, k), 400.0 / 4, 30.0, 3) for k in range(4)]
    merged = np.sort(np.concatenate([shard.due_ns for shard in shards]))
    gaps = np.diff(merged) / 1e9
    assert gaps.mean() == pytest.approx(1 / 400, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, rel=0.06)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rate_per_s": 0.0}, "rate_per_s"),
        ({"mode": "closed", "concurrency": 0}, "concurrency"),
        ({"rate_per_s": 1.0, "duration_s": 0.0}, "duration_s"),
    ],
)
def test_a_plan_that_cannot_run_is_refused(wrong: dict[str, object], message: str) -> None:
    settings = {"target": "x:1", "model": "m", "duration_s": 1.0, **wrong}
    with pytest.raises(ValueError, match=message):
        LoadPlan(**settings)  # type: ignore[arg-type]


def test_a_workload_needs_a_label_for_each_text() -> None:
    with pytest.raises(ValueError, match="1 texts and 2 labels"):
        Workload(("a",), (1, 0))
