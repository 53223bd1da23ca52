"""ModelInfer: what is accepted and what comes back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from controlplane.policy.records import Shape, TokenPayload
from controlplane.registry import TensorSpec
from protos.inference import oip_pb2
from tests.contract.controlplane.front_door import (
    ADDER,
    DIGEST,
    ECHO,
    ECHO_TYPES,
    MODEL,
    front_door,
    tensor_model,
)
from tests.contract.controlplane.oip_client import (
    adder_request,
    framed,
    ids_request,
    output_array,
    stub,
    text_request,
)


def logits(*rows: list[int]) -> Any:
    return np.array([[sum(r), sum(i * v for i, v in enumerate(r, 1))] for r in rows], "<f4")


async def test_text_is_tokenised_and_answered() -> None:
    async with front_door() as door:
        response = await stub(door).ModelInfer(text_request("good film", request_id="q1"))
    assert (response.id, response.model_name, response.model_version) == ("q1", MODEL, "3")
    assert [(o.name, o.datatype, list(o.shape)) for o in response.outputs] == [
        ("logits", "FP32", [1, 2])
    ]
    assert np.array_equal(output_array(response), logits([1, 3, 5, 2]))
    (request,) = door.queue.requests
    assert request.shapes == {"words": Shape(1, 4, 16, 4)}


@pytest.mark.parametrize("shape", [(3,), (3, 1)])
async def test_several_texts_of_different_lengths(shape: tuple[int, ...]) -> None:
    async with front_door() as door:
        response = await stub(door).ModelInfer(
            text_request("good", "bad ünïcode film", "plot plot", shape=shape)
        )
    assert np.array_equal(output_array(response), logits([1, 3, 2], [1, 4, 7, 5, 2], [1, 6, 6, 2]))


async def test_long_texts_go_through_the_pool() -> None:
    async with front_door() as door:
        response = await stub(door).ModelInfer(text_request(*["good film"] * 100))
    assert np.array_equal(output_array(response), np.repeat(logits([1, 3, 5, 2]), 100, axis=0))


async def test_typed_text_is_answered_in_typed_contents() -> None:
    request = oip_pb2.ModelInferRequest(model_name=MODEL, model_version="3")
    tensor = request.inputs.add(name="text", datatype="BYTES", shape=[1])
    tensor.contents.bytes_contents.append(b"good film")
    async with front_door() as door:
        response = await stub(door).ModelInfer(request)
        request.parameters["binary_data_output"].bool_param = True
        raw = await stub(door).ModelInfer(request)
    assert not response.raw_output_contents
    assert list(response.outputs[0].contents.fp32_contents) == [11.0, 30.0]
    assert np.array_equal(output_array(raw), logits([1, 3, 5, 2]))
    assert raw.raw_output_contents


@pytest.mark.parametrize("datatype", ["INT32", "INT64"])
@pytest.mark.parametrize(
    ("ids", "mask", "rows"),
    [
        ([3, 4], None, [[3, 4]]),
        ([[3, 4]], None, [[3, 4]]),
        ([[3, 4], [5, 6]], None, [[3, 4], [5, 6]]),
        ([[3, 4, 0], [5, 0, 0]], [[1, 1, 0], [1, 0, 0]], [[3, 4], [5]]),
        ([[0, 3, 4], [5, 6, 7]], [[0, 1, 1], [1, 1, 1]], [[3, 4], [5, 6, 7]]),
        ([3, 4, 0], [1, 1, 0], [[3, 4]]),
    ],
)
async def test_token_ids(datatype: str, ids: Any, mask: Any, rows: list[list[int]]) -> None:
    async with front_door() as door:
        response = await stub(door).ModelInfer(ids_request(ids, mask, datatype=datatype))
    assert np.array_equal(output_array(response), logits(*rows))
    payload = door.queue.requests[0].payload
    assert isinstance(payload, TokenPayload)
    assert payload.lengths == {"words": tuple(map(len, rows))}


async def test_tensors_typed_and_raw() -> None:
    async with front_door() as door:
        request = adder_request([[1, 2, 3]], [[4, 5, 6]])
        typed = await stub(door).ModelInfer(request)
        for tensor in request.inputs:
            raw = np.array(tensor.contents.fp32_contents, "<f4").tobytes()
            tensor.ClearField("contents")
            request.raw_input_contents.append(raw)
        answered = await stub(door).ModelInfer(request)
    assert np.array_equal(output_array(typed), [[5, 7, 9]])
    assert np.array_equal(output_array(answered), [[5, 7, 9]])
    assert (len(typed.raw_output_contents), len(answered.raw_output_contents)) == (0, 1)


async def test_large_tensors_are_answered_like_small_ones() -> None:
    a = np.arange(600_000, dtype="<f4").reshape(-1, 3)
    request = oip_pb2.ModelInferRequest(model_name=ADDER, id="large")
    for name in ("a", "b"):
        request.inputs.add(name=name, datatype="FP32", shape=a.shape)
        request.raw_input_contents.append(a.tobytes())
    async with front_door() as door:
        raw = await stub(door).ModelInfer(request)
        request.parameters["binary_data_output"].bool_param = False
        typed = await stub(door).ModelInfer(request)
    assert (raw.id, raw.parameters["variant"].string_param) == ("large", f"{ADDER}-only")
    assert np.array_equal(output_array(raw), 2 * a)
    assert np.array_equal(output_array(typed), 2 * a)
    assert (len(raw.raw_output_contents), len(typed.raw_output_contents)) == (1, 0)


OIP_NAMES = ("BOOL", "UINT8", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "BYTES")
FIELDS = {
    "BOOL": ("bool_contents", [True, False, True, True]),
    "UINT8": ("uint_contents", [0, 255, 1, 2]),
    "INT8": ("int_contents", [-128, 127, 0, 1]),
    "INT16": ("int_contents", [-32768, 32767, 0, 1]),
    "INT32": ("int_contents", [-(2**31), 2**31 - 1, 0, 1]),
    "INT64": ("int64_contents", [-(2**63), 2**63 - 1, 0, 1]),
    "FP32": ("fp32_contents", [1.5, -2.5, 0.0, 3.25]),
    "FP64": ("fp64_contents", [1.1, -2.2, 0.0, 3.3]),
    "BYTES": ("bytes_contents", [b"", b"a", b"\xff\x00", b"long" * 100]),
}


def raw_of(datatype: str, dtype: str) -> bytes:
    if datatype == "BYTES":
        return framed(FIELDS["BYTES"][1])  # type: ignore[arg-type]
    values = FIELDS[datatype][1] if datatype in FIELDS else [1.5, -2.5, 0.0, 3.25]
    return np.array(values, np.dtype(dtype).newbyteorder("<")).tobytes()


async def test_every_element_type_crosses_unchanged() -> None:
    raw = oip_pb2.ModelInferRequest(model_name=ECHO)
    for dtype, datatype in zip(ECHO_TYPES, OIP_NAMES, strict=True):
        raw.inputs.add(name=dtype, datatype=datatype, shape=[2, 2])
        raw.raw_input_contents.append(raw_of(datatype, dtype))
    async with front_door() as door:
        response = await stub(door).ModelInfer(raw)
    assert [o.datatype for o in response.outputs] == list(OIP_NAMES)
    assert list(response.raw_output_contents) == list(raw.raw_input_contents)


async def test_typed_contents_equal_raw_contents() -> None:
    echoed = {dtype: oip for dtype, oip in zip(ECHO_TYPES, OIP_NAMES, strict=True) if oip in FIELDS}
    request = oip_pb2.ModelInferRequest(model_name=ECHO)
    for dtype, datatype in echoed.items():
        field, values = FIELDS[datatype]
        tensor = request.inputs.add(name=dtype, datatype=datatype, shape=[2, 2])
        getattr(tensor.contents, field).extend(values)
    # FP16 has no typed form.
    specs = [TensorSpec(dtype, dtype, (2, 2)) for dtype in echoed]
    async with front_door(models=[tensor_model(ECHO, specs, specs)]) as door:
        typed = await stub(door).ModelInfer(request)
        request.parameters["binary_data_output"].bool_param = True
        raw = await stub(door).ModelInfer(request)
    for output in typed.outputs:
        field, values = FIELDS[output.datatype]
        assert list(getattr(output.contents, field)) == values
    assert list(raw.raw_output_contents) == [raw_of(oip, dtype) for dtype, oip in echoed.items()]


async def test_parameters_become_the_request_class_and_unknown_ones_pass() -> None:
    request = text_request(
        "good",
        tenant="t1",
        request_class="gold",
        privacy_class="internal",
        minimum_quality=0.8,
        prohibited_variants="tiny-b",
        variant="tiny-a",
        triton_enable_empty_final_response=True,
        priority=3,
    )
    async with front_door() as door:
        response = await stub(door).ModelInfer(request)
    klass = door.queue.requests[0].klass
    assert (klass.tenant, klass.name, klass.privacy_class) == ("t1", "gold", "internal")
    assert (klass.minimum_quality, klass.prohibited) == (0.8, frozenset({"tiny-b"}))
    assert klass.variant == "tiny-a"
    parameters = response.parameters
    assert parameters["variant"].string_param == "tiny-a"
    assert parameters["reason"].string_param == "most-accurate-in-reserve"
    assert parameters["manifest_digest"].string_param == DIGEST
    assert parameters["approximation"].bool_param is False
    assert parameters["approximation"].HasField("bool_param")
    assert parameters["predicted_cpu_us"].int64_param == 1000
    assert parameters["charged_cpu_us"].int64_param == 2000


async def test_approximation_is_allowed_unless_a_parameter_says_no() -> None:
    async with front_door() as door:
        await stub(door).ModelInfer(text_request("good", approximation=False))
        await stub(door).ModelInfer(text_request("good", approximation=True))
        await stub(door).ModelInfer(text_request("good"))
    allowed = [request.klass.approximation for request in door.queue.requests]
    assert allowed == [False, True, True]


async def test_requested_outputs_filter_and_rank() -> None:
    request = text_request("good", "bad bad")
    output = request.outputs.add(name="logits")
    async with front_door() as door:
        plain = await stub(door).ModelInfer(request)
        output.parameters["classification"].int64_param = 2
        ranked = await stub(door).ModelInfer(request)
        output.parameters["classification"].int64_param = 1
        output.parameters["binary_data"].bool_param = False
        best = await stub(door).ModelInfer(request)
    assert [o.name for o in plain.outputs] == ["logits"]
    assert (ranked.outputs[0].datatype, list(ranked.outputs[0].shape)) == ("BYTES", [2, 2])
    assert ranked.raw_output_contents[0] == framed(
        [
            *(b"13.000000:1:positive", b"6.000000:0:negative"),
            *(b"29.000000:1:positive", b"11.000000:0:negative"),
        ]
    )
    assert list(best.outputs[0].contents.bytes_contents) == [
        b"13.000000:1:positive",
        b"29.000000:1:positive",
    ]


async def test_zero_token_type_ids_are_accepted() -> None:
    request = ids_request([[3, 4]])
    request.inputs.add(name="token_type_ids", datatype="INT64", shape=[1, 2])
    request.raw_input_contents.append(bytes(16))
    async with front_door() as door:
        response = await stub(door).ModelInfer(request)
    assert np.array_equal(output_array(response), logits([3, 4]))
