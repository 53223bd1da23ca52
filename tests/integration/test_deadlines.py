"""Work whose deadline has passed is answered and never executed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np

from tests.integration.conftest import StartCluster
from tests.integration.support import Tally, connected, settled, wait_for
from worker.models.synthetic import build_synthetic


async def test_expired_work_is_never_executed(start_cluster: StartCluster) -> None:
    cluster = start_cluster(2, models=("paced",))
    random = np.random.default_rng(11)
    tally = Tally()
    async with connected(cluster.address) as client:
        running = []
        for _ in range(800):
            timeout_s = float(random.choice([0.004, 0.01, 0.02, 0.05, 0.2, 2.0]))
            call = client.call("paced", timeout_s=timeout_s)
            running.append(asyncio.create_task(client.finish(call, tally)))
            await asyncio.sleep(0.001)
        await asyncio.wait_for(asyncio.gather(*running), 30)
    status = settled(cluster.address)
    assert tally.ended == 800
    assert set(tally.codes) <= {"OK", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"}, tally.details
    assert tally.codes["OK"] > 0 and tally.codes["OK"] < 800
    assert status.expired_work_executed == 0
    assert all(worker.expired_executed == 0 for worker in status.workers)


async def test_an_expiry_is_answered_at_expiry_while_the_worker_is_busy(
    start_cluster: StartCluster, tmp_path: Path
) -> None:
    """A queue timeout must not wait for the inference that runs ahead of it."""
    models = tmp_path / "models"
    build_synthetic(models, "glacial", busy={"tiny-a": 120_000, "tiny-b": 120_000})
    cluster = start_cluster(1, models=("glacial",), repository=models)
    tally, short = Tally(), Tally()
    async with connected(cluster.address) as client:
        long = asyncio.create_task(client.finish(client.call("glacial", timeout_s=30.0), tally))

        def running() -> bool:
            return cluster.status().pool("glacial").in_flight == 1

        await asyncio.to_thread(wait_for, running, "the long one runs")
        await asyncio.gather(
            *(client.finish(client.call("glacial", timeout_s=0.05), short) for _ in range(5))
        )
        assert short.ended == 5 and not long.done(), short.details
        assert set(short.codes) <= {"DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"}, short.details
        await asyncio.wait_for(long, 30)
    assert tally.codes == {"OK": 1}, tally.details
    assert settled(cluster.address).expired_work_executed == 0
