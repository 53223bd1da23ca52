"""Channels to the other processes: by TLS where certificates are configured for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import grpc

from protos.tls import Certificates

AUTHORIZATION = "authorization"

Options = Sequence[tuple[str, int | str]]


def keepalive(idle_ms: int, answer_ms: int) -> tuple[tuple[str, int], ...]:
    """Ends a connection, of a channel or a server, whose other side is gone without closing it.

    It is asked after `idle_ms` of silence, and has `answer_ms` to answer.
    """
    return (
        ("grpc.keepalive_time_ms", idle_ms),
        ("grpc.keepalive_timeout_ms", answer_ms),
        # A minute otherwise, whatever the time of keepalive is: it holds for every ping.
        ("grpc.http2.ping_timeout_ms", answer_ms),
    )


# Between the services: of one that is gone the other hears within 20 s.
SERVICES_KEEPALIVE = keepalive(10_000, 10_000)


def dial(address: str, certificates: Certificates | None, options: Options) -> grpc.aio.Channel:
    """A channel to `host:port` or `unix:path`; raises TlsFault when a file cannot be read."""
    if certificates is None or not certificates.config.dials:
        return grpc.aio.insecure_channel(address, options=options)
    name = certificates.config.server_name
    override = (("grpc.ssl_target_name_override", name),) if name else ()
    return grpc.aio.secure_channel(
        address, certificates.channel_credentials(), options=(*options, *override)
    )


def bearer(token_file: str) -> tuple[tuple[str, str], ...]:
    """Metadata that carries the token of a file, none without a file; raises OSError.

    The file is read at each call, so that a token can be replaced.
    """
    if not token_file:
        return ()
    try:
        token = Path(token_file).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise OSError(f"token_file: cannot read {token_file}: {error}") from None
    if not token:
        raise OSError(f"token_file: {token_file} is empty")
    return ((AUTHORIZATION, f"Bearer {token}"),)
