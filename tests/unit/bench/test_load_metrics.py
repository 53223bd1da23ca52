"""Metrics count what was offered, and only inside the measured window."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.load.metrics import measure
from bench.load.plan import LoadPlan, Tenant, Workload
from bench.load.record import Records, load_records, merge, save_records
from bench.sim.result import Ending

MS = 1_000_000
PLAN = LoadPlan(
    target="x:1", model="m", duration_s=1.0, warmup_s=1.0, rate_per_s=5.0, deadline_ms=100.0
)
WORKLOAD = Workload(("a", "b", "c"), (1, 0, -1), qualities={"big": 0.9, "small": 0.8})


def rows(*entries: tuple[int, int, int, int, int, int]) -> Records:
    """Rows of (due ms, latency ms, code, text, variant, predicted)."""
    due, latency, code, text, variant, predicted = (np.array(c) for c in zip(*entries, strict=True))
    late = (code == 4) | ((code == 0) & (latency > 100))
    ending = np.select([late, code == 8, code == -1], [Ending.LATE, Ending.REFUSED, Ending.LOST])
    return Records(
        due_ns=due * MS,
        sent_ns=due * MS + MS,
        done_ns=np.where(code == -1, 0, (due + latency) * MS),
        budget_ns=np.full(len(due), 100 * MS),
        queue_ns=np.zeros(len(due), np.int64),
        execute_ns=np.zeros(len(due), np.int64),
        total_ns=np.zeros(len(due), np.int64),
        batch=np.ones(len(due), np.int32),
        ending=ending.astype(np.int8),
        tenant=text.astype(np.int32) % 2,
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
    assert (result.offered, result.answered, result.on_time_answers) == (8, 5, 4)
    assert (result.late, result.refused, result.shed, result.lost) == (2, 1, 0, 1)
    assert result.on_time == pytest.approx(4 / 8)
    assert result.on_time_of_admitted == pytest.approx(4 / 7)
    assert result.quality == pytest.approx((2 * 0.9 + 2 * 0.8) / 4)
    assert result.accurate_goodput == pytest.approx((2 * 0.9 + 2 * 0.8) / 8)
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


def test_what_a_variant_is_worth_must_be_known() -> None:
    result = measure(PLAN, replace(WORKLOAD, qualities={"big": 0.9}), RECORDS)
    assert math.isnan(result.accurate_goodput)
    assert result.as_point()["accurate_goodput"] is None


def test_tenants_and_workers_are_told_apart() -> None:
    plan = replace(PLAN, tenants=(Tenant("gold"), Tenant("free", 3.0)))
    records = replace(RECORDS, cpu_s={"driver": 0.5, "worker-0": 0.5, "worker-1": 0.25})
    result = measure(plan, WORKLOAD, records)
    assert result.tenants["free"] == {"offered": 1, "on_time": 1.0}
    assert result.tenants["gold"] == {"offered": 7, "on_time": pytest.approx(3 / 7)}
    assert result.cpu_cost_ms == pytest.approx(750 / 8)


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


def test_answers_of_cascades_are_worth_what_their_evidence_expects() -> None:
    expected = np.full(len(RECORDS.due_ns), np.nan)
    escalated = np.zeros(len(RECORDS.due_ns), np.bool_)
    expected[1:3], escalated[2] = (0.97, 0.7), True
    result = measure(PLAN, WORKLOAD, replace(RECORDS, expected=expected, escalated=escalated))
    assert result.accurate_goodput == pytest.approx((0.97 + 0.7 + 0.8 + 0.9) / 8)
    assert result.escalated == pytest.approx(1 / 4)
    assert measure(PLAN, WORKLOAD, RECORDS).escalated == 0.0


def test_what_was_told_of_cascades_is_kept_and_merged(tmp_path: Path) -> None:
    count = len(RECORDS.due_ns)
    told = replace(
        RECORDS, expected=np.linspace(0.5, 1.0, count), escalated=np.arange(count) % 2 == 0
    )
    save_records(tmp_path / "r.npz", told)
    back = load_records(tmp_path / "r.npz")
    assert back.expected is not None and back.escalated is not None
    assert back.expected.tolist() == np.linspace(0.5, 1.0, count).tolist()
    both = merge([back, back])
    assert both.expected is not None and len(both.expected) == 2 * count
    save_records(tmp_path / "r.npz", RECORDS)
    plain = load_records(tmp_path / "r.npz")
    assert plain.expected is None
    assert merge([plain, told]).expected is None
