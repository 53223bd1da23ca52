"""What workers say of their memory, as plain values."""

from __future__ import annotations

from dataclasses import dataclass

from protos.orchid.v1 import worker_pb2


@dataclass(frozen=True, slots=True)
class MemoryLineView:
    """Memory of one owner, in bytes; `most` is what it may become, or was at most, 0 unknown."""

    lifetime: str
    owner: str
    bytes: int
    most: int


@dataclass(frozen=True, slots=True)
class MemoryView:
    """A worker's memory ledger; see `orchid.v1.MemoryLedger`. Empty until it has told it."""

    lines: tuple[MemoryLineView, ...] = ()
    accounted: int = 0
    measured: int = 0
    available: int = 0
    limited_by: str = ""
    budget: int = 0

    @property
    def error(self) -> float:
        """By how much more is accounted for than is there, as a share of what is there."""
        return self.accounted / self.measured - 1.0 if self.measured else 0.0


NO_MEMORY = MemoryView()


def memory_view(message: worker_pb2.MemoryLedger) -> MemoryView:
    """The ledger of a worker."""
    return MemoryView(
        lines=tuple(
            MemoryLineView(line.lifetime, line.owner, line.bytes, line.most_bytes)
            for line in message.lines
        ),
        accounted=message.accounted_bytes,
        measured=message.measured_bytes,
        available=message.available_bytes,
        limited_by=message.limited_by,
        budget=message.budget_bytes,
    )
