"""TLS and mutual TLS at the gRPC port: who gets in, and certificates that change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest

from bench.certificates import Authority
from controlplane.config import ControlPlaneConfig
from protos.inference import oip_pb2_grpc
from protos.tls import TlsConfig
from tests.contract.controlplane.front_door import MODEL, front_door
from tests.contract.controlplane.oip_client import refusal, stub, text_request
from tests.contract.controlplane.secured import client_of, security_of, tls_of


def config_of(authority: Authority, *, mutual: bool) -> ControlPlaneConfig:
    return ControlPlaneConfig(listen="127.0.0.1:0", tls=tls_of(authority, mutual=mutual))


async def answers(address: str, credentials: grpc.ChannelCredentials) -> bool:
    """Whether a new connection with these credentials gets an answer."""
    async with grpc.aio.secure_channel(address, credentials) as channel:
        made: oip_pb2_grpc.GRPCInferenceServiceAsyncStub
        made = oip_pb2_grpc.GRPCInferenceServiceStub(channel)
        try:
            return (await made.ModelInfer(text_request("good"))).model_name == MODEL
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            return False


async def test_only_callers_that_speak_tls_and_trust_the_authority_get_in(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    config = config_of(authority, mutual=False)
    async with front_door(
        config=config, security=security_of(config), credentials=client_of(authority)
    ) as door:
        assert (await stub(door).ModelInfer(text_request("good"))).model_name == MODEL
        assert not await answers(door.address, client_of(other))
        async with grpc.aio.insecure_channel(door.address) as plain:
            made = oip_pb2_grpc.GRPCInferenceServiceStub(plain)
            error = await refusal(made.ModelInfer(text_request("good")))
            assert error.code() is grpc.StatusCode.UNAVAILABLE


async def test_mutual_tls_asks_for_a_certificate_of_the_authority(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    config = config_of(authority, mutual=True)
    async with front_door(
        config=config,
        security=security_of(config),
        credentials=client_of(authority, "client.example"),
    ) as door:
        assert (await stub(door).ModelInfer(text_request("good"))).model_name == MODEL
        assert not await answers(door.address, client_of(authority))
        certificate, key = other.issue("stranger", "client.example")
        stranger = grpc.ssl_channel_credentials(
            authority.path.read_bytes(), key.read_bytes(), certificate.read_bytes()
        )
        assert not await answers(door.address, stranger)


async def test_a_rotated_certificate_is_shown_to_new_callers_and_no_call_is_lost(
    tmp_path: Path,
) -> None:
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    config = config_of(old, mutual=False)
    async with front_door(
        config=config, security=security_of(config), credentials=client_of(old)
    ) as door:
        assert await answers(door.address, client_of(old))
        stream: Any = stub(door).ModelStreamInfer()
        await stream.write(text_request("good"))
        assert (await stream.read()).error_message == ""
        certificate, key = new.issue("rotated", "localhost", "127.0.0.1")
        # Between the two the key does not fit, and the old ones are kept.
        Path(config.tls.key).write_bytes(key.read_bytes())
        assert await answers(door.address, client_of(old))
        Path(config.tls.certificate).write_bytes(certificate.read_bytes())
        assert await answers(door.address, client_of(new))
        assert not await answers(door.address, client_of(old))
        # Connections that stand are as they were.
        await stream.write(text_request("good"))
        assert (await stream.read()).error_message == ""
        assert (await stub(door).ModelInfer(text_request("good"))).model_name == MODEL
        await stream.done_writing()
        assert await stream.code() is grpc.StatusCode.OK


async def test_a_rotated_authority_of_callers_is_taken(tmp_path: Path) -> None:
    servers, old, new = (Authority(tmp_path, name) for name in ("servers", "old", "new"))
    callers = tmp_path / "callers.crt"
    callers.write_bytes(old.path.read_bytes())
    certificate, key = servers.issue("server", "127.0.0.1")
    tls = TlsConfig(
        certificate=str(certificate),
        key=str(key),
        client_ca=str(callers),
        require_client_certificate=True,
    )
    config = ControlPlaneConfig(listen="127.0.0.1:0", tls=tls)

    def caller(authority: Authority) -> grpc.ChannelCredentials:
        shown, secret = authority.issue("caller", "client.example")
        return grpc.ssl_channel_credentials(
            servers.path.read_bytes(), secret.read_bytes(), shown.read_bytes()
        )

    async with front_door(
        config=config, security=security_of(config), credentials=caller(old)
    ) as door:
        assert await answers(door.address, caller(old))
        assert not await answers(door.address, caller(new))
        callers.write_bytes(new.path.read_bytes())
        assert await answers(door.address, caller(new))
        assert not await answers(door.address, caller(old))


@pytest.mark.parametrize("mutual", [False, True])
async def test_a_missing_file_keeps_the_process_from_starting(tmp_path: Path, mutual: bool) -> None:
    config = config_of(Authority(tmp_path), mutual=mutual)
    Path(config.tls.key).unlink()
    with pytest.raises(OSError, match=f"tls.key: cannot read {config.tls.key}"):
        security_of(config)
