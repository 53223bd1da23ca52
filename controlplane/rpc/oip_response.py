"""Writes an answer, or why there is none, in the Open Inference Protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from controlplane.errors import InvalidRequest
from controlplane.policy.records import Answer, Provenance, Stages, TensorValue
from controlplane.rpc.convert import (
    BY_DTYPE,
    has_typed_form,
    raw_contents,
    top_classes,
    write_typed,
)
from controlplane.rpc.oip_message import Wanted
from controlplane.rpc.status import Status
from protos.inference.oip_pb2 import InferParameter, ModelInferResponse, ModelStreamInferResponse

FINAL = "triton_final_response"

# Shapes that vary with every request, such as large batches, would fill the memory.
_MOST_KEPT = 512

_LENGTH_DELIMITED: Final = 2
_ID_TAG: Final = bytes((ModelInferResponse.ID_FIELD_NUMBER << 3 | _LENGTH_DELIMITED,))
_RAW_TAG: Final = bytes(
    (ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER << 3 | _LENGTH_DELIMITED,)
)
_PARAMETER_TAG: Final = bytes(
    (ModelInferResponse.PARAMETERS_FIELD_NUMBER << 3 | _LENGTH_DELIMITED,)
)
_RESPONSE_TAG: Final = bytes(
    (ModelStreamInferResponse.INFER_RESPONSE_FIELD_NUMBER << 3 | _LENGTH_DELIMITED,)
)
# An entry of a map is a message of a key, 1, and a value, 2.
_KEY_TAG: Final = bytes((1 << 3 | _LENGTH_DELIMITED,))
_VALUE_TAG: Final = bytes((2 << 3 | _LENGTH_DELIMITED,))
_INT64_TAG: Final = bytes((InferParameter.INT64_PARAM_FIELD_NUMBER << 3,))
_UNSIGNED: Final = (1 << 64) - 1
_SHORT: Final = [bytes((value,)) for value in range(0x80)]

_Common = tuple[str, str, str, str, str, bool, float, tuple[tuple[str, str, tuple[int, ...]], ...]]


class OipWriter:
    """Writes answers; what many answers have in common is encoded once and kept.

    Contents are raw, or typed when that is wanted and every output has a typed form:
    the protocol does not mix the two in one message.
    """

    def __init__(self) -> None:
        self._unary: dict[_Common, bytes] = {}
        self._streamed: dict[_Common, bytes] = {}

    def unary(self, answer: Answer, request_id: str, wanted: Wanted) -> ModelInferResponse | bytes:
        """The response to one request, with its provenance and costs as parameters.

        Raw contents come in a response that is encoded already.
        """
        outputs = answer.outputs if wanted.outputs is None else chosen(answer, wanted.outputs)
        common = _common(answer.provenance, outputs)
        known = self._unary.get(common)
        if known is None:
            known = _keep(self._unary, common, _described(common).SerializeToString())
        if answer.provenance.stages is not None:
            known += _told(answer.provenance.stages)
        if wanted.typed and all(map(has_typed_form, outputs)):
            return _typed(known, answer, request_id, outputs)
        return b"".join(_encoded(known, answer, request_id, outputs))

    def streamed(
        self, answer: Answer, request_id: str, wanted: Wanted
    ) -> ModelStreamInferResponse | bytes:
        """One stream message that holds the only, hence final, response to a request."""
        outputs = answer.outputs if wanted.outputs is None else chosen(answer, wanted.outputs)
        common = _common(answer.provenance, outputs)
        known = self._streamed.get(common)
        if known is None:
            response = _described(common)
            response.parameters[FINAL].bool_param = True
            known = _keep(self._streamed, common, response.SerializeToString())
        if answer.provenance.stages is not None:
            known += _told(answer.provenance.stages)
        if wanted.typed and all(map(has_typed_form, outputs)):
            typed = _typed(known, answer, request_id, outputs)
            return ModelStreamInferResponse(infer_response=typed)
        parts = _encoded(known, answer, request_id, outputs)
        return b"".join((_RESPONSE_TAG, _varint(sum(map(len, parts))), *parts))


def write_stream_error(status: Status, request_id: str) -> ModelStreamInferResponse:
    """One stream message that says why a request has no answer; the stream goes on.

    The text begins with the name of the gRPC code that a unary call would end with.
    """
    message = ModelStreamInferResponse(error_message=f"{status.code.name}: {status.message}")
    response = message.infer_response
    response.id = request_id
    response.parameters[FINAL].bool_param = True
    response.parameters["grpc_code"].int64_param = status.number
    if status.retry_after_ms > 0:
        response.parameters["retry_after_ms"].int64_param = status.retry_after_ms
    return message


def _common(provenance: Provenance, outputs: Sequence[TensorValue]) -> _Common:
    return (
        provenance.model,
        provenance.model_version,
        provenance.variant,
        provenance.manifest_digest,
        provenance.reason,
        provenance.approximation,
        provenance.quality,
        tuple([(tensor.name, tensor.dtype, tensor.shape) for tensor in outputs]),
    )


def _described(common: _Common) -> ModelInferResponse:
    """A response without id, costs and contents."""
    model, version, variant, digest, reason, approximation, quality, outputs = common
    response = ModelInferResponse(model_name=model, model_version=version)
    parameters = response.parameters
    parameters["variant"].string_param = variant
    parameters["reason"].string_param = reason
    parameters["manifest_digest"].string_param = digest
    parameters["approximation"].bool_param = approximation
    parameters["quality"].double_param = quality
    for name, dtype, shape in outputs:
        response.outputs.add(name=name, datatype=BY_DTYPE[dtype].oip, shape=shape)
    return response


def _typed(
    known: bytes, answer: Answer, request_id: str, outputs: Sequence[TensorValue]
) -> ModelInferResponse:
    """The response with what differs from answer to answer, its contents typed."""
    response = ModelInferResponse.FromString(known)
    response.id = request_id
    parameters, outcome = response.parameters, answer.outcome
    parameters["predicted_cpu_us"].int64_param = outcome.predicted_cpu_ns // 1000
    parameters["charged_cpu_us"].int64_param = outcome.charged_cpu_ns // 1000
    for tensor, into in zip(outputs, response.outputs, strict=True):
        write_typed(tensor, into)
    return response


def _told(stages: Stages) -> bytes:
    """The parameters that say how an answer of a cascade came about, to follow what is known."""
    response = ModelInferResponse()
    parameters = response.parameters
    parameters["first_variant"].string_param = stages.first_variant
    parameters["confidence"].double_param = stages.confidence
    parameters["escalated"].bool_param = stages.escalated
    parameters["stages"].int64_param = stages.runs
    parameters["expected_quality"].double_param = stages.expected_quality
    return response.SerializeToString()


def _encoded(
    known: bytes, answer: Answer, request_id: str, outputs: Sequence[TensorValue]
) -> list[bytes]:
    """The bytes of the response with what differs from answer to answer, its contents raw.

    Fields follow each other in any order, so that what is known can stand first. Source:
    https://protobuf.dev/programming-guides/encoding/
    """
    outcome = answer.outcome
    parts = [
        known,
        _parameter(_PREDICTED, outcome.predicted_cpu_ns // 1000),
        _parameter(_CHARGED, outcome.charged_cpu_ns // 1000),
    ]
    if request_id:
        encoded = request_id.encode()
        parts += (_ID_TAG, _varint(len(encoded)), encoded)
    for tensor in outputs:
        data = raw_contents(tensor)
        parts += (_RAW_TAG, _varint(len(data)), data)
    return parts


def _parameter(key: bytes, value: int) -> bytes:
    """A parameter that is a whole number; `key` is the entry's key, encoded."""
    number = _varint(value & _UNSIGNED)
    inner = len(number) + 1
    size = _varint(len(key) + 2 + inner)
    return b"".join((_PARAMETER_TAG, size, key, _VALUE_TAG, _SHORT[inner], _INT64_TAG, number))


def _entry_key(name: str) -> bytes:
    encoded = name.encode()
    return _KEY_TAG + _varint(len(encoded)) + encoded


def _varint(value: int) -> bytes:
    if value < 0x80:
        return _SHORT[value]
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


_PREDICTED: Final = _entry_key("predicted_cpu_us")
_CHARGED: Final = _entry_key("charged_cpu_us")


def _keep(kept: dict[_Common, bytes], common: _Common, encoded: bytes) -> bytes:
    if len(kept) >= _MOST_KEPT:
        kept.clear()
    kept[common] = encoded
    return encoded


def chosen(answer: Answer, outputs: Mapping[str, int]) -> tuple[TensorValue, ...]:
    """The requested outputs, each as its tensor or as so many best classes.

    Raises InvalidRequest for one that the variant did not give.
    """
    given = {tensor.name: tensor for tensor in answer.outputs}
    found = []
    for name, classes in outputs.items():
        tensor = given.get(name)
        if tensor is None:
            raise InvalidRequest(f"variant {answer.provenance.variant!r} gave no output {name!r}")
        found.append(top_classes(tensor, classes, answer.labels) if classes else tensor)
    return tuple(found)
