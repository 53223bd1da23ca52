"""The owner of the queues: takes requests, gives them to workers, ends every one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from controlplane.config import ControlPlaneConfig
from controlplane.policy.records import Answer, Request
from controlplane.registry import Registry, WorkerSession
from controlplane.telemetry import Telemetry
from controlplane.work import BatchDone, WorkerPort


class Dispatcher:
    """All state belongs to `loop`; every method is called on it and none of them blocks."""

    def __init__(
        self,
        config: ControlPlaneConfig,
        registry: Registry,
        *,
        now_ns: Callable[[], int],
        loop: asyncio.AbstractEventLoop,
        telemetry: Telemetry | None = None,
    ) -> None:
        raise NotImplementedError

    def now_ns(self) -> int:
        """The monotonic clock that every time of a request is on."""
        raise NotImplementedError

    def next_id(self) -> int:
        """A request id that this process never gives again."""
        raise NotImplementedError

    def submit(self, request: Request) -> asyncio.Future[Answer]:
        """Admit a request. The future ends with an Answer or a ControlPlaneError.

        Raises Refused, Unavailable, NotFound, InvalidRequest, Unsatisfiable or TooLate
        when the request is not admitted; nothing is kept of it then.
        """
        raise NotImplementedError

    def cancel(self, request: Request) -> None:
        """The caller went away: queued work is dropped, running work cancelled on its worker."""
        raise NotImplementedError

    def attach(self, session: WorkerSession, port: WorkerPort) -> None:
        """A worker's stream is open: give it work from now on."""
        raise NotImplementedError

    def detach(self, session: WorkerSession) -> None:
        """A worker is gone: what it had is queued again while its slack allows."""
        raise NotImplementedError

    def refresh(self, models: frozenset[str]) -> None:
        """The registry's membership of these models changed."""
        raise NotImplementedError

    def heard(self, session: WorkerSession) -> None:
        """A message came from the worker."""
        raise NotImplementedError

    def completed(self, session: WorkerSession, done: BatchDone) -> None:
        """A batch ended on a worker."""
        raise NotImplementedError
