"""Between a worker's memory ledger and its message."""

from __future__ import annotations

from controlplane.deployed import MemoryLine, WorkerMemory
from protos.orchid.v1 import worker_pb2

# A ledger has a few lines for each variant; whoever sends more is not believed to the end.
_MOST_LINES = 4096


def read_memory(ledger: worker_pb2.MemoryLedger) -> WorkerMemory:
    """A worker's ledger, of 4096 lines at most."""
    return WorkerMemory(
        lines=tuple(
            MemoryLine(line.lifetime, line.owner, line.bytes, line.most_bytes)
            for line in ledger.lines[:_MOST_LINES]
        ),
        accounted=ledger.accounted_bytes,
        measured=ledger.measured_bytes,
        available=ledger.available_bytes,
        limited_by=ledger.limited_by,
        budget=ledger.budget_bytes,
    )


def write_memory(memory: WorkerMemory | None) -> worker_pb2.MemoryLedger | None:
    """The same, as it came; None before the worker has told it."""
    if memory is None:
        return None
    return worker_pb2.MemoryLedger(
        lines=[
            worker_pb2.MemoryLine(
                lifetime=line.lifetime, owner=line.owner, bytes=line.size, most_bytes=line.most
            )
            for line in memory.lines
        ],
        accounted_bytes=memory.accounted,
        measured_bytes=memory.measured,
        available_bytes=memory.available,
        limited_by=memory.limited_by,
        budget_bytes=memory.budget,
    )
