"""HTTP/1.1 on one connection, with bounds on what it may hold and how long it may idle."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from controlplane.http.calls import CERTIFICATE_NAMES

# Request line and headers together; what came in one read with them is let through.
MOST_HEAD_BYTES = 1 << 16
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\n"
    b"content-length: 0\r\n\r\n"
)


@dataclass(frozen=True, slots=True)
class Bounds:
    """At most `connections` stand at a time; each sends a head within `head_timeout_s`.

    The time of the first head runs from the connection, of later ones from their first byte. By
    TLS a connection has `handshake_timeout_s` to become one. One whose caller's system takes
    nothing of what was sent for `unread_s` is ended.
    """

    connections: int = 1024
    head_timeout_s: float = 10.0
    handshake_timeout_s: float = 5.0
    unread_s: float = 120.0


class BoundedHeads(HttpToolsProtocol):
    """Ends a connection whose request line and headers do not end, or do not come."""

    head_bytes: int = 0
    in_head: bool = True
    # Since a byte of a body came: chunks' heads and what follows the last one.
    framing_bytes: int = 0

    def __init__(self, *arguments: Any, bounds: Bounds, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._bounds = bounds
        self._head_timer: asyncio.TimerHandle | None = None
        self._certificate_names: tuple[str, ...] = ()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A caller connected."""
        super().connection_made(transport)
        if len(self.connections) > self._bounds.connections:
            transport.write(_FULL)
            transport.close()
            return
        self._certificate_names = names_in(transport.get_extra_info("peercert"))
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """The caller is gone."""
        self._head_came()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        self.head_bytes += len(data)
        self.framing_bytes += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self.in_head and self.head_bytes > MOST_HEAD_BYTES:
            self.send_400_response(f"The head is larger than {MOST_HEAD_BYTES} bytes.")
        elif not self.in_head and self.framing_bytes > MOST_HEAD_BYTES:
            self.send_400_response(f"More than {MOST_HEAD_BYTES} bytes that are no body.")
        elif self._head_timer is None and self._rests():
            # Bytes that begin no request end the wait for one all the same.
            self._await_head()

    def on_message_begin(self) -> None:
        """The first byte of a request came."""
        self.in_head, self.head_bytes = True, 0
        if self._head_timer is None:
            self._await_head()
        super().on_message_begin()
        self.scope[CERTIFICATE_NAMES] = self._certificate_names  # type: ignore[literal-required]

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header came; those that follow a body say nothing here."""
        if self.in_head:
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        """A part of the body came."""
        self.framing_bytes = 0
        super().on_body(body)

    def on_headers_complete(self) -> None:
        """What comes now is its body."""
        self.in_head, self.framing_bytes = False, 0
        self._head_came()
        super().on_headers_complete()

    def _rests(self) -> bool:
        """Whether no request is being answered."""
        cycle: Any = self.cycle
        return cycle is None or bool(cycle.response_complete)

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(self._bounds.head_timeout_s, self._give_up)

    def _head_came(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self.transport.close()


def names_in(certificate: Any) -> tuple[str, ...]:
    """The names in a caller's certificate as `ssl` decodes it, alternative ones first."""
    if not certificate:
        return ()
    names = [str(value) for _, value in certificate.get("subjectAltName", ())]
    for part in certificate.get("subject", ()):
        names += [str(value) for key, value in part if key == "commonName"]
    return tuple(names)
