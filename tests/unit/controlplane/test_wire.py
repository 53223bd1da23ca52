"""Batches as the worker reads them, written by protobuf and around it."""

import pytest

from controlplane.policy.records import (
    Request,
    RequestClass,
    TensorPayload,
    TensorValue,
    TokenPayload,
)
from controlplane.rpc.wire import large_batch_parts, write_batch
from controlplane.work import WorkBatch
from protos.orchid.v1 import worker_pb2

TENSORS = TensorPayload(
    (
        TensorValue("image", "float32", (1, 70_000), bytes(range(250)) * 1120),
        TensorValue("caption", "string", (2,), strings=(b"a", b"")),
        TensorValue("scale", "uint8", (1,), b"\x07"),
    )
)
TOKENS = TokenPayload({"words": b"\x01\x00\x00\x00" * 3}, {"words": (2, 1)})


@pytest.mark.parametrize("payload", [TENSORS, TOKENS], ids=["tensors", "tokens"])
def test_a_large_batch_reads_as_the_same_message(payload: TensorPayload | TokenPayload) -> None:
    requests = tuple(
        Request(
            id=i,
            model="m",
            klass=RequestClass(),
            shapes={},
            payload=payload,
            arrived_ns=0,
            deadline_ns=5_000_000 + i,
            traceparent="00-a-b-01" if i else "",
        )
        for i in range(2)
    )
    batch = WorkBatch(7, "m", "v", "words", requests, (1 << 20, 1 << 20 | 1))
    plain = worker_pb2.ExecuteRequest()
    write_batch(batch, 1_000_000, plain.batches.add())
    read = worker_pb2.ExecuteRequest.FromString(b"".join(large_batch_parts(batch, 1_000_000)))
    assert read == plain
