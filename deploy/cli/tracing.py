"""What commands that ask a model share: every one is a trace, and its own spans are kept."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from deploy.traces.client import ClientTrace, kept_in


@contextmanager
def traced(name: str, state: Path, address: str) -> Iterator[ClientTrace]:
    """A command's trace; at the end its spans go to those of the local cluster it has asked."""
    trace = ClientTrace(name, time.monotonic_ns)
    try:
        yield trace
    finally:
        directory = kept_in(state, address)
        if directory is not None:
            now_s = datetime.now(UTC).timestamp()
            trace.write(directory, int(now_s * 1e9) - time.monotonic_ns())


def tell_trace(trace: ClientTrace) -> None:
    """The trace's id, on standard error so that the answer stands alone."""
    from rich.console import Console
    from rich.text import Text

    Console(stderr=True).print(Text(f"trace {trace.id}", style="dim"), soft_wrap=True)
