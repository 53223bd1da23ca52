"""Logs say what happened, never what was asked or answered."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from tests.contract.controlplane.decode_worker import WRITER, DecodeWorker
from tests.contract.controlplane.http_door import error_of, web_door, web_writers

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
