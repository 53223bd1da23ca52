"""Plans that can run, schedules that are one for all drivers, traces, endings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from bench.load.endings import ending_of_failure
from bench.load.plan import LoadPlan, Tenant, Workload
from bench.load.record import Records
from bench.load.schedule import draw_schedule, load_schedule, save_schedule
from bench.load.trace import write_recording
from bench.sim.result import Ending
from bench.sim.workload import read_trace
from controlplane import ends
from controlplane.policy.admission import Admission, Refusal
from controlplane.policy.records import Decision, DecisionKind, Request, RequestClass
from controlplane.policy.scheduler import Shed
from controlplane.rpc.status import status_of

WORKLOAD = Workload(("a", "b b", "c c c", "d d d"), (1, 0, 1, -1), tokens=(3, 5, 9, 9))
PLAN = LoadPlan("x:1", "m", 20.0, rate_per_s=100.0, warmup_s=0.0, deadline_ms=40.0)


def test_gaps_have_the_mean_and_spread_of_an_exponential() -> None:
    schedule = draw_schedule(replace(PLAN, rate_per_s=500.0, duration_s=40.0), WORKLOAD)
    gaps = np.diff(schedule.due_ns) / 1e9
    assert gaps.mean() == pytest.approx(1 / 500, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, rel=0.05)
    assert schedule.due_ns[-1] < 40e9
    assert set(schedule.text) == set(range(4))


def test_one_seed_is_one_schedule_however_many_drivers_share_it(tmp_path: Path) -> None:
    schedule, again = draw_schedule(PLAN, WORKLOAD), draw_schedule(PLAN, WORKLOAD)
    save_schedule(tmp_path / "s.npz", again)
    back = load_schedule(tmp_path / "s.npz")
    assert np.array_equal(back.due_ns, schedule.due_ns)
    assert np.array_equal(back.text, schedule.text)
    shards = [schedule.shard(k, 3) for k in range(3)]
    together = np.sort(np.concatenate([shard.due_ns for shard in shards]))
    assert np.array_equal(together, schedule.due_ns)
    other = draw_schedule(replace(PLAN, seed=2), WORKLOAD)
    assert not np.array_equal(other.due_ns[:20], schedule.due_ns[:20])


def test_deadlines_and_tenants_are_mixed_by_their_shares() -> None:
    tenants = (Tenant("gold"), Tenant("free", 3.0))
    plan = replace(PLAN, deadline_factors=(0.5, 1.0, 2.0), tenants=tenants)
    schedule = draw_schedule(plan, WORKLOAD)
    shares = {int(b): float((schedule.budget_ns == b).mean()) for b in set(schedule.budget_ns)}
    assert sorted(shares) == [20_000_000, 40_000_000, 80_000_000]
    assert all(share == pytest.approx(1 / 3, abs=0.05) for share in shares.values())
    assert float((schedule.tenant == 1).mean()) == pytest.approx(0.75, abs=0.05)


@pytest.mark.parametrize("arrivals", ["mmpp", "flash"])
def test_other_processes_are_burstier(arrivals: Any) -> None:
    bursty = draw_schedule(replace(PLAN, arrivals=arrivals), WORKLOAD).due_ns
    calm = draw_schedule(PLAN, WORKLOAD).due_ns
    counts = [np.histogram(due / 1e9, np.arange(21))[0] for due in (bursty, calm)]
    assert counts[0].var() > 3 * counts[1].var()


def test_a_closed_loop_has_texts_but_no_due_times() -> None:
    schedule = draw_schedule(replace(PLAN, mode="closed", rate_per_s=0.0), WORKLOAD)
    assert len(schedule.due_ns) == 0 and len(schedule.text) > 1000


def test_a_trace_is_played_with_texts_of_its_lengths(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("arrived_us,tokens,deadline_us\n1000,3,7000\n2000,10,8000\n90000000,3,1\n")
    plan = replace(PLAN, arrivals="trace", trace=str(path), rate_per_s=0.0, deadline_ms=0.0)
    schedule = draw_schedule(plan, WORKLOAD)
    assert schedule.due_ns.tolist() == [1_000_000, 2_000_000]
    assert schedule.budget_ns.tolist() == [7_000_000, 8_000_000]
    assert schedule.text[0] == 0 and schedule.text[1] in (2, 3)
    forced = draw_schedule(replace(plan, deadline_ms=5.0), WORKLOAD)
    assert forced.budget_ns.tolist() == [5_000_000, 5_000_000]
    with pytest.raises(ValueError, match="lengths of the texts are not known"):
        draw_schedule(plan, replace(WORKLOAD, tokens=()))
    path.write_text("arrived_us,tokens,deadline_us\n1000,3,0\n")
    with pytest.raises(ValueError, match="without a deadline"):
        draw_schedule(plan, WORKLOAD)


def test_a_recording_holds_shapes_and_comes_back_as_a_trace(tmp_path: Path) -> None:
    ints = {name: np.zeros(2, np.int64) for name in ("queue_ns", "total_ns", "tenant", "batch")}
    records = Records(
        due_ns=np.array([1_000_000, 3_000_000]),
        sent_ns=np.array([1_000_000, 3_000_000]),
        done_ns=np.array([2_000_000, 3_500_000]),
        budget_ns=np.array([40_000_000, 20_000_000]),
        execute_ns=np.array([700_000, 0]),
        ending=np.array([Ending.ON_TIME, Ending.REFUSED], np.int8),
        code=np.array([0, 8], np.int32),
        text=np.array([2, 0], np.int32),
        variant=np.array([0, -1], np.int32),
        predicted=np.array([1, -1], np.int32),
        variants=("big",),
        cpu_s={"driver": 0.0},
        window_ns=(0, 4_000_000),
        **ints,  # type: ignore[arg-type]
    )
    write_recording(tmp_path / "r.csv", records, WORKLOAD)
    assert (tmp_path / "r.csv").read_text().split() == [
        "arrived_us,tokens,deadline_us,variant,outcome,service_us",
        "1000,9,40000,big,on_time,700",
        "3000,3,20000,,refused,0",
    ]
    back = read_trace(tmp_path / "r.csv", np.random.default_rng(1))
    assert back.arrived_ns.tolist() == [1_000_000, 3_000_000]
    assert back.tokens.tolist() == [9, 3]
    with pytest.raises(ValueError, match="nothing can be recorded"):
        write_recording(tmp_path / "r.csv", records, replace(WORKLOAD, tokens=()))


def _ending(error: Exception) -> Ending:
    status = status_of(error)
    return ending_of_failure(status.number, status.message)


def test_endings_are_read_from_what_the_control_plane_says() -> None:
    request = Request(1, "m", RequestClass(), {}, None, 0, 50_000_000)
    words = [word for name, word in vars(Refusal).items() if name.isupper()]
    at_the_door = [word for word in words if word != Refusal.NO_WORKER]
    assert len(at_the_door) == 10
    for reason in at_the_door:
        error = ends.refusal(request, Admission(False, reason, (), 1_000_000, 5))
        assert _ending(error) is Ending.REFUSED, reason
    for slack, ending in ((5_000_000, Ending.SHED), (0, Ending.LATE)):
        decision = Decision(DecisionKind.DROP, -1, "r", slack, 1e7, 0.0, False)
        assert _ending(ends.shed(Shed(request, decision, 7))) is ending
    assert _ending(ends.expired(request)) is Ending.LATE
    assert _ending(ends.unready("m", None)) is Ending.LOST
    own_timer = grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
    assert ending_of_failure(own_timer, "Deadline Exceeded") is Ending.LATE
    assert ending_of_failure(-1, "") is Ending.LOST


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rate_per_s": 0.0}, "rate_per_s"),
        ({"rate_per_s": float("nan")}, "expected numbers"),
        ({"rate_per_s": 1.0, "deadline_ms": float("inf")}, "expected numbers"),
        ({"mode": "closed", "concurrency": 0}, "concurrency"),
        ({"rate_per_s": 1.0, "duration_s": 0.0}, "duration_s"),
        ({"rate_per_s": 1.0, "deadline_factors": (1.0, 0.0)}, "deadline_factors"),
        ({"arrivals": "trace"}, "belong together"),
        ({"rate_per_s": 1.0, "trace": "t.csv"}, "belong together"),
    ],
)
def test_a_plan_that_cannot_run_is_refused(wrong: dict[str, object], message: str) -> None:
    settings = {"target": "x:1", "model": "m", "duration_s": 1.0, **wrong}
    with pytest.raises(ValueError, match=message):
        LoadPlan(**settings)  # type: ignore[arg-type]


def test_a_workload_needs_a_label_for_each_text() -> None:
    with pytest.raises(ValueError, match="1 texts and 2 labels"):
        Workload(("a",), (1, 0))
    with pytest.raises(ValueError, match="1 texts have 2 lengths"):
        Workload(("a",), (1,), (3, 4))
    with pytest.raises(ValueError, match="weight above 0"):
        Tenant("gold", 0.0)
