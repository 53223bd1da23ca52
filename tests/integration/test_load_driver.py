"""The load driver through every way in: all answered, truth and variant read right."""

from __future__ import annotations

import asyncio

import pytest

from bench.load.plan import LoadPlan, Protocol
from bench.load.run import run_load
from bench.workloads import tiny_workload
from tests.integration.conftest import StartCluster
from tests.integration.support import settled


@pytest.mark.timeout(120)
async def test_every_protocol_reads_variant_and_class(start_cluster: StartCluster) -> None:
    cluster = start_cluster(1, models=("tiny",))
    workload = tiny_workload()
    ways: list[tuple[Protocol, bool, int]] = [
        ("native", False, 2),
        ("native", True, 1),
        ("oip", False, 1),
        ("oip", True, 1),
    ]
    for protocol, stream, processes in ways:
        plan = LoadPlan(
            target=cluster.address,
            model="tiny",
            rate_per_s=60.0,
            duration_s=1.5,
            warmup_s=0.3,
            protocol=protocol,
            stream=stream,
            variant="tiny-a",
            watch=cluster.pids(),
        )
        result = await asyncio.to_thread(run_load, plan, workload, processes=processes)
        way = f"{protocol} stream={stream}: {result.examples}"
        assert result.outcomes == {"OK": result.offered}, way
        assert result.variant_share == {"tiny-a": 1.0}, way
        # 0.9425 of the population are right; a draw of about ninety is not far from it.
        assert 0.8 < result.accuracy <= 1.0, way
        assert set(result.cpu_ms_per_request) == {"controlplane", "worker-0"}, way
        assert result.driver_cpu_ms_per_request > 0, way
    settled(cluster.address)
