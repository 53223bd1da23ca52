"""Values that cross the worker: batches of items in, outcomes out.

All times are integers of one monotonic clock, in nanoseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from worker.errors import WorkerError

Tensors: TypeAlias = Mapping[str, NDArray[Any]]
# What one item got: its output tensors, or why it has none.
ItemOutcome: TypeAlias = Tensors | WorkerError

_NO_TOKENS: NDArray[np.int32] = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class Item:
    """One request's share of a batch.

    Token input is `token_ids` int32 [sum(lengths)], the sequences end to end; tensor
    input is `tensors`. `fault` is set when the item could not even be decoded.
    """

    item_id: int
    deadline_ns: int
    token_ids: NDArray[np.int32] = field(default_factory=lambda: _NO_TOKENS)
    lengths: tuple[int, ...] = ()
    tensors: Tensors = field(default_factory=dict)
    traceparent: str = ""
    fault: WorkerError | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """Items that run together on one variant."""

    batch_id: int
    model: str
    variant: str
    items: tuple[Item, ...]
    arrived_ns: int

    @property
    def input_bytes(self) -> int:
        """Bytes of the token ids and tensors of its items; of strings only their places."""
        total = 0
        for item in self.items:
            total += item.token_ids.nbytes
            for array in item.tensors.values():
                total += array.nbytes
        return total


@dataclass(frozen=True, slots=True)
class Execution:
    """What the engine made of some items: one outcome each, in order, and the tokens it ran.

    `padding` counts positions that it ran beside the tokens. `peak_bytes` is what tensors and
    scratch took at their most, 0 where that was not measured.
    """

    outcomes: tuple[ItemOutcome, ...]
    tokens: int
    padding: int = 0
    peak_bytes: int = 0


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """The end of a batch: one outcome an item, in order, and what the run cost.

    `started_ns` and `ended_ns` are equal when nothing was executed. `executed_items`
    counts the items that went into the run, `padding` positions of it that held no token,
    `peak_bytes` is as in `Execution`.
    """

    batch: Batch
    outcomes: tuple[ItemOutcome, ...]
    started_ns: int
    ended_ns: int
    cpu_ns: int
    tokens: int
    executed_items: int
    padding: int = 0
    peak_bytes: int = 0

    @property
    def queue_ns(self) -> int:
        """Time from arrival to the start of the run, or to the answer when nothing ran."""
        return self.started_ns - self.batch.arrived_ns

    @property
    def run_ns(self) -> int:
        """Wall time of the run."""
        return self.ended_ns - self.started_ns


@dataclass(frozen=True, slots=True)
class LoopState:
    """Counts of the engine loop at one moment.

    `queued_items` were accepted and do not run yet. The last three only grow.
    """

    queued_items: int
    running_items: int
    draining: bool
    completed_items: int
    run_cpu_ns: int
    expired_items_executed: int
