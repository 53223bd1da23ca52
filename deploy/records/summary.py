"""Sums over records: what answers in time cost, and how good the estimates were."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

# What records can be summed by, and the column of each.
GROUPS = {
    "lane": "lane",
    "model": "model",
    "tenant": "tenant",
    "class": "request_class",
    "privacy": "privacy_class",
    "variant": "variant",
    "outcome": "outcome",
    "reason": "reason",
    "worker": "worker",
}
PHASES = ("preprocess", "compute", "prefill", "decode")
_WORKER_PHASES = PHASES[1:]
_MEASURED = " + ".join(f"measured_{phase}_us" for phase in _WORKER_PHASES)
_ESTIMATED = " + ".join(f"estimated_{phase}_us" for phase in _WORKER_PHASES)
# Estimates of what was not answered are held to nothing: a part of it ran, if any.
_COMPARED = "(outcome = 'answered')"
_SUMS = (
    "sum(weight * asked)",
    "sum(weight * asked * (outcome = 'answered'))",
    "sum(weight * on_time)",
    "sum(weight * asked * (outcome = 'refused'))",
    f"sum(weight * ({_MEASURED})) / 1e3",
    "sum(weight * measured_preprocess_us) / 1e3",
    f"sum(weight * ({_ESTIMATED}) * {_COMPARED}) / 1e3",
    f"sum(weight * ({_MEASURED}) * {_COMPARED}) / 1e3",
    "sum(weight * measured_live_token_ms)",
    "sum(weight * estimated_live_token_ms * (measured_live_token_ms > 0))",
    "sum(weight * measured_transfer_bytes)",
    "sum(weight * tokens)",
    "sum(weight * output_tokens)",
)


@dataclass(frozen=True, slots=True)
class Sums:
    """Requests of one group, each counted for as many as its record stands for; CPU time in ms.

    `cpu_ms` is CPU time of workers for whoever asked, answered or not, `preprocess_ms` that of the
    control plane for tokenising. `estimated_ms` and `compared_ms` are what was estimated and then
    measured of answered requests.
    """

    group: tuple[str, ...]
    requests: float
    answered: float
    on_time: float
    refused: float
    cpu_ms: float
    preprocess_ms: float
    estimated_ms: float
    compared_ms: float
    live_token_ms: float
    estimated_live_token_ms: float
    transfer_bytes: float
    tokens: float
    output_tokens: float

    @property
    def on_time_share(self) -> float | None:
        """Answers in time over all that was asked; None without requests."""
        return self.on_time / self.requests if self.requests else None

    @property
    def cost_ms(self) -> float | None:
        """CPU-ms of workers for each answer in time; None without any."""
        return self.cpu_ms / self.on_time if self.on_time else None

    @property
    def ratio(self) -> float | None:
        """Measured over estimated CPU time; None where nothing was estimated."""
        return self.compared_ms / self.estimated_ms if self.estimated_ms else None

    def as_point(self) -> dict[str, Any]:
        """JSON values."""
        shares = {"on_time_share": self.on_time_share, "cost_ms": self.cost_ms, "ratio": self.ratio}
        return asdict(self) | shares


@dataclass(frozen=True, slots=True)
class Spending:
    """What workers say they spent while these records were made, and what of it was charged.

    CPU time in ms. `run_ms` is that of runs, `process_ms` that of whole processes; `dropped` counts
    records that were lost, `whole` says that no record had to give way yet.
    """

    workers: int
    run_ms: float
    process_ms: float
    charged_ms: float
    live_token_ms: int
    charged_token_ms: int
    dropped: int
    whole: bool


def summarise(
    database: sqlite3.Connection, by: Sequence[str] = (), since_us: int = 0
) -> list[Sums]:
    """Sums of records from `since_us` on, by names of GROUPS, the dearest group first."""
    columns = [GROUPS[name] for name in by]
    grouped = f" GROUP BY {', '.join(columns)}" if columns else ""
    query = (
        f"SELECT {', '.join([*columns, *_SUMS])} FROM requests WHERE at_us >= ?{grouped} "
        f"ORDER BY {len(columns) + 5} DESC"
    )
    found = []
    for row in database.execute(query, (since_us,)):
        names, sums = row[: len(columns)], row[len(columns) :]
        found.append(Sums(tuple(map(str, names)), *[float(each or 0.0) for each in sums]))
    return found


def spending(database: sqlite3.Connection) -> Spending:
    """Sums over every worker's time with the control planes that wrote this store."""
    row = database.execute(
        "SELECT count(DISTINCT worker), sum(run_cpu_us), sum(process_cpu_us), sum(charged_cpu_us), "
        "sum(live_token_ms), sum(charged_token_ms) FROM workers"
    ).fetchone()
    workers, run, process, charged, live, charged_live = [int(each or 0) for each in row]
    (dropped,) = database.execute("SELECT sum(dropped) FROM houses").fetchone()
    (oldest,) = database.execute("SELECT min(id) FROM requests").fetchone()
    return Spending(
        workers=workers,
        run_ms=run / 1e3,
        process_ms=process / 1e3,
        charged_ms=charged / 1e3,
        live_token_ms=live,
        charged_token_ms=charged_live,
        dropped=int(dropped or 0),
        whole=oldest == 1,
    )
