"""No request, however malformed, is answered with a fault of ours.

ORCHID_FUZZ_EXAMPLES raises the number of generated requests.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protos.inference import oip_pb2
from tests.contract.controlplane.front_door import ADDER, ECHO, ECHO_TYPES, MODEL, Door, front_door
from tests.contract.controlplane.oip_client import framed, raw_stream, raw_unary

EXAMPLES = int(os.environ.get("ORCHID_FUZZ_EXAMPLES", "2000"))
ACCEPTABLE = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}

DATATYPES = [
    *("BOOL", "UINT8", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "BYTES"),
    *("UINT16", "UINT32", "UINT64", "BF16", "", "bytes"),
]
SIZES = {"BOOL": 1, "UINT8": 1, "INT8": 1, "INT16": 2, "FP16": 2, "INT32": 4, "FP32": 4}
INPUTS = ["text", "input_ids", "attention_mask", "token_type_ids", "a", "b", *ECHO_TYPES, "", "x"]
OUTPUTS = ["logits", "sum", *ECHO_TYPES, "", "y"]
PARAMETERS = [
    *("tenant", "request_class", "privacy_class", "minimum_quality", "deadline_ms", "timeout"),
    *("variant", "prohibited_variants", "tokenizer", "binary_data_output", "binary_data"),
    *("classification", "shared_memory_region", "triton_enable_empty_final_response", "zzz"),
]

dimensions = st.one_of(
    st.integers(1, 4), st.sampled_from([0, -1, 2**31, 2**63 - 1, -(2**63)]), st.integers(-3, 9)
)
values = st.one_of(
    st.builds(lambda v: oip_pb2.InferParameter(bool_param=v), st.booleans()),
    st.builds(
        lambda v: oip_pb2.InferParameter(int64_param=v),
        st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 5000),
    ),
    st.builds(lambda v: oip_pb2.InferParameter(uint64_param=v), st.integers(0, 2**64 - 1)),
    st.builds(lambda v: oip_pb2.InferParameter(double_param=v), st.floats()),
    st.builds(
        lambda v: oip_pb2.InferParameter(string_param=v),
        st.text(max_size=80) | st.sampled_from(["tiny-a", "tiny-b", "words", "tiny-a,tiny-b"]),
    ),
    st.just(oip_pb2.InferParameter()),
)
parameters = st.dictionaries(st.sampled_from(PARAMETERS) | st.text(max_size=10), values, max_size=4)


@st.composite
def contents(draw: st.DrawFn) -> oip_pb2.InferTensorContents:
    made = oip_pb2.InferTensorContents()
    fields: dict[str, st.SearchStrategy[Any]] = {
        "bool_contents": st.booleans(),
        "int_contents": st.integers(-(2**31), 2**31 - 1) | st.integers(0, 7),
        "int64_contents": st.integers(-(2**63), 2**63 - 1) | st.integers(0, 7),
        "uint_contents": st.integers(0, 2**32 - 1),
        "uint64_contents": st.integers(0, 2**64 - 1),
        "fp32_contents": st.floats(width=32),
        "fp64_contents": st.floats(),
        "bytes_contents": st.binary(max_size=6),
    }
    for name in draw(st.lists(st.sampled_from(sorted(fields)), max_size=2)):
        getattr(made, name).extend(draw(st.lists(fields[name], max_size=6)))
    return made


def raw_contents(datatype: str, shape: list[int]) -> st.SearchStrategy[bytes]:
    """Often exactly what the tensor needs, else anything."""
    count = 1
    for dimension in shape:
        count *= dimension
    if not 0 <= count <= 64:
        return st.binary(max_size=64)
    if datatype == "BYTES":
        fitting = st.lists(st.binary(max_size=5), min_size=count, max_size=count).map(framed)
    else:
        size = count * SIZES.get(datatype, 8)
        fitting = st.binary(min_size=size, max_size=size) | st.just(bytes(size))
    return fitting | fitting | st.binary(max_size=40)


@st.composite
def requests(draw: st.DrawFn) -> oip_pb2.ModelInferRequest:
    names = st.sampled_from([MODEL, MODEL, ADDER, ECHO]) | st.text(max_size=8)
    request = oip_pb2.ModelInferRequest(
        model_name=draw(names),
        model_version=draw(st.sampled_from(["", "", "", "1", "3", "-1", "é"])),
        id=draw(st.text(max_size=12)),
    )
    raw = draw(st.booleans())
    for _ in range(draw(st.integers(0, 3))):
        shape = draw(st.lists(dimensions, max_size=3))
        datatype = draw(st.sampled_from(DATATYPES))
        name = draw(st.sampled_from(INPUTS))
        tensor = request.inputs.add(name=name, datatype=datatype, shape=shape)
        if raw:
            request.raw_input_contents.append(draw(raw_contents(datatype, shape)))
        else:
            tensor.contents.CopyFrom(draw(contents()))
        if draw(st.integers(0, 9)) == 0:
            fill(tensor.parameters, draw(parameters))
    if raw and draw(st.integers(0, 9)) == 0:
        request.raw_input_contents.append(draw(st.binary(max_size=9)))
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        output = request.outputs.add(name=draw(st.sampled_from(OUTPUTS)))
        fill(output.parameters, draw(parameters))
    if draw(st.booleans()):
        fill(request.parameters, draw(parameters))
    return request


def fill(into: Any, chosen: dict[str, oip_pb2.InferParameter]) -> None:
    for name, value in chosen.items():
        into[name].CopyFrom(value)


@st.composite
def broken_bytes(draw: st.DrawFn) -> bytes:
    """A serialised request with some of its bytes changed, cut or added."""
    data = bytearray(draw(requests()).SerializeToString())
    for _ in range(draw(st.integers(1, 4))):
        if data:
            data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    cut = draw(st.integers(0, len(data)))
    return bytes(data[:cut]) + draw(st.binary(max_size=4))


serialised = requests().map(lambda request: request.SerializeToString())


class Runner:
    """One server for all examples: hypothesis is synchronous, the server is not."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._manager = front_door()
        self.door: Door = self._loop.run_until_complete(self._manager.__aenter__())
        self._unary = raw_unary(self.door.channel, "ModelInfer")
        self._stream = raw_stream(self.door.channel)

    def close(self) -> None:
        self._loop.run_until_complete(self._manager.__aexit__(None, None, None))
        self._loop.close()

    def send(self, data: bytes) -> grpc.StatusCode:
        async def call() -> grpc.StatusCode:
            made = self._unary(data, timeout=30)
            code: grpc.StatusCode = await made.code()
            return code

        return self._loop.run_until_complete(call())

    def stream(self, messages: list[bytes]) -> list[oip_pb2.ModelStreamInferResponse]:
        async def call() -> list[oip_pb2.ModelStreamInferResponse]:
            made = self._stream(iter(messages), timeout=30)
            parse = oip_pb2.ModelStreamInferResponse.FromString
            return [parse(data) async for data in made]

        return self._loop.run_until_complete(call())


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    made = Runner()
    yield made
    made.close()


bounded = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@pytest.mark.timeout(0 if EXAMPLES > 2000 else 600)
@given(request=requests())
@bounded
def test_malformed_requests(runner: Runner, request: oip_pb2.ModelInferRequest) -> None:
    assert runner.send(request.SerializeToString()) in ACCEPTABLE


@pytest.mark.timeout(0 if EXAMPLES > 2000 else 600)
@given(data=broken_bytes() | st.binary(max_size=64))
@settings(bounded, max_examples=EXAMPLES // 4)
def test_broken_messages(runner: Runner, data: bytes) -> None:
    assert runner.send(data) in ACCEPTABLE


@pytest.mark.timeout(0 if EXAMPLES > 2000 else 600)
@given(
    messages=st.lists(requests().map(lambda r: r.SerializeToString()) | broken_bytes(), max_size=5)
)
@settings(bounded, max_examples=EXAMPLES // 10)
def test_malformed_messages_never_end_the_stream(runner: Runner, messages: list[bytes]) -> None:
    answers = runner.stream(messages)
    assert len(answers) == len(messages)
    assert not any(answer.error_message.startswith("INTERNAL") for answer in answers)
