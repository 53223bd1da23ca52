"""Serves what a process measures: Prometheus scrapes it, and OTLP may have it pushed.

Readings become OpenTelemetry's data points and leave through its exporters. They do not pass
through its instruments, of which histograms cannot be observed at a scrape: see
docs/decisions/0062-measured-in-plain-integers.md.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, cast

from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExporter,
    MetricExportResult,
    MetricReader,
    MetricsData,
    NumberDataPoint,
    PeriodicExportingMetricReader,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.metrics_core import Metric as PrometheusMetric
from prometheus_client.registry import Collector

from protos.listening import cannot_listen
from protos.measures import NANOSECONDS, Buckets, Family, Kind, Reading
from protos.scraping import ScrapeServer

# A scrape fails when the event loop does not come round to it for so long.
_PATIENCE_S = 5.0
_CUMULATIVE = AggregationTemporality.CUMULATIVE
_LOOP_DELAY = Family(
    "orchid.event_loop.delay",
    Kind.GAUGE,
    "How long the event loop took to come round to this scrape.",
    unit="s",
    per=NANOSECONDS,
)
# Nobody keeps the least and the most of a distribution.
_NOT_KEPT = cast(float, None)


@dataclass(frozen=True, slots=True)
class Clocks:
    """Monotonic time, and the time since the epoch that data points are dated with; in ns."""

    now_ns: Callable[[], int]
    wall_ns: Callable[[], int]


@dataclass(frozen=True, slots=True)
class Outlets:
    """Where measurements go: `listen` (host:port) is scraped, `endpoint` is pushed to.

    Either may be empty. `interval_ms` is the time between pushes. With a `context` what is
    scraped is scraped by TLS.
    """

    listen: str = ""
    endpoint: str = ""
    interval_ms: int = 0
    context: ssl.SSLContext | None = None


class Exposition:
    """Takes readings from `read`, on the event loop `loop`, whenever somebody asks.

    `resource` says who this process is, in OpenTelemetry's attribute names. `start` and `stop`
    block for moments and must not be called on the event loop.
    """

    def __init__(
        self,
        outlets: Outlets,
        read: Callable[[], list[Reading]],
        *,
        resource: Mapping[str, str],
        loop: asyncio.AbstractEventLoop,
        clocks: Clocks,
    ) -> None:
        self._outlets = outlets
        self._read = read
        self._resource = Resource.create(dict(resource))
        self._loop = loop
        self._clocks = clocks
        self._began_ns, self._began_wall_ns = clocks.now_ns(), clocks.wall_ns()
        self._scope = InstrumentationScope("orchid")
        self._provider: MeterProvider | None = None
        self._server: ScrapeServer | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> str:
        """Begins; returns the bound address of what is scraped, empty without one.

        Raises OSError, naming the address, when it cannot be bound.
        """
        registry = CollectorRegistry()
        readers: list[MetricReader] = []
        if self._outlets.listen:
            inner = CollectorRegistry()
            readers.append(_Scraped(self._completed, inner))
            registry.register(_OneByOne(inner))
            ProcessCollector(registry=registry)
        if self._outlets.endpoint:
            secure = self._outlets.endpoint.startswith("https://")
            exporter = OTLPMetricExporter(endpoint=self._outlets.endpoint, insecure=not secure)
            readers.append(
                PeriodicExportingMetricReader(
                    _Pushed(exporter, self._completed), self._outlets.interval_ms
                )
            )
        self._provider = MeterProvider(readers, self._resource, shutdown_on_exit=False)
        self._provider.get_meter("orchid").create_observable_gauge(
            "orchid.uptime",
            [self._uptime],
            unit="s",
            description="Time since the process began to measure.",
        )
        return self._serve(registry) if self._outlets.listen else ""

    def stop(self) -> None:
        """Sends what is left and stops; the event loop must be running on."""
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
        if self._provider is not None:
            self._provider.shutdown()

    def _serve(self, registry: CollectorRegistry) -> str:
        host, _, port = self._outlets.listen.rpartition(":")
        try:
            self._server = ScrapeServer(
                host.removeprefix("[").removesuffix("]"),
                int(port),
                registry,
                context=self._outlets.context,
                now_ns=self._clocks.now_ns,
            )
        except OSError as error:
            raise cannot_listen(self._outlets.listen, error, "metrics") from None
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="metrics", daemon=True
        )
        self._thread.start()
        return f"{host}:{self._server.server_port}"

    def _uptime(self, options: CallbackOptions) -> Iterable[Observation]:
        return [Observation((self._clocks.now_ns() - self._began_ns) / NANOSECONDS)]

    def _completed(self, collected: MetricsData) -> MetricsData:
        """What the SDK has collected, with everything that is read."""
        families: dict[str, list[Reading]] = {}
        for reading in self._snapshot():
            families.setdefault(reading.family.name, []).append(reading)
        wall_ns = self._clocks.wall_ns()
        metrics = [self._metric(readings, wall_ns) for readings in families.values()]
        (resource,) = collected.resource_metrics
        scopes = [*resource.scope_metrics, ScopeMetrics(self._scope, metrics, "")]
        return MetricsData([replace(resource, scope_metrics=scopes)])

    def _snapshot(self) -> list[Reading]:
        """One moment of the process, read between two turns of its event loop."""
        answer: Future[list[Reading]] = Future()
        asked_ns = self._clocks.now_ns()

        def look() -> None:
            if not answer.set_running_or_notify_cancel():
                return
            delay_ns = self._clocks.now_ns() - asked_ns
            try:
                answer.set_result([*self._read(), Reading(_LOOP_DELAY, (), delay_ns)])
            except Exception as error:
                answer.set_exception(error)

        self._loop.call_soon_threadsafe(look)
        try:
            return answer.result(_PATIENCE_S)
        except TimeoutError:
            answer.cancel()
            raise

    def _metric(self, readings: list[Reading], wall_ns: int) -> Metric:
        family = readings[0].family
        began = self._began_wall_ns
        if family.kind is Kind.HISTOGRAM:
            data: Sum | Gauge | Histogram = Histogram(
                [_distribution(reading, began, wall_ns) for reading in readings], _CUMULATIVE
            )
        else:
            points = [
                NumberDataPoint(
                    dict(zip(family.labels, labels, strict=True)),
                    began,
                    wall_ns,
                    cast(float, value) / family.per if family.per != 1 else cast(float, value),
                )
                for _, labels, value in readings
            ]
            counts = family.kind is Kind.COUNTER
            data = Sum(points, _CUMULATIVE, is_monotonic=True) if counts else Gauge(points)
        return Metric(family.name, family.help, family.unit, data)


def _distribution(reading: Reading, began_ns: int, wall_ns: int) -> HistogramDataPoint:
    family, labels, value = reading
    assert isinstance(value, Buckets)
    return HistogramDataPoint(
        attributes=dict(zip(family.labels, labels, strict=True)),
        start_time_unix_nano=began_ns,
        time_unix_nano=wall_ns,
        count=sum(value.counts),
        sum=value.sum / family.per,
        bucket_counts=value.counts,
        explicit_bounds=[bound / family.per for bound in value.bounds],
        min=_NOT_KEPT,
        max=_NOT_KEPT,
    )


Complete = Callable[[MetricsData], MetricsData]


class _Scraped(PrometheusMetricReader):
    """The exporter for Prometheus, which also gets what is read."""

    def __init__(self, complete: Complete, registry: CollectorRegistry) -> None:
        super().__init__(registry=registry, scope_info_enabled=False)
        self._complete = complete

    def _receive_metrics(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any
    ) -> None:
        super()._receive_metrics(self._complete(metrics_data), timeout_millis, **kwargs)


class _Pushed(MetricExporter):
    """An exporter that also gets what is read."""

    def __init__(self, exporter: MetricExporter, complete: Complete) -> None:
        super().__init__()
        self._exporter = exporter
        self._complete = complete

    def export(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any
    ) -> MetricExportResult:
        """Sends everything."""
        return self._exporter.export(self._complete(metrics_data), timeout_millis, **kwargs)

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """As the exporter does it."""
        return self._exporter.force_flush(timeout_millis)

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """As the exporter does it."""
        self._exporter.shutdown(timeout_millis, **kwargs)


class _OneByOne(Collector):
    """Collects for one scrape at a time: the exporter would mix two that come together."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._lock = threading.Lock()

    def collect(self) -> Iterator[PrometheusMetric]:
        """The families at this moment."""
        with self._lock:
            families = [*self._registry.collect()]
        yield from families
