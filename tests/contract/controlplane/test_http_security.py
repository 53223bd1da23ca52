"""The HTTP door: TLS, who may call, and connections that do nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from pathlib import Path
from typing import Any

import httpx2
import pytest

from bench.certificates import Authority
from controlplane.config import ControlPlaneConfig
from controlplane.http.protocol import names_in
from tests.contract.controlplane.http_door import VECTORS, WebDoor, error_of, web_door
from tests.contract.controlplane.secured import (
    GATEWAY,
    NODE,
    OPERATOR,
    SHOP,
    SLOW,
    audited,
    secured,
    security_of,
    tls_of,
)

EMBEDDINGS = "/v1/embeddings"


def body(**fields: Any) -> bytes:
    return json.dumps({"model": VECTORS, "input": "good", **fields}).encode()


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


async def test_callers_are_known_by_their_tokens(tmp_path: Path) -> None:
    config, security = secured(tmp_path)
    async with web_door(config=config, security=security) as web:
        nobody = await web.post(EMBEDDINGS, body())
        assert error_of(nobody, 401)["code"] == "invalid_api_key"
        assert nobody.headers["www-authenticate"] == "Bearer"
        assert error_of(await web.post(EMBEDDINGS, body(), **bearer("guess")), 401)
        wrong = error_of(await web.post(EMBEDDINGS, body(), **bearer(NODE)), 403)
        assert wrong["type"] == "permission_error" and "role infer" in wrong["message"]
        right = await web.post(EMBEDDINGS, body(user="somebody"), **bearer(SHOP))
        assert right.status_code == 200
        assert [r.klass.tenant for r in web.grpc.queue.requests] == ["shop"]
        assert (await web.client.get("/health")).status_code == 200
        assert error_of(await web.client.get("/v1/models"), 401)
        for token in (SHOP, OPERATOR):
            assert (await web.client.get("/v1/models", headers=bearer(token))).status_code == 200
    assert [(line["event"], line["outcome"]) for line in audited(tmp_path)] == [
        (EMBEDDINGS, "unauthenticated"),
        (EMBEDDINGS, "unknown token"),
        (EMBEDDINGS, "wrong role"),
        ("/v1/models", "unauthenticated"),
    ]


async def test_openais_own_client_sends_its_key(tmp_path: Path) -> None:
    config, security = secured(tmp_path)
    async with web_door(config=config, security=security) as web:
        client = web.sdk().with_options(api_key=SHOP)
        answer = await client.embeddings.create(model=VECTORS, input="good")
        assert len(answer.data) == 1


async def test_another_tenant_is_refused_however_it_is_named(tmp_path: Path) -> None:
    config, security = secured(tmp_path)
    async with web_door(config=config, security=security) as web:
        named = await web.post(EMBEDDINGS, body(tenant="other"), **bearer(SHOP))
        assert "another tenant" in error_of(named, 403)["message"]
        headers = {**bearer(SHOP), "x-orchid-tenant": "other"}
        response = await web.client.post(EMBEDDINGS, content=body(), headers=headers)
        error_of(response, 403)
        headers = {**bearer(GATEWAY), "x-orchid-tenant": "other"}
        response = await web.client.post(EMBEDDINGS, content=body(), headers=headers)
        assert response.status_code == 200
        assert [r.klass.tenant for r in web.grpc.queue.requests] == ["other"]


async def test_too_many_requests_are_told_when_to_come_back(tmp_path: Path) -> None:
    config, security = secured(tmp_path)
    async with web_door(config=config, security=security) as web:
        answers = [await web.post(EMBEDDINGS, body(), **bearer(SLOW)) for _ in range(3)]
        assert [a.status_code for a in answers] == [200, 200, 429]
        assert 0 < int(answers[-1].headers["retry-after"]) <= 100


async def test_a_body_is_not_awaited_from_callers_who_are_not_known(tmp_path: Path) -> None:
    config, security = secured(tmp_path)
    async with web_door(config=config, security=security) as web:
        host, _, port = web.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"POST {EMBEDDINGS} HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n".encode())
        async with asyncio.timeout(60):
            assert b" 401 " in await reader.readline()
        writer.close()


def trusting(authority: Authority, *names: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.path))
    if names:
        context.load_cert_chain(*authority.issue(names[0], *names))
    return context


async def test_a_certificate_says_who_calls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    config, security = secured(tmp_path, tls=tls_of(authority, mutual=True))
    verify = trusting(authority, "client.example")
    async with web_door(config=config, security=security, verify=verify) as web:
        assert (await web.post(EMBEDDINGS, body())).status_code == 200
        assert [r.klass.tenant for r in web.grpc.queue.requests] == ["client"]
        stranger = trusting(authority, "stranger.example")
        async with httpx2.AsyncClient(base_url=f"https://{web.address}", verify=stranger) as other:
            error_of(await other.post(EMBEDDINGS, content=body()), 401)
        async with httpx2.AsyncClient(
            base_url=f"https://{web.address}", verify=trusting(authority)
        ) as nobody:
            with pytest.raises(httpx2.TransportError):
                await nobody.post(EMBEDDINGS, content=body())


async def test_a_rotated_certificate_is_shown_to_new_connections(tmp_path: Path) -> None:
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    config = ControlPlaneConfig(tls=tls_of(old, mutual=False))

    async def works(web: WebDoor, authority: Authority) -> bool:
        async with httpx2.AsyncClient(
            base_url=f"https://{web.address}", verify=trusting(authority)
        ) as client:
            try:
                return bool((await client.get("/health/live")).status_code == 200)
            except httpx2.TransportError:
                return False

    security = security_of(config)
    async with web_door(config=config, security=security, verify=trusting(old)) as web:
        assert await works(web, old)
        assert (await web.client.get("/health/live")).status_code == 200
        certificate, key = new.issue("rotated", "127.0.0.1")
        Path(config.tls.key).write_bytes(key.read_bytes())
        Path(config.tls.certificate).write_bytes(certificate.read_bytes())
        assert await works(web, new)
        assert not await works(web, old)
        # The connection that stands is as it was.
        assert (await web.client.get("/health/live")).status_code == 200


@pytest.mark.parametrize("sent", [b"", b"GET /health HTTP/1.1\r\nhost: x\r\n"])
async def test_a_connection_that_sends_no_whole_head_is_ended(sent: bytes) -> None:
    async with web_door(config=ControlPlaneConfig(http_head_timeout_ms=50)) as web:
        host, _, port = web.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(sent)
        async with asyncio.timeout(60):
            assert await reader.read() == b""
        writer.close()
        assert (await web.client.get("/health/live")).status_code == 200


async def test_bytes_between_requests_do_not_hold_a_connection() -> None:
    async with web_door(config=ControlPlaneConfig(http_head_timeout_ms=50)) as web:
        host, _, port = web.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        async with asyncio.timeout(60):
            assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
            writer.write(b"\r\n")
            assert b"HTTP/1.1" not in await reader.read()
        writer.close()


async def test_what_follows_a_body_is_neither_kept_nor_endless() -> None:
    async with web_door() as web:
        host, _, port = web.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /health HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n")
        async with asyncio.timeout(60):
            with contextlib.suppress(ConnectionError):
                for _ in range(200):
                    writer.write(b"a: " + b"x" * 4000 + b"\r\n")
                    await writer.drain()
                # Ended by the server: with an answer, or before it could be read.
                assert b"\r\n\r\n" in await reader.read()
        writer.close()
        assert writer.is_closing()


async def test_connections_beyond_the_limit_are_told_so_at_once() -> None:
    async with web_door(config=ControlPlaneConfig(http_max_connections=2)) as web:
        host, _, port = web.address.rpartition(":")
        held = [await asyncio.open_connection(host, int(port)) for _ in range(2)]
        for _, writer in held:
            writer.write(b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n")
        for reader, _ in held:
            async with asyncio.timeout(60):
                assert b" 200 " in await reader.readline()
        reader, writer = await asyncio.open_connection(host, int(port))
        async with asyncio.timeout(60):
            assert (await reader.read()).startswith(b"HTTP/1.1 503 ")
        for _, each in (*held, (reader, writer)):
            each.close()


def test_names_of_a_certificate_are_its_alternative_names_and_its_common_name() -> None:
    assert names_in(None) == names_in({}) == ()
    certificate = {
        "subject": ((("countryName", "XX"),), (("commonName", "c"),)),
        "subjectAltName": (("DNS", "a"), ("URI", "spiffe://b")),
    }
    assert names_in(certificate) == ("a", "spiffe://b", "c")
