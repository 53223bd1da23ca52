"""orchid.v1.Inference/Generate: requests to asks, events to responses."""

from __future__ import annotations

import asyncio

from controlplane.errors import InvalidRequest, TooLate
from controlplane.generation.records import (
    Admitted,
    Caller,
    ChatPrompt,
    Delta,
    Finished,
    FinishReason,
    GeneratedToken,
    GenerationAsk,
    GenerationEvent,
    GenerationLimits,
    GenerationUsage,
    Message,
    Prompt,
    Sampling,
    TextPrompt,
    TokenLogprob,
    TokenPrompt,
)
from controlplane.generation.service import Generations
from controlplane.policy.records import RequestClass
from controlplane.rpc.provenance import write_provenance
from controlplane.rpc.services import Context
from controlplane.rpc.traced import traceparent_of
from protos.orchid.v1 import common_pb2, inference_pb2

_MS = 1_000_000
# A caller that reads nothing any more is let go this long after its deadline.
_STALLED_S = 1.0

_REASONS = {
    FinishReason.STOP: common_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: common_pb2.FINISH_REASON_LENGTH,
    FinishReason.DEADLINE: common_pb2.FINISH_REASON_DEADLINE,
}


async def generate(
    generations: Generations, request: inference_pb2.GenerateRequest, context: Context
) -> None:
    """Answer one call; raises the ControlPlaneError that it ends with.

    Each event is written before the next is read, so a caller that reads slowly holds
    back its own generation and fills no memory here.
    """
    caller = Caller(context.time_remaining(), traceparent_of(context.invocation_metadata()))
    generation = await generations.open(read_ask(request), caller)
    left_ns = generation.plan.deadline_ns - generations.now_ns()
    try:
        async with asyncio.timeout(left_ns / 1e9 + _STALLED_S), generation:
            async for event in generation:
                await context.write(write_event(event, request.request_id))
    except TimeoutError:
        raise TooLate("the deadline passed and the caller had not read the answer") from None


def read_ask(request: inference_pb2.GenerateRequest) -> GenerationAsk:
    """What a request asks for; InvalidRequest when it holds no prompt."""
    asked = request.request_class
    return GenerationAsk(
        model=request.model,
        prompt=_read_prompt(request),
        sampling=read_sampling(request.sampling),
        limits=read_limits(request.limits),
        klass=RequestClass(
            tenant=asked.tenant,
            name=asked.request_class,
            privacy_class=asked.privacy_class,
            minimum_quality=asked.minimum_quality,
            prohibited=frozenset(asked.prohibited_variants),
            variant=asked.variant,
            approximation=not asked.prohibit_approximation,
        ),
        deadline_ns=request.deadline_ms * _MS,
        first_token_target_ns=request.first_token_target_ms * _MS,
        token_target_ns=request.token_target_ms * _MS,
    )


def _read_prompt(request: inference_pb2.GenerateRequest) -> Prompt:
    kind = request.WhichOneof("prompt")
    if kind == "text":
        return TextPrompt(request.text)
    if kind == "chat":
        chat = request.chat
        messages = [Message(m.role, m.content) for m in chat.messages]
        return ChatPrompt(messages, chat.continue_final_message)
    if kind == "tokens":
        return TokenPrompt(request.tokens.ids)
    raise InvalidRequest("the request has no prompt; accepted: one of text, chat, tokens")


def read_sampling(sampling: common_pb2.Sampling) -> Sampling:
    """Sampling parameters as they were sent."""
    return Sampling(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        seed=sampling.seed if sampling.HasField("seed") else None,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        logit_bias=dict(sampling.logit_bias),
    )


def read_limits(limits: common_pb2.GenerationLimits) -> GenerationLimits:
    """Limits as they were sent."""
    return GenerationLimits(
        max_tokens=limits.max_tokens,
        stop=tuple(limits.stop),
        stop_token_ids=tuple(limits.stop_token_ids),
        n=limits.n or 1,
        logprobs=limits.logprobs if limits.HasField("logprobs") else None,
        ignore_end=limits.ignore_end,
    )


def write_event(event: GenerationEvent, request_id: str) -> inference_pb2.GenerateResponse:
    """An event as the caller gets it."""
    if isinstance(event, Delta):
        delta = common_pb2.GenerationDelta(
            index=event.index, text=event.text, token_ids=event.token_ids
        )
        if event.logprobs:
            delta.logprobs.extend(map(_write_token, event.logprobs))
        return inference_pb2.GenerateResponse(request_id=request_id, delta=delta)
    if isinstance(event, Admitted):
        admitted = inference_pb2.GenerateAdmitted(
            admitted=common_pb2.GenerationAdmitted(
                prompt_tokens=event.prompt_tokens,
                cached_tokens=event.cached_tokens,
                queue_us=event.queue_ns // 1000,
            ),
            provenance=write_provenance(event.provenance),
        )
        return inference_pb2.GenerateResponse(request_id=request_id, admitted=admitted)
    if isinstance(event, Finished):
        finished = common_pb2.GenerationFinished(
            index=event.index,
            reason=_REASONS[event.reason],
            stop=event.stop,
            generated_tokens=event.generated_tokens,
        )
        return inference_pb2.GenerateResponse(request_id=request_id, finished=finished)
    completed = inference_pb2.GenerateCompleted(
        usage=_write_usage(event.usage), provenance=write_provenance(event.provenance)
    )
    return inference_pb2.GenerateResponse(request_id=request_id, completed=completed)


def _write_token(token: GeneratedToken) -> common_pb2.GeneratedToken:
    return common_pb2.GeneratedToken(
        chosen=_write_logprob(token.chosen), alternatives=map(_write_logprob, token.alternatives)
    )


def _write_logprob(token: TokenLogprob) -> common_pb2.TokenLogprob:
    return common_pb2.TokenLogprob(
        token_id=token.token_id, token=token.token, logprob=token.logprob
    )


def _write_usage(usage: GenerationUsage) -> common_pb2.GenerationUsage:
    return common_pb2.GenerationUsage(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        generated_tokens=usage.generated_tokens,
        queue_us=usage.queue_ns // 1000,
        first_token_us=usage.first_token_ns // 1000,
        total_us=usage.total_ns // 1000,
        mean_gap_us=usage.mean_gap_ns // 1000,
        max_gap_us=usage.max_gap_ns // 1000,
        prefill_cpu_us=usage.prefill_cpu_ns // 1000,
        decode_cpu_us=usage.decode_cpu_ns // 1000,
        live_token_ms=usage.live_token_ms,
        preemptions=usage.preemptions,
    )
