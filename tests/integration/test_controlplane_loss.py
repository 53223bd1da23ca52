"""Workers outlive their control plane and come back to it."""

from __future__ import annotations

import asyncio

from tests.integration.conftest import StartCluster
from tests.integration.support import Tally, connected, gathered, settled


async def test_workers_come_back_to_a_restarted_control_plane(start_cluster: StartCluster) -> None:
    cluster = start_cluster(2, models=("paced",))
    before = cluster.pids()
    async with connected(cluster.address) as client:
        await client.many("paced", ["good film"] * 10)
    await asyncio.to_thread(cluster.stop_controlplane)
    assert cluster.pids() == {n: pid for n, pid in before.items() if n != "controlplane"}

    await asyncio.to_thread(cluster.start_controlplane, policy="cheap")
    status = await asyncio.to_thread(cluster.wait_ready, timeout_s=60)
    assert status.policy == "cheap"
    after = cluster.pids()
    assert {n: after[n] for n in after if n != "controlplane"} == {
        n: before[n] for n in before if n != "controlplane"
    }
    async with connected(cluster.address) as client:
        answers = await client.many("paced", ["good film"] * 10)
    assert {answer.provenance.variant for answer in answers} == {"tiny-b"}
    await asyncio.to_thread(gathered, cluster.address)
    settled(cluster.address)


async def test_calls_of_a_killed_control_plane_end_and_a_supervisor_starts_it_again(
    start_cluster: StartCluster,
) -> None:
    cluster = start_cluster(1, models=("paced",), supervise=True)
    killed = cluster.pid("controlplane")
    tally = Tally()
    async with connected(cluster.address) as client:
        running = [
            asyncio.create_task(client.finish(client.call("paced", timeout_s=10.0), tally))
            for _ in range(50)
        ]
        await running[0]
        await asyncio.to_thread(cluster.kill, "controlplane")
        await asyncio.wait_for(asyncio.gather(*running), 20)
        assert tally.ended == 50
        assert set(tally.codes) <= {"OK", "UNAVAILABLE"}, tally.details
    await asyncio.to_thread(cluster.wait_ready, timeout_s=60)
    assert cluster.pid("controlplane") != killed
    async with connected(cluster.address) as client:
        await client.many("paced", ["good film"] * 5)
    settled(cluster.address)
