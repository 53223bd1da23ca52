"""The memory ledger as a message."""

from __future__ import annotations

from protos.orchid.v1 import worker_pb2
from worker.ledger import MemoryTable


def memory_to(table: MemoryTable) -> worker_pb2.MemoryLedger:
    """The worker's memory as it was last read."""
    return worker_pb2.MemoryLedger(
        lines=[
            worker_pb2.MemoryLine(
                lifetime=line.lifetime, owner=line.owner, bytes=line.bytes, most_bytes=line.most
            )
            for line in table.lines
        ],
        accounted_bytes=table.accounted,
        measured_bytes=table.measured,
        available_bytes=table.available,
        limited_by=table.limited_by,
        budget_bytes=table.budget,
    )
