"""What a scenario's run adds to its point."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bench.compare.scenario import additions
from bench.compare.settings import CompareSettings
from bench.load.metrics import worth_of
from bench.load.plan import Workload
from bench.load.record import OK, Records
from bench.sim.result import Ending
from bench.sweep import Baseline

BASELINE = Baseline("big", 30.0, 100.0, 50.0, ("big", "small"))
WORKLOAD = Workload(("a",), (1,), qualities={"big": 0.9, "small": 0.8})
SETTINGS = CompareSettings(
    model="m",
    policies=("price",),
    seconds=1.0,
    warmup_s=0.5,
    deadline_mix=(0.5, 1.0),
    scenario="mixed",
)
# Due in ms, deadline in ms, how it ended, who answered, what a cascade expects.
ROWS = (
    (100, 50, Ending.ON_TIME, 0, np.nan),
    (600, 50, Ending.LATE, 0, np.nan),
    (700, 50, Ending.ON_TIME, 1, 0.95),
    (1100, 100, Ending.ON_TIME, 2, np.nan),
    (1200, 100, Ending.LOST, -1, np.nan),
)


def records(*, cascades: bool = True) -> Records:
    due, budget, ending, variant, expected = zip(*ROWS, strict=True)
    zeros = np.zeros(len(ROWS), np.int64)
    due_ns = np.array(due) * 1_000_000
    return Records(
        due_ns=due_ns,
        sent_ns=due_ns,
        done_ns=due_ns + 1,
        budget_ns=np.array(budget) * 1_000_000,
        queue_ns=zeros,
        execute_ns=zeros,
        total_ns=zeros,
        batch=np.ones(len(ROWS), np.int32),
        ending=np.array(ending, np.int8),
        tenant=np.zeros(len(ROWS), np.int32),
        code=np.full(len(ROWS), OK, np.int32),
        text=np.zeros(len(ROWS), np.int32),
        variant=np.array(variant, np.int32),
        predicted=np.ones(len(ROWS), np.int32),
        variants=("big", "small", "unknown"),
        cpu_s={"driver": 0.1},
        window_ns=(500_000_000, 1_500_000_000),
        expected=np.array(expected) if cascades else None,
    )


def test_an_answer_is_worth_its_variants_quality_or_what_a_cascade_expects() -> None:
    worth = worth_of(records(), WORKLOAD)
    assert worth[[0, 2]] == pytest.approx([0.9, 0.95])
    assert np.isnan(worth[[3, 4]]).all(), "of an unknown variant, and without an answer"
    assert worth_of(records(cascades=False), WORKLOAD)[2] == pytest.approx(0.8)


def test_the_timeline_counts_every_request_and_the_deadlines_those_of_the_window() -> None:
    found = additions(SETTINGS, BASELINE, WORKLOAD, records())
    assert found["timeline"]["offered"] == [1, 0, 2, 0, 2, 0]
    assert found["timeline"]["on_time"] == [1, 0, 1, 0, 1, 0]
    assert found["timeline"]["worth"] == pytest.approx([0.9, 0.0, 0.95, 0.0, 0.0, 0.0])
    assert found["by_deadline"] == {"0.5": 0.5, "1": 0.5}


def test_what_the_workers_of_a_kill_used_is_not_claimed() -> None:
    killed = additions(replace(SETTINGS, scenario="kill"), BASELINE, WORKLOAD, records())
    assert killed["cpu_cost_ms"] is None
    assert "cpu_cost_ms" not in additions(SETTINGS, BASELINE, WORKLOAD, records())
