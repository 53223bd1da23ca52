"""orchid.v1.Inference: the whole record, unary and streamed."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import numpy as np
import pytest

from controlplane.errors import Refused
from protos.orchid.v1 import common_pb2, inference_pb2, inference_pb2_grpc
from tests.contract.controlplane.front_door import ADDER, DIGEST, ECHO, MODEL, Door, front_door
from tests.contract.controlplane.oip_client import refusal

InferRequest = inference_pb2.InferRequest
INVALID = grpc.StatusCode.INVALID_ARGUMENT


def stub(door: Door) -> Any:
    return inference_pb2_grpc.InferenceStub(door.channel)


def text(*texts: str, **fields: Any) -> inference_pb2.InferRequest:
    return InferRequest(model=MODEL, text=inference_pb2.TextInput(texts=texts), **fields)


def tokens(*rows: list[int], **fields: Any) -> inference_pb2.InferRequest:
    ids = np.concatenate([np.array(row, "<i4") for row in rows]).tobytes()
    sequences = common_pb2.TokenSequences(token_ids=ids, lengths=[len(row) for row in rows])
    return InferRequest(model=MODEL, tokens=sequences, **fields)


def floats(name: str, values: Any) -> common_pb2.Tensor:
    array = np.array(values, "<f4")
    return common_pb2.Tensor(
        name=name,
        data_type=common_pb2.DATA_TYPE_FLOAT32,
        shape=array.shape,
        data=array.tobytes(),
    )


def tensors(*given: common_pb2.Tensor, model: str = ADDER) -> inference_pb2.InferRequest:
    return InferRequest(model=model, tensors=inference_pb2.TensorInput(tensors=given))


async def test_text_is_answered_with_the_whole_record() -> None:
    asked = inference_pb2.RequestClass(
        tenant="t1",
        request_class="gold",
        privacy_class="internal",
        minimum_quality=0.5,
        prohibited_variants=["tiny-b"],
        variant="tiny-a",
    )
    async with front_door() as door:
        response = await stub(door).Infer(
            text("good film", "bad", request_id="q", request_class=asked, deadline_ms=750)
        )
    assert response.request_id == "q"
    (logits,) = response.outputs
    assert (logits.name, logits.data_type) == ("logits", common_pb2.DATA_TYPE_FLOAT32)
    values = np.frombuffer(logits.data, "<f4").reshape(logits.shape)
    assert np.array_equal(values, [[11, 30], [7, 15]])
    assert [(c.label, c.index) for c in response.classifications] == [("positive", 1)] * 2
    assert response.classifications[0].score == pytest.approx(1 / (1 + np.exp(11 - 30)))
    assert response.provenance == inference_pb2.Provenance(
        model=MODEL,
        model_version="3",
        variant="tiny-a",
        manifest_digest=DIGEST,
        reason="most-accurate-in-reserve",
        quality=0.9,
        worker_id="w1",
    )
    outcome = response.outcome
    assert (outcome.items, outcome.input_tokens) == (2, 7)
    assert (outcome.predicted_cpu_us, outcome.charged_cpu_us) == (1000, 2000)
    assert (outcome.queue_us, outcome.execute_us, outcome.total_us) == (30, 400, 500)
    assert (outcome.slack_at_dispatch_us, outcome.slack_at_answer_us) == (7000, 6000)
    assert (outcome.batch_size, outcome.dispatches) == (1, 1)
    (request,) = door.queue.requests
    klass = request.klass
    assert (klass.tenant, klass.name, klass.privacy_class) == ("t1", "gold", "internal")
    assert (klass.minimum_quality, klass.prohibited) == (0.5, frozenset({"tiny-b"}))
    assert request.deadline_ns - request.arrived_ns == 750_000_000


async def test_tokens_and_tensors() -> None:
    async with front_door() as door:
        by_ids = await stub(door).Infer(tokens([3, 4], [5]))
        added = await stub(door).Infer(tensors(floats("a", [[1, 2, 3]]), floats("b", [[1, 1, 1]])))
    assert np.array_equal(np.frombuffer(by_ids.outputs[0].data, "<f4"), [7, 11, 5, 5])
    assert np.array_equal(np.frombuffer(added.outputs[0].data, "<f4"), [2, 3, 4])
    assert not added.classifications


def strange(**fields: Any) -> inference_pb2.InferRequest:
    tensor = floats("a", [[1, 2, 3]])
    tensor.MergeFrom(common_pb2.Tensor(**fields))
    return tensors(tensor, floats("b", [[1, 2, 3]]))


def classed(**fields: Any) -> inference_pb2.InferRequest:
    return text("good", request_class=inference_pb2.RequestClass(**fields))


CASES = {
    "no model": (InferRequest(), INVALID, "model name is empty"),
    "unknown model": (InferRequest(model="nope"), grpc.StatusCode.NOT_FOUND, "'nope'"),
    "no input": (InferRequest(model=MODEL), INVALID, "takes text or tokens; got no input"),
    "tensors to text": (tensors(floats("a", [1]), model=MODEL), INVALID, "got tensors"),
    "text to tensors": (
        InferRequest(model=ADDER, text=inference_pb2.TextInput(texts=["a"])),
        INVALID,
        "takes tensors; got text",
    ),
    "no texts": (text(), INVALID, "at least one"),
    "text too long": (text("good " * 70), INVALID, "72 tokens"),
    "tokenizer for text": (text("a", tokenizer="words"), INVALID, "tokenizer"),
    "unknown tokenizer": (
        tokens([3], tokenizer="bpe"),
        grpc.StatusCode.NOT_FOUND,
        "tokenizers: 'words'",
    ),
    "negative id": (tokens([3, -1]), INVALID, "negative"),
    "unknown id": (tokens([3, 99]), INVALID, "0 to 7"),
    "lengths": (
        InferRequest(
            model=MODEL, tokens=common_pb2.TokenSequences(token_ids=bytes(8), lengths=[3])
        ),
        INVALID,
        "8 bytes",
    ),
    "no tokens": (
        InferRequest(model=MODEL, tokens=common_pb2.TokenSequences()),
        INVALID,
        "at least one id",
    ),
    "empty sequence": (
        InferRequest(
            model=MODEL, tokens=common_pb2.TokenSequences(token_ids=bytes(4), lengths=[1, 0])
        ),
        INVALID,
        "sequence 1 has no token",
    ),
    "tensor type": (
        strange(data_type=common_pb2.DATA_TYPE_INT32),
        INVALID,
        "int32; accepted: float32",
    ),
    "tensor bytes": (strange(data=b"123"), INVALID, "3 data bytes"),
    "tensor strings": (strange(strings=[b"x"]), INVALID, "1 strings"),
    "tensor shape": (strange(shape=[2]), INVALID, "takes 24"),
    "quality": (classed(minimum_quality=-0.5), INVALID, "0 to 1"),
    "variant": (classed(variant="v"), grpc.StatusCode.NOT_FOUND, "'tiny-a', 'tiny-b'"),
    "prohibited": (classed(prohibited_variants=["v"]), grpc.StatusCode.NOT_FOUND, "'v'"),
    "tenant": (classed(tenant="t" * 100), INVALID, "100 characters"),
    "past deadline": (
        text("good", deadline_ms=-1),
        grpc.StatusCode.DEADLINE_EXCEEDED,
        "had passed",
    ),
}


@pytest.mark.parametrize("name", CASES)
async def test_the_fault_is_named(name: str) -> None:
    request, code, named = CASES[name]
    async with front_door() as door:
        error = await refusal(stub(door).Infer(request))
    assert (error.code(), error.details()) == (code, error.details())
    assert named in (error.details() or "")


async def test_unspecified_data_type_names_the_accepted_ones() -> None:
    tensor = common_pb2.Tensor(name="a", shape=[1])
    async with front_door() as door:
        error = await refusal(stub(door).Infer(tensors(tensor)))
    assert error.code() is INVALID
    assert "DATA_TYPE_FLOAT32" in (error.details() or "")


async def test_strings_cross() -> None:
    async with front_door() as door:
        info = door.registry.model(ECHO)
        types = {spec.dtype: spec for spec in info.variants[0].inputs}
        given = []
        for dtype in types:
            size = 0 if dtype == "string" else np.dtype(dtype).itemsize
            given.append(
                common_pb2.Tensor(
                    name=dtype,
                    data_type=common_pb2.DataType.Value(f"DATA_TYPE_{dtype.upper()}"),
                    shape=[1, 2],
                    data=bytes(2 * size),
                    strings=[b"\xff", b""] if dtype == "string" else [],
                )
            )
        response = await stub(door).Infer(tensors(*given, model=ECHO))
    assert list(response.outputs) == given


async def test_streamed_answers_and_faults() -> None:
    async with front_door() as door:
        call = stub(door).StreamInfer()
        await call.write(text("good", request_id="a"))
        await call.write(InferRequest(model="nope", request_id="b"))
        await call.write(tokens([3, 4], request_id="c"))
        async with asyncio.timeout(60):
            got = {m.request_id: m for m in [await call.read() for _ in range(3)]}
            door.queue.refuse = Refused("full", 70)
            await call.write(text("good", request_id="d"))
            refused = await call.read()
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.OK
    assert got["a"].response.request_id == "a"
    assert got["b"].error.code == grpc.StatusCode.NOT_FOUND.value[0]
    assert got["c"].response.outcome.input_tokens == 2
    assert refused.error == inference_pb2.InferError(code=8, message="full", retry_after_ms=70)


async def test_a_request_may_prohibit_approximation() -> None:
    async with front_door() as door:
        await stub(door).Infer(classed(prohibit_approximation=True))
        await stub(door).Infer(classed(tenant="t"))
    assert [request.klass.approximation for request in door.queue.requests] == [False, True]
