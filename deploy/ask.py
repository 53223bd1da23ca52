"""Asks a control plane about texts and keeps what it says, as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict

from deploy.channels import channel as channel_to
from deploy.interceptors import Recorder
from protos.orchid.v1 import inference_pb2, inference_pb2_grpc

_NO_DEADLINE_S = 30.0
_SPARE_S = 0.5
# What gRPC says when a call ends by the caller's clock.
_OWN_CLOCK = "Deadline Exceeded"
_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Question:
    """What every text of one call asks for; see `orchid.v1.RequestClass`."""

    model: str
    deadline_ms: int = 0
    request_class: str = ""
    tenant: str = ""
    variant: str = ""
    prohibited: tuple[str, ...] = ()
    minimum_quality: float = 0.0


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to one text, or `code` and `error` of why there is none; times in ms."""

    text: str
    label: str = ""
    score: float = 0.0
    variant: str = ""
    reason: str = ""
    approximation: bool = False
    queue_ms: float = 0.0
    execute_ms: float = 0.0
    total_ms: float = 0.0
    worker: str = ""
    code: str = "OK"
    error: str = ""
    document: Any = None

    def as_json(self) -> dict[str, Any]:
        """The whole response, or the error."""
        if self.error:
            return {"code": self.code, "error": self.error}
        return dict(self.document)


def ask(address: str, question: Question, texts: Sequence[str], trace: Recorder) -> list[Reply]:
    """One request a text, all in flight together; replies in the order of the texts.

    `trace` makes spans of them.
    """
    with channel_to(address, recorder=trace) as channel, ThreadPoolExecutor(_AT_ONCE) as pool:
        stub = inference_pb2_grpc.InferenceStub(channel)
        return list(pool.map(lambda text: _ask_one(stub, question, text), texts))


def _ask_one(stub: inference_pb2_grpc.InferenceStub, question: Question, text: str) -> Reply:
    request = inference_pb2.InferRequest(
        model=question.model,
        text=inference_pb2.TextInput(texts=[text]),
        deadline_ms=question.deadline_ms,
        request_class=inference_pb2.RequestClass(
            tenant=question.tenant,
            request_class=question.request_class,
            minimum_quality=question.minimum_quality,
            variant=question.variant,
            prohibited_variants=question.prohibited,
        ),
    )
    # The server ends it at the deadline and says why; this clock is for one that says nothing.
    timeout_s = question.deadline_ms / 1e3 + _SPARE_S if question.deadline_ms else _NO_DEADLINE_S
    try:
        response = stub.Infer(request, timeout=timeout_s)
    except grpc.RpcError as error:
        if not isinstance(error, grpc.Call):
            raise
        code = error.code().name
        details = error.details()
        if details == _OWN_CLOCK:
            details = f"the control plane said nothing within {timeout_s:g} s"
        return Reply(text, code=code, error=details or code)
    first = response.classifications[0] if response.classifications else None
    return Reply(
        text=text,
        label=first.label if first else "",
        score=first.score if first else 0.0,
        variant=response.provenance.variant,
        reason=response.provenance.reason,
        approximation=response.provenance.approximation,
        queue_ms=response.outcome.queue_us / 1e3,
        execute_ms=response.outcome.execute_us / 1e3,
        total_ms=response.outcome.total_us / 1e3,
        worker=response.provenance.worker_id,
        document=MessageToDict(response, preserving_proto_field_name=True),
    )
