"""A worker that is killed takes no call with it."""

from __future__ import annotations

import asyncio
import os
import signal

from tests.integration.conftest import StartCluster
from tests.integration.support import Tally, connected, settled, wait_for

CALLS = 300
GAP_S = 0.008
# So many come at once just before the kill, so that the victim has something to lose.
CROWD = 30


async def test_a_worker_killed_under_load_loses_no_call_and_is_replaced(
    start_cluster: StartCluster,
) -> None:
    cluster = start_cluster(2, models=("paced",), supervise=True)
    victim = cluster.pid("worker-0")
    tally = Tally()
    async with connected(cluster.address) as client:
        running = []
        for number in range(CALLS):
            call = client.call("paced", timeout_s=8.0)
            running.append(asyncio.create_task(client.finish(call, tally)))
            if number == CALLS // 3 - CROWD:
                # What it is given from now on stays with it.
                os.kill(victim, signal.SIGSTOP)
            if number == CALLS // 3:
                await asyncio.sleep(0.05)
                os.kill(victim, signal.SIGKILL)
            crowded = CALLS // 3 - CROWD <= number < CALLS // 3
            await asyncio.sleep(0.0 if crowded else GAP_S)
        await asyncio.wait_for(asyncio.gather(*running), 30)

        assert tally.ended == CALLS
        # Eight seconds are ample slack: what the victim held was run again elsewhere.
        assert tally.codes == {"OK": CALLS}, tally.details
        assert any(answer.outcome.dispatches > 1 for answer in tally.answers)

        await asyncio.to_thread(cluster.wait_ready, workers=2, timeout_s=60)
        assert cluster.pid("worker-0") != victim

        again = await client.answering("paced", 2)
    assert again == {"worker-0", "worker-1"}
    settled(cluster.address)


async def test_without_any_worker_calls_end_at_once_or_by_their_deadline(
    start_cluster: StartCluster,
) -> None:
    cluster = start_cluster(1, models=("paced",))
    tally = Tally()
    async with connected(cluster.address) as client:
        running = [
            asyncio.create_task(client.finish(client.call("paced", timeout_s=1.5), tally))
            for _ in range(40)
        ]
        await running[0]
        await asyncio.to_thread(cluster.kill_worker, "worker-0")
        await asyncio.wait_for(asyncio.gather(*running), 20)
        assert tally.ended == 40
        assert set(tally.codes) <= {"OK", "UNAVAILABLE", "DEADLINE_EXCEEDED"}, tally.details

        def gone() -> bool:
            return cluster.status().ready_workers() == 0

        await asyncio.to_thread(wait_for, gone, "the loss is noticed")
        refused = Tally()
        await client.finish(client.call("paced", timeout_s=5.0), refused)
        assert refused.codes == {"UNAVAILABLE": 1}, refused.details

        await asyncio.to_thread(cluster.restart_worker, "worker-0")
        await asyncio.to_thread(cluster.wait_ready, timeout_s=60)
        await client.many("paced", ["good film"] * 5)
    settled(cluster.address)


async def test_a_worker_joins_and_leaves_a_living_cluster(start_cluster: StartCluster) -> None:
    cluster = start_cluster(1, models=("paced",))
    name = cluster.add_worker()
    cluster.wait_ready(workers=2, timeout_s=60)
    tally = Tally()
    async with connected(cluster.address) as client:
        assert await client.answering("paced", 2) == {"worker-0", name}
        running = [
            asyncio.create_task(client.finish(client.call("paced", timeout_s=10.0), tally))
            for _ in range(100)
        ]
        await asyncio.gather(*running[:20])
        # SIGTERM drains: what the worker accepted is answered, what it refuses runs elsewhere.
        await asyncio.to_thread(cluster.remove_worker, name)
        await asyncio.wait_for(asyncio.gather(*running), 30)
    assert tally.codes == {"OK": 100}, tally.details
    assert {a.provenance.worker_id for a in tally.answers} <= {"worker-0", name}
    settled(cluster.address)


async def test_a_worker_that_hangs_is_passed_over_until_it_moves_again(
    start_cluster: StartCluster,
) -> None:
    cluster = start_cluster(2, models=("paced",))

    def state() -> str:
        return next(w.state for w in cluster.status().workers if w.id == "worker-0")

    tally = Tally()
    async with connected(cluster.address) as client:
        cluster.signal("worker-0", signal.SIGSTOP)
        try:
            running = []
            for _ in range(60):
                call = client.call("paced", timeout_s=8.0)
                running.append(asyncio.create_task(client.finish(call, tally)))
                await asyncio.sleep(GAP_S)
            # A stopped process keeps its connections: only its silence gives it away.
            await asyncio.to_thread(wait_for, lambda: state() == "suspect", "it is suspect")
            await asyncio.wait_for(asyncio.gather(*running), 30)
        finally:
            cluster.signal("worker-0", signal.SIGCONT)
        assert tally.codes == {"OK": 60}, tally.details
        assert {answer.provenance.worker_id for answer in tally.answers} == {"worker-1"}
        await asyncio.to_thread(wait_for, lambda: state() == "ready", "it is trusted again")
        again = await client.answering("paced", 2)
    assert again == {"worker-0", "worker-1"}
    assert settled(cluster.address).expired_work_executed == 0
