"""The port for probes: one word in plain text, beside ports that ask for certificates."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from bench.certificates import Authority
from controlplane.config import ControlPlaneConfig
from controlplane.registry import ModelState
from deploy.health import unready
from protos.inference import oip_pb2_grpc
from tests.contract.controlplane.front_door import MODEL, Door, front_door, text_model
from tests.contract.controlplane.oip_client import refusal, stub, text_request
from tests.contract.controlplane.secured import client_of, security_of, tls_of

CONFIG = ControlPlaneConfig(listen="127.0.0.1:0", health_listen="127.0.0.1:0")


async def reason(door: Door, service: str) -> str:
    """What `orchid ready` says, which health checks of containers run."""
    return await asyncio.to_thread(unready, door.server.health_address, service, 20.0)


@asynccontextmanager
async def plain(door: Door) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(door.server.health_address) as channel:
        yield channel


async def test_probes_need_no_certificate_where_callers_do(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    config = replace(CONFIG, tls=tls_of(authority, mutual=True))
    caller = client_of(authority, "client.example")
    security = security_of(config)
    async with front_door(config=config, security=security, credentials=caller) as door:
        assert (await stub(door).ModelInfer(text_request("good"))).model_name == MODEL
        assert await asyncio.to_thread(unready, door.address, "", 20.0) != ""
        for service in ("", MODEL, "orchid.v1.Fleet"):
            assert await reason(door, service) == ""
        door.serve([text_model(state=ModelState.LOADING)])
        for service in ("", MODEL):
            assert await reason(door, service) == "NOT_SERVING"
        assert await reason(door, "orchid.v1.Fleet") == ""


async def test_nothing_but_a_check_is_answered_there() -> None:
    async with front_door(config=CONFIG) as door, plain(door) as channel:
        inference = oip_pb2_grpc.GRPCInferenceServiceStub(channel)
        watch: Any = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert await watch.code() is grpc.StatusCode.UNIMPLEMENTED
        error = await refusal(inference.ModelInfer(text_request("good")))
        assert error.code() is grpc.StatusCode.UNIMPLEMENTED
        check: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
        error = await refusal(check(b"\xff\xff"))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        error = await refusal(check(b"\x0a\x04nope"))
        assert error.code() is grpc.StatusCode.NOT_FOUND
        # The name of no model is given away.
        assert MODEL not in (error.details() or "")
        assert door.queue.requests == []


async def test_probes_hear_of_the_end_until_the_last_request_has_its_answer() -> None:
    async with front_door(config=CONFIG) as door:
        door.queue.hold = True
        asked = asyncio.ensure_future(stub(door).ModelInfer(text_request("good")))
        await door.queue.until(lambda: bool(door.queue.pending))
        stopping = asyncio.create_task(door.server.stop(20))
        # The stop begins with the next turn of the loop.
        await asyncio.sleep(0)
        assert await reason(door, "orchid.v1.Fleet") == "NOT_SERVING"
        for request in tuple(door.queue.pending):
            door.queue.release(request)
        assert (await asked).model_name == MODEL
        await stopping
        assert await reason(door, "") not in ("", "NOT_SERVING")


async def test_without_the_setting_there_is_no_such_port() -> None:
    async with front_door() as door:
        assert door.server.health_address == ""


async def test_an_address_in_use_is_said_so() -> None:
    async with front_door(config=CONFIG) as door:
        taken = replace(CONFIG, health_listen=door.server.health_address)
        with pytest.raises(OSError, match=door.server.health_address):
            async with front_door(config=taken):
                pass
