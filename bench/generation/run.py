"""Runs a plan of generations in a driver process of its own."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from bench.generation.plan import GenerationPlan
from bench.generation.record import (
    GenerationRecord,
    GenerationResult,
    load_generations,
    reduce_generations,
)
from bench.load.processes import drive, soon

_DRIVER = "bench.generation.driver"


def run_generations(
    plan: GenerationPlan,
    *,
    on_tick: Callable[[float], None] | None = None,
    start_at: Callable[[], int] = soon,
) -> GenerationResult:
    """Runs the plan and returns its figures; `start_at` is that of `drive`. Raises DriverError."""
    records = generation_records(plan, on_tick=on_tick, start_at=start_at)
    return reduce_generations(plan, records)


def generation_records(
    plan: GenerationPlan,
    *,
    on_tick: Callable[[float], None] | None = None,
    start_at: Callable[[], int] = soon,
) -> list[GenerationRecord]:
    """Runs the plan and returns what the driver saw; raises DriverError."""
    with tempfile.TemporaryDirectory(prefix="orchid-generations-") as directory:
        base = Path(directory)
        (base / "plan.json").write_text(json.dumps(asdict(plan)))
        out = base / "records.json"
        drive(
            _DRIVER,
            [["--plan", str(base / "plan.json"), "--out", str(out)]],
            base,
            plan.warmup_s + plan.seconds + plan.drain_s + 60,
            on_tick=on_tick,
            start_at=start_at,
        )
        return load_generations(out)
