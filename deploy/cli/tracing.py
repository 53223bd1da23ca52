"""What commands that ask a model share: every call is traced, and its own spans are kept."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deploy.traces.client import CLIENT, CallTraces, ClientTrace, kept_in, wall_offset_ns


@contextmanager
def traced(name: str, state: Path, address: str) -> Iterator[ClientTrace]:
    """A command's trace; at the end its spans go to those of the local cluster it has asked."""
    trace = ClientTrace(name, time.monotonic_ns)
    try:
        yield trace
    finally:
        directory = kept_in(state, address)
        if directory is not None:
            trace.write(directory, wall_offset_ns())


@contextmanager
def traced_calls(state: Path, address: str) -> Iterator[CallTraces]:
    """The same for a command each of whose calls is a trace."""
    traces = CallTraces(time.monotonic_ns)
    try:
        yield traces
    finally:
        directory = kept_in(state, address)
        if directory is not None:
            traces.write(directory, CLIENT, wall_offset_ns())


def tell_trace(trace_id: str) -> None:
    """The trace's id, on standard error so that the answer stands alone."""
    from rich.console import Console
    from rich.text import Text

    Console(stderr=True).print(Text(f"trace {trace_id}", style="dim"), soft_wrap=True)
