"""What `orchid bench operate` makes of a run, and what it keeps of a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.load.metrics import measure
from bench.load.plan import LoadPlan, Workload
from bench.load.record import OK, Records
from bench.operate import (
    Kept,
    OperateSettings,
    StoredOtherwiseError,
    operate_report,
    point_of,
    read_kept,
)
from bench.report import host_facts, write_report
from bench.sim.result import Ending
from bench.sweep import Baseline

SETTINGS = OperateSettings(model="m", workers=2, seconds=20.0, warmup_s=2.0)
BASELINE = Baseline("big", 30.0, 90.0, 50.0, ("big", "small"))
PER_S = 50


def records(down_s: tuple[float, float] = (0.0, 0.0), lost: int = 0) -> Records:
    """Fifty a second, all on time but those due in `down_s`, of which `lost` have no answer."""
    count = int(PER_S * 22)
    due = (np.arange(count) * 1_000_000_000 // PER_S).astype(np.int64)
    down = (due >= down_s[0] * 1e9) & (due < down_s[1] * 1e9)
    ending = np.where(down, Ending.LATE, Ending.ON_TIME).astype(np.int8)
    ending[np.flatnonzero(down)[:lost]] = Ending.LOST
    zeros = np.zeros(count, np.int64)
    return Records(
        due_ns=due,
        sent_ns=due,
        done_ns=due + 20_000_000,
        budget_ns=np.full(count, 90_000_000),
        queue_ns=zeros,
        execute_ns=zeros,
        total_ns=zeros,
        batch=np.ones(count, np.int32),
        ending=ending,
        tenant=np.zeros(count, np.int32),
        code=np.where(ending == Ending.LOST, 14, OK).astype(np.int32),
        text=np.zeros(count, np.int32),
        variant=np.zeros(count, np.int32),
        predicted=np.ones(count, np.int32),
        variants=("big",),
        cpu_s={"driver": 0.1},
        window_ns=(2_000_000_000, 22_000_000_000),
    )


def point(found: Records, whole_s: float, event: str = "kill") -> dict[str, object]:
    plan = LoadPlan("x:1", "m", 20.0, rate_per_s=PER_S, warmup_s=2.0, deadline_ms=90.0)
    result = measure(plan, Workload(("a",), (1,)), found)
    made = point_of(event, SETTINGS, found, result, whole_s)
    return {**made, "rate_per_s": PER_S, "deadline_ms": 90.0, "expired_executed": 0}


def test_a_run_without_loss_is_told_so() -> None:
    found = point(records(), whole_s=3.0)
    assert (found["lost"], found["on_time"], found["on_time_during"]) == (0, 1.0, 1.0)
    assert (found["begin_s"], found["on_time_recovery_s"], found["within_run"]) == (6.0, 0.0, True)


def test_what_is_missed_while_the_cluster_is_not_whole_is_counted_there() -> None:
    found = point(records((6.0, 8.0), lost=3), whole_s=4.0)
    assert found["lost"] == 3
    assert found["on_time"] == pytest.approx(0.9)
    assert found["on_time_before"] == 1.0
    assert found["on_time_during"] == pytest.approx(0.5)
    # The first whole second on time ends three seconds after the event.
    assert found["on_time_recovery_s"] == pytest.approx(3.0)


def test_an_event_that_outlasts_its_run_says_so() -> None:
    assert point(records(), whole_s=17.0)["within_run"] is False


def test_the_file_gives_back_what_the_same_settings_measured(tmp_path: Path) -> None:
    path = tmp_path / "operate.json"
    fresh = read_kept(path, SETTINGS)
    assert (fresh.baseline, fresh.points) == (None, ())
    kept = Kept(host_facts(), BASELINE, (point(records((6.0, 7.0), lost=1), 2.0),))
    report = operate_report(SETTINGS, kept)
    assert (report.summary["lost"], report.summary["kill.lost"]) == (1.0, 1.0)
    assert report.summary["on_time"] == report.summary["kill.on_time"] == pytest.approx(0.95)
    write_report(path, report)
    again = read_kept(path, SETTINGS)
    assert again.baseline == BASELINE
    assert [p["event"] for p in again.points] == ["kill"]
    with pytest.raises(StoredOtherwiseError, match="other load"):
        read_kept(path, replace(SETTINGS, load=0.8))
    write_report(path, replace(report, commit="0" * 40))
    with pytest.raises(StoredOtherwiseError, match="at commit 0000"):
        read_kept(path, SETTINGS)
