"""The comparison policies on the live dispatcher, fed with the workers' own reports."""

import asyncio
from typing import get_args

import pytest

from bench.sim.sweep import POLICIES
from controlplane.config import ControlPlaneConfig, PolicyName
from controlplane.policy.selector import Reason
from controlplane.registry import WorkerLoad
from tests.unit.controlplane.fake_fleet import House
from tests.unit.controlplane.virtual_loop import run


def test_the_live_server_takes_every_policy_that_is_simulated() -> None:
    # Cascades are simulated where there is evidence of confidence.
    assert set(get_args(PolicyName)) == {*POLICIES, "orchid-cascade", "cascade-fixed"}
    assert ControlPlaneConfig(policy="early").policy == "early"


@pytest.mark.parametrize("policy", ["early", "published-adaptive", "published-accurate"])
def test_a_policy_that_fixes_at_arrival_serves_on_the_live_dispatcher(policy: PolicyName) -> None:
    async def serve() -> None:
        house = House(policy=policy)
        house.join()
        answers = await asyncio.gather(*(house.submit(1000) for _ in range(5)))
        assert {answer.provenance.variant for answer in answers} == {"best"}
        assert {answer.provenance.reason for answer in answers} == {Reason.FIXED_AT_ARRIVAL}
        assert house.at_rest()
        house.close()

    run(serve())


def test_worker_reports_of_a_busy_machine_reach_the_published_policy() -> None:
    async def serve() -> None:
        house = House(policy="published-adaptive")
        worker = house.join()
        calm = await house.submit(30)
        for _ in range(60):
            house.report(worker, WorkerLoad(host_cpu_percent=100.0))
            await house.pass_ms(50)
        pressed = await house.submit(15)
        assert (calm.provenance.variant, pressed.provenance.variant) == ("best", "fast")
        assert pressed.provenance.approximation
        house.close()

    run(serve())
