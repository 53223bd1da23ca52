"""Generations behind both kinds of HTTP answer: opened, read in step with the caller, ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Protocol

from pydantic_core import to_json

from controlplane.errors import Cancelled, TooLate
from controlplane.generation.open import Generation
from controlplane.generation.records import (
    Admitted,
    Caller,
    Completed,
    Delta,
    Finished,
    FinishReason,
    GeneratedToken,
    GenerationAsk,
    GenerationEvent,
    PromptTokens,
)
from controlplane.http.asks import fingerprint, provenance_headers
from controlplane.http.calls import TRACEPARENT, Answer, Call, event
from controlplane.http.fields import GenerationBody
from controlplane.policy.records import Provenance
from controlplane.telemetry.trace import CURRENT

# A caller that reads nothing any more is let go this long after its deadline.
_STALLED_S = 1.0
_DONE = event(b"[DONE]")

Numbered = tuple[int, GenerationEvent]


class Generating(Protocol):
    """What this front door needs of the service of generations."""

    def now_ns(self) -> int: ...

    async def open(self, ask: GenerationAsk, caller: Caller) -> Generation: ...

    async def tokenize(self, ask: GenerationAsk, caller: Caller) -> PromptTokens: ...


@dataclass(slots=True)
class Choice:
    """One answer as it grows."""

    texts: list[str] = field(default_factory=list)
    tokens: list[GeneratedToken] = field(default_factory=list)
    finished: Finished | None = None


@dataclass(slots=True)
class _Totals:
    """Tokens of all prompts."""

    prompt: int = 0
    generated: int = 0
    cached: int = 0


class Dialect(Protocol):
    """How one kind of answer is written; a choice's index counts over all prompts."""

    @property
    def prefix(self) -> str:
        """What ids of answers begin with."""

    @property
    def kinds(self) -> tuple[str, str]:
        """`object` of a whole answer and of a piece."""

    def whole(self, index: int, choice: Choice) -> dict[str, object]:
        """A choice of a whole answer."""

    def piece(self, index: int, delta: Delta) -> dict[str, object]:
        """A choice of a piece that carries text or tokens."""

    def last(self, index: int, finished: Finished) -> dict[str, object]:
        """A choice of the piece that ends one."""


class Writing:
    """The answer to one call: `asks` are its prompts, `usage` whether a stream tells it."""

    def __init__(
        self, generating: Generating, call: Call, asks: Sequence[GenerationAsk], dialect: Dialect
    ) -> None:
        self._generating = generating
        self._caller = Caller(call.time_remaining(), call.headers.get(TRACEPARENT, ""))
        self._asks = asks
        self._dialect = dialect
        self._answers = asks[0].limits.n
        trace = CURRENT.get()
        if trace is not None and len(asks) > 1:
            # None of several generations is the call's own.
            trace.taken = True
        self._ends_ns = 0
        self._totals = _Totals()
        self._records: list[dict[str, object]] = []
        self._frame: dict[str, object] = {
            "id": f"{dialect.prefix}-{call.id}",
            "created": call.wall_s,
            "model": asks[0].model,
        }

    async def as_asked(self, answer: Answer, body: GenerationBody) -> None:
        """Answer as a stream or whole, as the body wants; raises ControlPlaneError."""
        if body.stream:
            options = body.stream_options
            await self.stream(answer, usage=bool(options and options.include_usage))
        else:
            await self.whole(answer)

    async def whole(self, answer: Answer) -> None:
        """Answer when everything is there; raises ControlPlaneError."""
        self._caller = self._caller._replace(whole=True)
        choices = [Choice() for _ in range(len(self._asks) * self._answers)]
        provenance: Provenance | None = None
        async with aclosing(self._events()) as events:
            async for prompt, told in events:
                if isinstance(told, Delta):
                    choice = choices[prompt * self._answers + told.index]
                    choice.texts.append(told.text)
                    choice.tokens.extend(told.logprobs)
                elif isinstance(told, Finished):
                    choices[prompt * self._answers + told.index].finished = told
                elif isinstance(told, Admitted):
                    # Again, when another worker makes the answers of a lost one anew.
                    for index in range(self._answers):
                        choices[prompt * self._answers + index] = Choice()
                else:
                    provenance = told.provenance
                    self._count(told)
        if not self._totals.generated and any(map(_out_of_time, choices)):
            raise TooLate("the deadline passed before the first token")
        assert provenance is not None
        document = {
            **self._frame,
            "object": self._dialect.kinds[0],
            "system_fingerprint": fingerprint(provenance),
            "choices": [self._dialect.whole(i, choice) for i, choice in enumerate(choices)],
            "usage": self._usage(),
            "orchid": self._record(),
        }
        await answer.whole(to_json(document), provenance_headers(provenance))

    async def stream(self, answer: Answer, *, usage: bool) -> None:
        """Answer in pieces; an error before the first is raised as one of the whole."""
        try:
            async with asyncio.timeout(None) as limit:
                await self._stream(answer, limit, usage=usage)
        except TimeoutError:
            answer.abandon()
            raise Cancelled("the deadline passed and the caller had not read the answer") from None

    async def _stream(self, answer: Answer, limit: asyncio.Timeout, *, usage: bool) -> None:
        async with aclosing(self._events()) as events:
            waiting = set(range(len(self._asks)))
            early: list[Numbered] = []
            async for prompt, told in events:
                if waiting and isinstance(told, Admitted):
                    waiting.discard(prompt)
                    if waiting:
                        continue
                    left_s = (self._ends_ns - self._generating.now_ns()) / 1e9
                    limit.reschedule(asyncio.get_running_loop().time() + left_s + _STALLED_S)
                    self._frame["object"] = self._dialect.kinds[1]
                    self._frame["system_fingerprint"] = fingerprint(told.provenance)
                    if usage:
                        self._frame["usage"] = None
                    await answer.begin(provenance_headers(told.provenance))
                    for number, before in early:
                        await self._tell(answer, number, before)
                elif waiting:
                    early.append((prompt, told))
                else:
                    await self._tell(answer, prompt, told)
            if usage:
                rest = {"choices": [], "usage": self._usage(), "orchid": self._record()}
                await answer.piece(event(to_json({**self._frame, **rest})))
            await answer.piece(_DONE)
            await answer.end()

    async def _tell(self, answer: Answer, prompt: int, told: GenerationEvent) -> None:
        if isinstance(told, Delta):
            if not told.text and not told.logprobs:
                return
            choice = self._dialect.piece(prompt * self._answers + told.index, told)
        elif isinstance(told, Finished):
            choice = self._dialect.last(prompt * self._answers + told.index, told)
        else:
            self._count(told)
            return
        await answer.piece(event(to_json({**self._frame, "choices": [choice]})))

    # --- events ---------------------------------------------------------------------

    async def _events(self) -> AsyncGenerator[Numbered, None]:
        """Every event with the number of its prompt; what is open is closed with it."""
        if len(self._asks) > 1:
            async with aclosing(self._merged()) as merged:
                async for each in merged:
                    yield each
            return
        async with await self._open(self._asks[0]) as generation:
            async for told in generation:
                yield 0, told

    async def _open(self, ask: GenerationAsk) -> Generation:
        generation = await self._generating.open(ask, self._caller)
        self._ends_ns = max(self._ends_ns, generation.plan.deadline_ns)
        return generation

    async def _merged(self) -> AsyncGenerator[Numbered, None]:
        # One place: whoever is told slowly holds back every prompt.
        ready: asyncio.Queue[Numbered | BaseException | None] = asyncio.Queue(1)
        tasks = [
            asyncio.create_task(self._feed(number, ask, ready))
            for number, ask in enumerate(self._asks)
        ]
        try:
            left = len(tasks)
            while left:
                told = await ready.get()
                if isinstance(told, BaseException):
                    raise told
                if told is None:
                    left -= 1
                else:
                    yield told
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _feed(
        self,
        number: int,
        ask: GenerationAsk,
        ready: asyncio.Queue[Numbered | BaseException | None],
    ) -> None:
        try:
            async with await self._open(ask) as generation:
                async for told in generation:
                    await ready.put((number, told))
        except Exception as error:
            await ready.put(error)
        else:
            await ready.put(None)

    # --- figures --------------------------------------------------------------------

    def _count(self, told: Admitted | Completed) -> None:
        if isinstance(told, Admitted):
            return
        usage = told.usage
        self._totals.prompt += usage.prompt_tokens
        self._totals.generated += usage.generated_tokens
        self._totals.cached += usage.cached_tokens
        self._records.append(
            {
                "worker": told.provenance.worker_id,
                "queue_ms": usage.queue_ns / 1e6,
                "first_token_ms": usage.first_token_ns / 1e6,
                "total_ms": usage.total_ns / 1e6,
                "mean_gap_ms": usage.mean_gap_ns / 1e6,
                "max_gap_ms": usage.max_gap_ns / 1e6,
                "prefill_cpu_ms": usage.prefill_cpu_ns / 1e6,
                "decode_cpu_ms": usage.decode_cpu_ns / 1e6,
                "live_token_ms": usage.live_token_ms,
                "preemptions": usage.preemptions,
            }
        )

    def _usage(self) -> dict[str, object]:
        totals = self._totals
        return {
            "prompt_tokens": totals.prompt,
            "completion_tokens": totals.generated,
            "total_tokens": totals.prompt + totals.generated,
            "prompt_tokens_details": {"cached_tokens": totals.cached},
        }

    def _record(self) -> dict[str, object]:
        """What each prompt cost, beyond what OpenAI's form has room for."""
        return {"generations": self._records}


def _out_of_time(choice: Choice) -> bool:
    return choice.finished is not None and choice.finished.reason is FinishReason.DEADLINE


def ending(finished: Finished | None) -> dict[str, object]:
    """Why a choice ended, in OpenAI's words; a deadline is a length that time has set.

    `stop_reason` is the stop string, or "deadline".
    """
    if finished is None:
        return {"finish_reason": None}
    if finished.reason is FinishReason.DEADLINE:
        return {"finish_reason": "length", "stop_reason": "deadline"}
    return {"finish_reason": finished.reason.value, "stop_reason": finished.stop or None}
