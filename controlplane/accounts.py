"""The account of every request: counted, measured and, where it is asked for, recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from controlplane import ends
from controlplane.counters import Counters
from controlplane.errors import ControlPlaneError, TooLate
from controlplane.measures import NONE, Callers, RequestMeasures
from controlplane.policy.hands import Flight, parts_of
from controlplane.policy.records import Answer, Request
from controlplane.policy.selector import Stage
from controlplane.records.recorder import RequestRecorder
from controlplane.telemetry.requests import request_ended
from controlplane.telemetry.telemetry import Telemetry

_NEVER_SLOW: Final = 1 << 62


class Accounts:
    """What is kept of requests, by the dispatcher that owns them. Lives on the event loop.

    `policy` names the one that decides; `telemetry` None traces nothing, `records` None keeps no
    records.
    """

    def __init__(
        self,
        callers: Callers,
        telemetry: Telemetry | None,
        *,
        policy: str,
        now_ns: Callable[[], int],
        records: RequestRecorder | None = None,
    ) -> None:
        self.counters = Counters()
        self.measures = RequestMeasures(callers)
        self._telemetry = telemetry
        self._slow_ns = _NEVER_SLOW if telemetry is None else telemetry.slow_ns
        self._policy = policy
        self._now_ns = now_ns
        self._records = records

    def arrived(self, model: str, request: Request) -> None:
        """A request came; `model` is empty for one that is not deployed."""
        self.measures.arrived(model or NONE, request.klass)

    def turned_away(self, model: str, request: Request, error: ControlPlaneError) -> None:
        """It was not admitted."""
        word = ends.word_of(error)
        self.counters.ended(model, word)
        self.measures.end(model or NONE, request.klass, word)
        now = self._now_ns()
        if self._records is not None:
            self._records.ended(request, model, None, word, now)
        self._record(request, None, error, now)

    def sent(self, flight: Flight) -> None:
        """A run is on its way to its worker."""
        self.counters.dispatched += len(flight.requests)
        self.measures.sent(flight)
        stage: Stage | None = flight.requests[0].stage
        # A shadow is no request: its run is recorded as done after the end of one.
        if self._records is not None and (stage is None or not stage.shadow):
            self._records.sent(flight)
        for request in flight.requests:
            if request.trace is not None and request.trace.recording:
                request.traceparent = request.trace.send(flight.sent_ns, flight)

    def ran(self, flight: Flight, run_ns: int, cpu_ns: int, peak_bytes: int) -> None:
        """A run took this on its worker: whoever was in it is charged, whatever he gets for it."""
        charges_ns = parts_of(flight, cpu_ns)
        self.measures.ran(flight, run_ns, charges_ns)
        if self._records is not None:
            self._records.ran(flight, run_ns, charges_ns, peak_bytes)

    def lost(self, request: Request, flight: Flight, error: ControlPlaneError) -> None:
        """Its run came to nothing; another may follow."""
        if request.trace is not None:
            request.trace.lost(flight, self._now_ns(), ends.word_of(error))

    def answered(self, request: Request, answer: Answer, now_ns: int) -> None:
        """It has its answer, in time."""
        self.counters.answered(request.model, answer.provenance.variant)
        self.measures.end(request.model, request.klass, ends.ANSWERED)
        self.measures.answered(request, answer)
        if self._records is not None:
            self._records.ended(request, request.model, answer, ends.ANSWERED, now_ns)
        if request.trace is not None or now_ns - request.arrived_ns >= self._slow_ns:
            self._record(request, answer, None, now_ns)

    def failed(self, request: Request, error: ControlPlaneError) -> None:
        """It was admitted and gets no answer."""
        now, word = self._now_ns(), ends.word_of(error)
        self.counters.ended(request.model, word)
        self.measures.end(request.model, request.klass, word)
        if isinstance(error, TooLate):
            self.measures.miss(request)
        if not request.dispatches:
            self.measures.left(request, now)
        if self._records is not None:
            self._records.ended(request, request.model, None, word, now)
        self._record(request, None, error, now)

    def _record(
        self,
        request: Request,
        answer: Answer | None,
        error: ControlPlaneError | None,
        now_ns: int,
    ) -> None:
        if self._telemetry is not None:
            request_ended(self._telemetry, request, answer, error, now_ns, self._policy)
