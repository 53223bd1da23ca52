"""A collector that counts what it is sent: `python -m bench.otlp_receiver`.

Serves OTLP's trace and metrics services over gRPC. Prints the address it listens on; for each
line it reads, the spans and the metric points it has received so far.
"""

from __future__ import annotations

import sys
from concurrent import futures
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1 import (
    metrics_service_pb2,
    metrics_service_pb2_grpc,
)
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


class Spans(trace_service_pb2_grpc.TraceServiceServicer):
    """Counts spans."""

    def __init__(self) -> None:
        self.count = 0

    def Export(self, request: Any, context: object) -> Any:  # noqa: N802
        """Takes a batch of spans."""
        for resource in request.resource_spans:
            self.count += sum(len(scope.spans) for scope in resource.scope_spans)
        return trace_service_pb2.ExportTraceServiceResponse()


class Metrics(metrics_service_pb2_grpc.MetricsServiceServicer):
    """Counts metrics."""

    def __init__(self) -> None:
        self.count = 0

    def Export(self, request: Any, context: object) -> Any:  # noqa: N802
        """Takes a collection of metrics."""
        for resource in request.resource_metrics:
            self.count += sum(len(scope.metrics) for scope in resource.scope_metrics)
        return metrics_service_pb2.ExportMetricsServiceResponse()


def main() -> None:
    """Serves until standard input ends."""
    spans, metrics = Spans(), Metrics()
    server = grpc.server(futures.ThreadPoolExecutor(2))
    add: Any = trace_service_pb2_grpc.add_TraceServiceServicer_to_server
    add(spans, server)
    add = metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server
    add(metrics, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    sys.stdout.write(f"127.0.0.1:{port}\n")
    sys.stdout.flush()
    for _ in sys.stdin:
        sys.stdout.write(f"{spans.count} {metrics.count}\n")
        sys.stdout.flush()
    server.stop(None)


if __name__ == "__main__":
    main()
