"""Requests as ready-made bytes and answers out of bytes, for each wire protocol.

The driver serialises every request before the run and reads answers after it, so that
its own work during the run is next to nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol as TypingProtocol

import numpy as np
from numpy.typing import NDArray

from bench.echo import ID_BYTES, STREAM_METHOD, UNARY_METHOD
from bench.load.plan import LoadPlan
from protos.inference import oip_pb2
from protos.orchid.v1 import inference_pb2

_OK = 0
_UNKNOWN = 2


@dataclass(frozen=True, slots=True)
class Answered:
    """The variant that answered ("" when not told) and the winning class (-1 when none).

    The times are the server's account of the request, `batch` how many shared its run; 0
    when not told. `expected` is the chance that the answer of a cascade is right by its evidence
    (nan for other answers), `escalated` says that a second variant was asked.
    """

    variant: str
    predicted: int
    queue_us: int = 0
    execute_us: int = 0
    total_us: int = 0
    batch: int = 0
    expected: float = math.nan
    escalated: bool = False


@dataclass(frozen=True, slots=True)
class StreamAnswer:
    """One message of a stream: the request it belongs to, its status, and what it holds.

    `response` are the response's bytes when `code` is 0, `error` is the message otherwise.
    """

    index: int
    code: int
    response: bytes = b""
    error: str = ""


class Codec(TypingProtocol):
    """What the driver needs to know of a protocol; methods are pure."""

    unary_method: str
    stream_method: str

    def body(self, plan: LoadPlan, text: str, tenant: str = "") -> bytes:
        """A whole unary request of one text, or of its ids; its deadline is the call's."""
        ...

    def envelope(self, index: int, budget_ms: int) -> bytes:
        """What a streamed request adds to its body: id and deadline (0 for none)."""
        ...

    def answer(self, response: bytes) -> Answered:
        """Reads a unary response."""
        ...

    def stream_answer(self, message: bytes) -> StreamAnswer:
        """Splits a streamed response."""
        ...


class NativeCodec:
    """`orchid.v1.Inference`."""

    unary_method = "/orchid.v1.Inference/Infer"
    stream_method = "/orchid.v1.Inference/StreamInfer"

    def body(self, plan: LoadPlan, text: str, tenant: str = "") -> bytes:
        """See Codec."""
        request = inference_pb2.InferRequest(
            model=plan.model,
            request_class=inference_pb2.RequestClass(
                tenant=tenant,
                request_class=plan.request_class,
                minimum_quality=plan.minimum_quality,
                variant=plan.variant,
            ),
        )
        if plan.payload == "ids":
            ids = _ids(text)
            request.tokens.token_ids = ids.astype("<i4").tobytes()
            request.tokens.lengths.append(len(ids))
        else:
            request.text.texts.append(text)
        return request.SerializeToString()

    def envelope(self, index: int, budget_ms: int) -> bytes:
        """See Codec. Concatenated messages merge, so the body need not be built again."""
        return inference_pb2.InferRequest(
            request_id=str(index), deadline_ms=budget_ms
        ).SerializeToString()

    def answer(self, response: bytes) -> Answered:
        """See Codec."""
        parsed = inference_pb2.InferResponse.FromString(response)
        classes = parsed.classifications
        outcome, source = parsed.outcome, parsed.provenance
        return Answered(
            source.variant,
            classes[0].index if classes else -1,
            outcome.queue_us,
            outcome.execute_us,
            outcome.total_us,
            outcome.batch_size,
            source.stages.expected_quality if source.HasField("stages") else math.nan,
            source.stages.escalated,
        )

    def stream_answer(self, message: bytes) -> StreamAnswer:
        """See Codec."""
        parsed = inference_pb2.InferStreamResponse.FromString(message)
        if parsed.WhichOneof("result") == "error":
            error = parsed.error
            return StreamAnswer(int(parsed.request_id), error.code, error=error.message)
        return StreamAnswer(int(parsed.request_id), _OK, parsed.response.SerializeToString())


class OipCodec:
    """The Open Inference Protocol with raw contents, as stock clients send it.

    Text is a BYTES tensor, ids are INT64 [1, tokens].
    """

    unary_method = "/inference.GRPCInferenceService/ModelInfer"
    stream_method = "/inference.GRPCInferenceService/ModelStreamInfer"

    def body(self, plan: LoadPlan, text: str, tenant: str = "") -> bytes:
        """See Codec."""
        request = oip_pb2.ModelInferRequest(model_name=plan.model)
        if plan.payload == "ids":
            ids = _ids(text)
            request.inputs.add(name="input_ids", datatype="INT64", shape=[1, len(ids)])
            request.raw_input_contents.append(ids.astype("<i8").tobytes())
        else:
            request.inputs.add(name="text", datatype="BYTES", shape=[1])
            data = text.encode()
            request.raw_input_contents.append(len(data).to_bytes(4, "little") + data)
        texts = {
            "tenant": tenant,
            "request_class": plan.request_class,
            "variant": plan.variant,
        }
        for name, value in texts.items():
            if value:
                request.parameters[name].string_param = value
        if plan.minimum_quality > 0:
            request.parameters["minimum_quality"].double_param = plan.minimum_quality
        return request.SerializeToString()

    def envelope(self, index: int, budget_ms: int) -> bytes:
        """See Codec."""
        request = oip_pb2.ModelInferRequest(id=str(index))
        if budget_ms:
            request.parameters["deadline_ms"].int64_param = budget_ms
        return request.SerializeToString()

    def answer(self, response: bytes) -> Answered:
        """See Codec."""
        parsed = oip_pb2.ModelInferResponse.FromString(response)
        predicted = -1
        for tensor, raw in zip(parsed.outputs, parsed.raw_output_contents, strict=False):
            if tensor.datatype == "FP32" and len(tensor.shape) == 2:
                predicted = int(np.frombuffer(raw, np.float32).argmax())
                break
        told = parsed.parameters
        expected = told["expected_quality"].double_param if "expected_quality" in told else math.nan
        escalated = "escalated" in told and told["escalated"].bool_param
        variant = told["variant"].string_param
        return Answered(variant, predicted, expected=expected, escalated=escalated)

    def stream_answer(self, message: bytes) -> StreamAnswer:
        """See Codec. The protocol carries an error's text but no code."""
        parsed = oip_pb2.ModelStreamInferResponse.FromString(message)
        answer = parsed.infer_response
        if parsed.error_message:
            return StreamAnswer(int(answer.id), _UNKNOWN, error=parsed.error_message)
        return StreamAnswer(int(answer.id), _OK, answer.SerializeToString())


class EchoCodec(OipCodec):
    """The same bytes to the bare echo, whose answers mean nothing."""

    unary_method = UNARY_METHOD
    stream_method = STREAM_METHOD

    def envelope(self, index: int, budget_ms: int) -> bytes:
        """See Codec."""
        return index.to_bytes(ID_BYTES, "little")

    def answer(self, response: bytes) -> Answered:
        """See Codec."""
        return Answered("", -1)

    def stream_answer(self, message: bytes) -> StreamAnswer:
        """See Codec."""
        index = int.from_bytes(message[:ID_BYTES], "little")
        return StreamAnswer(index, _OK, message[ID_BYTES:])


_CODECS: dict[str, type[Codec]] = {"native": NativeCodec, "oip": OipCodec, "echo": EchoCodec}


def _ids(text: str) -> NDArray[np.int64]:
    return np.array(text.split(), np.int64)


def codec(plan: LoadPlan) -> Codec:
    """The codec of a plan's protocol."""
    return _CODECS[plan.protocol]()
