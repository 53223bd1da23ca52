"""Logs say what happened, never what was asked or answered."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from tests.contract.controlplane.decode_worker import WRITER, DecodeWorker
from tests.contract.controlplane.fake_worker import until
from tests.contract.controlplane.http_door import error_of, raw_post, web_door, web_writers
from tests.contract.controlplane.http_scripts import torrent

SECRET = "once-upon-a-secret"


async def test_a_line_a_call_has_no_content(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("/v1/completions", {"model": WRITER, "prompt": SECRET}),
        ("/v1/completions", {"model": WRITER, "prompt": SECRET, "stream": True}),
        ("/v1/completions", {"model": WRITER, "prompt": [SECRET, 5]}),
        (
            "/v1/chat/completions",
            {"model": WRITER, "messages": [{"role": "user", "content": SECRET}], "stop": [SECRET]},
        ),
        ("/v1/chat/completions", {"model": WRITER, "messages": SECRET}),
        ("/v1/nowhere", {"prompt": SECRET}),
    ]
    async with web_writers(DecodeWorker()) as web:
        for path, body in bodies:
            answer = await web.post(
                f"{path}?q={SECRET}", json.dumps(body).encode(), x_request_id="r-7"
            )
            assert answer.status_code in (200, 400, 404)
    lines = [r.getMessage() for r in caplog.records if r.name == "controlplane.http.access"]
    assert len(lines) == 5
    assert lines[0].startswith("POST /v1/completions 200 r-7 ")
    # The client in this process logs its own URLs.
    told = [r for r in caplog.records if not r.name.startswith(("httpx", "httpcore", "hpack"))]
    assert SECRET not in "\n".join(f"{r.getMessage()} {r.exc_text or ''}" for r in told)


async def test_what_callers_break_fills_no_log(caplog: pytest.LogCaptureFixture) -> None:
    """Neither bytes that are no request nor a reader that stands still is told at all."""
    worker = DecodeWorker(script=torrent)
    async with web_writers(worker) as web:
        host, _, port = web.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"\x16\x03\x01 no request\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
        writer.close()
        body = {"model": WRITER, "prompt": "once", "stream": True, "deadline_ms": 700}
        stalled = await raw_post(web.address, "/v1/completions", json.dumps(body).encode())
        await stalled.reader.readuntil(b"\r\n\r\n")
        stalled.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await until(lambda: worker.open == 0, "the worker's call is over")
        await web.house.at_rest()
        stalled.cut()
    ours = [r for r in caplog.records if r.name.startswith(("uvicorn", "controlplane"))]
    assert [r.getMessage() for r in ours if r.levelno >= logging.WARNING] == []


async def test_a_fault_of_ours_is_told_without_its_words(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with web_door() as door:
        door.grpc.queue.fail = KeyError(SECRET)
        response = await door.post("/v1/embeddings", b'{"model": "vectors", "input": "good"}')
        error = error_of(response, 500)
        assert error["code"] == "internal_error"
        assert SECRET not in error["message"]
    faults = [r for r in caplog.records if r.levelno >= logging.ERROR]
    assert [r.name for r in faults] == ["controlplane.rpc.services"]
    assert "KeyError" in faults[0].getMessage()
    assert SECRET not in caplog.text
