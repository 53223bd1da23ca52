"""Batches as the worker reads them, written by protobuf and around it."""

import pytest

from controlplane.policy.cascade import Calibration, Escalation
from controlplane.policy.records import (
    Request,
    RequestClass,
    TensorPayload,
    TensorValue,
    TokenPayload,
)
from controlplane.registry import ModelState
from controlplane.rpc.wire import large_batch_parts, read_done, read_models, write_batch
from controlplane.work import ItemStatus, WorkBatch
from protos.orchid.v1 import common_pb2, worker_pb2

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


def described(*data_types: int) -> common_pb2.ModelDescription:
    model = common_pb2.ModelDescription(name="m", state=common_pb2.READINESS_STATE_READY)
    for number, data_type in enumerate(data_types):
        variant = model.variants.add(name=f"v{number}", ready=True)
        variant.inputs.add(name="x", data_type=data_type)
    return model


def test_a_variant_of_unknown_tensors_is_left_out_with_the_reason() -> None:
    known = common_pb2.DATA_TYPE_FLOAT32
    mixed, strange = read_models([described(known, 99), described(77)])
    assert ([v.name for v in mixed.variants], mixed.state) == (["v0"], ModelState.READY)
    assert mixed.failure == "variant 'v1': tensor 'x' has unknown data type 99"
    assert (strange.variants, strange.state) == ((), ModelState.FAILED)
    assert strange.failure == "variant 'v0': tensor 'x' has unknown data type 77"


def test_an_output_of_an_unknown_type_fails_its_item_only() -> None:
    result = worker_pb2.BatchResult(batch_id=1)
    for number, data_type in enumerate((99, common_pb2.DATA_TYPE_FLOAT32)):
        item = result.items.add(item_id=number, status=worker_pb2.ITEM_STATUS_OK)
        item.outputs.add(name="y", data_type=data_type)
    broken, whole = read_done(result).items
    assert (broken.status, broken.outputs) == (ItemStatus.INTERNAL, ())
    assert "unknown data type 99" in broken.message
    assert whole.status is ItemStatus.OK


def test_evidence_of_cascades_is_read_with_its_population() -> None:
    model = described(common_pb2.DATA_TYPE_FLOAT32)
    variant = model.variants[0]
    variant.calibrations.add(population="p", temperature=1.5, beta=[0.5, 1.5, -0.25])
    variant.escalations.add(
        population="p",
        to="v1",
        confidences=[0.0, 0.5],
        gains=[0.25, 0.125],
        counts=[300, 700],
        shares_right=[0.5, 0.75],
    )
    (read,) = read_models([model])
    assert read.variants[0].calibrations == (("p", Calibration(1.5, (0.5, 1.5, -0.25))),)
    assert read.variants[0].escalations == (
        ("p", Escalation("v0", "v1", (0.0, 0.5), (0.25, 0.125), (300, 700), (0.5, 0.75))),
    )
