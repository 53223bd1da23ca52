"""Readings of an event loop as Prometheus and a collector get them."""

from __future__ import annotations

import asyncio
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from concurrent import futures
from contextlib import asynccontextmanager

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1 import (
    metrics_service_pb2 as service,
)
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from protos.exposition import Clocks, Exposition, Outlets
from protos.measures import NANOSECONDS, Buckets, Family, Kind, Reading

SEEN = Family("orchid.seen", Kind.COUNTER, "What was seen.", ("model",))
WORK = Family("orchid.work", Kind.GAUGE, "Work to do.", unit="s", per=NANOSECONDS)
TIMES = Family("orchid.wait", Kind.HISTOGRAM, "Waits.", ("model",), "s", NANOSECONDS)
BOUNDS = (2_500_000, 1_000_000_000)

Read = Callable[[], list[Reading]]


def readings() -> list[Reading]:
    return [
        Reading(SEEN, ('a "quoted"\nname',), 3),
        Reading(SEEN, ("b",), 4),
        Reading(WORK, (), 1_500_000_000),
        Reading(TIMES, ("b",), Buckets(BOUNDS, (1, 2, 3), 9_000_000_000)),
    ]


@asynccontextmanager
async def exposed(read: Read, **outlets: object) -> AsyncIterator[tuple[Exposition, str]]:
    made = Exposition(
        Outlets(**{"listen": "127.0.0.1:0", **outlets}),  # type: ignore[arg-type]
        read,
        resource={"service.name": "test"},
        loop=asyncio.get_running_loop(),
        clocks=Clocks(time.monotonic_ns, time.time_ns),
    )
    address = await asyncio.to_thread(made.start)
    try:
        yield made, address
    finally:
        await asyncio.to_thread(made.stop)


def scrape(address: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=20) as answer:
        text = answer.read().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.mark.parametrize(
    ("family", "name"),
    [
        (SEEN, "orchid_seen_total"),
        (WORK, "orchid_work_seconds"),
        (TIMES, "orchid_wait_seconds"),
        (Family("orchid.cpu", Kind.COUNTER, "", unit="s"), "orchid_cpu_seconds_total"),
        (Family("orchid.memory", Kind.GAUGE, "", unit="By"), "orchid_memory_bytes"),
        (Family("orchid.a_b.c", Kind.GAUGE, ""), "orchid_a_b_c"),
    ],
)
def test_names_follow_kind_and_unit(family: Family, name: str) -> None:
    assert family.exposed == name


async def test_a_scrape_has_every_reading_in_base_units() -> None:
    async with exposed(readings) as (_, address):
        found = await asyncio.to_thread(scrape, address)
    assert found["orchid_seen_total", (("model", 'a "quoted"\nname'),)] == 3
    assert found["orchid_seen_total", (("model", "b"),)] == 4
    assert found["orchid_work_seconds", ()] == 1.5
    buckets = {
        dict(labels)["le"]: value
        for (name, labels), value in found.items()
        if name == "orchid_wait_seconds_bucket"
    }
    assert buckets == {"0.0025": 1, "1.0": 3, "+Inf": 6}
    assert found["orchid_wait_seconds_count", (("model", "b"),)] == 6
    assert found["orchid_wait_seconds_sum", (("model", "b"),)] == 9.0
    assert found["orchid_uptime_seconds", ()] > 0
    assert found["orchid_event_loop_delay_seconds", ()] >= 0
    assert found["process_resident_memory_bytes", ()] > 0
    assert any(
        name == "target_info" and ("service_name", "test") in labels for name, labels in found
    )


async def test_readings_are_taken_on_the_event_loop_one_scrape_at_a_time() -> None:
    loop = asyncio.get_running_loop()
    taken: list[int] = []

    def read() -> list[Reading]:
        assert asyncio.get_running_loop() is loop
        taken.append(len(taken))
        return [Reading(SEEN, ("m",), taken[-1])]

    async with exposed(read) as (_, address):
        found = await asyncio.gather(*(asyncio.to_thread(scrape, address) for _ in range(8)))
    values = [scraped["orchid_seen_total", (("model", "m"),)] for scraped in found]
    assert sorted(values) == list(range(8))


async def test_a_fault_in_reading_fails_the_scrape_and_not_the_process(
    capsys: pytest.CaptureFixture[str],
) -> None:
    broken = [True]

    def read() -> list[Reading]:
        if broken:
            raise LookupError(broken.pop())
        return readings()

    async with exposed(read) as (_, address):
        with pytest.raises(urllib.error.HTTPError, match="500"):
            await asyncio.to_thread(scrape, address)
        assert await asyncio.to_thread(scrape, address)
    assert "LookupError" in capsys.readouterr().err


async def test_an_event_loop_that_stands_still_fails_the_scrape(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("protos.exposition._PATIENCE_S", 0.05)
    async with exposed(readings) as (_, address):
        with futures.ThreadPoolExecutor(1) as pool:
            scraping = pool.submit(scrape, address)
            # Blocks the loop on purpose, until the scrape has given up.
            error = scraping.exception(timeout=20)
        assert isinstance(error, urllib.error.HTTPError) and error.code == 500
        assert await asyncio.to_thread(scrape, address)
    assert "TimeoutError" in capsys.readouterr().err


async def test_an_address_in_use_is_named() -> None:
    async with exposed(readings) as (_, address):
        with pytest.raises(OSError, match=f"cannot listen for metrics on {address}: Address"):
            async with exposed(readings, listen=address):
                pass


class Collector(metrics_service_pb2_grpc.MetricsServiceServicer):
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.requests: list[service.ExportMetricsServiceRequest] = []

    def Export(
        self, request: service.ExportMetricsServiceRequest, context: object
    ) -> service.ExportMetricsServiceResponse:
        self.requests.append(request)
        return service.ExportMetricsServiceResponse()


async def test_the_same_is_pushed_to_a_collector() -> None:
    collector = Collector()
    server = grpc.server(futures.ThreadPoolExecutor(1))
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    # The last push is made when it stops, however long the interval.
    endpoint = f"127.0.0.1:{port}"
    async with exposed(readings, listen="", endpoint=endpoint, interval_ms=3_600_000) as (_, told):
        assert told == ""
    server.stop(None)
    (request,) = collector.requests
    (resource,) = request.resource_metrics
    assert any(each.value.string_value == "test" for each in resource.resource.attributes)
    metrics = {m.name: m for scope in resource.scope_metrics for m in scope.metrics}
    assert {"orchid.seen", "orchid.work", "orchid.wait"} <= set(metrics)
    assert metrics["orchid.wait"].unit == "s"
    (point,) = metrics["orchid.wait"].histogram.data_points
    assert (list(point.bucket_counts), point.count, point.sum) == ([1, 2, 3], 6, 9.0)
    assert not point.HasField("min") and not point.HasField("max")
    assert metrics["orchid.seen"].sum.is_monotonic
