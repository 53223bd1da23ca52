"""A worker's memory ledger in as few parts as a bar can show."""

from __future__ import annotations

from controlplane.deployed import WorkerMemory
from controlplane.page.records import MemoryRow

# By lifetime, the words of docs/memory.md; what is none of these is the process's own.
_WEIGHTS = frozenset(("weights", "state", "loading"))
_WORKSPACE = frozenset(("workspace", "requests"))
_CACHES = frozenset(("sequences", "prefixes", "arena"))


def memory_row(memory: WorkerMemory) -> MemoryRow:
    """The ledger's lines summed up by what they are for."""
    weights = workspace = caches = runtime = 0
    for line in memory.lines:
        if line.lifetime in _WEIGHTS:
            weights += line.size
        elif line.lifetime in _WORKSPACE:
            workspace += line.size
        elif line.lifetime in _CACHES:
            caches += line.size
        else:
            runtime += line.size
    return MemoryRow(
        weights=weights,
        runtime=runtime,
        workspace=workspace,
        caches=caches,
        free=memory.available,
        limited_by=memory.limited_by,
        measured=memory.measured,
        budget=memory.budget,
    )
