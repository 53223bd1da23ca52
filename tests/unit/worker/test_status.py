from __future__ import annotations

import grpc
import pytest

from protos.orchid.v1 import worker_pb2 as pb
from worker import errors, refusals
from worker.errors import EngineError, WorkerError
from worker.rpc.status import status_of


def every_error() -> list[type[WorkerError]]:
    found, queue = [], [WorkerError]
    while queue:
        kind = queue.pop()
        queue += kind.__subclasses__()
        if kind.__module__ in (errors.__name__, refusals.__name__):
            found.append(kind)
    return found


@pytest.mark.parametrize("kind", every_error())
def test_every_error_has_a_status_of_its_own(kind: type[WorkerError]) -> None:
    item, code = status_of(kind("text"))
    assert item not in (pb.ITEM_STATUS_OK, pb.ITEM_STATUS_UNSPECIFIED)
    assert code != grpc.StatusCode.OK
    # Only faults of ours, and the bases that name no cause, are INTERNAL.
    internal = code == grpc.StatusCode.INTERNAL
    assert internal == (kind in (WorkerError, EngineError, errors.EngineFault))


def test_not_now_is_told_from_never_fits() -> None:
    unavailable, refused = refusals.Unavailable("full"), refusals.InsufficientMemory("large")
    assert status_of(unavailable)[1] == grpc.StatusCode.UNAVAILABLE
    assert status_of(refused)[1] == grpc.StatusCode.FAILED_PRECONDITION
