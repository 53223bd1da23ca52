"""The metrics' port holds few connections, gives up those that say nothing, and logs little."""

from __future__ import annotations

import logging
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from prometheus_client import CollectorRegistry, Gauge

from protos import scraping
from protos.scraping import MOST_CONNECTIONS, ScrapeServer


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScrapeServer]:
    monkeypatch.setattr(scraping._Handler, "timeout", 0.5)
    registry = CollectorRegistry()
    Gauge("seen", "What was seen.", registry=registry).set(3)
    made = ScrapeServer("127.0.0.1", 0, registry, context=None, now_ns=time.monotonic_ns)
    thread = threading.Thread(target=made.serve_forever, args=(0.01,))
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


def scraped(server: ScrapeServer) -> str:
    url = f"http://127.0.0.1:{server.server_port}/metrics"
    with urllib.request.urlopen(url, timeout=20) as answer:
        return str(answer.read().decode())


def test_silent_connections_are_bounded_and_given_up(server: ScrapeServer) -> None:
    before = threading.active_count()
    with ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.server_port), 20))
            for _ in range(3 * MOST_CONNECTIONS)
        ]
        # Each is closed: those beyond the bound at once, the others when they have said nothing.
        assert [each.recv(1) for each in silent] == [b""] * len(silent)
        assert threading.active_count() <= before + MOST_CONNECTIONS
    assert "seen 3.0" in scraped(server)


def test_failing_connections_leave_one_line_a_minute(
    server: ScrapeServer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(40):
            server.handle_error(None, None)
    assert [record.getMessage() for record in caplog.records] == [
        "connections to the metrics failed: 1"
    ]


@pytest.mark.parametrize(
    ("host", "status"),
    [("127.0.0.1:1", 200), ("localhost", 200), ("[::1]:9464", 200), ("", 200),
     ("rebound.example", 421), ("rebound.example:9464", 421), ("10.0.0.1", 421)],
)  # fmt: skip
def test_loopback_answers_to_its_own_names_alone(
    server: ScrapeServer, host: str, status: int
) -> None:
    said = f"host: {host}\r\n" if host else ""
    with socket.create_connection(("127.0.0.1", server.server_port), 20) as caller:
        caller.sendall(f"GET /metrics HTTP/1.0\r\n{said}\r\n".encode())
        answer = b"".join(iter(lambda: caller.recv(65536), b""))
    assert answer.split()[1] == str(status).encode()
    assert (b"seen 3.0" in answer) == (status == 200)
