"""Runs a plan in driver processes of their own and reduces what they saw."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from bench.load.metrics import LoadResult, measure
from bench.load.plan import LoadPlan, Workload
from bench.load.record import Records, load_records, merge
from bench.load.schedule import Schedule, draw_schedule, save_schedule

_START_AFTER_NS = 100_000_000
_TICK_S = 0.2

Event = tuple[float, Callable[[], None]]
"""Seconds after the start of a run, and what happens then."""


class DriverError(Exception):
    """A driver process failed; the text is what it said."""


def run_load(
    plan: LoadPlan,
    workload: Workload,
    *,
    processes: int = 1,
    on_tick: Callable[[float], None] | None = None,
) -> LoadResult:
    """Runs the plan and returns its metrics; see `run_records`."""
    return measure(
        plan, workload, run_records(plan, workload, processes=processes, on_tick=on_tick)
    )


def run_records(
    plan: LoadPlan,
    workload: Workload,
    *,
    processes: int = 1,
    on_tick: Callable[[float], None] | None = None,
    schedule: Schedule | None = None,
    events: Sequence[Event] = (),
) -> Records:
    """Starts `processes` drivers that share the requests, and merges their records.

    `on_tick` gets the seconds since the start while they run; `events` happen in between,
    in this process. Raises DriverError, and ValueError for a plan that cannot be drawn.
    """
    schedule = schedule or draw_schedule(plan, workload)
    with tempfile.TemporaryDirectory(prefix="orchid-load-") as directory:
        base = Path(directory)
        (base / "plan.json").write_text(json.dumps(asdict(plan)))
        (base / "workload.json").write_text(json.dumps(asdict(workload)))
        save_schedule(base / "schedule.npz", schedule)
        drivers = [_start(base, shard, processes) for shard in range(processes)]
        try:
            for driver in drivers:
                _expect_prepared(driver, base)
            start_ns = time.monotonic_ns() + _START_AFTER_NS
            for driver in drivers:
                assert driver.stdin is not None
                driver.stdin.write(f"{start_ns}\n")
                driver.stdin.flush()
            longest_s = int(schedule.budget_ns.max(initial=0)) / 1e9
            limit_s = plan.warmup_s + plan.duration_s + plan.drain_s + longest_s + 60
            _wait(drivers, start_ns, limit_s, base, on_tick, events)
        finally:
            for driver in drivers:
                driver.kill()
                driver.communicate()
        return merge([load_records(base / f"{shard}.npz") for shard in range(processes)])


def _start(base: Path, shard: int, shards: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bench.load.driver"]
    command += ["--plan", str(base / "plan.json"), "--workload", str(base / "workload.json")]
    command += ["--schedule", str(base / "schedule.npz")]
    command += ["--out", str(base / f"{shard}.npz"), "--shard", str(shard)]
    command += ["--shards", str(shards)]
    with (base / f"{shard}.log").open("w") as log:
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )


def _expect_prepared(driver: subprocess.Popen[str], base: Path) -> None:
    assert driver.stdout is not None
    if driver.stdout.readline().strip() != "prepared":
        driver.wait()
        raise DriverError(_said(base))


def _wait(
    drivers: list[subprocess.Popen[str]],
    start_ns: int,
    limit_s: float,
    base: Path,
    on_tick: Callable[[float], None] | None,
    events: Sequence[Event],
) -> None:
    to_come = deque(sorted(events, key=lambda event: event[0]))
    for driver in drivers:
        while True:
            elapsed_s = (time.monotonic_ns() - start_ns) / 1e9
            while to_come and to_come[0][0] <= elapsed_s:
                to_come.popleft()[1]()
            next_s = to_come[0][0] - elapsed_s if to_come else _TICK_S
            try:
                code = driver.wait(min(_TICK_S, next_s))
                break
            except subprocess.TimeoutExpired:
                elapsed_s = (time.monotonic_ns() - start_ns) / 1e9
                if elapsed_s > limit_s:
                    raise DriverError(f"no end after {limit_s:.0f} s\n{_said(base)}") from None
                if on_tick is not None:
                    on_tick(elapsed_s)
        if code != 0:
            raise DriverError(f"the driver ended with code {code}\n{_said(base)}")


def _said(base: Path) -> str:
    return "\n".join(log.read_text()[-4000:] for log in sorted(base.glob("*.log")))
