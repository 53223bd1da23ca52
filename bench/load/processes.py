"""Driver processes: started together, begun at one moment, watched until they end."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from deploy.transport import as_it_comes

_START_AFTER_NS = 100_000_000
_TICK_S = 0.2
_PREPARED_S = 60.0

Event = tuple[float, Callable[[], None]]
"""Seconds after the start of a run, and what happens then."""


class DriverError(Exception):
    """A driver process failed; the text is what it said."""


def soon() -> int:
    """The start of a run whose drivers are prepared: a moment from now, in monotonic ns."""
    return time.monotonic_ns() + _START_AFTER_NS


class CommonStart:
    """One start for several runs that are driven at the same time, each from its own thread."""

    def __init__(self, runs: int) -> None:
        self._start_ns = 0
        self._barrier = threading.Barrier(runs, self._decide)

    def __call__(self) -> int:
        """The common start, once every run is prepared; DriverError when one never is."""
        try:
            self._barrier.wait(_PREPARED_S)
        except threading.BrokenBarrierError:
            raise DriverError("a run beside this one was never prepared") from None
        return self._start_ns

    def _decide(self) -> None:
        self._start_ns = soon()


def drive(
    module: str,
    arguments: Sequence[Sequence[str]],
    base: Path,
    limit_s: float,
    *,
    on_tick: Callable[[float], None] | None = None,
    events: Sequence[Event] = (),
    start_at: Callable[[], int] = soon,
) -> None:
    """Runs `module` once for each list of arguments and returns when all have ended.

    Each says "prepared" when it is and then reads the common start time. `on_tick` gets the
    seconds since the start while they run; `events` happen in between, in this process. Logs go
    to `base`. `start_at` gives the start, in monotonic ns, once all are prepared. Raises
    DriverError when one fails or none ends within `limit_s`.
    """
    drivers = [
        _start([sys.executable, "-m", module, *each], base / f"{number}.log")
        for number, each in enumerate(arguments)
    ]
    try:
        for driver in drivers:
            _expect_prepared(driver, base)
        start_ns = start_at()
        for driver in drivers:
            assert driver.stdin is not None
            driver.stdin.write(f"{start_ns}\n")
            driver.stdin.flush()
        _wait(drivers, start_ns, limit_s, base, on_tick, events)
    finally:
        for driver in drivers:
            driver.kill()
            driver.communicate()


def _start(command: Sequence[str], log: Path) -> subprocess.Popen[str]:
    with log.open("w") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
            # A caller's gRPC is as it comes.
            env=as_it_comes(os.environ),
        )


def _expect_prepared(driver: subprocess.Popen[str], base: Path) -> None:
    assert driver.stdout is not None
    if driver.stdout.readline().strip() != "prepared":
        driver.wait()
        raise DriverError(_said(base))


def _wait(
    drivers: list[subprocess.Popen[str]],
    start_ns: int,
    limit_s: float,
    base: Path,
    on_tick: Callable[[float], None] | None,
    events: Sequence[Event],
) -> None:
    to_come = deque(sorted(events, key=lambda event: event[0]))
    for driver in drivers:
        while True:
            elapsed_s = (time.monotonic_ns() - start_ns) / 1e9
            while to_come and to_come[0][0] <= elapsed_s:
                to_come.popleft()[1]()
            next_s = to_come[0][0] - elapsed_s if to_come else _TICK_S
            try:
                code = driver.wait(min(_TICK_S, next_s))
                break
            except subprocess.TimeoutExpired:
                elapsed_s = (time.monotonic_ns() - start_ns) / 1e9
                if elapsed_s > limit_s:
                    raise DriverError(f"no end after {limit_s:.0f} s\n{_said(base)}") from None
                if on_tick is not None:
                    on_tick(elapsed_s)
        if code != 0:
            raise DriverError(f"the driver ended with code {code}\n{_said(base)}")


def _said(base: Path) -> str:
    return "\n".join(log.read_text()[-4000:] for log in sorted(base.glob("*.log")))
