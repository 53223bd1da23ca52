"""The spans of whoever asks a control plane: a command of `orchid`, or a driver of load.

Interceptors of their channels (`deploy.interceptors`) begin and end them. Made without
OpenTelemetry's packages, which are loaded only at the end, to write them.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from protos.tracing.context import TRACEPARENT, write_traceparent

if TYPE_CHECKING:
    from protos.tracing.spans import SpanRecord

CLIENT, LOAD = "client", "load"
PREPARE = "prepare"
# Where a local cluster keeps spans, below its state directory.
FOLDER = "traces"
_FILE_BYTES = 4 << 20
# A call's end is told to whoever waits for it before it is told here.
_ENDS_WITHIN_S = 1.0
# Calls of one driver that are recorded; later ones are not.
_MOST_CALLS = 5000
# A share is drawn in so many parts.
_PARTS = 1 << 30


class OpenCall:
    """One call of a trace: `metadata` goes with it, `code` is why it failed, if it did.

    `done` says that its end was told.
    """

    __slots__ = (
        "_now_ns",
        "_told",
        "begun_ns",
        "code",
        "done",
        "ended_ns",
        "metadata",
        "method",
        "span_id",
        "trace_id",
    )

    def __init__(
        self,
        trace_id: int,
        method: str,
        now_ns: Callable[[], int],
        told: Callable[[OpenCall], None],
    ) -> None:
        self.trace_id = trace_id
        self.span_id = secrets.randbits(64) or 1
        self.method = method
        self.metadata = ((TRACEPARENT, write_traceparent(trace_id, self.span_id)),)
        self.code = ""
        self.ended_ns = 0
        self.done = False
        self._now_ns = now_ns
        self._told = told
        self.begun_ns = now_ns()

    def stop(self) -> None:
        """It has ended now; how is told by `end`."""
        self.ended_ns = self._now_ns()

    def end(self, code: str) -> None:
        """It has ended, now or when it was stopped; `code` names the failure, empty for none."""
        self.code = code
        self.ended_ns = self.ended_ns or self._now_ns()
        self.done = True
        self._told(self)

    def record(self, parent_id: int, ended_ns: int) -> SpanRecord:
        """Its span; `ended_ns` is for one that has not ended."""
        from protos.tracing.spans import Kind, SpanRecord

        return SpanRecord(
            self.method,
            self.trace_id,
            self.span_id,
            parent_id,
            self.begun_ns,
            self.ended_ns or ended_ns,
            Kind.CLIENT,
            {"rpc.system": "grpc"},
            fault=self.code,
        )


class ClientTrace:
    """Everything that one command asks, as one trace. Calls may be made from several threads.

    `now_ns` is a monotonic clock, `name` that of the command. A `Recorder`.
    """

    def __init__(self, name: str, now_ns: Callable[[], int]) -> None:
        self._name = name
        self._now_ns = now_ns
        self._trace_id = secrets.randbits(128) or 1
        self._root_id = secrets.randbits(64) or 1
        self._prepare_id = secrets.randbits(64) or 1
        self._begun_ns = now_ns()
        self._changed = threading.Condition()
        self._calls: list[OpenCall] = []

    @property
    def id(self) -> str:
        """The trace's id, for people."""
        return f"{self._trace_id:032x}"

    @property
    def calls(self) -> tuple[OpenCall, ...]:
        """Those that were begun, in order."""
        with self._changed:
            return tuple(self._calls)

    def begin(self, method: str) -> OpenCall:
        """A call begins."""
        opened = OpenCall(self._trace_id, method, self._now_ns, self._ended)
        with self._changed:
            self._calls.append(opened)
        return opened

    @contextmanager
    def call(self, method: str) -> Iterator[OpenCall]:
        """One call that no interceptor knows of, for as long as the block lasts."""
        opened = self.begin(method)
        try:
            yield opened
        finally:
            opened.end(opened.code)

    def _ended(self, call: OpenCall) -> None:
        with self._changed:
            self._changed.notify_all()

    def records(self) -> list[SpanRecord]:
        """The command's spans, the root first; it has ended with its last call."""
        from protos.tracing.spans import SpanRecord

        with self._changed:
            self._changed.wait_for(lambda: all(c.done for c in self._calls), _ENDS_WITHIN_S)
            calls = list(self._calls)
        now_ns = self._now_ns()
        # Closing the connection is nothing that anybody waits for.
        ended_ns = max((call.ended_ns or now_ns for call in calls), default=now_ns)
        root = SpanRecord(self._name, self._trace_id, self._root_id, 0, self._begun_ns, ended_ns)
        made = [call.record(self._root_id, ended_ns) for call in calls]
        if made:
            # What it took to be able to ask: the connection, for the most part.
            until_ns = min(call.begun_ns for call in calls)
            prepared = SpanRecord(
                PREPARE, self._trace_id, self._prepare_id, self._root_id, self._begun_ns, until_ns
            )
            made.insert(0, prepared)
        return [root, *made]

    def write(self, directory: Path, wall_offset_ns: int) -> None:
        """Adds the command's spans to those of a cluster."""
        write_spans(directory, CLIENT, [self.records()], wall_offset_ns)


class CallTraces:
    """Calls each of which is a trace of its own, a `share` (0 to 1) of all. A `Recorder`.

    `now_ns` is a monotonic clock. The first thousands are kept, so that a long run takes no more
    memory than a short one.
    """

    def __init__(
        self, now_ns: Callable[[], int], share: float = 1.0, most: int = _MOST_CALLS
    ) -> None:
        self._now_ns = now_ns
        self._share = share
        self._left = most
        self._lock = threading.Lock()
        self._ended: list[OpenCall] = []
        self.last_id = ""

    def begin(self, method: str) -> OpenCall | None:
        """A call begins; None when it is not of the share."""
        if self._left <= 0 or secrets.randbelow(_PARTS) >= self._share * _PARTS:
            return None
        self._left -= 1
        opened = OpenCall(secrets.randbits(128) or 1, method, self._now_ns, self._keep)
        self.last_id = f"{opened.trace_id:032x}"
        return opened

    def _keep(self, call: OpenCall) -> None:
        with self._lock:
            self._ended.append(call)

    def write(self, directory: Path, process: str, wall_offset_ns: int) -> None:
        """Adds the spans of the calls that have ended to those of a cluster."""
        with self._lock:
            ended, self._ended = self._ended, []
        if ended:
            spans = [[call.record(0, call.ended_ns)] for call in ended]
            write_spans(directory, process, spans, wall_offset_ns)


def write_spans(
    directory: Path, process: str, traces: Sequence[Sequence[SpanRecord]], wall_offset_ns: int
) -> None:
    """Adds spans to those of a cluster, in the file of `process`, a line a trace."""
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    from protos.tracing.files import SpanFile, span_file
    from protos.tracing.spans import SpanSink

    file = SpanFile(span_file(directory, process), _FILE_BYTES)
    sink = SpanSink(
        (SimpleSpanProcessor(file),),
        resource={"service.name": f"orchid-{process}"},
        scope="orchid.client",
        wall_offset_ns=wall_offset_ns,
    )
    for spans in traces:
        sink.emit(spans)
    sink.close()


def wall_offset_ns() -> int:
    """From the monotonic clock to wall-clock time."""
    return int(datetime.now(UTC).timestamp() * 1e9) - time.monotonic_ns()


def kept_in(state: Path, address: str) -> Path | None:
    """Where the local cluster at this address keeps spans; None when it does not."""
    from deploy.state import running_address

    folder = state / FOLDER
    return folder if folder.is_dir() and running_address(state) == address else None
