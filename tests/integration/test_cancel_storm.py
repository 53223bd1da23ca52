"""Ten thousand callers that go away leave nothing behind."""

from __future__ import annotations

import asyncio

import numpy as np

from tests.integration.conftest import StartCluster
from tests.integration.support import PATIENT, Client, Tally, connected, resident_mib, settled

STORM = 10_000
AT_ONCE = 250
GROWTH_MIB = 24


async def storm(client: Client, calls: int, tally: Tally) -> None:
    """Calls that are cancelled anywhere between their start and a few services later."""
    random = np.random.default_rng(5)
    for _ in range(calls // AT_ONCE):
        started = [client.call("paced", timeout_s=30.0) for _ in range(AT_ONCE)]
        finishing = [asyncio.create_task(client.finish(call, tally)) for call in started]
        for call in random.permutation(np.array(started, dtype=object)):
            await asyncio.sleep(0 if random.random() < 0.9 else 0.002)
            call.cancel()
        await asyncio.wait_for(asyncio.gather(*finishing), 30)


async def test_after_a_storm_of_cancels_every_gauge_is_zero_and_memory_is_back(
    start_cluster: StartCluster,
) -> None:
    cluster = start_cluster(1, models=("paced",), controlplane=PATIENT)
    names = ("controlplane", "worker-0")
    tally = Tally()
    async with connected(cluster.address) as client:
        await storm(client, STORM // 4, tally)
        settled(cluster.address)
        before = {name: resident_mib(cluster, name) for name in names}
        await storm(client, STORM, tally)
        status = settled(cluster.address)
        after = {name: resident_mib(cluster, name) for name in names}
        answers = await client.many("paced", ["good film"] * 20)
    assert tally.ended == STORM // 4 + STORM
    assert tally.codes["CANCELLED"] > STORM // 2
    assert set(tally.codes) <= {"CANCELLED", "OK"}, tally.details
    assert len(answers) == 20
    assert status.expired_work_executed == 0
    grown = {name: after[name] - before[name] for name in names}
    assert max(grown.values()) < GROWTH_MIB, (before, after)
