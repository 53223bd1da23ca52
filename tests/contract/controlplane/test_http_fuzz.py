"""No body, however malformed, is answered with a fault of ours, or with anything but JSON.

ORCHID_FUZZ_EXAMPLES raises the number of generated requests.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.contract.controlplane.decode_worker import WRITER, DecodeWorker
from tests.contract.controlplane.http_door import VECTORS, Web, web_door, web_writers

EXAMPLES = int(os.environ.get("ORCHID_FUZZ_EXAMPLES", "2000")) // 8
# Timing fails no test of the usual length on a machine that many jobs share.
TIMEOUT_S = 0 if EXAMPLES > 250 else 600

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers() | st.integers(-2, 9),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from([VECTORS, "tiny", "good film", "float", "base64", "vectors-a", "user"]),
)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


def bodies(sound: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Sound bodies with some fields replaced by anything, left out, or added."""
    changes = st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=8), anything, max_size=4)
    gone = st.sets(st.sampled_from(sorted(sound)), max_size=1)
    return st.builds(
        lambda new, out: {k: v for k, v in {**sound, **new}.items() if k not in out}, changes, gone
    )


FIELDS = [
    *("messages", "prompt", "stream", "stream_options", "max_tokens", "max_completion_tokens", "n"),
    *("stop", "seed", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "logit_bias"),
    *("presence_penalty", "frequency_penalty", "logprobs", "top_logprobs", "stop_token_ids"),
    *("ignore_eos", "first_token_target_ms", "token_target_ms", "best_of", "echo", "suffix"),
    *("tools", "functions", "response_format", "modalities", "audio"),
    *("model", "input", "encoding_format", "dimensions", "user", "tenant", "request_class"),
    *("privacy_class", "minimum_quality", "variant", "prohibited_variants", "deadline_ms"),
]
EMBEDDINGS = bodies({"model": VECTORS, "input": ["good film", "bad"]})
TURN = {"role": "user", "content": "once upon"}
CHATS = bodies({"model": WRITER, "messages": [TURN]})
COMPLETIONS = bodies({"model": WRITER, "prompt": "once upon"})


class Runner:
    """One server for all examples: hypothesis is synchronous, the server is not."""

    def __init__(self, manager: AbstractAsyncContextManager[Web]) -> None:
        self._loop = asyncio.new_event_loop()
        self._manager = manager
        self.door: Web = self._loop.run_until_complete(self._manager.__aenter__())

    def close(self) -> None:
        self._loop.run_until_complete(self._manager.__aexit__(None, None, None))
        self._loop.close()

    def post(self, path: str, body: bytes, **headers: str) -> httpx2.Response:
        return self._loop.run_until_complete(self.door.post(path, body, **headers))


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    made = Runner(web_door())
    yield made
    made.close()


@pytest.fixture(scope="module")
def writing() -> Iterator[Runner]:
    made = Runner(web_writers(DecodeWorker()))
    yield made
    made.close()


bounded = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


def check(response: httpx2.Response) -> None:
    """An answer, or an error of the caller's in OpenAI's form."""
    if response.headers["content-type"].startswith("text/event-stream"):
        assert response.text.endswith("data: [DONE]\n\n")
        return
    assert response.headers["content-type"] == "application/json"
    document = response.json()
    if response.status_code != 200:
        assert 400 <= response.status_code < 500 or response.status_code == 504, document
        assert set(document["error"]) == {"message", "type", "param", "code"}


@pytest.mark.timeout(TIMEOUT_S)
@given(body=EMBEDDINGS)
@bounded
def test_malformed_embeddings(runner: Runner, body: dict[str, Any]) -> None:
    check(runner.post("/v1/embeddings", json.dumps(body).encode()))


@pytest.mark.timeout(TIMEOUT_S)
@given(body=CHATS)
@bounded
def test_malformed_chats(writing: Runner, body: dict[str, Any]) -> None:
    check(writing.post("/v1/chat/completions", json.dumps(body).encode()))


@pytest.mark.timeout(TIMEOUT_S)
@given(body=COMPLETIONS)
@bounded
def test_malformed_completions(writing: Runner, body: dict[str, Any]) -> None:
    check(writing.post("/v1/completions", json.dumps(body).encode()))


@pytest.mark.timeout(TIMEOUT_S)
@given(raw=st.binary(max_size=64) | anything.map(lambda value: json.dumps(value).encode()))
@settings(bounded, max_examples=EXAMPLES // 4)
def test_broken_bodies(runner: Runner, raw: bytes) -> None:
    response = runner.post("/v1/embeddings", raw)
    check(response)
    assert response.status_code == 400


@pytest.mark.timeout(TIMEOUT_S)
@given(
    name=st.sampled_from(["x_orchid_deadline_ms", "x_orchid_tenant", "x_orchid_request_class"])
    | st.sampled_from(["x_request_id", "traceparent", "x_stainless_read_timeout"]),
    value=st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=80).map(str.strip)
    | st.floats().map(str),
)
@settings(bounded, max_examples=EXAMPLES // 4)
def test_odd_headers(runner: Runner, name: str, value: str) -> None:
    body = json.dumps({"model": VECTORS, "input": "good"}).encode()
    check(runner.post("/v1/embeddings", body, **{name: value}))
