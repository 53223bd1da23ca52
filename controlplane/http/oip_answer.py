"""Answers of the Open Inference Protocol in JSON, with the bytes of tensors behind it."""

from __future__ import annotations

from pydantic_core import to_json

from controlplane.http.oip_request import HEADER_LENGTH, Form
from controlplane.http.problems import InvalidField
from controlplane.policy.records import Answer, TensorValue
from controlplane.rpc.convert import BY_DTYPE, STRING, array_of, raw_contents
from controlplane.rpc.oip_response import chosen
from controlplane.wording import shown

_BYTES = "application/octet-stream"


def write(answer: Answer, form: Form) -> tuple[bytes, dict[str, str]]:
    """The body of an answer in this form, and the headers that tell how to read it.

    Numbers without a form in JSON are written as NaN, Infinity and -Infinity. Raises InvalidField
    for a requested output that is not there, and for bytes that no string of JSON can hold.
    """
    tensors = answer.outputs if form.outputs is None else chosen(answer, form.outputs)
    outputs: list[dict[str, object]] = []
    blobs: list[bytes] = []
    for tensor in tensors:
        output: dict[str, object] = {
            "name": tensor.name,
            "datatype": BY_DTYPE[tensor.dtype].oip,
            "shape": tensor.shape,
        }
        if form.packs(tensor.name):
            data = raw_contents(tensor)
            output["parameters"] = {"binary_data_size": len(data)}
            blobs.append(data)
        else:
            output["data"] = _elements(tensor)
        outputs.append(output)
    document: dict[str, object] = {
        "model_name": answer.provenance.model,
        "model_version": answer.provenance.model_version,
        "parameters": parameters_of(answer),
        "outputs": outputs,
    }
    if form.id:
        document["id"] = form.id
    head = to_json(document)
    if not blobs:
        return head, {}
    headers = {"content-type": _BYTES, HEADER_LENGTH: str(len(head))}
    return b"".join((head, *blobs)), headers


def parameters_of(answer: Answer) -> dict[str, object]:
    """Where an answer came from and what it cost, under the names that gRPC has for them."""
    provenance, outcome = answer.provenance, answer.outcome
    told: dict[str, object] = {
        "variant": provenance.variant,
        "reason": provenance.reason,
        "manifest_digest": provenance.manifest_digest,
        "approximation": provenance.approximation,
        "quality": provenance.quality,
        "predicted_cpu_us": outcome.predicted_cpu_ns // 1000,
        "charged_cpu_us": outcome.charged_cpu_ns // 1000,
    }
    stages = provenance.stages
    if stages is not None:
        told |= {
            "first_variant": stages.first_variant,
            "confidence": stages.confidence,
            "escalated": stages.escalated,
            "stages": stages.runs,
            "expected_quality": stages.expected_quality,
        }
    return told


def _elements(tensor: TensorValue) -> list[object]:
    """A tensor's elements, row by row, as JSON has them."""
    if tensor.dtype != STRING:
        elements: list[object] = array_of(tensor).ravel().tolist()
        return elements
    try:
        return [each.decode() for each in tensor.strings]
    except UnicodeDecodeError:
        raise InvalidField(
            "outputs",
            f"{shown(tensor.name)} holds bytes that are no UTF-8; ask for it with binary_data",
        ) from None
