"""The composition root: it serves, says where, and stops when told."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import grpc
import httpx2
import pytest

from controlplane.__main__ import run
from controlplane.config import ControlPlaneConfig
from protos.inference import oip_pb2, oip_pb2_grpc
from protos.orchid.v1 import fleet_pb2, fleet_pb2_grpc

CONFIG = ControlPlaneConfig(listen="127.0.0.1:0")


async def test_it_serves_until_it_is_told_to_stop() -> None:
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    running = asyncio.create_task(run(CONFIG, ready=address.set_result, stop=stop))
    async with asyncio.timeout(60), grpc.aio.insecure_channel(await address) as channel:
        oip = oip_pb2_grpc.GRPCInferenceServiceStub(channel)
        assert (await oip.ServerLive(oip_pb2.ServerLiveRequest())).live
        assert not (await oip.ServerReady(oip_pb2.ServerReadyRequest())).ready
        status = await fleet_pb2_grpc.FleetStub(channel).GetStatus(fleet_pb2.GetStatusRequest())
        assert status.policy == "orchid-cascade"
        assert not any(status.gauges.values())
        stop.set()
        await running


async def test_an_address_in_use_ends_the_start() -> None:
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    running = asyncio.create_task(run(CONFIG, ready=address.set_result, stop=stop))
    async with asyncio.timeout(60):
        taken = await address
        with pytest.raises(OSError, match=taken):
            await run(ControlPlaneConfig(listen=taken), stop=stop)
        stop.set()
        await running


async def test_http_is_served_where_it_is_asked_for() -> None:
    addresses: list[str] = []
    ready = asyncio.Event()
    stop = asyncio.Event()
    config = ControlPlaneConfig(listen="127.0.0.1:0", http_listen="127.0.0.1:0")
    running = asyncio.create_task(
        run(config, ready=lambda _: ready.set(), http_ready=addresses.append, stop=stop)
    )
    async with asyncio.timeout(60), httpx2.AsyncClient() as client:
        await ready.wait()
        response = await client.get(f"http://{addresses[0]}/health")
        assert (response.status_code, response.json()["models"]) == (503, {})
        with pytest.raises(OSError, match=f"cannot listen for HTTP on {addresses[0]}"):
            await run(ControlPlaneConfig(listen="127.0.0.1:0", http_listen=addresses[0]), stop=stop)
        stop.set()
        await running


async def test_the_status_page_is_served_where_it_is_asked_for() -> None:
    addresses: list[str] = []
    ready = asyncio.Event()
    stop = asyncio.Event()
    config = ControlPlaneConfig(listen="127.0.0.1:0", status_listen="127.0.0.1:0")
    running = asyncio.create_task(
        run(config, ready=lambda _: ready.set(), page_ready=addresses.append, stop=stop)
    )
    async with asyncio.timeout(60), httpx2.AsyncClient() as client:
        await ready.wait()
        url = addresses[0]
        shown = (await client.get(f"{url}/status.json")).json()
        assert shown["house"]["policy"] == "orchid-cascade" and shown["workers"] == []
        async with client.stream("GET", f"{url}/events") as stream:
            lines = stream.aiter_lines()
            assert await anext(lines) == "event: snapshot"
            # Whoever reads on does not hold up the end.
            stop.set()
            async for _ in lines:
                pass
        await running


_WITHOUT_EXTRA = """
import sys
sys.modules["starlette"] = None
from controlplane.__main__ import main
from controlplane.config import ControlPlaneConfig
main(ControlPlaneConfig(listen="127.0.0.1:0", KEY="127.0.0.1:0"))
"""


@pytest.mark.parametrize("key", ["http_listen", "status_listen"])
def test_http_without_its_packages_is_said_so(key: str) -> None:
    program = _WITHOUT_EXTRA.replace("KEY", key)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert f"{key} is set" in done.stderr and "pip install 'orchid[http]'" in done.stderr


def test_without_http_its_packages_are_not_loaded() -> None:
    program = (
        "import sys, controlplane.__main__; print({'starlette', 'uvicorn'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "set()"
