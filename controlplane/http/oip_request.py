"""POST /v2/models/NAME/infer: what a body asks for, and the form of its answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import Field

from controlplane.http.asks import class_of
from controlplane.http.calls import Call
from controlplane.http.fields import Demands, Milliseconds, Name, Number, Reader
from controlplane.http.oip_tensors import SHARED_MEMORY, InputTensor, read_tensors
from controlplane.http.problems import InvalidField
from controlplane.policy.records import TensorValue
from controlplane.rpc.asks import LIMITS, Ask, explicit_deadline
from controlplane.rpc.catalogue import ModelView
from controlplane.rpc.oip_request import ask_of, split_names
from controlplane.wording import listed, shown

# How many bytes of a body are JSON, where binary tensors follow it.
HEADER_LENGTH = "inference-header-content-length"

_NONE_BINARY: Mapping[str, bool] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class InferParameters:
    """`parameters` of a request, the same as over gRPC; others are accepted."""

    tenant: Name | None = None
    request_class: Name | None = None
    privacy_class: Name | None = None
    minimum_quality: Number | None = None
    variant: Name | None = None
    prohibited_variants: str | None = None
    approximation: bool | None = None
    tokenizer: Name | None = None
    deadline_ms: Milliseconds | None = None
    timeout: Number | None = None
    binary_data_output: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputParameters:
    """`parameters` of a requested output."""

    binary_data: bool | None = None
    classification: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    shared_memory_region: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedOutput:
    """One of `outputs`."""

    name: str
    parameters: OutputParameters | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InferBody:
    """The JSON of a request."""

    inputs: Annotated[tuple[InputTensor, ...], Field(max_length=LIMITS.names)]
    outputs: Annotated[tuple[RequestedOutput, ...], Field(max_length=LIMITS.names)] | None = None
    id: str | None = None
    parameters: InferParameters | None = None


@dataclass(frozen=True, slots=True)
class Form:
    """How an answer is to be written.

    `outputs` maps each requested output to the number of classes to rank it by, 0 for the tensor
    itself; None asks for all. `binary` says which of them are to follow the JSON as bytes,
    `usually_binary` of those that it does not name.
    """

    id: str
    outputs: Mapping[str, int] | None
    binary: Mapping[str, bool]
    usually_binary: bool

    def packs(self, name: str) -> bool:
        """Whether this output is to follow the JSON as bytes."""
        return self.binary.get(name, self.usually_binary)


class InferReader:
    """Reads requests."""

    def __init__(self) -> None:
        self._reader = Reader(InferBody)

    def read(self, raw: bytes, size: int) -> tuple[InferBody, tuple[TensorValue, ...]]:
        """The JSON in the first `size` bytes of a body without its inputs, and these as tensors.

        Raises InvalidRequest. Safe on any thread.
        """
        body: InferBody = self._reader.read(raw if size == len(raw) else raw[:size])
        tensors, end = read_tensors(body.inputs, raw, size)
        if end != len(raw):
            raise InvalidField(
                HEADER_LENGTH,
                f"{len(raw) - end} bytes at the body's end belong to no input; each says its own "
                "in parameters.binary_data_size",
            )
        return replace(body, inputs=()), tensors


def asked(
    call: Call, body: InferBody, tensors: tuple[TensorValue, ...], view: ModelView
) -> tuple[Ask, Form]:
    """What a body asks of a model, and the form of its answer; raises ControlPlaneError."""
    view.require_inputs()
    parameters = body.parameters or InferParameters()
    klass = class_of(
        call, _demands(parameters), view, approximation=parameters.approximation is not False
    )
    deadline_ns = _deadline_ns(parameters)
    form = _form(body, parameters, view)
    return ask_of(view, klass, deadline_ns, tensors, parameters.tokenizer or ""), form


def json_bytes(call: Call, raw: bytes) -> int:
    """How much of a body is JSON; raises InvalidField."""
    said = call.headers.get(HEADER_LENGTH)
    if said is None:
        return len(raw)
    # More digits than any length has are not worth reading.
    size = int(said) if said.isascii() and said.isdecimal() and len(said) < 20 else -1
    if not 0 < size <= len(raw):
        raise InvalidField(
            HEADER_LENGTH,
            f"must be the length of the JSON that the body begins with, 1 to {len(raw)}, "
            f"got {shown(said)}",
        )
    return size


def _demands(parameters: InferParameters) -> Demands:
    return Demands(
        tenant=parameters.tenant,
        request_class=parameters.request_class,
        privacy_class=parameters.privacy_class,
        minimum_quality=parameters.minimum_quality,
        variant=parameters.variant,
        prohibited_variants=split_names(parameters.prohibited_variants or ""),
    )


def _deadline_ns(parameters: InferParameters) -> int:
    """The nearer of both explicit deadlines, 0 without one."""
    asked = (
        explicit_deadline(parameters.deadline_ms or 0, unit_ns=1_000_000, field="deadline_ms"),
        explicit_deadline(parameters.timeout or 0, unit_ns=1_000, field="timeout"),
    )
    return min([each for each in asked if each], default=0)


def _form(body: InferBody, parameters: InferParameters, view: ModelView) -> Form:
    usually = bool(parameters.binary_data_output)
    name = body.id or ""
    if not body.outputs:
        return Form(name, None, _NONE_BINARY, usually)
    outputs: dict[str, int] = {}
    binary: dict[str, bool] = {}
    for index, each in enumerate(body.outputs):
        place = f"outputs.{index}"
        if each.name not in view.outputs:
            raise InvalidField(
                f"{place}.name",
                f"model {shown(view.info.name)} has no output {shown(each.name)}; "
                f"outputs: {listed(view.outputs)}",
            )
        if each.name in outputs:
            raise InvalidField(f"{place}.name", f"{shown(each.name)} is requested twice")
        asked = each.parameters or OutputParameters()
        if asked.shared_memory_region is not None:
            raise InvalidField(
                f"{place}.parameters.{SHARED_MEMORY}", "is not supported; accepted: in the answer"
            )
        outputs[each.name] = asked.classification or 0
        binary[each.name] = usually if asked.binary_data is None else asked.binary_data
    return Form(name, outputs, binary, usually)
