"""A worker's port and its registration: TLS, who may call, what is audited."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from bench.certificates import Authority
from protos.audit import AuditConfig
from protos.orchid.v1 import fleet_pb2, fleet_pb2_grpc, worker_pb2, worker_pb2_grpc
from protos.tls import TlsConfig
from tests.contract.worker.serving import PATIENCE_S
from worker.__main__ import config_from, make_means
from worker.app import WorkerApp
from worker.config import WorkerConfig

CODE = grpc.StatusCode


def tls_of(authority: Authority, *, mutual: bool) -> TlsConfig:
    certificate, key = authority.issue("worker", "worker.example", "127.0.0.1")
    return TlsConfig(
        certificate=str(certificate),
        key=str(key),
        ca=str(authority.path),
        require_client_certificate=mutual,
    )


def credentials(authority: Authority, *names: str) -> grpc.ChannelCredentials:
    if not names:
        return grpc.ssl_channel_credentials(authority.path.read_bytes())
    certificate, key = authority.issue(names[0], *names)
    return grpc.ssl_channel_credentials(
        authority.path.read_bytes(), key.read_bytes(), certificate.read_bytes()
    )


@asynccontextmanager
async def running(**settings: Any) -> AsyncIterator[str]:
    """The address of a worker without models."""
    config = WorkerConfig(worker_id="under-test", **settings)
    app = WorkerApp(config, make_means(config))
    address = await app.start()
    try:
        yield address
    finally:
        await app.stop()


async def describe(address: str, chosen: grpc.ChannelCredentials) -> grpc.StatusCode:
    async with grpc.aio.secure_channel(address, chosen) as channel:
        stub: Any = worker_pb2_grpc.WorkerStub(channel)
        call = stub.Describe(worker_pb2.DescribeRequest(), timeout=PATIENCE_S)
        code: grpc.StatusCode = await call.code()
        return code


async def test_only_the_control_plane_may_call_where_certificates_are_asked_for(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    settings = {
        "repository": tmp_path,
        "tls": tls_of(authority, mutual=True),
        # Nobody is there; the name is what matters.
        "controlplane": "plane.example:1",
        "audit": AuditConfig(file=str(tmp_path / "audit.log")),
    }
    async with running(**settings) as address:
        assert await describe(address, credentials(authority, "plane.example")) is CODE.OK
        stranger = credentials(authority, "other.example")
        assert await describe(address, stranger) is CODE.PERMISSION_DENIED
        assert await describe(address, credentials(authority)) is CODE.UNAVAILABLE
        plane = credentials(authority, "plane.example")
        async with grpc.aio.secure_channel(address, plane) as channel:
            stub: Any = worker_pb2_grpc.WorkerStub(channel)
            unload = stub.Unload(worker_pb2.UnloadRequest(model="none"), timeout=PATIENCE_S)
            assert await unload.code() is CODE.NOT_FOUND
            await stub.Drain(worker_pb2.DrainRequest(timeout_ms=1), timeout=PATIENCE_S)
    lines = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
    assert [(line["event"], line["who"], line["outcome"]) for line in lines] == [
        ("Describe", "other.example", "not the control plane"),
        ("model.unload", "plane.example", "not_found"),
        ("worker.drain", "plane.example", "ok"),
    ]


async def test_callers_can_be_named(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    settings = {
        "repository": tmp_path,
        "tls": tls_of(authority, mutual=True),
        "callers": ("one.example", "two.example"),
    }
    async with running(**settings) as address:
        assert await describe(address, credentials(authority, "two.example")) is CODE.OK
        other = credentials(authority, "three.example")
        assert await describe(address, other) is CODE.PERMISSION_DENIED


async def test_tls_alone_asks_nobody_who_calls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with running(repository=tmp_path, tls=tls_of(authority, mutual=False)) as address:
        assert await describe(address, credentials(authority)) is CODE.OK


class Fleet(fleet_pb2_grpc.FleetServicer):
    """Remembers what registrations say of who registers."""

    def __init__(self) -> None:
        self.seen: asyncio.Queue[tuple[str, list[str]]] = asyncio.Queue()

    async def Register(  # type: ignore[override]
        self, request_iterator: Any, context: Any
    ) -> None:
        metadata = dict(context.invocation_metadata())
        names = context.auth_context().get("x509_subject_alternative_name", ())
        await self.seen.put((metadata.get("authorization", ""), [n.decode() for n in names]))
        await context.write(
            fleet_pb2.FleetDirective(reject=fleet_pb2.Reject(reason="only looking"))
        )

    async def GetStatus(
        self, request: fleet_pb2.GetStatusRequest, context: Any
    ) -> fleet_pb2.GetStatusResponse:
        return fleet_pb2.GetStatusResponse()


async def test_a_worker_registers_by_tls_with_its_certificate_and_its_token_as_it_is_now(
    tmp_path: Path,
) -> None:
    authority, fleet = Authority(tmp_path), Fleet()
    token = tmp_path / "token"
    token.write_text("first\n")
    certificate, key = authority.issue("plane", "plane.example")
    server = grpc.aio.server()
    fleet_pb2_grpc.add_FleetServicer_to_server(fleet, server)
    port = server.add_secure_port(
        "127.0.0.1:0",
        grpc.ssl_server_credentials(
            [(key.read_bytes(), certificate.read_bytes())], authority.path.read_bytes(), True
        ),
    )
    await server.start()
    tls = tls_of(authority, mutual=False)
    settings = {
        "repository": tmp_path,
        "controlplane": f"127.0.0.1:{port}",
        "token_file": str(token),
        # The control plane is dialled by an address that its certificate does not name.
        "tls": TlsConfig(
            certificate=tls.certificate, key=tls.key, ca=tls.ca, server_name="plane.example"
        ),
    }
    async with running(**settings), asyncio.timeout(PATIENCE_S):
        said, names = await fleet.seen.get()
        assert said == "Bearer first" and "worker.example" in names
        token.write_text("second\n")
        while said != "Bearer second":
            said, _ = await fleet.seen.get()
    await server.stop(None)


def test_options_of_the_module_reach_nested_settings() -> None:
    options = ["--tls-ca", "ca.crt", "--tls-server-name", "plane.example", "--insecure"]
    config = config_from([*options, "--callers", "a", "b", "--audit-keep", "3"])
    assert config.tls == TlsConfig(ca="ca.crt", server_name="plane.example")
    assert config.insecure and config.callers == ("a", "b") and config.audit.keep == 3


def test_wrong_nested_settings_end_with_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        config_from(["--tls-key", "x"])
    assert "tls.certificate is missing" in capsys.readouterr().err
