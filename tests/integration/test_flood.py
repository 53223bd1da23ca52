"""Ten times what can be served: refused early, in bounded memory, the admitted on time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc

from bench.load.plan import LoadPlan
from bench.load.run import run_load
from bench.workloads import tiny_workload
from tests.integration.conftest import StartCluster
from tests.integration.support import PATIENT, connected, resident_mib, settled

MAX_ITEMS = 64
GROWTH_MIB = 48


async def test_a_flood_is_refused_early_and_within_bounds(
    start_cluster: StartCluster, record_property: Callable[[str, object], None]
) -> None:
    queue = {"max_items": MAX_ITEMS, "max_predicted_work_ms": 1500}
    settings = {"queue": queue, "max_batch": 1, **PATIENT}
    cluster = start_cluster(1, models=("heavy",), controlplane=settings)
    workload = tiny_workload()
    closed = LoadPlan(
        target=cluster.address,
        model="heavy",
        mode="closed",
        concurrency=4,
        duration_s=1.5,
        warmup_s=0.5,
    )
    capacity = (await asyncio.to_thread(run_load, closed, workload)).answered_per_s
    before = resident_mib(cluster, "controlplane")
    flood = LoadPlan(
        target=cluster.address,
        model="heavy",
        rate_per_s=10 * capacity,
        duration_s=3.0,
        warmup_s=0.5,
        deadline_ms=3000.0,
    )
    deepest = 0
    running = asyncio.create_task(asyncio.to_thread(run_load, flood, workload))
    while not running.done():
        status = await asyncio.to_thread(cluster.status)
        deepest = max(deepest, status.pool("heavy").queued)
        await asyncio.sleep(0.05)
    result = running.result()

    assert deepest <= MAX_ITEMS
    assert result.outcomes["RESOURCE_EXHAUSTED"] > result.offered / 2
    ends = {"OK", "LATE", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"}
    assert set(result.outcomes) <= ends, result.examples
    assert result.answered > 0
    status = settled(cluster.address)
    assert status.expired_work_executed == 0
    assert resident_mib(cluster, "controlplane") - before < GROWTH_MIB
    record_property("on_time_of_admitted", result.on_time_of_admitted)
    record_property("capacity_per_s", capacity)


async def test_a_refusal_says_when_to_come_back(start_cluster: StartCluster) -> None:
    queue = {"max_items": 4, "max_predicted_work_ms": 60_000}
    cluster = start_cluster(1, models=("heavy",), controlplane={"queue": queue, "max_batch": 1})
    async with connected(cluster.address) as client:
        calls = [client.call("heavy", timeout_s=20.0, variant="tiny-a") for _ in range(60)]
        ends = await asyncio.gather(*calls, return_exceptions=True)
    refusals = [end for end in ends if isinstance(end, grpc.aio.AioRpcError)]
    assert refusals
    for refusal in refusals:
        assert refusal.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        trailers = dict(refusal.trailing_metadata())
        assert int(trailers["retry-after-ms"]) > 0
    assert len(refusals) < 60
    settled(cluster.address)
