"""What crosses between the dispatcher and a worker, in domain values."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from controlplane.policy.hands import Flight
from controlplane.policy.records import Request, TensorValue


class WorkBatch(NamedTuple):
    """One engine run to be made: requests that share a variant, answered one by one.

    `tokenizer` names the token ids to send ("" for tensor input). `item_ids`, parallel to
    `requests`, differ at every dispatch, so a request that is sent twice is told apart.
    The port turns each deadline into the budget that is left when the message leaves.
    """

    id: int
    model: str
    variant: str
    tokenizer: str
    requests: tuple[Request, ...]
    item_ids: tuple[int, ...]


class ItemStatus(Enum):
    """How one item of a batch ended on the worker."""

    OK = "ok"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    INVALID_ARGUMENT = "invalid-argument"
    NOT_FOUND = "not-found"
    UNAVAILABLE = "unavailable"
    INTERNAL = "internal"


class ItemDone(NamedTuple):
    """The end of one item; `message` says why when the status is not OK."""

    id: int
    status: ItemStatus
    outputs: tuple[TensorValue, ...] = ()
    message: str = ""


class BatchDone(NamedTuple):
    """The end of a batch: its items, and the worker's own times in ns.

    `run_ns` and `cpu_ns` are 0 when nothing was executed. `peak_bytes` is what the run took in the
    engine at its most, 0 where that was not measured.
    """

    id: int
    items: tuple[ItemDone, ...]
    queue_ns: int = 0
    run_ns: int = 0
    cpu_ns: int = 0
    executed_items: int = 0
    peak_bytes: int = 0


# Items of one batch share the batch's id above these bits.
_PLACE_BITS = 16


def item_id(batch_id: int, place: int) -> int:
    """The wire id of the item at `place` of a batch."""
    return batch_id << _PLACE_BITS | place


def place_of(batch_id: int, item: int) -> int:
    """The place of a wire id in its batch; -1 when it belongs to another batch."""
    return item & ((1 << _PLACE_BITS) - 1) if item >> _PLACE_BITS == batch_id else -1


def batch_of(flight: Flight) -> WorkBatch:
    """A flight as the worker gets it."""
    return WorkBatch(
        id=flight.id,
        model=flight.pool.model,
        variant=flight.candidate.name,
        tokenizer=flight.candidate.tokenizer,
        requests=flight.requests,
        item_ids=tuple([item_id(flight.id, place) for place in range(len(flight.requests))]),
    )


class WorkerPort(Protocol):
    """The way to one worker. Neither call blocks; what leaves together may share a message."""

    def send(self, batch: WorkBatch) -> None:
        """Give the worker a batch; the end comes back through `Dispatcher.completed`."""

    def cancel(self, item_ids: Sequence[int]) -> None:
        """Tell the worker that nobody waits for these items any more."""
