"""The HTTP server that metrics are scraped from: few connections at a time, none for long."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

from protos.exposure import is_loopback

log = logging.getLogger(__name__)

# Scrapers are few; more connections than this are closed at once.
MOST_CONNECTIONS = 32
# For each read of a handshake or a request, and each write of an answer.
_PATIENCE_S = 10.0
# Between two lines about connections that failed.
_QUIET_NS = 60_000_000_000

App = Callable[[dict[str, Any], Any], Iterable[bytes]]


class _Handler(WSGIRequestHandler):
    timeout = _PATIENCE_S

    def log_message(self, format: str, *args: Any) -> None:
        """Scrapes are not worth a line."""


class ScrapeServer(ThreadingMixIn, WSGIServer):
    """Answers in a thread for each connection, of which there are at most MOST_CONNECTIONS."""

    daemon_threads = True
    # As many wait to be accepted: what the kernel turns away tries again only after seconds.
    request_queue_size = 4 * MOST_CONNECTIONS

    def __init__(
        self,
        host: str,
        port: int,
        registry: CollectorRegistry,
        *,
        context: ssl.SSLContext | None,
        now_ns: Callable[[], int],
    ) -> None:
        """Binds; raises OSError. `context` serves by TLS.

        On loopback only requests that name it are answered: a page of a web site that has a name
        of its own point here (DNS rebinding) reads nothing.
        """
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        self.address_family = family
        self._places = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._now_ns = now_ns
        self._told_ns = -_QUIET_NS
        self._failed = 0
        super().__init__((str(address[0]), port), _Handler)
        app: App = make_wsgi_app(registry)
        self.set_app(_of_this_machine(app) if is_loopback(host) else app)
        if context is not None:
            # A handshake that takes its time is its own thread's, not the one's that accepts.
            self.socket = context.wrap_socket(
                self.socket, server_side=True, do_handshake_on_connect=False
            )

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own, or close the connection when there are too many."""
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """One connection, from its first byte to its end."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection failed, such as one that speaks another protocol: a line now and then."""
        self._failed += 1
        now = self._now_ns()
        if now - self._told_ns >= _QUIET_NS:
            secure = " (they are served by TLS)" if isinstance(self.socket, ssl.SSLSocket) else ""
            log.warning("connections to the metrics failed: %d%s", self._failed, secure)
            self._told_ns, self._failed = now, 0


def _of_this_machine(app: App) -> App:
    """`app` for requests whose Host header names loopback; those without one are no browser's."""

    def checked(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        named = environ.get("HTTP_HOST", "")
        if named and not is_loopback(named):
            start_response("421 Misdirected Request", [("content-type", "text/plain")])
            return [b"the Host header names no address of this machine's loopback\n"]
        return app(environ, start_response)

    return checked
