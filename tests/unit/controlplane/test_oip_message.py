"""Cut at its fields or read by protobuf, read anew or by what is known: a request is the same."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from controlplane.errors import ControlPlaneError
from controlplane.policy.records import Answer, Outcome, Provenance, TensorValue
from controlplane.rpc.catalogue import view_of
from controlplane.rpc.oip_message import RAW, TYPED, InferMessage, MessageReader, split
from controlplane.rpc.oip_request import read_infer, read_message
from controlplane.rpc.oip_response import FINAL, OipWriter
from controlplane.rpc.statistics import Statistics
from protos.codec import Undecodable
from protos.inference.oip_pb2 import (
    ModelInferRequest,
    ModelInferResponse,
    ModelStreamInferResponse,
)
from tests.contract.controlplane.front_door import text_model

VIEW = view_of(text_model(), Statistics(lambda: 0).counters)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=6)


def delimited(tag: int, content: bytes) -> bytes:
    return bytes((tag, len(content))) + content


FIELDS = st.one_of(
    st.builds(delimited, st.sampled_from((10, 18, 26, 34, 42, 50, 58, 66)), st.binary(max_size=7)),
    TEXTS.map(lambda value: ModelInferRequest(id=value).SerializeToString()),
    TEXTS.map(lambda value: ModelInferRequest(model_name=value).SerializeToString()),
    st.builds(
        lambda name, data: ModelInferRequest(
            inputs=[ModelInferRequest.InferInputTensor(name=name, datatype="INT32", shape=[1, 2])],
            raw_input_contents=[data],
        ).SerializeToString(),
        TEXTS,
        st.binary(max_size=300),
    ),
    st.binary(max_size=4),
)


@given(st.lists(FIELDS, max_size=8).map(b"".join))
def test_any_bytes_are_what_protobuf_takes_them_for(data: bytes) -> None:
    reader = MessageReader()
    for _ in range(2):
        read = reader.read(data)
        try:
            expected = ModelInferRequest.FromString(data)
        except DecodeError:
            assert isinstance(read, Undecodable)
            assert str(read) == "the message is not a valid inference.ModelInferRequest"
            continue
        assert isinstance(read, InferMessage)
        assert read.id == expected.id
        assert list(read.raw) == list(expected.raw_input_contents)
        assert without_contents(read.head.message) == without_contents(expected)
        assert (read.head.model, read.head.version) == (expected.model_name, expected.model_version)


def without_contents(message: ModelInferRequest) -> ModelInferRequest:
    copy = ModelInferRequest()
    copy.CopyFrom(message)
    copy.ClearField("id")
    copy.ClearField("raw_input_contents")
    return copy


def test_a_request_is_cut_at_its_fields() -> None:
    message = ModelInferRequest(model_name="m", id="seven", raw_input_contents=[b"", b"x" * 300])
    head = ModelInferRequest(model_name="m").SerializeToString()
    assert split(message.SerializeToString()) == (head, b"seven", [b"", b"x" * 300])
    assert split(b"") == (b"", b"", [])


@pytest.mark.parametrize(
    "data",
    [b"\x08\x01", b"\x0a", b"\x0a\x05abcd", b"\x42\x00", b"\x0a\xff\xff\xff\xff\xff\xff\x01"],
    ids=["not delimited", "no length", "too short", "unknown field", "endless length"],
)
def test_what_cannot_be_cut_is_left_to_protobuf(data: bytes) -> None:
    assert split(data) is None


def test_heads_are_read_once_and_long_ones_not_kept() -> None:
    reader = MessageReader()
    first, second = (
        reader.read(ModelInferRequest(model_name="tiny", id=each).SerializeToString())
        for each in ("a", "b")
    )
    assert isinstance(first, InferMessage)
    assert isinstance(second, InferMessage)
    assert first.head is second.head
    assert (first.id, second.id) == ("a", "b")
    long = ModelInferRequest(model_name="x" * 2000).SerializeToString()
    one, other = reader.read(long), reader.read(long)
    assert isinstance(one, InferMessage)
    assert isinstance(other, InferMessage)
    assert one.head is not other.head


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    message = ModelInferRequest(model_name="tiny", id=draw(TEXTS))
    length = draw(st.integers(1, 3))
    kind = draw(st.sampled_from(("INT32", "INT64", "BYTES")))
    if kind == "BYTES":
        shape = [length]
        texts = draw(st.lists(st.binary(max_size=4), min_size=length, max_size=length + 1))
        content = b"".join(struct.pack("<I", len(text)) + text for text in texts)
    else:
        shape = draw(st.sampled_from(([1, length], [length])))
        ids = draw(st.lists(st.integers(-1, 9), min_size=length, max_size=length + 1))
        content = struct.pack(f"<{len(ids)}{'i' if kind == 'INT32' else 'q'}", *ids)
    name = "text" if kind == "BYTES" else "input_ids"
    message.inputs.add(name=name, datatype=kind, shape=shape)
    if draw(st.booleans()):
        message.parameters["tenant"].string_param = draw(st.sampled_from(("shop", "lab")))
        message.parameters["deadline_ms"].int64_param = draw(st.integers(-1, 2))
    if draw(st.booleans()):
        message.outputs.add(name=draw(st.sampled_from(("logits", "no such output"))))
    contents = draw(st.integers(0, 2))
    message.raw_input_contents.extend([content] * contents)
    return message.SerializeToString(deterministic=True)


def outcome(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except ControlPlaneError as error:
        return type(error), str(error)


@given(st.lists(requests(), min_size=1, max_size=6))
def test_requests_of_one_head_are_read_as_if_each_were_the_first(messages: list[bytes]) -> None:
    reader = MessageReader()
    for data in messages * 2:
        message = reader.read(data)
        assert isinstance(message, InferMessage)
        expected = outcome(lambda: read_infer(ModelInferRequest.FromString(data), VIEW))  # noqa: B023
        assert outcome(lambda: read_message(message, VIEW)) == expected  # noqa: B023


def test_another_view_of_the_model_is_read_anew() -> None:
    reader = MessageReader()
    message = ModelInferRequest(model_name="tiny", raw_input_contents=[bytes(8)])
    message.inputs.add(name="input_ids", datatype="INT32", shape=[2])
    message.parameters["variant"].string_param = "tiny-b"
    data = message.SerializeToString()
    for _ in range(2):
        read = reader.read(data)
        assert isinstance(read, InferMessage)
        assert read_message(read, VIEW)[0].klass.variant == "tiny-b"
    renamed = view_of(text_model("other"), Statistics(lambda: 0).counters)
    again = reader.read(data)
    assert isinstance(again, InferMessage)
    with pytest.raises(ControlPlaneError, match="has no variant 'tiny-b'"):
        read_message(again, renamed)


def answer(predicted_ns: int, charged_ns: int, outputs: tuple[TensorValue, ...]) -> Answer:
    provenance = Provenance("m", "1", "v", "sha256:0", "most-accurate", False, 0.9, "w")
    times = (0, 0, 0, 0, 0, 0)
    return Answer(outputs, provenance, Outcome(1, 2, predicted_ns, charged_ns, *times, 1, 1))


OUTPUTS = (
    TensorValue("logits", "float32", (1, 2), bytes(range(8))),
    TensorValue("names", "string", (2,), strings=(b"a" * 200, b"")),
)


@given(TEXTS, st.integers(0, 2**62), st.integers(0, 2**62))
def test_answers_are_written_as_protobuf_reads_them(
    request_id: str, predicted_ns: int, charged_ns: int
) -> None:
    writer, given_answer = OipWriter(), answer(predicted_ns, charged_ns, OUTPUTS)
    for _ in range(2):
        encoded = writer.unary(given_answer, request_id, RAW)
        assert isinstance(encoded, bytes)
        raw = ModelInferResponse.FromString(encoded)
        assert raw.id == request_id
        assert raw.parameters["predicted_cpu_us"].int64_param == predicted_ns // 1000
        assert raw.parameters["charged_cpu_us"].int64_param == charged_ns // 1000
        assert raw.parameters["variant"].string_param == "v"
        framed = struct.pack("<I", 200) + b"a" * 200 + struct.pack("<I", 0)
        assert list(raw.raw_output_contents) == [bytes(range(8)), framed]
        typed = writer.unary(given_answer, request_id, TYPED)
        assert isinstance(typed, ModelInferResponse)
        assert dict(typed.parameters.items()) == dict(raw.parameters.items())
        assert [each.name for each in typed.outputs] == [each.name for each in raw.outputs]
        assert list(typed.outputs[1].contents.bytes_contents) == [b"a" * 200, b""]
        for wanted, alone in ((RAW, raw), (TYPED, typed)):
            written = writer.streamed(given_answer, request_id, wanted)
            if isinstance(written, bytes):
                written = ModelStreamInferResponse.FromString(written)
            inner = written.infer_response
            assert inner.parameters[FINAL].bool_param
            del inner.parameters[FINAL]
            assert inner == alone
