"""Ready-made bytes are the messages they stand for."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from bench.load.codec import EchoCodec, NativeCodec, OipCodec, codec
from bench.load.plan import LoadPlan
from protos.inference import oip_pb2
from protos.orchid.v1 import inference_pb2

PLAN = LoadPlan("x:1", "m", 1.0, mode="closed", variant="v", request_class="c", minimum_quality=0.5)


def test_a_native_body_and_its_envelope_are_one_request() -> None:
    wire = NativeCodec().body(PLAN, "héllo", "t") + NativeCodec().envelope(7, 120)
    request = inference_pb2.InferRequest.FromString(wire)
    assert (request.model, request.request_id, request.deadline_ms) == ("m", "7", 120)
    assert list(request.text.texts) == ["héllo"]
    klass = request.request_class
    assert (klass.variant, klass.request_class, klass.tenant) == ("v", "c", "t")
    assert klass.minimum_quality == 0.5


def test_an_oip_body_and_its_envelope_are_one_request() -> None:
    wire = OipCodec().body(PLAN, "héllo", "t") + OipCodec().envelope(7, 120)
    request = oip_pb2.ModelInferRequest.FromString(wire)
    assert (request.model_name, request.id) == ("m", "7")
    raw = request.raw_input_contents[0]
    assert (int.from_bytes(raw[:4], "little"), raw[4:]) == (6, "héllo".encode())
    parameters = request.parameters
    assert parameters["variant"].string_param == "v"
    assert parameters["tenant"].string_param == "t"
    assert parameters["deadline_ms"].int64_param == 120
    assert parameters["minimum_quality"].double_param == 0.5


def test_ids_travel_as_token_ids() -> None:
    plan = replace(PLAN, payload="ids")
    native = inference_pb2.InferRequest.FromString(NativeCodec().body(plan, "2 70000 3"))
    assert np.frombuffer(native.tokens.token_ids, "<i4").tolist() == [2, 70000, 3]
    assert list(native.tokens.lengths) == [3]
    oip = oip_pb2.ModelInferRequest.FromString(OipCodec().body(plan, "2 70000 3"))
    assert (oip.inputs[0].name, oip.inputs[0].datatype) == ("input_ids", "INT64")
    assert list(oip.inputs[0].shape) == [1, 3]
    assert np.frombuffer(oip.raw_input_contents[0], "<i8").tolist() == [2, 70000, 3]


def test_answers_tell_variant_and_class() -> None:
    native = inference_pb2.InferResponse(
        classifications=[inference_pb2.Classification(index=2)],
        provenance=inference_pb2.Provenance(variant="v"),
    ).SerializeToString()
    assert NativeCodec().answer(native).predicted == 2
    oip = oip_pb2.ModelInferResponse(
        raw_output_contents=[np.array([[1, 3, 2]], np.float32).tobytes()]
    )
    oip.outputs.add(name="logits", datatype="FP32", shape=[1, 3])
    oip.parameters["variant"].string_param = "w"
    answered = OipCodec().answer(oip.SerializeToString())
    assert (answered.variant, answered.predicted) == ("w", 1)


def test_streamed_answers_carry_index_and_code() -> None:
    error = inference_pb2.InferStreamResponse(
        request_id="9", error=inference_pb2.InferError(code=8)
    )
    assert NativeCodec().stream_answer(error.SerializeToString()).code == 8
    failed = oip_pb2.ModelStreamInferResponse(
        error_message="no", infer_response=oip_pb2.ModelInferResponse(id="4")
    )
    answer = OipCodec().stream_answer(failed.SerializeToString())
    assert (answer.index, answer.code) == (4, 2)


def test_the_echo_gets_the_same_bytes() -> None:
    echo = codec(LoadPlan("x:1", "m", 1.0, mode="closed", protocol="echo"))
    plan = LoadPlan("x:1", "m", 1.0, mode="closed")
    assert isinstance(echo, EchoCodec)
    assert echo.body(plan, "a") == OipCodec().body(plan, "a")
    assert echo.unary_method != OipCodec.unary_method


def test_answers_of_cascades_tell_what_is_expected_of_them() -> None:
    stages = inference_pb2.Stages(expected_quality=0.75, escalated=True)
    native = inference_pb2.InferResponse(
        provenance=inference_pb2.Provenance(variant="v", stages=stages)
    )
    read = NativeCodec().answer(native.SerializeToString())
    assert (read.expected, read.escalated) == (0.75, True)
    oip = oip_pb2.ModelInferResponse()
    oip.parameters["variant"].string_param = "v"
    assert math.isnan(OipCodec().answer(oip.SerializeToString()).expected)
    oip.parameters["expected_quality"].double_param = 0.5
    oip.parameters["escalated"].bool_param = True
    read = OipCodec().answer(oip.SerializeToString())
    assert (read.variant, read.expected, read.escalated) == ("v", 0.5, True)
