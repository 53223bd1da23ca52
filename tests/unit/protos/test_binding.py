"""A port that cannot be had is told with the system's reason."""

import socket
from pathlib import Path

import grpc
import pytest

from protos.binding import bind


async def test_the_bound_address_comes_back(tmp_path: Path) -> None:
    server = grpc.aio.server()
    host, _, port = bind(server, "127.0.0.1:0").rpartition(":")
    assert host == "127.0.0.1" and int(port) > 0
    path = f"unix:{tmp_path / 'socket'}"
    assert bind(server, path) == path
    await server.stop(None)


async def test_a_taken_port_is_named_with_the_reason() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
        said = f"cannot listen on {listen}: Address already in use"
        with pytest.raises(OSError, match=said) as told:
            bind(server, listen)
        port = listen.rpartition(":")[2]
        assert f"port {port} is taken by another process" in str(told.value)
        assert "or listen on another port" in str(told.value)
        await server.stop(None)
