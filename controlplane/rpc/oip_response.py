"""Writes an answer, or why there is none, in the Open Inference Protocol."""

from __future__ import annotations

from collections.abc import Sequence

from controlplane.errors import InvalidRequest
from controlplane.policy.records import Answer, Provenance, TensorValue
from controlplane.rpc.convert import (
    BY_DTYPE,
    has_typed_form,
    raw_contents,
    top_classes,
    write_typed,
)
from controlplane.rpc.oip_request import RAW, Wanted
from controlplane.rpc.status import Status
from protos.codec import LARGE_BYTES, Part, framed
from protos.inference.oip_pb2 import ModelInferResponse, ModelStreamInferResponse

FINAL = "triton_final_response"

# Shapes that vary with every request, such as large batches, would fill the memory.
_MOST_KEPT = 512

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

        Large contents come in a response that is encoded already.
        """
        outputs = answer.outputs if wanted.outputs is None else _chosen(answer, wanted)
        common = _common(answer.provenance, outputs)
        known = self._unary.get(common)
        if known is None:
            known = _keep(self._unary, common, _described(common).SerializeToString())
        response = ModelInferResponse.FromString(known)
        size = sum([len(tensor.data) for tensor in outputs])
        if size < LARGE_BYTES or _typed(outputs, wanted):
            _complete(response, answer, request_id, outputs, wanted)
            return response
        _complete(response, answer, request_id, (), RAW)
        parts: list[Part] = [response.SerializeToString()]
        for tensor in outputs:
            parts += framed(response.RAW_OUTPUT_CONTENTS_FIELD_NUMBER, [raw_contents(tensor)])
        return b"".join(parts)

    def streamed(self, answer: Answer, request_id: str, wanted: Wanted) -> ModelStreamInferResponse:
        """One stream message that holds the only, hence final, response to a request."""
        outputs = answer.outputs if wanted.outputs is None else _chosen(answer, wanted)
        common = _common(answer.provenance, outputs)
        known = self._streamed.get(common)
        if known is None:
            message = ModelStreamInferResponse(infer_response=_described(common))
            message.infer_response.parameters[FINAL].bool_param = True
            known = _keep(self._streamed, common, message.SerializeToString())
        message = ModelStreamInferResponse.FromString(known)
        _complete(message.infer_response, answer, request_id, outputs, wanted)
        return message


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


def _complete(
    response: ModelInferResponse,
    answer: Answer,
    request_id: str,
    outputs: Sequence[TensorValue],
    wanted: Wanted,
) -> None:
    """Add what differs from answer to answer."""
    response.id = request_id
    parameters, outcome = response.parameters, answer.outcome
    parameters["predicted_cpu_us"].int64_param = outcome.predicted_cpu_ns // 1000
    parameters["charged_cpu_us"].int64_param = outcome.charged_cpu_ns // 1000
    if _typed(outputs, wanted):
        for tensor, into in zip(outputs, response.outputs, strict=True):
            write_typed(tensor, into)
    else:
        response.raw_output_contents.extend([raw_contents(tensor) for tensor in outputs])


def _typed(outputs: Sequence[TensorValue], wanted: Wanted) -> bool:
    return wanted.typed and all(map(has_typed_form, outputs))


def _keep(kept: dict[_Common, bytes], common: _Common, encoded: bytes) -> bytes:
    if len(kept) >= _MOST_KEPT:
        kept.clear()
    kept[common] = encoded
    return encoded


def _chosen(answer: Answer, wanted: Wanted) -> tuple[TensorValue, ...]:
    assert wanted.outputs is not None
    given = {tensor.name: tensor for tensor in answer.outputs}
    chosen = []
    for name, classes in wanted.outputs.items():
        tensor = given.get(name)
        if tensor is None:
            raise InvalidRequest(f"variant {answer.provenance.variant!r} gave no output {name!r}")
        chosen.append(top_classes(tensor, classes, answer.labels) if classes else tensor)
    return tuple(chosen)
