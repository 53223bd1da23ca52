"""The status page's server: framing, headers, bounds, and who may read it."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import fields
from pathlib import Path

import httpx2
import psutil
import pytest

from bench.certificates import Authority
from controlplane.http.protocol import Bounds
from controlplane.http.server import HttpServer
from controlplane.page.app import FILES, application
from controlplane.page.door import PageDoor
from controlplane.page.feed import MOST_BEHIND, Feed
from controlplane.page.guard import HEADERS
from controlplane.page.records import MemoryRow
from controlplane.page.snapshot import Sources
from controlplane.policy.admission import Refusal
from controlplane.policy.decode import RouteReason
from controlplane.policy.selector import Reason
from controlplane.preprocess import Preprocessor
from controlplane.security.guard import Guard
from controlplane.security.house import OPEN, Security
from controlplane.telemetry.timeline import SlowRequests
from protos.orchid.v1 import fleet_pb2, worker_pb2
from tests.contract.controlplane.decode_worker import DecodeWorker, Writers, ask, rest, writers
from tests.contract.controlplane.fake_worker import until
from tests.contract.controlplane.secured import OPERATOR, SHOP, audited, secured, sha256, tls_of

PATIENCE_S = 60.0
STATIC = Path(__file__).parents[3] / "controlplane/page/static"


class Script:
    """A view whose snapshots are numbers, padded to `size` bytes."""

    def __init__(self, size: int = 0) -> None:
        self.size = size
        self.samples = 0

    def sample(self) -> None:
        self.samples += 1

    def render(self, *, whole: bool) -> bytes:
        return json.dumps({"n": self.samples, "whole": whole, "pad": "x" * self.size}).encode()


class Page:
    """A running page and a client of it."""

    def __init__(self, address: str, client: httpx2.AsyncClient, feed: Feed) -> None:
        self.address = address
        self.client = client
        self.feed = feed


@asynccontextmanager
async def page(
    view: Script | None = None,
    *,
    loopback: bool = True,
    interval_s: float = 0.05,
    most: int = 16,
    guard: Guard | None = None,
) -> AsyncIterator[Page]:
    loop = asyncio.get_running_loop()
    feed = Feed(view or Script(), loop=loop, interval_s=interval_s, most=most)
    app = application(feed, loopback=loopback, guard=guard)
    server = HttpServer(app, "127.0.0.1:0", bounds=Bounds())
    address = await server.start()
    feed.start()
    try:
        async with httpx2.AsyncClient(base_url=f"http://{address}", timeout=PATIENCE_S) as client:
            yield Page(address, client, feed)
    finally:
        feed.close()
        await server.stop(1)


async def events(response: httpx2.Response) -> AsyncIterator[tuple[str, dict[str, object]]]:
    """The events of a stream: name and data."""
    name, data = "", ""
    async for line in response.aiter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            data += line.removeprefix("data: ")
        elif not line and data:
            yield name, json.loads(data)
            name, data = "", ""


async def test_every_file_is_served_with_its_type_and_the_headers() -> None:
    async with page() as served:
        for path, (name, kind) in FILES.items():
            response = await served.client.get(path)
            assert response.status_code == 200
            assert response.headers["content-type"] == kind
            assert response.content == (STATIC / name).read_bytes()
            for header, value in HEADERS.items():
                assert response.headers[header] == value
        assert {name for name, _ in FILES.values()} == {each.name for each in STATIC.iterdir()}
        assert (await served.client.get("/healthz")).text == "ok\n"
        head = await served.client.head("/")
        assert head.status_code == 200 and head.content == b""


async def test_status_json_is_one_whole_snapshot_an_interval() -> None:
    async with page(interval_s=3600.0) as served:
        responses = [await served.client.get("/status.json") for _ in range(3)]
        assert [each.json() for each in responses] == [{"n": 1, "whole": True, "pad": ""}] * 3
        assert responses[0].headers["content-type"] == "application/json"
        assert responses[0].headers["cache-control"] == "no-store"


async def test_the_stream_begins_with_everything_and_goes_on() -> None:
    async with page() as served, served.client.stream("GET", "/events") as response:
        assert response.status_code == 200
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.headers["x-content-type-options"] == "nosniff"
        taken: list[dict[str, object]] = []
        async for name, data in events(response):
            assert name == "snapshot"
            taken.append(data)
            if len(taken) == 4:
                break
        assert taken[0]["whole"] is True
        numbers = [int(str(each["n"])) for each in taken]
        assert numbers == sorted(set(numbers))
    assert (await _head("/events")).status_code == 200


async def _head(path: str) -> httpx2.Response:
    async with page() as served:
        response = await served.client.head(path)
        assert served.feed.listeners == 0
        return response


async def test_a_reader_that_goes_away_frees_its_place() -> None:
    async with page(most=1) as served:
        async with served.client.stream("GET", "/events") as response:
            await anext(events(response))
            refused = await served.client.get("/events")
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) > 0
            assert "1 listen already" in refused.text
        await until(lambda: served.feed.listeners == 0, "the reader's place is free")
        async with served.client.stream("GET", "/events") as response:
            await anext(events(response))


async def test_a_reader_that_takes_nothing_is_let_go_while_others_read_on() -> None:
    async with page(Script(size=1 << 20), interval_s=0.02) as served:
        host, _, port = served.address.rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port), limit=1)
        writer.write(f"GET /events HTTP/1.1\r\nhost: {served.address}\r\n\r\n".encode())
        await until(lambda: served.feed.listeners == 1, "it listens")
        async with served.client.stream("GET", "/events") as response:
            seen = 0
            async for _ in events(response):
                seen += 1
                if served.feed.dropped and seen > MOST_BEHIND:
                    break
        assert served.feed.dropped == 1
        await until(lambda: served.feed.listeners == 0, "both are gone")
        writer.transport.abort()


async def test_stopping_ends_the_streams() -> None:
    async with page() as served, served.client.stream("GET", "/events") as response:
        stream = events(response)
        await anext(stream)
        served.feed.close()
        # Ends as a whole answer does, not as a connection that broke.
        async for _ in stream:
            pass
        assert (await served.client.get("/events")).status_code == 503


@pytest.mark.parametrize("path", ["/", "/events", "/status.json", "/healthz", "/page.js"])
async def test_names_that_were_made_to_point_here_read_nothing(path: str) -> None:
    async with page() as served:
        for host in ("evil.example", "evil.example:8901", "127.0.0.1.evil.example", "10.0.0.1"):
            response = await served.client.get(path, headers={"host": host})
            assert response.status_code == 421
            assert "loopback" in response.text and host not in response.text
            assert response.headers["x-content-type-options"] == "nosniff"
        assert served.feed.listeners == 0
        port = served.address.rpartition(":")[2]
        response = await served.client.head(path, headers={"host": f"localhost:{port}"})
        assert response.status_code == 200


async def test_elsewhere_than_on_loopback_any_name_will_do() -> None:
    async with page(loopback=False) as served:
        response = await served.client.get("/healthz", headers={"host": "orchid.example"})
        assert response.status_code == 200


async def test_other_sites_scripts_read_nothing_but_their_links_work() -> None:
    async with page() as served:
        foreign = {"sec-fetch-site": "cross-site"}
        for path in ("/events", "/status.json", "/page.js"):
            for mode in ("cors", "no-cors"):
                headers = {**foreign, "sec-fetch-mode": mode}
                assert (await served.client.get(path, headers=headers)).status_code == 403
        assert served.feed.listeners == 0
        headers = {**foreign, "sec-fetch-mode": "navigate"}
        assert (await served.client.get("/", headers=headers)).status_code == 200


async def test_where_identities_are_asked_for_only_operators_read(tmp_path: Path) -> None:
    _, security = secured(tmp_path)
    async with page(guard=security.guard) as served:
        for path in ("/", "/events", "/status.json", "/page.js"):
            refused = await served.client.get(path)
            assert refused.status_code == 401
            assert refused.headers["www-authenticate"].startswith("Basic ")
            assert (await served.client.get(path, auth=("x", SHOP))).status_code == 403
            assert (await served.client.get(path, auth=("x", "guess"))).status_code == 401
            assert (await served.client.head(path, auth=("x", OPERATOR))).status_code == 200
        bearer = {"authorization": f"Bearer {OPERATOR}"}
        assert (await served.client.get("/status.json", headers=bearer)).json()["n"] > 0
        assert (await served.client.get("/healthz")).text == "ok\n"
        assert served.feed.listeners == 0
    lines = audited(tmp_path)
    outcomes = {"unauthenticated", "wrong role", "unknown token"}
    assert {line["outcome"] for line in lines} == outcomes
    assert {line["event"] for line in lines} == {"status page"}


async def test_nothing_but_reading_is_offered() -> None:
    async with page() as served:
        for path in ("/", "/events", "/status.json"):
            assert (await served.client.post(path)).status_code == 405
        for path in ("/nothing", "/static/page.js", "/../door.py", "/%2e%2e/door.py"):
            response = await served.client.get(path)
            assert response.status_code == 404
            assert response.headers["cache-control"] == "no-store"


def test_the_page_needs_nothing_from_elsewhere_and_makes_no_markup_of_text() -> None:
    for each in STATIC.iterdir():
        text = each.read_text()
        outside = set(re.findall(r"https?://[^\"'\s)]+", text)) - {"http://www.w3.org/2000/svg"}
        assert not outside, each.name
        for markup in (
            "innerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
        ):
            assert markup not in text, each.name
    page = (STATIC / "index.html").read_text()
    assert not re.search(r"\sstyle=|\son\w+=|<style|<script>", page)
    ids = set(re.findall(r'\sid="([^"]+)"', page))
    used = set(re.findall(r'byId\("([^"]+)"\)', (STATIC / "page.js").read_text()))
    assert used <= ids
    labels = set(re.findall(r'aria-labelledby="([^"]+)"', page))
    assert labels <= ids
    assert set(re.findall(r'(?:href|src)="(/[^"]*)"', page)) <= {*FILES, "/status.json"}


def test_every_reason_has_its_words() -> None:
    words = (STATIC / "words.js").read_text()
    named = {**vars(Refusal), **vars(Reason)}
    reasons = {value for name, value in named.items() if name.isupper()}
    for reason in {RouteReason.NOT_NOW, *reasons}:
        assert f'"{reason}": "' in words


def test_every_part_of_a_workers_memory_has_its_colour() -> None:
    (parts,) = re.findall(r"const MEMORY = \[(.*)\];", (STATIC / "drawings.js").read_text())
    names = re.findall(r'"(\w+)"', parts)
    assert set(names) < {field.name for field in fields(MemoryRow)}
    assert len(names) == 5
    style = (STATIC / "page.css").read_text()
    for name in names:
        assert f".mem-{name} {{ fill:" in style


def door_of(house: Writers, security: Security = OPEN) -> PageDoor:
    sources = Sources(
        id="cp",
        version="1",
        started_ns=time.monotonic_ns(),
        registry=house.registry,
        dispatcher=house.dispatcher,
        generations=house.generations,
        preprocessing=Preprocessor(
            house.registry, threads=1, max_queued=1, now_ns=time.monotonic_ns
        ),
        slow=SlowRequests(),
    )
    process = psutil.Process()
    return PageDoor(
        "127.0.0.1:0",
        sources,
        now_ns=time.monotonic_ns,
        wall_ms=lambda: 1_700_000_000_000,
        usage=lambda: (process.cpu_times().user, process.memory_info().rss),
        loop=asyncio.get_running_loop(),
        security=security,
    )


async def test_with_certificates_the_page_is_encrypted(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    _, security = secured(tmp_path, tls=tls_of(authority, mutual=False))
    trusting = ssl.create_default_context(cafile=str(authority.path))
    async with writers() as house, httpx2.AsyncClient(verify=trusting) as client:
        door = door_of(house, security)
        url = await door.start()
        try:
            assert url.startswith("https://127.0.0.1:")
            assert (await client.get(f"{url}/healthz")).text == "ok\n"
            assert (await client.get(f"{url}/status.json")).status_code == 401
            shown = await client.get(f"{url}/status.json", auth=("me", OPERATOR))
            assert shown.json()["workers"] == []
        finally:
            await door.stop()


async def test_a_decode_worker_is_shown_with_its_arena_and_no_word_of_what_it_wrote() -> None:
    worker = DecodeWorker()
    async with writers(worker) as house, httpx2.AsyncClient(timeout=PATIENCE_S) as client:
        door = door_of(house)
        url = await door.start()
        try:
            await rest(house.inference.Generate(ask("once upon a time")))
            await house.load(
                worker,
                variant="writer-q4",
                waiting=1,
                decoding=2,
                total_blocks=6,
                free_blocks=2,
                evictable_blocks=1,
                generated_tokens=77,
                block_map=bytes([2, 3, 3, 1, 0, 0]),
            )
            line = worker_pb2.MemoryLine(lifetime="prefixes", owner="writer", bytes=7)
            told = worker_pb2.MemoryLedger(lines=[line], measured_bytes=9, limited_by="host")
            await house.memberships[worker.name].call.write(fleet_pb2.WorkerReport(memory=told))
            session = house.registry.session_of(worker.name)
            assert session is not None
            await until(lambda: session.memory is not None, "the memory is there")
            response = await client.get(f"{url}/status.json")
            shown = response.json()
            (generator,) = shown["generators"]
            assert generator["model"] == "writer" and generator["outcomes"] == {"answered": 1}
            (lane,) = generator["lanes"]
            assert (lane["worker"], lane["variant"]) == ("d1", "writer-q4")
            assert (lane["waiting"], lane["writing"], lane["answered"]) == (1, 2, 1)
            assert lane["arena"]["cells"] == "233100"
            assert lane["arena"]["used_blocks"] == 3
            assert shown["workers"][0]["worker_class"] == "decode"
            memory = shown["workers"][0]["memory"]
            assert (memory["caches"], memory["weights"], memory["measured"]) == (7, 0, 9)
            for word in ("once", "upon"):
                assert word not in response.text
        finally:
            await door.stop()


async def test_a_reader_that_takes_nothing_holds_no_connection_either() -> None:
    loop = asyncio.get_running_loop()
    feed = Feed(Script(size=1 << 18), loop=loop, interval_s=0.02)
    app = application(feed, loopback=True)
    server = HttpServer(app, "127.0.0.1:0", bounds=Bounds(unread_s=0.3))
    address = await server.start()
    feed.start()
    try:
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), 20) as silent:
            silent.sendall(f"GET /events HTTP/1.1\r\nhost: {address}\r\n\r\n".encode())
            await until(lambda: feed.listeners == 1, "it listens")
            await until(lambda: server.standing == 0, "its connection has ended")
            await until(lambda: feed.listeners == 0, "its place is free")
    finally:
        feed.close()
        await server.stop(1)


async def test_a_stream_of_one_who_may_no_longer_read_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controlplane.security.identities._LOOK_NS", 0)
    config, security = secured(tmp_path)
    async with page(guard=security.guard) as served:
        async with served.client.stream("GET", "/events", auth=("x", OPERATOR)) as response:
            stream = events(response)
            await anext(stream)
            path = Path(config.identities)
            path.write_text(path.read_text().replace(sha256(OPERATOR), sha256("another")))
            async for _ in stream:
                pass
        await until(lambda: served.feed.listeners == 0, "its place is free")
    assert audited(tmp_path)[-1]["outcome"] == "unknown token"
