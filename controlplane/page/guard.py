"""Who may read the status page, and what every answer of it tells the browser."""

from __future__ import annotations

import base64
import binascii
from functools import partial

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from controlplane.errors import Forbidden, Unauthenticated
from controlplane.http.calls import CERTIFICATE_NAMES
from controlplane.security.guard import OPERATE, Guard, Standing
from protos.exposure import is_loopback

# Says whether the process lives, and nothing else: probes need no secret.
ALIVE = "/healthz"
# Where a stream finds who reads it, to look again whether he still may.
STANDING = "orchid.standing"
HEADERS = {
    "cache-control": "no-store",
    # Everything comes from here, nothing is inline, nobody frames it.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
_CHALLENGE = 'Basic realm="Orchid: any user, a token of the role operate", charset="UTF-8"'


class Gate:
    """Refuses whom the page is not for, and adds `HEADERS` to every answer.

    With `loopback` the Host header must name this machine, so that no name that is made to
    point here (DNS rebinding) reads anything. With a `guard` the caller must have the role
    operate, by its certificate, a bearer token, or a token as the password that a browser asks
    for.
    """

    def __init__(self, app: ASGIApp, *, loopback: bool, guard: Guard | None) -> None:
        self._app = app
        self._loopback = loopback
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or say why not."""

        async def told(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        await (self._refusal(scope) or self._app)(scope, receive, told)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if self._loopback and not is_loopback(headers.get("host", "")):
            return _text("the Host header names no address of this machine's loopback", 421)
        # A link from elsewhere may open the page; scripts of elsewhere get nothing of it.
        foreign = headers.get("sec-fetch-site") in ("cross-site", "same-site")
        if foreign and headers.get("sec-fetch-mode") != "navigate":
            return _text("other sites may not read the status page", 403)
        if self._guard is None or scope["path"] == ALIVE:
            return None
        client = scope.get("client") or ("", 0)
        ask = partial(
            self._guard.admit,
            "status page",
            OPERATE,
            as_bearer(headers.get("authorization", "")),
            lambda: scope.get(CERTIFICATE_NAMES, ()),
            f"{client[0]}:{client[1]}",
        )
        try:
            scope[STANDING] = Standing(self._guard, ask)
        except Unauthenticated as error:
            return _text(str(error), 401, {"www-authenticate": _CHALLENGE})
        except Forbidden as error:
            return _text(str(error), 403)
        return None


def _text(text: str, status: int, headers: dict[str, str] | None = None) -> Response:
    return PlainTextResponse(f"{text}\n", status, headers)


def as_bearer(authorization: str) -> str:
    """An authorization header with a browser's password as the bearer token that it is."""
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return authorization
    try:
        password = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return authorization
    return f"Bearer {password}"
