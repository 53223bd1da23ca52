"""What a call pays for being able to be recorded when it is not: a look at its metadata."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import grpc

from controlplane.config import TelemetryConfig
from controlplane.rpc.server import OIP
from controlplane.rpc.traced import TracedHandlers
from controlplane.telemetry.telemetry import Telemetry
from protos.tracing.spans import SpanSink

_SHARE = 0.01


class _Details(NamedTuple):
    """What the transport says of a call before its message is read."""

    method: str
    invocation_metadata: tuple[tuple[str, str], ...]


def unsampled_ns(calls: int = 20_000, rounds: int = 5) -> float:
    """What finding a handler takes more, in ns a call, where a small share is recorded.

    That of the fastest of the rounds.
    """
    method = OIP.methods_by_name["ModelInfer"]
    handler: Any = grpc.unary_unary_rpc_method_handler(lambda request, context: request)
    plain = grpc.method_handlers_generic_handler(OIP.full_name, {method.name: handler})
    sink = SpanSink((), resource={}, scope="bench", wall_offset_ns=0)
    # None of them is drawn: what is drawn is what a recorded call costs.
    telemetry = Telemetry(
        TelemetryConfig(sample_ratio=_SHARE, traces_per_s=0.0), wall_offset_ns=0, sink=sink
    )
    traced = TracedHandlers(OIP, plain, telemetry, time.monotonic_ns)
    details = _Details(
        f"/{OIP.full_name}/{method.name}",
        (("user-agent", "grpc-python/1 grpc-c/1 (linux; chttp2)"), ("accept-encoding", "gzip")),
    )
    found = [_took_ns(traced.service, details, calls) for _ in range(rounds)]
    without = [_took_ns(plain.service, details, calls) for _ in range(rounds)]
    return max(0.0, min(found) - min(without))


def _took_ns(service: Callable[[Any], Any], details: _Details, calls: int) -> float:
    began = time.perf_counter_ns()
    for _ in range(calls):
        service(details)
    return (time.perf_counter_ns() - began) / calls
