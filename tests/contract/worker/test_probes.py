"""A worker's port for probes: plain text beside a port that only the control plane may use."""

from __future__ import annotations

import asyncio
from pathlib import Path

from bench.certificates import Authority
from deploy.health import unready
from protos.tls import TlsConfig
from tests.contract.worker.serving import PATIENCE_S, Served, Stream, one, serve

WORKER = "orchid.v1.Worker"


async def reason(served: Served, service: str) -> str:
    return await asyncio.to_thread(unready, served.app.health_address, service, PATIENCE_S)


async def test_probes_need_no_certificate_where_callers_do(
    repository: Path, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("worker", "worker.example", "127.0.0.1")
    tls = TlsConfig(
        certificate=str(certificate),
        key=str(key),
        ca=str(authority.path),
        require_client_certificate=True,
    )
    async with serve(repository, tls=tls, health_listen="127.0.0.1:0") as served:
        for service in ("", "tiny", WORKER):
            assert await reason(served, service) == ""
        assert (await reason(served, "nope")).startswith("NOT_FOUND")
        assert await asyncio.to_thread(unready, served.address, "", PATIENCE_S) != ""


async def test_probes_hear_of_a_drain_while_work_is_finished(repository: Path) -> None:
    async with serve(repository, health_listen="127.0.0.1:0") as served:
        stream = Stream(served)
        async with served.engine_held():
            await stream.send(one(1))
            await stream.settled()
            draining = asyncio.ensure_future(served.app.drain(None))
            await served.until(lambda: served.app.service.drainer.draining)
            async with asyncio.timeout(PATIENCE_S):
                while await reason(served, WORKER) == "":
                    pass
            assert await reason(served, WORKER) == await reason(served, "") == "NOT_SERVING"
        assert (await draining).finished_items == 1
        await stream.finish()


async def test_without_the_setting_there_is_no_such_port(repository: Path) -> None:
    async with serve(repository) as served:
        assert served.app.health_address == ""
