"""HTTP/1.1 on one connection, with a bound on what a head may hold in memory."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# Request line and headers together; what came in one read with them is let through.
MOST_HEAD_BYTES = 1 << 16


class BoundedHeads(HttpToolsProtocol):
    """Ends a connection whose request line and headers do not end; the parser would keep them."""

    head_bytes: int = 0
    in_head: bool = True

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        self.head_bytes += len(data)
        super().data_received(data)
        if self.in_head and self.head_bytes > MOST_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(f"The head is larger than {MOST_HEAD_BYTES} bytes.")

    def on_message_begin(self) -> None:
        """The first byte of a request came."""
        self.in_head, self.head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """What comes now is its body."""
        self.in_head = False
        super().on_headers_complete()
