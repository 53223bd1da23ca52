"""Runs a plan in driver processes of their own and reduces what they saw."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from bench.load.metrics import LoadResult, measure
from bench.load.plan import LoadPlan, Workload
from bench.load.processes import Event, drive, soon
from bench.load.record import Records, load_records, merge
from bench.load.schedule import Schedule, draw_schedule, save_schedule


def run_load(
    plan: LoadPlan,
    workload: Workload,
    *,
    processes: int = 1,
    on_tick: Callable[[float], None] | None = None,
    start_at: Callable[[], int] = soon,
) -> LoadResult:
    """Runs the plan and returns its metrics; see `run_records`."""
    records = run_records(plan, workload, processes=processes, on_tick=on_tick, start_at=start_at)
    return measure(plan, workload, records)


def run_records(
    plan: LoadPlan,
    workload: Workload,
    *,
    processes: int = 1,
    on_tick: Callable[[float], None] | None = None,
    schedule: Schedule | None = None,
    events: Sequence[Event] = (),
    start_at: Callable[[], int] = soon,
) -> Records:
    """Starts `processes` drivers that share the requests, and merges their records.

    `on_tick` gets the seconds since the start while they run; `events` happen in between,
    in this process; `start_at` is that of `drive`. Raises DriverError, and ValueError for a plan
    that cannot be drawn.
    """
    schedule = schedule or draw_schedule(plan, workload)
    with tempfile.TemporaryDirectory(prefix="orchid-load-") as directory:
        base = Path(directory)
        (base / "plan.json").write_text(json.dumps(asdict(plan)))
        (base / "workload.json").write_text(json.dumps(asdict(workload)))
        save_schedule(base / "schedule.npz", schedule)
        files = ["--plan", str(base / "plan.json"), "--workload", str(base / "workload.json")]
        files += ["--schedule", str(base / "schedule.npz")]
        of = ["--shards", str(processes)]
        longest_s = int(schedule.budget_ns.max(initial=0)) / 1e9
        drive(
            "bench.load.driver",
            [
                [*files, "--out", f"{base / str(shard)}.npz", "--shard", f"{shard}", *of]
                for shard in range(processes)
            ],
            base,
            plan.warmup_s + plan.duration_s + plan.drain_s + longest_s + 60,
            on_tick=on_tick,
            events=events,
            start_at=start_at,
        )
        return merge([load_records(base / f"{shard}.npz") for shard in range(processes)])
