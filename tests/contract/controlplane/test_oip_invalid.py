"""Every malformed request gets a status that names the fault and what is accepted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import pytest

from controlplane.rpc.asks import LIMITS
from protos.inference import oip_pb2
from tests.contract.controlplane.front_door import ADDER, ECHO, MODEL, front_door
from tests.contract.controlplane.oip_client import (
    adder_request,
    framed,
    ids_request,
    raw_unary,
    refusal,
    set_parameters,
    stub,
    text_request,
)

INVALID = grpc.StatusCode.INVALID_ARGUMENT
MISSING = grpc.StatusCode.NOT_FOUND
LATE = grpc.StatusCode.DEADLINE_EXCEEDED

Request = oip_pb2.ModelInferRequest
Case = tuple[str, Request, grpc.StatusCode, tuple[str, ...]]


def changed(request: Request, change: Callable[[Request], Any]) -> Request:
    change(request)
    return request


def text_of(raw: bytes, shape: list[int], datatype: str = "BYTES") -> Request:
    request = Request(model_name=MODEL)
    request.inputs.add(name="text", datatype=datatype, shape=shape)
    request.raw_input_contents.append(raw)
    return request


def tensor(name: str, datatype: str, shape: list[int], raw: bytes, model: str) -> Request:
    request = Request(model_name=model)
    request.inputs.add(name=name, datatype=datatype, shape=shape)
    request.raw_input_contents.append(raw)
    return request


def joined(one: Request, other: Request) -> Request:
    """The inputs of both in one request."""
    one.inputs.extend(other.inputs)
    one.raw_input_contents.extend(other.raw_input_contents)
    return one


def with_parameters(count: int) -> Request:
    request = text_request("a")
    set_parameters(request.parameters, {f"p{index}": index for index in range(count)})
    return request


def in_shared_memory(request: Request) -> Request:
    request.inputs[0].parameters["shared_memory_region"].string_param = "r"
    return request


def with_output(**parameters: Any) -> Request:
    request = text_request("good")
    output = request.outputs.add(name="logits")
    for name, value in parameters.items():
        kind = "string_param" if isinstance(value, str) else "int64_param"
        setattr(output.parameters[name], kind, value)
    return request


GOOD = ids_request([[3, 4]])
CASES: list[Case] = [
    ("no model", Request(), INVALID, ("model name is empty", MODEL)),
    ("unknown model", Request(model_name="nope"), MISSING, ("nope", MODEL)),
    (
        "unknown version",
        Request(model_name=MODEL, model_version="9"),
        MISSING,
        ("'9'", "versions: '3'"),
    ),
    ("no input", Request(model_name=MODEL), INVALID, ("text", "input_ids")),
    (
        "unknown input",
        tensor("txt", "BYTES", [1], framed([b"a"]), MODEL),
        INVALID,
        ("'txt'", "'text'", "'input_ids'"),
    ),
    (
        "unknown datatype",
        text_of(framed([b"a"]), [1], "STRING"),
        INVALID,
        ("'STRING'", "'BYTES'", "'FP32'"),
    ),
    ("unsupported datatype", text_of(b"1234", [1], "UINT32"), INVALID, ("'UINT32'", "'INT32'")),
    ("wrong datatype", text_of(b"1234", [1], "INT32"), INVALID, ("int32", "'string'")),
    ("text rank", text_of(framed([b"a"] * 4), [2, 2]), INVALID, ("[2, 2]", "[N] or [N, 1]")),
    ("text scalar", text_of(framed([b"a"]), []), INVALID, ("[]", "[N] or [N, 1]")),
    ("negative dimension", text_of(framed([b"a"]), [-1]), INVALID, ("[-1]", "at least 1")),
    ("zero dimension", text_of(b"", [0]), INVALID, ("[0]", "at least 1")),
    ("huge shape", text_of(framed([b"a"]), [2**62, 2**62]), INVALID, ("at most",)),
    ("too many dimensions", text_of(framed([b"a"]), [1] * 50), INVALID, ("50 dimensions",)),
    ("too few strings", text_of(framed([b"a"]), [2]), INVALID, ("1 elements", "takes 2")),
    ("too many strings", text_of(framed([b"a"] * 3), [2]), INVALID, ("more than 2", "takes 2")),
    ("cut length", text_of(b"\x01\x00", [1]), INVALID, ("element 0", "2 bytes")),
    ("cut element", text_of(framed([b"abc"])[:-1], [1]), INVALID, ("element 0", "uint32")),
    (
        "length beyond the message",
        text_of(b"\xff\xff\xff\xffab", [1]),
        INVALID,
        ("element 0", "runs past"),
    ),
    ("not UTF-8", text_of(framed([b"ok", b"a\xff"]), [2]), INVALID, ("element 1", "byte 1")),
    (
        "too many texts",
        text_of(framed([b"a"] * (LIMITS.items + 1)), [LIMITS.items + 1]),
        INVALID,
        (str(LIMITS.items + 1), str(LIMITS.items)),
    ),
    ("too much text", text_request("a" * (LIMITS.text_bytes + 1)), INVALID, ("bytes of text",)),
    ("text too long", text_request("good " * 70), INVALID, ("72 tokens", "limit 64")),
    (
        "raw entry missing",
        changed(text_request("a"), lambda r: r.inputs.add(name="x", datatype="BOOL", shape=[1])),
        INVALID,
        ("1 entries for 2 inputs",),
    ),
    (
        "raw and typed",
        changed(text_request("a"), lambda r: r.inputs[0].contents.bytes_contents.append(b"a")),
        INVALID,
        ("typed contents beside raw",),
    ),
    (
        "wrong typed field",
        changed(
            adder_request([[1, 2, 3]], [[1, 2, 3]]),
            lambda r: r.inputs[0].contents.MergeFrom(oip_pb2.InferTensorContents(int_contents=[1])),
        ),
        INVALID,
        ("int_contents", "fp32_contents"),
    ),
    (
        "typed count",
        changed(adder_request([[1, 2, 3]], [[1, 2, 3]]), lambda r: r.inputs[0].shape.append(2)),
        INVALID,
        ("3 elements", "takes 6"),
    ),
    (
        "typed out of range",
        changed(
            Request(model_name=ECHO),
            lambda r: r.inputs.add(name="int8", datatype="INT8", shape=[1, 2]).contents.MergeFrom(
                oip_pb2.InferTensorContents(int_contents=[0, 128])
            ),
        ),
        INVALID,
        ("INT8", "-128 to 127"),
    ),
    (
        "half floats typed",
        changed(
            Request(model_name=ECHO),
            lambda r: r.inputs.add(name="float16", datatype="FP16", shape=[1, 2]),
        ),
        INVALID,
        ("FP16", "raw_input_contents"),
    ),
    ("bool bytes", tensor("bool", "BOOL", [1, 2], b"\x00\x02", ECHO), INVALID, ("0 and 1",)),
    ("raw size", tensor("a", "FP32", [1, 3], b"1234", ADDER), INVALID, ("4 bytes", "takes 12")),
    ("missing tensor", tensor("a", "FP32", [1, 3], bytes(12), ADDER), INVALID, ("'b'", "'a'")),
    ("tensor type", tensor("a", "INT32", [1, 3], bytes(12), ADDER), INVALID, ("int32", "float32")),
    (
        "tensor shape",
        adder_request([[1, 2]], [[1, 2]]),
        INVALID,
        ("[1, 2]", "[-1, 3]"),
    ),
    ("tensor rank", adder_request([1, 2, 3], [1, 2, 3]), INVALID, ("[3]", "[-1, 3]")),
    (
        "tensor twice",
        changed(adder_request([[1, 2, 3]], [[1, 2, 3]]), lambda r: r.inputs.append(r.inputs[0])),
        INVALID,
        ("given twice",),
    ),
    (
        "text to tensors",
        changed(text_request("a"), lambda r: setattr(r, "model_name", ADDER)),
        INVALID,
        ("'text'", "'a', 'b'"),
    ),
    (
        "text and ids",
        joined(text_request("a"), GOOD),
        INVALID,
        ("comes alone",),
    ),
    (
        "ids twice",
        joined(ids_request([[3]]), ids_request([[3]])),
        INVALID,
        ("given twice",),
    ),
    ("ids type", tensor("input_ids", "FP32", [1], bytes(4), MODEL), INVALID, ("float32", "int64")),
    ("ids rank", ids_request([[[3]]]), INVALID, ("[1, 1, 1]", "[N, L] or [L]")),
    ("negative id", ids_request([[3, -4]]), INVALID, ("input_ids", "negative")),
    ("negative id, 32 bit", ids_request([[3, -4]], datatype="INT32"), INVALID, ("negative",)),
    ("id beyond the vocabulary", ids_request([[3, 8]]), INVALID, ("8", "0 to 7")),
    ("id beyond 32 bits", ids_request([[3, 2**40]]), INVALID, ("input_ids",)),
    ("too many tokens", ids_request([[3] * 65]), INVALID, ("65 tokens", "at most 64")),
    ("too many rows", ids_request([[3]] * (LIMITS.items + 1)), INVALID, ("1 to 1024",)),
    ("mask shape", ids_request([[3, 4]], [[1]]), INVALID, ("[1, 1]", "[1, 2]")),
    ("mask values", ids_request([[3, 4]], [[1, 2]]), INVALID, ("0 and 1",)),
    ("empty row", ids_request([[3, 4], [5, 6]], [[1, 1], [0, 0]]), INVALID, ("row 1",)),
    ("hole in a row", ids_request([[3, 4, 5]], [[1, 0, 1]]), INVALID, ("row 0", "together")),
    ("mask alone", tensor("attention_mask", "INT64", [1], bytes(8), MODEL), INVALID, ("'text'",)),
    (
        "segment ids",
        joined(
            ids_request([[3]]),
            tensor("token_type_ids", "INT64", [1, 1], b"\x01" + bytes(7), MODEL),
        ),
        INVALID,
        ("token_type_ids", "0"),
    ),
    ("unknown tokenizer", ids_request([[3]], tokenizer="bpe"), MISSING, ("'bpe'", "'words'")),
    ("tokenizer for text", text_request("a", tokenizer="words"), INVALID, ("tokenizer",)),
    ("unknown variant", text_request("a", variant="x"), MISSING, ("'x'", "'tiny-a'", "'tiny-b'")),
    (
        "unknown prohibited variant",
        text_request("a", prohibited_variants="tiny-a, zz"),
        MISSING,
        ("'zz'", "'tiny-a'"),
    ),
    ("quality", text_request("a", minimum_quality=1.5), INVALID, ("1.5", "0 to 1")),
    ("quality nan", text_request("a", minimum_quality=float("nan")), INVALID, ("nan", "0 to 1")),
    ("parameter kind", text_request("a", tenant=7), INVALID, ("tenant", "int64", "string_param")),
    (
        "approximation kind",
        text_request("a", approximation="no"),
        INVALID,
        ("string", "bool_param"),
    ),
    ("long tenant", text_request("a", tenant="t" * 65), INVALID, ("tenant", "65", "64")),
    ("deadline kind", text_request("a", deadline_ms="5"), INVALID, ("deadline_ms", "string")),
    ("deadline passed", text_request("a", deadline_ms=-1), LATE, ("deadline_ms is -1",)),
    ("timeout passed", text_request("a", timeout=-1), LATE, ("timeout is -1",)),
    ("deadline too far", text_request("a", deadline_ms=2**62), INVALID, ("86400000",)),
    ("deadline nan", text_request("a", deadline_ms=float("nan")), INVALID, ("nan",)),
    (
        "too many parameters",
        with_parameters(65),
        INVALID,
        ("65 parameters", "64"),
    ),
    (
        "unknown output",
        changed(text_request("a"), lambda r: r.outputs.add(name="probs")),
        INVALID,
        ("'probs'", "'logits'"),
    ),
    (
        "output twice",
        changed(with_output(), lambda r: r.outputs.add(name="logits")),
        INVALID,
        ("twice",),
    ),
    ("no classes", with_output(classification=0), INVALID, ("0 classes",)),
    ("classes kind", with_output(classification="1"), INVALID, ("classification", "string")),
    (
        "output in shared memory",
        with_output(shared_memory_region="r"),
        INVALID,
        ("shared memory", "'logits'"),
    ),
    (
        "input in shared memory",
        changed(
            in_shared_memory(text_request("a")),
            lambda r: r.raw_input_contents.pop(),
        ),
        INVALID,
        ("shared memory", "'text'"),
    ),
    (
        "a very long name",
        Request(model_name="é" * 100_000),
        MISSING,
        (MODEL,),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
async def test_the_fault_is_named(case: Case) -> None:
    _, request, code, named = case
    async with front_door() as door:
        error = await refusal(stub(door).ModelInfer(request))
        details = error.details() or ""
        assert (error.code(), details) == (code, details)
        for text in named:
            assert text in details
        assert len(details.encode()) < 4096
        assert door.queue.requests == []


@pytest.mark.parametrize("method", ["ModelInfer", "ModelMetadata", "ModelReady"])
async def test_bytes_that_are_no_message(method: str) -> None:
    async with front_door() as door:
        call = raw_unary(door.channel, method)
        error = await refusal(call(b"\xff\xff\xff\x07"))
    assert error.code() is INVALID
    assert f"not a valid inference.{method}Request" in (error.details() or "")


async def test_no_text_of_the_request_is_in_the_error() -> None:
    secret = "confidential words that nobody may log"
    request = text_request(secret)
    request.inputs[0].shape[0] = 5
    async with front_door() as door:
        error = await refusal(stub(door).ModelInfer(request))
    assert "confidential" not in (error.details() or "")
