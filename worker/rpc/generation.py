"""Between the messages of generations and the worker's values."""

from __future__ import annotations

import math
from collections.abc import Sequence

from protos.orchid.v1 import common_pb2, worker_pb2
from worker.errors import InvalidInput
from worker.generation.lane import Speech
from worker.generation.penalties import PenaltyParameters
from worker.generation.records import (
    MOST_ALTERNATIVES,
    MOST_ANSWERS,
    MOST_STOP_CHARACTERS,
    MOST_STOP_TOKENS,
    MOST_STOPS,
    Admitted,
    Delta,
    Finish,
    Finished,
    GenerationCall,
    GenerationEvent,
    Limits,
    ScoredToken,
    TokenScore,
    Usage,
)
from worker.generation.sampling import SamplingParameters, check_tokens

_AT_LEAST_0 = (
    "first_token_target_us",
    "token_target_us",
    "account_weight",
    "work_price",
    "account_room",
)
_REASONS = {
    Finish.STOP: common_pb2.FINISH_REASON_STOP,
    Finish.LENGTH: common_pb2.FINISH_REASON_LENGTH,
    Finish.DEADLINE: common_pb2.FINISH_REASON_DEADLINE,
}


def call_from(message: worker_pb2.GenerateCall, variant: str, arrived_ns: int) -> GenerationCall:
    """A call as it came, for a variant of its model.

    Raises InvalidInput for times and shares that are negative or no numbers.
    """
    for name in _AT_LEAST_0:
        value = getattr(message, name)
        if not 0 <= value < math.inf:
            raise InvalidInput(f"{name} is {value}; accepted is at least 0")
    sampling, limits = message.sampling, message.limits
    return GenerationCall(
        generation_id=message.generation_id,
        model=message.model,
        variant=variant,
        prompt=tuple(message.prompt),
        arrived_ns=arrived_ns,
        sampling=SamplingParameters(
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            penalties=PenaltyParameters(
                repetition=sampling.repetition_penalty,
                presence=sampling.presence_penalty,
                frequency=sampling.frequency_penalty,
                bias=tuple(sampling.logit_bias.items()),
            ),
            seed=sampling.seed if sampling.HasField("seed") else None,
        ),
        limits=Limits(
            max_tokens=limits.max_tokens,
            stop=tuple(limits.stop),
            stop_tokens=tuple(limits.stop_token_ids),
            answers=limits.n or 1,
            logprobs=limits.logprobs if limits.HasField("logprobs") else None,
            ignore_end=limits.ignore_end,
        ),
        tenant=message.tenant,
        # 0 has no end; what is below it has ended before it came.
        deadline_ns=arrived_ns + message.budget_us * 1000 if message.budget_us else None,
        first_token_target_ns=message.first_token_target_us * 1000,
        token_target_ns=message.token_target_us * 1000,
        traceparent=message.traceparent,
        account=message.account,
        account_weight=message.account_weight or 1.0,
        work_price=message.work_price or 1.0,
        account_room=message.account_room or 1.0,
        first_token_target_grows=message.first_token_target_grows,
    )


def check_call(call: GenerationCall, speech: Speech) -> None:
    """Raises InvalidInput, naming what came and what is accepted, when a call cannot be served."""
    tokens, limits = len(call.prompt), call.limits
    if not tokens:
        raise InvalidInput("the prompt has no token; accepted is at least one")
    if tokens + max(limits.max_tokens, 1) > speech.context:
        asked = f"{limits.max_tokens} more" if limits.max_tokens else "an answer"
        raise InvalidInput(
            f"{tokens} of the prompt and {asked} exceed the context of {speech.context} tokens"
        )
    check_tokens("prompt", call.prompt, speech.vocabulary)
    check_tokens("stop_token_ids", limits.stop_tokens, speech.vocabulary)
    call.sampling.check()
    biased = [token for token, _ in call.sampling.penalties.bias]
    check_tokens("logit_bias", biased, speech.vocabulary)
    _check_most("n", limits.answers, MOST_ANSWERS)
    _check_most("logprobs", limits.logprobs or 0, MOST_ALTERNATIVES)
    _check_most("the number of stop strings", len(limits.stop), MOST_STOPS)
    _check_most("the number of stop_token_ids", len(limits.stop_tokens), MOST_STOP_TOKENS)
    for place, stop in enumerate(limits.stop):
        if not stop:
            raise InvalidInput(f"stop[{place}] is empty; accepted is at least one character")
        _check_most(f"the length of stop[{place}]", len(stop), MOST_STOP_CHARACTERS)


def _check_most(name: str, value: int, most: int) -> None:
    if value > most:
        raise InvalidInput(f"{name} is {value}; accepted is at most {most}")


def event_to(event: GenerationEvent) -> worker_pb2.GenerateEvent:
    """The message of an event; `Failed` has none, it becomes the status of the call."""
    if isinstance(event, Delta):
        return worker_pb2.GenerateEvent(
            delta=common_pb2.GenerationDelta(
                index=event.index,
                text=event.text,
                token_ids=event.tokens,
                logprobs=[_scored_to(scored) for scored in event.scores],
            )
        )
    if isinstance(event, Admitted):
        return worker_pb2.GenerateEvent(
            admitted=common_pb2.GenerationAdmitted(
                prompt_tokens=event.prompt_tokens,
                cached_tokens=event.cached_tokens,
                queue_us=event.queue_ns // 1000,
            )
        )
    if isinstance(event, Finished):
        return worker_pb2.GenerateEvent(
            finished=common_pb2.GenerationFinished(
                index=event.index,
                reason=_REASONS[event.reason],
                stop=event.stop,
                generated_tokens=event.generated_tokens,
            )
        )
    if isinstance(event, Usage):
        return worker_pb2.GenerateEvent(completed=_usage_to(event))
    raise event.error


def _scored_to(scored: ScoredToken) -> common_pb2.GeneratedToken:
    return common_pb2.GeneratedToken(
        chosen=_score_to(scored.chosen), alternatives=_scores_to(scored.alternatives)
    )


def _scores_to(scores: Sequence[TokenScore]) -> list[common_pb2.TokenLogprob]:
    return [_score_to(score) for score in scores]


def _score_to(score: TokenScore) -> common_pb2.TokenLogprob:
    return common_pb2.TokenLogprob(token_id=score.token, token=score.content, logprob=score.logprob)


def _usage_to(usage: Usage) -> common_pb2.GenerationUsage:
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
        live_token_ms=usage.live_token_ns // 1_000_000,
        preemptions=usage.preemptions,
    )
