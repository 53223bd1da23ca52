"""Another configuration is taken whole or not at all, and what came of it is told."""

from __future__ import annotations

import logging

import pytest

from controlplane.config import ControlPlaneConfig
from controlplane.reload import BadConfig, Reloads
from controlplane.rpc.tenant_status import reload_status
from controlplane.tenants import TenantConfig, TenantsConfig

FIRST = ControlPlaneConfig()
SECOND = ControlPlaneConfig(
    max_batch=4, tenants=TenantsConfig(named={"shop": TenantConfig(cpu_ms_per_s=100)})
)


async def test_a_new_configuration_is_taken_and_what_needs_a_restart_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    applied: list[ControlPlaneConfig] = []
    reloads = Reloads(FIRST, lambda: SECOND, applied.append)
    with caplog.at_level(logging.INFO):
        assert await reloads.reload()
    assert applied == [SECOND]
    assert (reloads.taken, reloads.refused, reloads.fault) == (1, 0, "")
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        "configuration read again: tenants",
        "changed, but in force only after a restart: max_batch",
    ]


async def test_a_bad_configuration_leaves_the_old_one_in_force() -> None:
    applied: list[ControlPlaneConfig] = []
    answers: list[BadConfig | ControlPlaneConfig] = [
        BadConfig("orchid.yaml:7: tenants.named: wrong"),
        SECOND,
    ]

    def read() -> ControlPlaneConfig:
        answer = answers.pop(0)
        if isinstance(answer, BadConfig):
            raise answer
        return answer

    reloads = Reloads(FIRST, read, applied.append)
    assert not await reloads.reload()
    assert applied == []
    status = reload_status(reloads)
    assert (status.taken, status.refused) == (0, 1)
    assert status.fault == "orchid.yaml:7: tenants.named: wrong"
    assert await reloads.reload()
    assert reload_status(reloads).fault == ""


async def test_a_process_without_a_file_says_so() -> None:
    reloads = Reloads(FIRST, None, lambda _: None)
    assert not await reloads.reload()
    assert "without a configuration" in reloads.fault
