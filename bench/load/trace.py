"""A run as shapes: when, how long, by when, who answered, how it ended. Never texts."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from bench.load.plan import Workload
from bench.load.record import Records
from bench.sim.result import Ending
from bench.sim.workload import TRACE_COLUMNS

RECORDED = (*TRACE_COLUMNS, "variant", "outcome", "service_us")


def write_recording(path: Path, records: Records, workload: Workload) -> None:
    """Write every request of a run, the warm-up's too, as CSV that `orchid sim --trace` plays.

    Times are whole microseconds from the start, the deadline from the arrival (0: none), the
    service is the worker's run. Raises ValueError when the texts' lengths are not known.
    """
    if not workload.tokens:
        raise ValueError("the lengths of the texts are not known, so nothing can be recorded")
    tokens = np.array(workload.tokens)[records.text]
    names = (*records.variants, "")
    rows = zip(
        (records.due_ns // 1000).tolist(),
        tokens.tolist(),
        (records.budget_ns // 1000).tolist(),
        [names[k] for k in records.variant.tolist()],
        [Ending(e).name.lower() for e in records.ending.tolist()],
        (records.execute_ns // 1000).tolist(),
        strict=True,
    )
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(RECORDED)
        writer.writerows(rows)
