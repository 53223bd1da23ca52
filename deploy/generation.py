"""Asks a control plane to generate and keeps what it says, as plain values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import grpc
from google.protobuf.json_format import MessageToDict

from deploy.channels import channel as channel_to
from deploy.interceptors import Recorder
from protos.orchid.v1 import common_pb2, inference_pb2, inference_pb2_grpc

# Where the control plane says what kind of mistake a request is.
REASON = "orchid-reason"
OVERFLOW = "context-overflow"
_RETRY_AFTER = "retry-after-ms"


class Turn(NamedTuple):
    """One message of a conversation; `role` is "system", "user" or "assistant"."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class GenerationQuestion:
    """What a generation is asked with; see `orchid.v1.GenerateRequest`. 0 leaves the default.

    Either `turns` (rendered with the model's chat template) or `text` is the prompt.
    """

    model: str
    text: str = ""
    turns: tuple[Turn, ...] = ()
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 0.0
    min_p: float = 0.0
    repetition_penalty: float = 0.0
    seed: int | None = None
    max_tokens: int = 0
    stop: tuple[str, ...] = ()
    request_class: str = ""
    tenant: str = ""
    variant: str = ""
    prohibited: tuple[str, ...] = ()
    minimum_quality: float = 0.0
    deadline_ms: int = 0
    first_token_target_ms: int = 0
    token_target_ms: int = 0


class GenerationError(Exception):
    """Why there is no whole answer; `code` is the name of the gRPC status."""

    def __init__(self, code: str, message: str, reason: str = "", retry_after_ms: int = 0) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.retry_after_ms = retry_after_ms


@dataclass(slots=True)
class Generated:
    """One answer as far as it has come; times in ms. `document` is the record at its end."""

    text: str = ""
    finish: str = ""
    variant: str = ""
    worker: str = ""
    reason: str = ""
    approximation: bool = False
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    first_token_ms: float = 0.0
    total_ms: float = 0.0
    document: dict[str, Any] = field(default_factory=dict)

    @property
    def tokens_per_s(self) -> float:
        """Rate after the first token; 0 when there is no second one."""
        decode_s = (self.total_ms - self.first_token_ms) / 1e3
        more = self.generated_tokens - 1
        return more / decode_s if more > 0 and decode_s > 0 else 0.0


class Generator:
    """A connection to a control plane; close it, or use it in a `with` block."""

    def __init__(self, address: str, trace: Recorder | None = None) -> None:
        """`trace` makes spans of its calls."""
        self._channel = channel_to(address, recorder=trace)
        self._stub = inference_pb2_grpc.InferenceStub(self._channel)

    def __enter__(self) -> Generator:
        return self

    def __exit__(self, *exception: object) -> None:
        self._channel.close()

    def generate(self, question: GenerationQuestion, say: Callable[[str], None]) -> Generated:
        """One answer; `say` gets its text as it comes.

        Raises GenerationError, and KeyboardInterrupt after the generation was ended on the
        server; what had been said by then is the caller's to know.
        """
        call = self._stub.Generate(_request(question))
        answer = Generated()
        try:
            for event in call:
                text = _take(event, answer)
                if text:
                    say(text)
        except grpc.RpcError as error:
            raise _error(error) from None
        finally:
            call.cancel()
        return answer


def _request(question: GenerationQuestion) -> inference_pb2.GenerateRequest:
    request = inference_pb2.GenerateRequest(
        model=question.model,
        sampling=common_pb2.Sampling(
            temperature=question.temperature,
            top_k=question.top_k,
            top_p=question.top_p,
            min_p=question.min_p,
            repetition_penalty=question.repetition_penalty,
            seed=question.seed,
        ),
        limits=common_pb2.GenerationLimits(max_tokens=question.max_tokens, stop=question.stop),
        request_class=inference_pb2.RequestClass(
            tenant=question.tenant,
            request_class=question.request_class,
            minimum_quality=question.minimum_quality,
            variant=question.variant,
            prohibited_variants=question.prohibited,
        ),
        deadline_ms=question.deadline_ms,
        first_token_target_ms=question.first_token_target_ms,
        token_target_ms=question.token_target_ms,
    )
    if question.turns:
        for role, content in question.turns:
            request.chat.messages.add(role=role, content=content)
    else:
        request.text = question.text
    return request


def _take(event: inference_pb2.GenerateResponse, answer: Generated) -> str:
    """Put an event into the answer; returns the text it adds."""
    kind = event.WhichOneof("event")
    if kind == "delta":
        answer.text += event.delta.text
        return event.delta.text
    if kind == "finished":
        name = common_pb2.FinishReason.Name(event.finished.reason)
        answer.finish = name.removeprefix("FINISH_REASON_").lower()
    elif kind == "completed":
        usage, provenance = event.completed.usage, event.completed.provenance
        answer.prompt_tokens = usage.prompt_tokens
        answer.cached_tokens = usage.cached_tokens
        answer.generated_tokens = usage.generated_tokens
        answer.first_token_ms = usage.first_token_us / 1e3
        answer.total_ms = usage.total_us / 1e3
        answer.variant = provenance.variant
        answer.worker = provenance.worker_id
        answer.reason = provenance.reason
        answer.approximation = provenance.approximation
        told = MessageToDict(event.completed, preserving_proto_field_name=True)
        answer.document = {"text": answer.text, "finish": answer.finish, **told}
    return ""


def _error(error: grpc.RpcError) -> GenerationError:
    if not isinstance(error, grpc.Call):
        return GenerationError("UNKNOWN", str(error))
    trailers = dict(_trailers(error.trailing_metadata() or ()))
    after = trailers.get(_RETRY_AFTER, "")
    code = error.code().name
    return GenerationError(
        code,
        error.details() or code,
        trailers.get(REASON, ""),
        int(after) if after.isdigit() else 0,
    )


def _trailers(metadata: Sequence[tuple[str, str | bytes]]) -> Iterator[tuple[str, str]]:
    return ((key, value) for key, value in metadata if isinstance(value, str))
