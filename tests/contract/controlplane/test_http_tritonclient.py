"""The stock HTTP client, in a process and an environment of its own, against this one's door."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.contract.controlplane.front_door import ADDER, ECHO, MODEL
from tests.contract.controlplane.http_door import VECTORS, web_door
from tests.triton_environment import triton_python

SESSION = Path(__file__).with_name("tritonclient_http_session.py")
LOGITS = [[11.0, 30.0], [7.0, 15.0]]


async def session(address: str) -> dict[str, Any]:
    """What the client got."""
    process = await asyncio.create_subprocess_exec(
        await asyncio.to_thread(triton_python),
        SESSION,
        address,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        got, complaints = await asyncio.wait_for(process.communicate(), 120)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, complaints.decode()
    told: dict[str, Any] = json.loads(got)
    return told


# Its environment may have to be made first.
@pytest.mark.timeout(900)
async def test_a_stock_client_works_unchanged() -> None:
    async with web_door() as web:
        told = await session(web.address)
        requests = web.grpc.queue.requests
        assert web.grpc.repository.calls == [("load", "shelved"), ("unload", MODEL)]
    answers = told["answers"]
    for form in ("binary", "json", "pinned", "version", "later"):
        assert answers[form]["logits"] == LOGITS, form
    assert (answers["binary"]["id"], answers["later"]["id"]) == ("one", "l")
    assert answers["binary"]["variant"] == "tiny-a"
    assert answers["pinned"]["variant"] == "tiny-b"
    np.testing.assert_array_equal(answers["sum"], np.array([[3.0, -5.0, 2e-3]], np.float32))
    assert answers["classes"] == [["30.000000:1:positive", "15.000000:1:positive"]] * 2
    assert told["aio"] == {"id": "aio", "logits": LOGITS, "variant": "tiny-a"}
    (pinned,) = [request for request in requests if request.klass.variant]
    assert 30_000 < (pinned.deadline_ns - pinned.arrived_ns) / 1e6 <= 60_000
    check_refusals(told["refusals"])
    check_description(told["description"])


def check_refusals(said: dict[str, str]) -> None:
    """Errors are read by the client: status and text."""
    assert said["model"].startswith("404: no model 'no-such-model' here")
    assert said["variant"].startswith("404: ") and "'tiny-a', 'tiny-b'" in said["variant"]
    assert said["output"].startswith("400: outputs.0.name: ")
    assert said["compressed"].startswith("415: content-encoding: ")


def check_description(told: dict[str, Any]) -> None:
    """Everything around an inference that clients look at."""
    ready = [told[name] for name in ("live", "ready", "model_ready", "other_ready")]
    assert ready == [True, True, True, False]
    assert "binary_tensor_data" in told["server"]["extensions"]
    assert [each["name"] for each in told["metadata"]["inputs"]][:2] == ["text", "input_ids"]
    assert told["config"]["name"] == MODEL
    index = {each["name"]: each["state"] for each in told["index"]}
    assert index == {
        **dict.fromkeys((ADDER, ECHO, MODEL, VECTORS), "READY"),
        "shelved": "UNAVAILABLE",
    }
    assert told["statistics"]["inference_stats"]["success"]["count"] == 7
    assert told["all_statistics"] == 4
