"""Large JSON is read on a thread: others are answered meanwhile, and only so many wait for it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from controlplane.http import embeddings, oip_request
from controlplane.http.large_bodies import INLINE_BYTES
from tests.contract.controlplane.fake_worker import until
from tests.contract.controlplane.http_door import VECTORS, told, web_door
from tests.contract.controlplane.infer_bodies import INFER, body, text

PATIENCE_S = 60.0
# The thread's own and those that wait for it.
MOST = 9
PADDING = b" " * INLINE_BYTES
PLAIN = body(text("good film", "bad"))
LARGE = PLAIN + PADDING


class Reading:
    """The threads that read bodies; on that of large ones they stop until `go`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.threads: list[str] = []
        self.go = threading.Event()
        for module, name in ((oip_request, "read_tensors"), (embeddings, "content_list")):
            self._watch(monkeypatch, module, name)

    def _watch(self, monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> None:
        real = getattr(module, name)

        def watched(*arguments: Any) -> Any:
            thread = threading.current_thread()
            self.threads.append(thread.name.partition("_")[0])
            if thread is not threading.main_thread():
                assert self.go.wait(PATIENCE_S)
            return real(*arguments)

        monkeypatch.setattr(module, name, watched)


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reading]:
    made = Reading(monkeypatch)
    yield made
    made.go.set()


async def test_large_bodies_are_read_on_a_thread_and_answered_alike(reading: Reading) -> None:
    reading.go.set()
    asked = {"model": VECTORS, "input": [[3, 4], [5, 6, 7]]}
    async with web_door() as web:
        for path, plain in ((INFER, PLAIN), ("/v1/embeddings", json.dumps(asked).encode())):
            reading.threads.clear()
            small, large = await web.post(path, plain), await web.post(path, plain + PADDING)
            assert reading.threads == [threading.main_thread().name, "orchid-bodies"]
            assert (small.status_code, large.status_code) == (200, 200)
            key = "outputs" if path == INFER else "data"
            assert large.json()[key] == small.json()[key]


async def test_a_large_body_that_is_wrong_is_refused_alike(reading: Reading) -> None:
    reading.go.set()
    wrong = body(text(shape=[2], data=["good", 5]))
    async with web_door() as web:
        small, large = await web.post(INFER, wrong), await web.post(INFER, wrong + PADDING)
        cut = await web.post(INFER, LARGE[:-1] + b"x")
    assert told(small, 400) == told(large, 400)
    assert "no valid JSON" in told(cut, 400)
    assert reading.threads == [threading.main_thread().name, "orchid-bodies"]


async def test_while_one_is_read_others_are_answered(reading: Reading) -> None:
    async with web_door() as web:
        large = asyncio.create_task(web.post(INFER, LARGE))
        await until(lambda: len(reading.threads) == 1, "the large body is being read")
        assert (await web.post(INFER, PLAIN)).status_code == 200
        assert not large.done()
        reading.go.set()
        assert (await large).status_code == 200


async def test_only_so_many_wait_and_one_whose_caller_left_frees_its_place(
    reading: Reading,
) -> None:
    async with web_door() as web:
        pool = web.http._bodies._pool

        def held() -> int:
            saturation = pool.saturation()
            return saturation.queued + saturation.running

        calls = [asyncio.create_task(web.post(INFER, LARGE)) for _ in range(MOST)]
        await until(lambda: held() == MOST, "all places are taken")
        refused = await web.post(INFER, LARGE)
        assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
        assert "9 large bodies are being read or wait for it" in refused.text
        assert (await web.post(INFER, PLAIN)).status_code == 200
        calls.pop().cancel()
        await until(lambda: held() == MOST - 1, "the place of the one that left is free")
        reading.go.set()
        assert {(await call).status_code for call in calls} == {200}
        await until(lambda: held() == 0, "nothing is held")
    assert pool.refused == 1
