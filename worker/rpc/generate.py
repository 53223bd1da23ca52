"""One Generate call: its events as they come, and the end of its work when nobody reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from protos.orchid.v1 import worker_pb2
from worker.generation.lane import Speech
from worker.generation.loop import DecodeLoop
from worker.generation.mailbox import Mailbox
from worker.generation.records import Failed, GenerationEvent, Usage
from worker.generation.trace import GenerationTrace
from worker.host import ModelHost
from worker.refusals import Expired, Unavailable
from worker.rpc.generation import call_from, check_call, event_to
from worker.rpc.handlers import Context
from worker.tracing import Tracing
from worker.watchdog import Watchdog

_LATE = Expired("the deadline had passed when the call arrived")


@dataclass(frozen=True, slots=True)
class GenerateParts:
    """What every call of a worker shares. `speech` is what a model's answers are made with."""

    loop: DecodeLoop
    host: ModelHost
    watchdog: Watchdog
    tracing: Tracing
    speech: Callable[[str], Speech | None]
    now_ns: Callable[[], int]


async def serve_generation(
    parts: GenerateParts, request: worker_pb2.GenerateCall, context: Context
) -> None:
    """Writes the events of a generation until its last; lives on the event loop.

    An empty variant takes the one that is loaded. Raises WorkerError for what cannot be served,
    was refused, or failed. However the call ends, the generation ends with it.
    """
    arrived_ns = parts.now_ns()
    variant = request.variant or parts.host.any_variant(request.model)
    parts.host.admit(request.model, variant)
    speech = parts.speech(request.model)
    if speech is None:
        raise Unavailable(f"model {request.model!r} is being unloaded")
    call = call_from(request, variant, arrived_ns)
    check_call(call, speech)
    if call.deadline_ns is not None and call.deadline_ns <= arrived_ns:
        raise _LATE
    mailbox, awake = Mailbox(), asyncio.Event()

    def receive(events: Sequence[GenerationEvent]) -> None:
        mailbox.put(events)
        awake.set()

    trace = GenerationTrace() if parts.tracing.asked(call.traceparent) else None
    generation = parts.loop.open(call, receive, trace)
    if call.deadline_ns is not None:
        parts.watchdog.watch(call.deadline_ns)
    over = False
    try:
        while not over:
            event = mailbox.take()
            if event is None:
                awake.clear()
                await awake.wait()
            else:
                over = isinstance(event, Usage | Failed)
                # Waits for a reader who is slow; what comes meanwhile is merged.
                await context.write(event_to(event))
    finally:
        parts.loop.cancel(generation)
        if trace is not None:
            # Not `event`: compiled, it counts as what the loop above ends with, however it ends.
            parts.tracing.record_generation(call, trace, mailbox.taken, parts.now_ns())
