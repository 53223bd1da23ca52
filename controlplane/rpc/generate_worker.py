"""The control plane's side of Worker/Generate: orders out, events in, statuses to errors."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import grpc

from controlplane.errors import (
    ControlPlaneError,
    InvalidRequest,
    NotFound,
    Refused,
    TooLate,
    WorkerFault,
)
from controlplane.generation.records import (
    Delta,
    Finished,
    FinishReason,
    GeneratedToken,
    GenerationLimits,
    GenerationUsage,
    Sampling,
    TokenLogprob,
)
from controlplane.generation.work import GenerationOrder, Placed, WorkerEvent
from controlplane.rpc.status import RETRY_AFTER
from protos.orchid.v1 import common_pb2, worker_pb2

_REASONS = {
    common_pb2.FINISH_REASON_STOP: FinishReason.STOP,
    common_pb2.FINISH_REASON_LENGTH: FinishReason.LENGTH,
    common_pb2.FINISH_REASON_DEADLINE: FinishReason.DEADLINE,
}
# When a worker that refuses does not say when to come back.
_RETRY_MS = 100

Call = grpc.aio.UnaryStreamCall[Any, Any]


class WorkerGeneration:
    """One call to Worker/Generate; implements `generation.work.DecodeCall`."""

    def __init__(self, call: Call, worker: str) -> None:
        self._call = call
        self._worker = worker

    async def next(self) -> WorkerEvent:
        """The next event; see `DecodeCall.next`."""
        try:
            message = await self._call.read()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Not this task was cancelled but the call: the worker is gone or given up.
            raise WorkerFault(f"the call to worker {self._worker} was ended") from None
        except grpc.aio.AioRpcError as error:
            raise _error(error, self._worker) from None
        if not isinstance(message, worker_pb2.GenerateEvent):
            raise WorkerFault(f"worker {self._worker} ended the answer without its usage")
        return read_event(message, self._worker)

    def cancel(self) -> None:
        """End the call; nothing happens when it has ended."""
        self._call.cancel()


def write_order(order: GenerationOrder, now_ns: int) -> worker_pb2.GenerateCall:
    """An order as a worker gets it, with the time that is left now."""
    return worker_pb2.GenerateCall(
        generation_id=order.id,
        model=order.model,
        variant=order.variant,
        prompt=order.prompt,
        sampling=write_sampling(order.sampling),
        limits=write_limits(order.limits),
        tenant=order.tenant,
        # 0 would have no end.
        budget_us=max(1, (order.ends_ns - now_ns) // 1000),
        first_token_target_us=max(1, (order.first_token_by_ns - now_ns) // 1000),
        token_target_us=order.token_target_ns // 1000,
        traceparent=order.traceparent,
        account=order.account,
        # As it is, nothing is said.
        account_weight=0.0 if order.account_weight == 1.0 else order.account_weight,
        work_price=0.0 if order.work_price == 1.0 else order.work_price,
        account_room=0.0 if order.account_room == 1.0 else order.account_room,
        first_token_target_grows=order.first_token_target_grows,
    )


def write_sampling(sampling: Sampling) -> common_pb2.Sampling:
    """Sampling parameters on the wire."""
    return common_pb2.Sampling(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        seed=sampling.seed,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        logit_bias=sampling.logit_bias,
    )


def write_limits(limits: GenerationLimits) -> common_pb2.GenerationLimits:
    """Limits on the wire."""
    return common_pb2.GenerationLimits(
        max_tokens=limits.max_tokens,
        stop=limits.stop,
        stop_token_ids=limits.stop_token_ids,
        n=limits.n,
        logprobs=limits.logprobs,
        ignore_end=limits.ignore_end,
    )


def read_event(message: worker_pb2.GenerateEvent, worker: str) -> WorkerEvent:
    """An event as a worker told it; raises WorkerFault for one that nobody knows."""
    kind = message.WhichOneof("event")
    if kind == "delta":
        delta = message.delta
        return Delta(
            index=delta.index,
            text=delta.text,
            token_ids=tuple(delta.token_ids),
            logprobs=tuple(map(_read_token, delta.logprobs)) if delta.logprobs else (),
        )
    if kind == "admitted":
        admitted = message.admitted
        return Placed(admitted.prompt_tokens, admitted.cached_tokens, admitted.queue_us * 1000)
    if kind == "finished":
        finished = message.finished
        reason = _REASONS.get(finished.reason)
        if reason is None:
            raise WorkerFault(f"worker {worker} ended an answer for the reason {finished.reason}")
        return Finished(finished.index, reason, finished.stop, finished.generated_tokens)
    if kind == "completed":
        return _read_usage(message.completed)
    raise WorkerFault(f"worker {worker} sent an event that is not known here")


def _read_token(token: common_pb2.GeneratedToken) -> GeneratedToken:
    return GeneratedToken(
        _read_logprob(token.chosen), tuple(map(_read_logprob, token.alternatives))
    )


def _read_logprob(token: common_pb2.TokenLogprob) -> TokenLogprob:
    return TokenLogprob(token.token_id, token.token, token.logprob)


def _read_usage(usage: common_pb2.GenerationUsage) -> GenerationUsage:
    return GenerationUsage(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        generated_tokens=usage.generated_tokens,
        queue_ns=usage.queue_us * 1000,
        first_token_ns=usage.first_token_us * 1000,
        total_ns=usage.total_us * 1000,
        mean_gap_ns=usage.mean_gap_us * 1000,
        max_gap_ns=usage.max_gap_us * 1000,
        prefill_cpu_ns=usage.prefill_cpu_us * 1000,
        decode_cpu_ns=usage.decode_cpu_us * 1000,
        live_token_ms=usage.live_token_ms,
        preemptions=usage.preemptions,
    )


def _error(error: grpc.aio.AioRpcError, worker: str) -> ControlPlaneError:
    """What a worker's status means for the caller of a generation."""
    code, told = error.code(), error.details() or ""
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return Refused(told or "the decode worker is full", _retry_after(error))
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        return InvalidRequest(told or "the decode worker does not accept this generation")
    if code is grpc.StatusCode.NOT_FOUND:
        return NotFound(told or "the decode worker does not have the model any more")
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return TooLate("the deadline passed before the answer was whole")
    return WorkerFault(f"worker {worker}: {code.name}: {told}")


def _retry_after(error: grpc.aio.AioRpcError) -> int:
    trailers: Mapping[str, str | bytes] = dict(error.trailing_metadata() or ())
    value = trailers.get(RETRY_AFTER, "")
    return int(value) if isinstance(value, str) and value.isdigit() else _RETRY_MS
