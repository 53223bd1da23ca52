"""Scripts of decode workers for the HTTP front door: several answers, log probabilities, ends."""

from __future__ import annotations

from typing import Any

from protos.orchid.v1 import common_pb2, worker_pb2
from tests.contract.controlplane.decode_worker import (
    VOCABULARY,
    DecodeWorker,
    admitted,
    delta,
    ended,
)


async def choral(worker: DecodeWorker, call: worker_pb2.GenerateCall, context: Any) -> None:
    """Every answer says its number and the prompt's first word, in turns."""
    await context.write(admitted(call))
    n = call.limits.n
    first = VOCABULARY[call.prompt[0]]
    for index in range(n):
        await context.write(delta(f"{index} ", 4, index=index))
    for index in range(n):
        await context.write(delta(first, 5, index=index))
        finished = common_pb2.GenerationFinished(
            index=index, reason=common_pb2.FINISH_REASON_STOP, stop="END", generated_tokens=2
        )
        await context.write(worker_pb2.GenerateEvent(finished=finished))
    usage = common_pb2.GenerationUsage(
        prompt_tokens=len(call.prompt), cached_tokens=1, generated_tokens=2 * n, preemptions=3
    )
    await context.write(worker_pb2.GenerateEvent(completed=usage))


# The euro sign takes three bytes; the second token ends inside of it.
PIECES = ((b"a", "a"), (b" \xe2\x82", " "), (b"\xac", "€"))


async def counting(worker: DecodeWorker, call: worker_pb2.GenerateCall, context: Any) -> None:
    """Three tokens with log probabilities, one character spread over two of them."""
    await context.write(admitted(call))
    for token, (raw, text) in enumerate(PIECES):
        chosen = common_pb2.TokenLogprob(token_id=token, token=raw, logprob=-0.5 - token)
        others = [common_pb2.TokenLogprob(token_id=9, token=b"z", logprob=float("-inf"))]
        piece = common_pb2.GenerationDelta(
            text=text,
            token_ids=[token],
            logprobs=[
                common_pb2.GeneratedToken(
                    chosen=chosen, alternatives=others[: call.limits.logprobs]
                )
            ],
        )
        await context.write(worker_pb2.GenerateEvent(delta=piece))
    for event in ended(call, len(PIECES), common_pb2.FINISH_REASON_STOP):
        await context.write(event)


async def late(worker: DecodeWorker, call: worker_pb2.GenerateCall, context: Any) -> None:
    """The deadline ends it after as many tokens as the prompt has beyond three."""
    await context.write(admitted(call))
    tokens = list(call.prompt)[3:]
    for token in tokens:
        await context.write(delta(f"{VOCABULARY[token]} ", token))
    for event in ended(call, len(tokens), common_pb2.FINISH_REASON_DEADLINE):
        await context.write(event)


async def torrent(worker: DecodeWorker, call: worker_pb2.GenerateCall, context: Any) -> None:
    """More text than any buffer holds; `written` counts its pieces."""
    await context.write(admitted(call))
    text = "x" * 20_000
    while True:
        await context.write(delta(text, 4))
        worker.written += 1
