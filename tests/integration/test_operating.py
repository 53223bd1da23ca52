"""Operating a cluster under traffic: rolling, draining, and asking who is ready."""

from __future__ import annotations

import asyncio
from pathlib import Path

from bench.operate import Kept, OperateSettings, run_operate
from bench.report import host_facts
from bench.workloads import tiny_workload
from deploy.fleet import drain_worker
from deploy.health import unready
from deploy.roll import roll_workers
from tests.integration.conftest import StartCluster
from tests.integration.support import Tally, connected, settled, wait_for
from worker.models.synthetic import build_synthetic

# Half of what two cores carry: a replacement that gives way to traffic shall not wait for its end.
GAP_S = 0.02


async def test_every_worker_is_replaced_and_no_call_is_lost(start_cluster: StartCluster) -> None:
    cluster = start_cluster(2, models=("paced",), supervise=True)
    before = cluster.pids()
    tally = Tally()
    async with connected(cluster.address) as client:
        rolling = asyncio.create_task(asyncio.to_thread(roll_workers, cluster))
        running = []
        while not rolling.done():
            call = client.call("paced", timeout_s=8.0)
            running.append(asyncio.create_task(client.finish(call, tally)))
            await asyncio.sleep(GAP_S)
        assert await rolling == ("worker-2", "worker-3")
        await asyncio.wait_for(asyncio.gather(*running), 30)
        assert tally.codes == {"OK": len(running)}, tally.details
        again = await client.answering("paced", 2)
    assert cluster.worker_names() == ("worker-2", "worker-3")
    assert again == {"worker-2", "worker-3"}
    assert not set(cluster.pids().values()) & {before["worker-0"], before["worker-1"]}
    settled(cluster.address)


async def test_a_worker_that_is_told_to_go_finishes_what_it_has(
    start_cluster: StartCluster,
) -> None:
    cluster = start_cluster(2, models=("paced",))
    address = cluster.worker_address("worker-0")
    assert unready(address) == unready(address, "paced") == unready(cluster.address) == ""
    assert unready(cluster.address, "orchid.v1.Fleet") == ""
    assert "NOT_FOUND" in unready(cluster.address, "nothing")
    tally = Tally()
    async with connected(cluster.address) as client:
        running = [
            asyncio.create_task(client.finish(client.call("paced", timeout_s=10.0), tally))
            for _ in range(60)
        ]
        await running[0]
        drained = await asyncio.to_thread(drain_worker, address, timeout_s=10.0, leave=True)
        await asyncio.wait_for(asyncio.gather(*running), 30)
    assert drained[1] == 0
    assert tally.codes == {"OK": 60}, tally.details
    wait_for(lambda: "worker-0" not in cluster.pids(), "the process has ended")
    assert unready(address) != ""
    assert unready(cluster.address) == ""
    settled(cluster.address)


def test_the_bench_follows_a_killed_worker_to_its_replacement(
    tmp_path: Path, start_cluster: StartCluster
) -> None:
    build_synthetic(tmp_path / "models", "paced", busy={"tiny-a": 5000, "tiny-b": 1000})
    cluster = start_cluster(2, models=("paced",), supervise=True, repository=tmp_path / "models")
    settings = OperateSettings(
        model="paced", workers=2, load=0.3, seconds=5.0, warmup_s=0.5, solo_s=0.5, capacity_s=0.5,
        deadline_factor=40.0,
    )  # fmt: skip
    kept = Kept(host_facts())
    for event in ("kill", "drain"):
        kept = run_operate(
            cluster, settings, tiny_workload(), kept, event, lambda what, now, of: None
        )
    assert kept.baseline is not None
    assert [point["event"] for point in kept.points] == ["kill", "drain"]
    for point in kept.points:
        assert point["offered"] > 0
        assert point["lost"] == 0, point["examples"]
        assert point["whole_s"] > 0
