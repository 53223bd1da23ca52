"""POST /v2/models/NAME/infer: what is accepted and what comes back, in JSON and in bytes."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.config import ClassConfig, ControlPlaneConfig
from controlplane.errors import Refused, TooLate, Unavailable, Unsatisfiable, WorkerFault
from controlplane.policy.records import TokenPayload
from controlplane.registry import TensorSpec
from tests.contract.controlplane.front_door import ECHO, ECHO_TYPES, MODEL, tensor_model
from tests.contract.controlplane.http_door import raw_post, told, web_door
from tests.contract.controlplane.infer_bodies import (
    ADD,
    ECHOED,
    INFER,
    OIP_NAMES,
    VALUES,
    body,
    everything,
    number,
    opened,
    packed,
    post_binary,
    sized,
    tensor,
    text,
)
from tests.contract.controlplane.oip_client import framed, stub, text_request


async def test_texts_are_answered_as_over_grpc() -> None:
    async with web_door() as web:
        response = await web.post(INFER, body(text("good film", "bad"), id="q1"))
        over_grpc = await stub(web.grpc).ModelInfer(text_request("good film", "bad"))
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    assert "inference-header-content-length" not in response.headers
    document = response.json()
    assert (document["id"], document["model_name"], document["model_version"]) == ("q1", MODEL, "3")
    # [CLS] good film [SEP]: ids 1 3 5 2, their sum and their sum by place.
    assert document["outputs"] == [
        {"name": "logits", "datatype": "FP32", "shape": [2, 2], "data": [11.0, 30.0, 7.0, 15.0]}
    ]
    assert document["parameters"] == {
        name: getattr(value, value.WhichOneof("parameter_choice") or "")
        for name, value in over_grpc.parameters.items()
    }


@pytest.mark.parametrize(
    ("shape", "data"),
    [
        ([2], ["good film", "bad"]),
        ([2, 1], [["good film"], ["bad"]]),
        ([2, 1], ["good film", "bad"]),
    ],
)
async def test_data_is_flat_or_nested(shape: list[int], data: list[Any]) -> None:
    async with web_door() as web:
        response = await web.post(INFER, body(text(shape=shape, data=data)))
    assert response.json()["outputs"][0]["data"] == [11.0, 30.0, 7.0, 15.0]
    assert "id" not in response.json()


@pytest.mark.parametrize("datatype", ["INT32", "INT64"])
async def test_token_ids_with_their_mask(datatype: str) -> None:
    ids = tensor("input_ids", datatype, [2, 3], data=[[3, 4, 0], [5, 0, 0]])
    mask = tensor("attention_mask", datatype, [2, 3], data=[[1, 1, 0], [1, 0, 0]])
    async with web_door() as web:
        response = await web.post(INFER, body(ids, mask, parameters={"tokenizer": "words"}))
        (request,) = web.grpc.queue.requests
    assert response.json()["outputs"][0]["data"] == [7.0, 11.0, 5.0, 5.0]
    assert isinstance(request.payload, TokenPayload)
    assert request.payload.lengths == {"words": (2, 1)}


async def test_every_element_type_crosses_json_unchanged() -> None:
    async with web_door() as web:
        response = await web.post(ECHOED, body(*everything(binary=False)))
    outputs = response.json()["outputs"]
    assert [output["datatype"] for output in outputs] == list(OIP_NAMES)
    assert [output["data"] for output in outputs] == [VALUES[dtype] for dtype in ECHO_TYPES]


async def test_every_element_type_crosses_as_bytes_unchanged() -> None:
    blobs = [packed(dtype) for dtype in ECHO_TYPES]
    head = body(*everything(binary=True), parameters={"binary_data_output": True}, id="bytes")
    async with web_door() as web:
        response = await post_binary(web, ECHOED, head, *blobs)
        mixed = await post_binary(web, ECHOED, body(*everything(binary=True)), *blobs)
    document, answered = opened(response)
    assert document["id"] == "bytes"
    assert [output["datatype"] for output in document["outputs"]] == list(OIP_NAMES)
    assert answered == blobs
    # Nobody asked for bytes.
    assert [output["data"] for output in mixed.json()["outputs"]] == list(VALUES.values())


async def test_each_output_says_its_own_form() -> None:
    a = packed("float32")[:12]
    head = {"outputs": [{"name": "sum", "parameters": {"binary_data": True}}]}
    async with web_door() as web:
        inputs = number("a", **sized(a)), number("b", 1, 1, 1)
        one = await post_binary(web, ADD, body(*inputs, **head), a)
        head["outputs"][0]["parameters"] = {"binary_data": False}
        other = await post_binary(
            web, ADD, body(*inputs, parameters={"binary_data_output": True}, **head), a
        )
    document, (data,) = opened(one)
    assert document["outputs"][0]["shape"] == [1, 3]
    assert data == bytes.fromhex("00002040" + "0000c0bf" + "0000803f")
    assert other.json()["outputs"][0]["data"] == [2.5, -1.5, 1.0]


async def test_classes_are_ranked() -> None:
    output = {"name": "logits", "parameters": {"classification": 2}}
    async with web_door() as web:
        response = await web.post(INFER, body(text("good"), outputs=[output]))
        output["parameters"] = {"classification": 1, "binary_data": True}
        best = await web.post(INFER, body(text("good"), outputs=[output]))
    assert response.json()["outputs"] == [
        {
            "name": "logits",
            "datatype": "BYTES",
            "shape": [1, 2],
            "data": ["13.000000:1:positive", "6.000000:0:negative"],
        }
    ]
    assert opened(best)[1] == [framed([b"13.000000:1:positive"])]


async def test_numbers_that_json_has_no_form_for() -> None:
    specs = [TensorSpec("float32", "float32", (-1, 2))]
    data = bytes.fromhex("0000c07f" + "0000807f")
    async with web_door(models=[tensor_model(ECHO, specs, specs)]) as web:
        sent = tensor("float32", "FP32", [1, 2], **sized(data))
        response = await post_binary(web, ECHOED, body(sent), data)
        again = await web.post(ECHOED, body(tensor("float32", "FP32", [1, 2], data=[0, 0])))
        said = tensor("float32", "FP32", [1, 2], data=[float("nan"), float("inf")])
        packed_again = await web.post(ECHOED, body(said, parameters={"binary_data_output": True}))
    assert b'"data":[NaN,Infinity]' in response.content
    assert b'"data":[0.0,0.0]' in again.content
    assert opened(packed_again)[1] == [data]


async def test_bytes_that_no_string_can_hold() -> None:
    specs = [TensorSpec("string", "string", (-1, 2))]
    data = framed([b"\xff", b"a"])
    sent = tensor("string", "BYTES", [1, 2], **sized(data))
    async with web_door(models=[tensor_model(ECHO, specs, specs)]) as web:
        assert "no UTF-8" in told(await post_binary(web, ECHOED, body(sent), data), 400)
        head = body(sent, parameters={"binary_data_output": True})
        assert opened(await post_binary(web, ECHOED, head, data))[1] == [data]


async def test_a_large_tensor_comes_as_bytes() -> None:
    rows = 200_000
    data = packed("float32")[:12] * rows
    inputs = [number(name, shape=[rows, 3], **sized(data)) for name in ("a", "b")]
    async with web_door() as web:
        head = body(*inputs, parameters={"binary_data_output": True})
        (answered,) = opened(await post_binary(web, ADD, head, data, data))[1]
        few = number("a", shape=[rows * 10, 3]), number("b", 1, 1, 1)
        assert "JSON takes at most" in told(await web.post(ADD, body(*few)), 400)
    assert len(answered) == 12 * rows
    assert answered[:12] == answered[-12:] == bytes.fromhex("00004040" + "0000a0c0" + "00000000")


async def test_parameters_become_the_request_class_and_unknown_ones_pass() -> None:
    parameters = {
        "tenant": "t1",
        "request_class": "gold",
        "privacy_class": "internal",
        "minimum_quality": 0.8,
        "prohibited_variants": "tiny-b, ",
        "variant": "tiny-a",
        "approximation": False,
        "priority": 3,
        "sequence_id": "s",
    }
    config = ControlPlaneConfig(classes={"gold": ClassConfig(), "audit": ClassConfig()})
    async with web_door(config=config) as web:
        full = await web.post(INFER, body(text("good"), parameters=parameters, more=[1]))
        headers = {"x_orchid_tenant": "team", "x_orchid_request_class": "audit"}
        await web.post(INFER, body(text("good")), **headers)
        await web.post(INFER, body(text("good"), parameters={"tenant": "mine"}), **headers)
        first, second, third = [request.klass for request in web.grpc.queue.requests]
    assert (first.tenant, first.name, first.privacy_class) == ("t1", "gold", "internal")
    assert (first.minimum_quality, first.prohibited) == (0.8, frozenset({"tiny-b"}))
    assert (first.variant, first.approximation) == ("tiny-a", False)
    assert full.json()["parameters"]["variant"] == "tiny-a"
    assert (second.tenant, second.name, second.approximation) == ("team", "audit", True)
    assert (third.tenant, third.name) == ("mine", "audit")


async def test_the_nearest_deadline_holds() -> None:
    asked: list[tuple[str, dict[str, int]]] = [
        ("", {}),
        ("5000", {}),
        ("5000", {"deadline_ms": 3000}),
        ("", {"deadline_ms": 6000, "timeout": 4_000_000}),
        ("", {"deadline_ms": 0, "timeout": 8_000_000}),
    ]
    async with web_door() as web:
        for header, parameters in asked:
            headers = {"x_orchid_deadline_ms": header} if header else {}
            await web.post(INFER, body(text("bad"), parameters=parameters), **headers)
        spans = [(r.deadline_ns - r.arrived_ns) / 1e6 for r in web.grpc.queue.requests]
    for span, most in zip(spans, (10_000, 5000, 3000, 4000, 8000), strict=True):
        assert most * 0.6 < span <= most


async def test_a_version_is_named_in_the_path() -> None:
    async with web_door() as web:
        good = await web.post(f"/v2/models/{MODEL}/versions/3/infer", body(text("bad")))
        assert good.status_code == 200
        wrong = await web.post(f"/v2/models/{MODEL}/versions/8/infer", body(text("bad")))
        assert "has no version '8'; versions: '3'" in told(wrong, 404)
        unknown = await web.post("/v2/models/nope/infer", body(text("bad")))
        assert "no model 'nope' here" in told(unknown, 404)


async def test_while_workers_gather_an_unknown_model_may_yet_come() -> None:
    async with web_door() as web:
        web.grpc.registry.gathering = True
        unknown = await web.post("/v2/models/nope/infer", body(text("bad")))
        assert "no worker serves model 'nope' now" in told(unknown, 503)
        assert unknown.headers["retry-after"] == "1"
        web.grpc.registry.gathering = False
        told(await web.post("/v2/models/nope/infer", body(text("bad"))), 404)


async def test_refusals_have_the_status_and_the_time_to_wait() -> None:
    async with web_door() as web:
        for error, status in (
            (Refused("the queue is full", 1234), 429),
            (TooLate("the deadline passed"), 504),
            (Unavailable("no live worker", 1000), 503),
            (Unsatisfiable("no variant may answer"), 422),
            (WorkerFault("the worker failed"), 503),
        ):
            web.grpc.queue.refuse = error
            response = await web.post(INFER, body(text("bad")), x_request_id="r-1")
            assert told(response, status) == str(error)
            assert response.headers["x-request-id"] == "r-1"
            if status == 429:
                assert response.headers["retry-after"] == "2"
        web.grpc.queue.refuse = None
        web.grpc.queue.fail = KeyError("the caller's words")
        assert told(await web.post(INFER, body(text("bad"))), 500).startswith("internal error")


async def test_a_caller_that_goes_away_is_cancelled_at_once() -> None:
    async with web_door() as web:
        web.grpc.queue.hold = True
        connection = await raw_post(web.address, INFER, body(text("bad")))
        await web.grpc.queue.until(lambda: bool(web.grpc.queue.requests))
        assert not web.grpc.queue.cancelled
        connection.cut()
        await web.grpc.queue.until(lambda: bool(web.grpc.queue.cancelled))
        assert web.grpc.server.catalogue.view(MODEL).counters.fail.count == 1
