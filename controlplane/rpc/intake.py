"""From a checked ask to a queued request: deadline, tokens, admission."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

from controlplane.config import ControlPlaneConfig
from controlplane.errors import InvalidRequest, TooLate
from controlplane.pending import Waiter
from controlplane.policy.records import Answer, Request, Shape, TensorPayload, TokenPayload
from controlplane.registry import ModelInfo
from controlplane.rpc.asks import Ask
from controlplane.rpc.status import shown
from controlplane.telemetry.telemetry import Telemetry
from controlplane.telemetry.trace import CURRENT, CallTrace

Tokens = tuple[TokenPayload, Mapping[str, Shape]]


class Queue(Protocol):
    """What the front doors need of the dispatcher."""

    def now_ns(self) -> int: ...

    def next_id(self) -> int: ...

    def submit(self, request: Request) -> asyncio.Future[Answer]: ...

    def attend(self, request: Request, waiter: Waiter) -> None: ...

    def cancel(self, request: Request) -> None: ...


class Tokenizing(Protocol):
    """What the front doors need of the preprocessor."""

    async def tokenize(self, model: ModelInfo, texts: Sequence[str]) -> Tokens: ...

    def tokenize_now(self, model: ModelInfo, texts: Sequence[str]) -> Tokens | None: ...

    def vocabulary(self, model: ModelInfo, tokenizer: str) -> int: ...


class Caller(Protocol):
    """What the intake needs of a call, whatever carried it."""

    def time_remaining(self) -> float | None: ...


class Intake:
    """Gives asks to the dispatcher. Every method is called on the dispatcher's loop.

    `telemetry` says which calls are recorded; None: none of them.
    """

    def __init__(
        self,
        config: ControlPlaneConfig,
        queue: Queue,
        tokenizing: Tokenizing,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._config = config
        self._queue = queue
        self._tokenizing = tokenizing
        self.telemetry = telemetry if telemetry is not None and telemetry.recording else None
        # How long messages of a stream may wait for each other.
        self.gather_ns = config.stream_gather_ms * 1_000_000
        self.now_ns = queue.now_ns
        self.submit = queue.submit
        self.attend = queue.attend
        self.cancel = queue.cancel

    def deadline_ns(self, ask: Ask, at_ns: int, remaining_s: float | None) -> int:
        """When an ask that came at `at_ns` stops being worth an answer.

        The nearer of the call's gRPC deadline and the explicit one; without either, what
        the configuration gives the request's class. TooLate when it has passed.
        """
        left = ask.deadline_ns
        if remaining_s is not None:
            call = int(remaining_s * 1e9)
            if call <= 0:
                raise TooLate("the call's deadline had passed when the request came")
            left = min(left, call) if left else call
        if not left:
            left = self._config.deadline_ms(ask.klass.name, 0) * 1_000_000
        return at_ns + left

    async def answer(self, ask: Ask, at_ns: int, context: Caller) -> Answer:
        """Queue one unary call and wait for its end; the caller's cancel is passed on.

        Raises the ControlPlaneError that the request ends with.
        """
        deadline = self.deadline_ns(ask, at_ns, context.time_remaining())
        trace = CURRENT.get() if self.telemetry is not None else None
        request = self.request_now(ask, at_ns, deadline, trace)
        if request is None:
            request = await self.request(ask, at_ns, deadline, trace)
        future = self.submit(request)
        try:
            return await future
        except asyncio.CancelledError:
            self.cancel(request)
            raise

    def request_now(
        self, ask: Ask, at_ns: int, deadline_ns: int, trace: CallTrace | None
    ) -> Request | None:
        """The request of an ask; None when its texts need a thread to be tokenised."""
        if ask.payload is not None and ask.shapes is not None:
            if ask.highest_id >= 0:
                self._check_vocabulary(ask)
            return self._request(ask, at_ns, deadline_ns, trace, (ask.payload, ask.shapes), 0)
        started_ns = self.now_ns()
        tokens = self._tokenizing.tokenize_now(ask.view.info, ask.texts)
        if tokens is None:
            return None
        return self._request(ask, at_ns, deadline_ns, trace, tokens, self.now_ns() - started_ns)

    async def request(
        self, ask: Ask, at_ns: int, deadline_ns: int, trace: CallTrace | None
    ) -> Request:
        """The request of an ask of texts; TooLate when tokenising outlasts the deadline."""
        started_ns = self.now_ns()
        try:
            async with asyncio.timeout((deadline_ns - started_ns) / 1e9):
                tokens = await self._tokenizing.tokenize(ask.view.info, ask.texts)
        except TimeoutError:
            if trace is not None:
                trace.add("orchid.preprocess", at_ns, self.now_ns(), fault="too-late")
            raise TooLate("the deadline passed while the text was being tokenised") from None
        return self._request(ask, at_ns, deadline_ns, trace, tokens, self.now_ns() - started_ns)

    def _request(
        self,
        ask: Ask,
        at_ns: int,
        deadline_ns: int,
        trace: CallTrace | None,
        content: tuple[TokenPayload | TensorPayload, Mapping[str, Shape]],
        preprocess_ns: int,
    ) -> Request:
        return Request(
            id=self._queue.next_id(),
            model=ask.view.info.name,
            klass=ask.klass,
            shapes=content[1],
            payload=content[0],
            arrived_ns=at_ns,
            deadline_ns=deadline_ns,
            preprocess_ns=preprocess_ns,
            trace=trace,
        )

    def _check_vocabulary(self, ask: Ask) -> None:
        assert ask.shapes is not None
        tokenizer = next(iter(ask.shapes))
        size = self._tokenizing.vocabulary(ask.view.info, tokenizer)
        if size and ask.highest_id >= size:
            raise InvalidRequest(
                f"token id {ask.highest_id} is not in tokenizer {shown(tokenizer)}; "
                f"accepted: 0 to {size - 1}"
            )
