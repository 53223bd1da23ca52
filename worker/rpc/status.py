"""The one place where worker errors become statuses, of an item and of a call."""

from __future__ import annotations

import grpc

from protos.orchid.v1 import worker_pb2 as pb
from worker.errors import (
    EngineFault,
    InvalidInput,
    ModelLoadError,
    RunTerminated,
    WorkerError,
)
from worker.refusals import (
    Cancelled,
    Exhausted,
    Expired,
    Forbidden,
    NotFound,
    OtherControlPlane,
    Unavailable,
)

RETRY_AFTER = "retry-after-ms"
# gRPC clients with a retry policy wait this long before the next attempt.
RETRY_PUSHBACK = "grpc-retry-pushback-ms"

_STATUSES: tuple[tuple[type[WorkerError], pb.ItemStatus.ValueType, grpc.StatusCode], ...] = (
    (InvalidInput, pb.ITEM_STATUS_INVALID_ARGUMENT, grpc.StatusCode.INVALID_ARGUMENT),
    (NotFound, pb.ITEM_STATUS_NOT_FOUND, grpc.StatusCode.NOT_FOUND),
    (Forbidden, pb.ITEM_STATUS_UNAVAILABLE, grpc.StatusCode.PERMISSION_DENIED),
    (Exhausted, pb.ITEM_STATUS_UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (Unavailable, pb.ITEM_STATUS_UNAVAILABLE, grpc.StatusCode.UNAVAILABLE),
    (Expired, pb.ITEM_STATUS_EXPIRED, grpc.StatusCode.DEADLINE_EXCEEDED),
    (Cancelled, pb.ITEM_STATUS_CANCELLED, grpc.StatusCode.CANCELLED),
    (RunTerminated, pb.ITEM_STATUS_CANCELLED, grpc.StatusCode.CANCELLED),
    (OtherControlPlane, pb.ITEM_STATUS_UNAVAILABLE, grpc.StatusCode.FAILED_PRECONDITION),
    # A load that cannot work is not repaired by trying again: InsufficientMemory is one.
    (ModelLoadError, pb.ITEM_STATUS_UNAVAILABLE, grpc.StatusCode.FAILED_PRECONDITION),
    (EngineFault, pb.ITEM_STATUS_INTERNAL, grpc.StatusCode.INTERNAL),
)


def status_of(error: WorkerError) -> tuple[pb.ItemStatus.ValueType, grpc.StatusCode]:
    """The status of an item and of a call that end with `error`; every WorkerError has one."""
    for kind, item_status, code in _STATUSES:
        if isinstance(error, kind):
            return item_status, code
    return pb.ITEM_STATUS_INTERNAL, grpc.StatusCode.INTERNAL


def trailers_of(error: WorkerError) -> tuple[tuple[str, str], ...]:
    """Trailing metadata that carries when to try again, where that is known."""
    if not isinstance(error, Exhausted) or error.retry_after_ns <= 0:
        return ()
    after = str(max(1, error.retry_after_ns // 1_000_000))
    return ((RETRY_AFTER, after), (RETRY_PUSHBACK, after))
