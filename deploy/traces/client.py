"""The spans of a command of `orchid` that asks a control plane: a root, what came before its calls,
and a span for each call.

Made without OpenTelemetry's packages, which a command loads only at its end, to write them.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from protos.tracing.context import TRACEPARENT, write_traceparent

if TYPE_CHECKING:
    from protos.tracing.spans import SpanRecord

CLIENT_FILE = "client"
PREPARE = "prepare"
# Where a local cluster keeps spans, below its state directory.
FOLDER = "traces"
_FILE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class _Call:
    span_id: int
    method: str
    begun_ns: int
    ended_ns: int
    code: str


class ClientTrace:
    """Everything that one command asks, as one trace. Calls may be made from several threads.

    `now_ns` is a monotonic clock, `name` that of the command.
    """

    def __init__(self, name: str, now_ns: Callable[[], int]) -> None:
        self._name = name
        self._now_ns = now_ns
        self._trace_id = secrets.randbits(128) or 1
        self._root_id = secrets.randbits(64) or 1
        self._prepare_id = secrets.randbits(64) or 1
        self._begun_ns = now_ns()
        self._lock = threading.Lock()
        self._calls: list[_Call] = []

    @property
    def id(self) -> str:
        """The trace's id, for people."""
        return f"{self._trace_id:032x}"

    @contextmanager
    def call(self, method: str) -> Iterator[CallContext]:
        """One call, for as long as the block lasts."""
        span_id = secrets.randbits(64) or 1
        context = CallContext(((TRACEPARENT, write_traceparent(self._trace_id, span_id)),))
        begun_ns = self._now_ns()
        try:
            yield context
        finally:
            ended = _Call(span_id, method, begun_ns, self._now_ns(), context.code)
            with self._lock:
                self._calls.append(ended)

    def records(self) -> list[SpanRecord]:
        """The command's spans, the root first; it has ended with its last call."""
        from protos.tracing.spans import Kind, SpanRecord

        # Closing the connection is nothing that anybody waits for.
        ended_ns = max((call.ended_ns for call in self._calls), default=self._now_ns())
        root = SpanRecord(self._name, self._trace_id, self._root_id, 0, self._begun_ns, ended_ns)
        made = [
            SpanRecord(
                call.method,
                self._trace_id,
                call.span_id,
                self._root_id,
                call.begun_ns,
                call.ended_ns,
                Kind.CLIENT,
                {"rpc.system": "grpc"},
                fault=call.code,
            )
            for call in self._calls
        ]
        if made:
            # What it took to be able to ask: the connection, for the most part.
            until_ns = min(call.begun_ns for call in made)
            prepared = SpanRecord(
                PREPARE, self._trace_id, self._prepare_id, self._root_id, self._begun_ns, until_ns
            )
            made.insert(0, prepared)
        return [root, *made]

    def write(self, directory: Path, wall_offset_ns: int) -> None:
        """Adds the command's spans to those of a cluster."""
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor

        from protos.tracing.files import SpanFile, span_file
        from protos.tracing.spans import SpanSink

        file = SpanFile(span_file(directory, CLIENT_FILE), _FILE_BYTES)
        sink = SpanSink(
            (SimpleSpanProcessor(file),),
            resource={"service.name": "orchid-client"},
            scope="orchid.client",
            wall_offset_ns=wall_offset_ns,
        )
        sink.emit(self.records())
        sink.close()


class CallContext:
    """One call that is made: `metadata` goes with it, `code` is why it failed, if it did."""

    __slots__ = ("code", "metadata")

    def __init__(self, metadata: tuple[tuple[str, str], ...]) -> None:
        self.metadata = metadata
        self.code = ""


def kept_in(state: Path, address: str) -> Path | None:
    """Where the local cluster at this address keeps spans; None when it does not."""
    from deploy.state import running_address

    folder = state / FOLDER
    return folder if folder.is_dir() and running_address(state) == address else None
