"""What one driver process saw, as columns: one row a request, in order of due time."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

OK = 0
CANCELLED_BY_DRIVER = -1


@dataclass(frozen=True, slots=True)
class Records:
    """Times in ns after the run's start; `code` is the gRPC status (-1: never ended in time).

    `budget_ns` is the time that the answer was worth waiting for (0: no deadline), `ending`
    a `bench.sim.result.Ending`, `tenant` indexes the plan's tenants. `queue_ns`,
    `execute_ns` and `total_ns` are the server's account of an answer and `batch` how many
    shared its run, 0 when not told. `variant` indexes `variants`, `predicted` is the
    answered class; both -1 without an answer. `cpu_s` is CPU seconds inside the measured
    window by process name, with the driver itself as "driver". `window_ns` is the measured
    window. `examples` has one message of the server for each code that is not OK. `expected` is the
    chance that an answer of a cascade is right (nan for others), `escalated` says that a second
    variant was asked; None when nothing was told.
    """

    due_ns: NDArray[np.int64]
    sent_ns: NDArray[np.int64]
    done_ns: NDArray[np.int64]
    budget_ns: NDArray[np.int64]
    queue_ns: NDArray[np.int64]
    execute_ns: NDArray[np.int64]
    total_ns: NDArray[np.int64]
    batch: NDArray[np.int32]
    ending: NDArray[np.int8]
    tenant: NDArray[np.int32]
    code: NDArray[np.int32]
    text: NDArray[np.int32]
    variant: NDArray[np.int32]
    predicted: NDArray[np.int32]
    variants: tuple[str, ...]
    cpu_s: Mapping[str, float]
    window_ns: tuple[int, int]
    examples: Mapping[int, str] = field(default_factory=dict)
    expected: NDArray[np.float64] | None = None
    escalated: NDArray[np.bool_] | None = None

    def window_rows(self, mode: str) -> NDArray[np.bool_]:
        """The rows due (mode "open") or ended ("closed") inside the measured window."""
        clock = self.due_ns if mode == "open" else self.done_ns
        return (clock >= self.window_ns[0]) & (clock < self.window_ns[1])


_COLUMNS = (
    "due_ns",
    "sent_ns",
    "done_ns",
    "budget_ns",
    "queue_ns",
    "execute_ns",
    "total_ns",
    "batch",
    "ending",
    "tenant",
    "code",
    "text",
    "variant",
    "predicted",
)
_OPTIONAL = ("expected", "escalated")


def save_records(path: Path, records: Records) -> None:
    """Writes one .npz file."""
    meta = json.dumps(
        {
            "variants": records.variants,
            "cpu_s": dict(records.cpu_s),
            "window_ns": records.window_ns,
            "examples": {str(code): text for code, text in records.examples.items()},
        }
    )
    columns = {name: getattr(records, name) for name in _COLUMNS + _OPTIONAL}
    told = {name: column for name, column in columns.items() if column is not None}
    with path.open("wb") as file:
        np.savez(file, meta=np.array(meta), **told)


def load_records(path: Path) -> Records:
    """Reads what `save_records` wrote."""
    with np.load(path) as data:
        meta = json.loads(str(data["meta"]))
        columns = {name: data[name] for name in _COLUMNS}
        columns |= {name: data[name] for name in _OPTIONAL if name in data}
    return Records(
        **columns,
        variants=tuple(meta["variants"]),
        cpu_s=meta["cpu_s"],
        window_ns=(meta["window_ns"][0], meta["window_ns"][1]),
        examples={int(code): text for code, text in meta["examples"].items()},
    )


def merge(shards: Sequence[Records]) -> Records:
    """One table from several driver processes; the watched CPU comes from the first one."""
    names = tuple(sorted({name for shard in shards for name in shard.variants}))
    columns = {
        name: np.concatenate([getattr(shard, name) for shard in shards])
        for name in _COLUMNS
        if name != "variant"
    }
    for name in _OPTIONAL:
        told = [getattr(shard, name) for shard in shards]
        if all(column is not None for column in told):
            columns[name] = np.concatenate(told)
    variant = np.concatenate([_renumber(shard, names) for shard in shards])
    order = np.argsort(columns["due_ns"], kind="stable")
    cpu_s = dict(shards[0].cpu_s)
    cpu_s["driver"] = sum(shard.cpu_s["driver"] for shard in shards)
    return Records(
        **{name: column[order] for name, column in columns.items()},
        variant=variant[order],
        variants=names,
        cpu_s=cpu_s,
        window_ns=shards[0].window_ns,
        examples={code: text for shard in shards for code, text in shard.examples.items()},
    )


def _renumber(shard: Records, names: tuple[str, ...]) -> NDArray[np.int32]:
    table = np.array([names.index(name) for name in shard.variants] + [-1], dtype=np.int32)
    return table[shard.variant]
