"""Metrics count what was offered, and only inside the measured window."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.load.metrics import measure
from bench.load.plan import LoadPlan, Workload
from bench.load.record import Records, load_records, merge, save_records

MS = 1_000_000
PLAN = LoadPlan(
    target="x:1", model="m", duration_s=1.0, warmup_s=1.0, rate_per_s=5.0, deadline_ms=100.0
)
WORKLOAD = Workload(("a", "b", "c"), (1, 0, -1))


def rows(*entries: tuple[int, int, int, int, int, int]) -> Records:
    """Rows of (due ms, latency ms, code, text, variant, predicted)."""
    due, latency, code, text, variant, predicted = (np.array(c) for c in zip(*entries, strict=True))
    return Records(
        due_ns=due * MS,
        sent_ns=due * MS + MS,
        done_ns=np.where(code == -1, 0, (due + latency) * MS),
        code=code.astype(np.int32),
        text=text.astype(np.int32),
        variant=variant.astype(np.int32),
        predicted=predicted.astype(np.int32),
        variants=("big", "small"),
        cpu_s={"driver": 0.5, "controlplane": 0.25},
        window_ns=(1000 * MS, 2000 * MS),
    )


RECORDS = rows(
    (900, 10, 0, 0, 0, 1),  # warm-up: not counted
    (1000, 10, 0, 0, 0, 1),  # on time, right
    (1100, 20, 0, 1, 1, 1),  # on time, wrong
    (1200, 30, 0, 2, 1, 0),  # on time, nobody knows the label
    (1300, 150, 0, 0, 0, 1),  # right but late
    (1400, 1, 8, 0, -1, -1),  # refused
    (1500, 0, -1, 0, -1, -1),  # never answered
    (1600, 100, 4, 0, -1, -1),  # deadline exceeded
    (1999, 40, 0, 0, 0, 1),  # on time, ends after the window
)


def test_shares_are_of_the_offered() -> None:
    result = measure(PLAN, WORKLOAD, RECORDS)
    assert (result.offered, result.answered, result.on_time) == (8, 5, 4)
    assert result.on_time_share == pytest.approx(4 / 8)
    assert result.accuracy == pytest.approx(2 / 3)
    assert result.right_share == pytest.approx(2 / 8)
    assert result.outcomes == {
        "OK": 4,
        "LATE": 1,
        "RESOURCE_EXHAUSTED": 1,
        "NO_ANSWER": 1,
        "DEADLINE_EXCEEDED": 1,
    }
    assert result.variant_share == {"big": 0.5, "small": 0.5}
    assert result.cpu_ms_per_request == {"controlplane": pytest.approx(250 / 8)}
    assert result.driver_cpu_ms_per_request == pytest.approx(500 / 8)
    assert result.send_lag_p99_ms == pytest.approx(1.0)


def test_latency_is_of_the_answered_from_the_due_time() -> None:
    latency = measure(PLAN, WORKLOAD, RECORDS).latency
    assert latency is not None
    assert latency.p50_ms == pytest.approx(30, rel=0.01)
    assert latency.max_ms == pytest.approx(150, rel=0.01)
    assert latency.mean_ms == pytest.approx((10 + 20 + 30 + 150 + 40) / 5)


def test_without_a_deadline_every_answer_is_on_time() -> None:
    assert measure(replace(PLAN, deadline_ms=0.0), WORKLOAD, RECORDS).on_time == 5


def test_nothing_answered_is_not_a_fault() -> None:
    result = measure(PLAN, WORKLOAD, rows((1000, 1, 8, 0, -1, -1)))
    assert result.latency is None and math.isnan(result.accuracy)
    assert result.as_point()["accuracy"] is None


def test_shards_merge_into_one_table_with_common_variant_names(tmp_path: Path) -> None:
    other = replace(rows((1050, 10, 0, 0, 0, 1), (1060, 5, 8, 0, -1, -1)), variants=("tiny", "big"))
    save_records(tmp_path / "r.npz", other)
    merged = merge([RECORDS, load_records(tmp_path / "r.npz")])
    assert merged.variants == ("big", "small", "tiny")
    assert list(np.diff(merged.due_ns) >= 0) == [True] * (len(merged.due_ns) - 1)
    at = {int(due): int(v) for due, v in zip(merged.due_ns // MS, merged.variant, strict=True)}
    assert (at[1050], at[1060], at[1000], at[1100]) == (2, -1, 0, 1)
    assert merged.cpu_s == {"driver": 1.0, "controlplane": 0.25}
