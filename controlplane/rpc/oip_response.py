"""Writes an answer, or why there is none, in the Open Inference Protocol."""

from __future__ import annotations

from controlplane.errors import InvalidRequest
from controlplane.policy.records import Answer, TensorValue
from controlplane.rpc.convert import has_typed_form, top_classes, write_oip
from controlplane.rpc.oip_request import Wanted
from controlplane.rpc.status import Status
from protos.inference.oip_pb2 import ModelInferResponse, ModelStreamInferResponse

FINAL = "triton_final_response"


def write_infer(answer: Answer, request_id: str, wanted: Wanted) -> ModelInferResponse:
    """The response to one request, with its provenance and costs as parameters.

    Contents are raw, or typed when that is wanted and every output has a typed form:
    the protocol does not mix the two in one message.
    """
    provenance, outcome = answer.provenance, answer.outcome
    response = ModelInferResponse(
        model_name=provenance.model, model_version=provenance.model_version, id=request_id
    )
    parameters = response.parameters
    parameters["variant"].string_param = provenance.variant
    parameters["reason"].string_param = provenance.reason
    parameters["manifest_digest"].string_param = provenance.manifest_digest
    parameters["approximation"].bool_param = provenance.approximation
    parameters["quality"].double_param = provenance.quality
    parameters["predicted_cpu_us"].int64_param = outcome.predicted_cpu_ns // 1000
    parameters["charged_cpu_us"].int64_param = outcome.charged_cpu_ns // 1000
    outputs = answer.outputs if wanted.outputs is None else _chosen(answer, wanted)
    typed = wanted.typed and all(map(has_typed_form, outputs))
    for tensor in outputs:
        raw = write_oip(tensor, response.outputs.add(), typed=typed)
        if raw is not None:
            response.raw_output_contents.append(raw)
    return response


def write_streamed(answer: Answer, request_id: str, wanted: Wanted) -> ModelStreamInferResponse:
    """One stream message that holds the only, hence final, response to a request."""
    response = write_infer(answer, request_id, wanted)
    response.parameters[FINAL].bool_param = True
    return ModelStreamInferResponse(infer_response=response)


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
