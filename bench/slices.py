"""Short slices of saturating load against several targets in turns, by one driver process.

`python -m bench.slices` reads its targets as a line of JSON, then a slice a line, and answers each
with what it measured. Its connections stand all the while, so that a slice is nothing but requests.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import grpc
import uvloop
from pydantic import TypeAdapter

from bench.load.processes import DriverError
from deploy.channels import aio_channel
from deploy.transport import as_it_comes
from protos.tracing.context import TRACEPARENT, write_traceparent

_CONNECT_S = 30
_END_S = 10
_MS = 1e6


@dataclass(frozen=True, slots=True)
class SliceTargets:
    """Where `method` is called with `body` (in hexadecimal digits), `in_flight` calls at a time."""

    addresses: tuple[str, ...]
    method: str
    body: str
    in_flight: int


@dataclass(frozen=True, slots=True)
class Slice:
    """`seconds` of load at one target, each call of which asks to be recorded where `traced`."""

    target: int
    seconds: float
    traced: bool = False


@dataclass(frozen=True, slots=True)
class Sliced:
    """What one slice came to: calls, those of them without an answer, and calls a second.

    `late_per_s` is of its second half, when what the first half has left to do is being done, too.
    """

    calls: int
    failed: int
    per_s: float
    late_per_s: float
    p50_ms: float
    p99_ms: float


class SliceDriver:
    """A driver process, for the one that tells it what to do."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def begin(self, asked: Slice) -> None:
        """Start a slice; `end` has to follow. Raises DriverError."""
        self._tell(asdict(asked))

    def end(self) -> Sliced:
        """Wait for the end of the slice that was begun; raises DriverError."""
        return TypeAdapter(Sliced).validate_json(self._line())

    def prepare(self, targets: SliceTargets) -> None:
        """Connect to all targets; raises DriverError."""
        self._tell(asdict(targets))
        self._line()

    def _tell(self, what: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(what) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise DriverError("the driver of the slices has ended") from None

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise DriverError("the driver of the slices has ended; what it said is above")
        return line


@contextmanager
def slice_driver(targets: SliceTargets) -> Iterator[SliceDriver]:
    """A driver that is connected to its targets; raises DriverError."""
    with subprocess.Popen(
        [sys.executable, "-m", "bench.slices"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # A caller's gRPC is as it comes.
        env=as_it_comes(os.environ),
    ) as process:
        try:
            driver = SliceDriver(process)
            driver.prepare(targets)
            yield driver
        finally:
            process.kill()


class _Run:
    """One slice while it lasts."""

    def __init__(self, asked: Slice, body: bytes) -> None:
        self._traced = asked.traced
        self._body = body
        self._begun_ns = time.monotonic_ns()
        self._until_ns = self._begun_ns + int(asked.seconds * 1e9)
        self._calls = self._failed = 0
        self._took_ns: list[int] = []
        self._ends_ns: list[int] = []

    async def in_turn(self, method: Any) -> None:
        """Call after call until the slice is over."""
        while (now := time.monotonic_ns()) < self._until_ns:
            self._calls += 1
            metadata = None
            if self._traced:
                ids = secrets.randbits(128) or 1, secrets.randbits(64) or 1
                metadata = ((TRACEPARENT, write_traceparent(*ids)),)
            try:
                await method(self._body, metadata=metadata)
            except grpc.aio.AioRpcError:
                self._failed += 1
            ended = time.monotonic_ns()
            self._ends_ns.append(ended)
            self._took_ns.append(ended - now)

    def sliced(self) -> Sliced:
        """What it came to."""
        took = sorted(self._took_ns)
        half_ns = (self._begun_ns + self._until_ns) // 2
        return Sliced(
            calls=self._calls,
            failed=self._failed,
            per_s=self._rate(self._begun_ns),
            late_per_s=self._rate(half_ns),
            p50_ms=_at(took, 0.5) / _MS,
            p99_ms=_at(took, 0.99) / _MS,
        )

    def _rate(self, since_ns: int) -> float:
        """Calls a second from a time on, until the last one ended."""
        ended = sum(at >= since_ns for at in self._ends_ns)
        return ended * 1e9 / max(1, max(self._ends_ns, default=since_ns) - since_ns)


def _at(ordered: Sequence[int], share: float) -> int:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0


async def _serve() -> None:
    loop = asyncio.get_running_loop()

    async def line() -> str:
        return await loop.run_in_executor(None, sys.stdin.readline)

    def tell(what: Mapping[str, Any]) -> None:
        sys.stdout.write(json.dumps(what) + "\n")
        sys.stdout.flush()

    targets = TypeAdapter(SliceTargets).validate_json(await line())
    body = bytes.fromhex(targets.body)
    channels = [aio_channel(address) for address in targets.addresses]
    async with asyncio.timeout(_CONNECT_S):
        await asyncio.gather(*(channel.channel_ready() for channel in channels))
    methods: list[Any] = [channel.unary_unary(targets.method) for channel in channels]
    gc.collect()
    gc.freeze()
    tell({"connected": len(channels)})
    while text := await line():
        asked = TypeAdapter(Slice).validate_json(text)
        run = _Run(asked, body)
        async with asyncio.timeout(asked.seconds + _END_S):
            await asyncio.gather(
                *(run.in_turn(methods[asked.target]) for _ in range(targets.in_flight))
            )
        tell(asdict(run.sliced()))


if __name__ == "__main__":
    uvloop.run(_serve())
