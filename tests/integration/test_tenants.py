"""Tenants of a running cluster: their terms change without a restart, or do not change at all."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from deploy.fleet import fetch_status
from tests.integration.conftest import StartCluster
from tests.integration.support import Tally, connected, settled, wait_for

TERMS = """
controlplane:
  tenants:
    named:
      shop: {cpu_ms_per_s: 900, models: [%s]}
      lab: {%s: 100}
"""


async def test_terms_are_taken_whole_or_not_at_all_while_requests_run(
    start_cluster: StartCluster, tmp_path: Path
) -> None:
    config = tmp_path / "orchid.yaml"
    config.write_text(TERMS % ("paced", "cpu_ms_per_s"))
    cluster = start_cluster(1, models=("paced",), config=config)
    process = cluster.pid("controlplane")

    async def reload(text: str, taken: int, refused: int) -> None:
        config.write_text(text)
        os.kill(process, signal.SIGHUP)

        def answered() -> bool:
            now = fetch_status(cluster.address).reloads
            return (now.taken, now.refused) == (taken, refused)

        await asyncio.to_thread(wait_for, answered, f"{taken} taken, {refused} refused")

    async with connected(cluster.address) as client:
        tally = Tally()
        running = [
            asyncio.create_task(client.finish(client.call("paced", tenant=tenant), tally))
            for tenant in ("shop", "lab", "stranger") * 10
        ]
        await running[0]
        await reload(TERMS % ("other", "cpu_ms_per_s"), 1, 0)
        await asyncio.wait_for(asyncio.gather(*running), 30)
        assert tally.codes == {"OK": 30}, tally.details
        await client.finish(client.call("paced", tenant="shop"), tally)
        assert tally.codes["PERMISSION_DENIED"] == 1, tally.details

        await reload(TERMS % ("paced", "cpu_ms"), 1, 1)
        await client.finish(client.call("paced", tenant="shop"), tally)
        assert tally.codes["PERMISSION_DENIED"] == 2, tally.details

    status = settled(cluster.address)
    assert "unknown key 'cpu_ms'" in status.reloads.fault
    charged = {tenant.name: tenant for tenant in status.tenants}
    assert set(charged) == {"shop", "lab", ""}
    assert all(tenant.admitted == 10 for tenant in charged.values())
    assert all(tenant.charged_cpu_ms > 0 for tenant in charged.values())
    assert all(tenant.in_flight_cpu_ms == 0 for tenant in charged.values())
    # What is charged is what the answers were told that they cost.
    told = sum(answer.outcome.charged_cpu_us / 1e3 for answer in tally.answers)
    assert abs(sum(t.charged_cpu_ms for t in charged.values()) - told) <= 0.01 * told
