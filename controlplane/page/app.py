"""The status page's routes: its files, the stream of snapshots, JSON, and a sign of life."""

from __future__ import annotations

import asyncio
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from controlplane.errors import ControlPlaneError
from controlplane.page.feed import Feed, Full, Listener
from controlplane.page.guard import ALIVE, STANDING, Gate
from controlplane.security.guard import Guard, Standing

_STATIC = Path(__file__).parent / "static"
FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/dom.js": ("dom.js", "text/javascript; charset=utf-8"),
    "/drawings.js": ("drawings.js", "text/javascript; charset=utf-8"),
    "/words.js": ("words.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
_EVENTS = "text/event-stream; charset=utf-8"
_FULL_RETRY_S = 5
# A reader that is let go has this long to take the end of its stream.
_FAREWELL_S = 0.5


def application(feed: Feed, *, loopback: bool, guard: Guard | None = None) -> ASGIApp:
    """The ASGI application; `loopback` and `guard` as in `Gate`."""

    async def status(request: Request) -> Response:
        return Response(feed.now(whole=True), media_type="application/json")

    async def alive(request: Request) -> Response:
        return PlainTextResponse("ok\n")

    routes = [
        Route("/events", Events(feed), methods=["GET"]),
        Route("/status.json", status, methods=["GET"]),
        Route(ALIVE, alive, methods=["GET"]),
    ]
    for path, (name, kind) in FILES.items():
        routes.append(Route(path, _File((_STATIC / name).read_bytes(), kind), methods=["GET"]))
    return Gate(Starlette(routes=routes), loopback=loopback, guard=guard)


class _File:
    """One file of the page, read when the process started."""

    def __init__(self, content: bytes, kind: str) -> None:
        self._content = content
        self._kind = kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await Response(self._content, media_type=self._kind)(scope, receive, send)


class Events:
    """The stream of snapshots as server-sent events; ends when the feed lets its reader go."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one reader."""
        if scope["method"] == "HEAD":
            return await Response(media_type=_EVENTS)(scope, receive, send)
        try:
            listener = self._feed.listen()
        except Full as error:
            headers = {"retry-after": str(_FULL_RETRY_S)}
            return await PlainTextResponse(f"{error}\n", 503, headers)(scope, receive, send)
        sending = asyncio.create_task(_send_all(listener, send, scope.get(STANDING)))
        ends = {
            sending,
            asyncio.create_task(listener.closed()),
            asyncio.create_task(_until_gone(receive)),
        }
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            self._feed.leave(listener)
            # Who takes nothing would hold this up for ever.
            await asyncio.wait({sending}, timeout=_FAREWELL_S)
        finally:
            self._feed.leave(listener)
            for each in ends:
                each.cancel()
            await asyncio.gather(*ends, return_exceptions=True)


async def _send_all(listener: Listener, send: Send, standing: Standing | None) -> None:
    headers = [(b"content-type", _EVENTS.encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    while (message := await listener.next()) is not None and _may(standing):
        body = b"event: snapshot\ndata: " + message + b"\n\n"
        await send({"type": "http.response.body", "body": body, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _may(standing: Standing | None) -> bool:
    """Whether the reader still may read; nobody is asked without a guard."""
    try:
        if standing is not None:
            standing.check()
    except ControlPlaneError:
        return False
    return True


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
