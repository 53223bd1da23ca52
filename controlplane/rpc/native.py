"""The native service, orchid.v1.Inference: everything that was decided and spent."""

from __future__ import annotations

from controlplane.errors import InvalidRequest
from controlplane.generation.service import Generations
from controlplane.policy.records import Answer, Outcome, RequestClass
from controlplane.rpc.asks import (
    LIMITS,
    NO_CLASS,
    Ask,
    check_texts,
    explicit_deadline,
    request_class,
    tensor_ask,
    token_ask,
)
from controlplane.rpc.catalogue import Catalogue, ModelView
from controlplane.rpc.convert import STRING, best_classes, native_rows, read_native, write_native
from controlplane.rpc.generate import generate
from controlplane.rpc.intake import Intake
from controlplane.rpc.provenance import write_provenance
from controlplane.rpc.services import Context
from controlplane.rpc.status import Status, shown
from controlplane.rpc.streams import OpenStreams
from protos.orchid.v1 import inference_pb2

CLASSIFICATION = "text-classification"


class NativeServicer:
    """Implements `orchid.v1.Inference`."""

    def __init__(
        self,
        intake: Intake,
        streams: OpenStreams,
        catalogue: Catalogue,
        generations: Generations,
    ) -> None:
        self._intake = intake
        self._generations = generations
        self._streams = streams
        self._catalogue = catalogue
        self._dialect = NativeDialect(catalogue)

    async def Infer(
        self, request: inference_pb2.InferRequest, context: Context
    ) -> inference_pb2.InferResponse:
        """Answer one request."""
        now_ns = self._intake.now_ns
        arrived_ns = now_ns()
        view = self._catalogue.view(request.model)
        try:
            ask = read_infer(request, view)
            answer = await self._intake.answer(ask, arrived_ns, context)
            answered_ns = now_ns()
            response = write_infer(answer, request.request_id, view)
        except BaseException:
            view.counters.failed(now_ns() - arrived_ns)
            raise
        view.counters.succeeded(answer.outcome, now_ns() - answered_ns)
        return response

    async def StreamInfer(self, requests: object, context: Context) -> None:
        """Answer many requests on one stream, each as it finishes."""
        await self._streams.serve(self._dialect, context)

    async def Generate(self, request: inference_pb2.GenerateRequest, context: Context) -> None:
        """Stream one generation."""
        await generate(self._generations, request, context)


class NativeDialect:
    """Reads and writes the messages of StreamInfer."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    def identify(self, message: inference_pb2.InferRequest) -> str:
        """The id that the answer echoes."""
        return message.request_id

    def open(self, message: inference_pb2.InferRequest) -> tuple[Ask, ModelView]:
        """Check a request; raises ControlPlaneError."""
        view = self._catalogue.view(message.model)
        return read_infer(message, view), view

    def answered(
        self, answer: Answer, request_id: str, extra: ModelView
    ) -> inference_pb2.InferStreamResponse:
        """The answer with its id."""
        return inference_pb2.InferStreamResponse(
            request_id=request_id, response=write_infer(answer, request_id, extra)
        )

    def failed(self, status: Status, request_id: str) -> inference_pb2.InferStreamResponse:
        """The reason with the id; the stream goes on."""
        return inference_pb2.InferStreamResponse(
            request_id=request_id,
            error=inference_pb2.InferError(
                code=status.number, message=status.message, retry_after_ms=status.retry_after_ms
            ),
        )


def read_infer(request: inference_pb2.InferRequest, view: ModelView) -> Ask:
    """The ask of a request; raises InvalidRequest, NotFound (variant, tokenizer) or TooLate."""
    view.require_inputs()
    klass = _read_class(request, view) if request.HasField("request_class") else NO_CLASS
    deadline = explicit_deadline(request.deadline_ms, unit_ns=1_000_000, field="deadline_ms")
    kind = request.WhichOneof("input")
    accepted = "text or tokens" if view.takes_text else "tensors"
    if kind is None or (kind == "tensors") == view.takes_text:
        raise InvalidRequest(
            f"model {shown(view.info.name)} takes {accepted}; got {kind or 'no input'}"
        )
    if request.tokenizer and kind != "tokens":
        raise InvalidRequest("tokenizer is for requests of token ids")
    if kind == "text":
        check_texts(request.text.texts)
        return Ask(view, klass, deadline, texts=tuple(request.text.texts))
    if kind == "tokens":
        tokenizer = view.tokenizer(request.tokenizer)
        rows = native_rows(request.tokens)
        return token_ask(view, klass, deadline, tokenizer=tokenizer, rows=rows)
    tensors = request.tensors.tensors
    if len(tensors) > LIMITS.names:
        raise InvalidRequest(f"{len(tensors)} tensors in one request; at most {LIMITS.names}")
    return tensor_ask(view, klass, deadline, tuple(map(read_native, tensors)))


def _read_class(request: inference_pb2.InferRequest, view: ModelView) -> RequestClass:
    asked = request.request_class
    if len(asked.prohibited_variants) > LIMITS.names:
        raise InvalidRequest(
            f"{len(asked.prohibited_variants)} prohibited variants; at most {LIMITS.names}"
        )
    return request_class(
        view,
        tenant=asked.tenant,
        name=asked.request_class,
        privacy_class=asked.privacy_class,
        minimum_quality=asked.minimum_quality,
        prohibited=tuple(asked.prohibited_variants),
        variant=asked.variant,
        approximation=not asked.prohibit_approximation,
    )


def write_infer(answer: Answer, request_id: str, view: ModelView) -> inference_pb2.InferResponse:
    """The response to one request, with its provenance, record and classifications."""
    return inference_pb2.InferResponse(
        request_id=request_id,
        outputs=map(write_native, answer.outputs),
        classifications=_classifications(answer, view),
        provenance=write_provenance(answer.provenance),
        outcome=_outcome(answer.outcome),
    )


def _classifications(answer: Answer, view: ModelView) -> list[inference_pb2.Classification]:
    """The best class of each sequence, for models whose task is classification."""
    info = view.info
    if info.task != CLASSIFICATION:
        return []
    labels = answer.labels or info.labels
    for tensor in answer.outputs:
        if tensor.name == info.primary_output and tensor.dtype != STRING and tensor.shape:
            return [
                inference_pb2.Classification(
                    label=labels[index] if index < len(labels) else "", index=index, score=score
                )
                for index, score in best_classes(tensor)
            ]
    return []


def _outcome(outcome: Outcome) -> inference_pb2.Outcome:
    return inference_pb2.Outcome(
        items=outcome.items,
        input_tokens=outcome.input_tokens,
        predicted_cpu_us=outcome.predicted_cpu_ns // 1000,
        charged_cpu_us=outcome.charged_cpu_ns // 1000,
        preprocess_us=outcome.preprocess_ns // 1000,
        queue_us=outcome.queue_ns // 1000,
        execute_us=outcome.execute_ns // 1000,
        total_us=outcome.total_ns // 1000,
        slack_at_dispatch_us=outcome.slack_at_dispatch_ns // 1000,
        slack_at_answer_us=outcome.slack_at_answer_ns // 1000,
        batch_size=outcome.batch_size,
        dispatches=outcome.dispatches,
    )
