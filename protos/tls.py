"""Certificates of a process: read and checked at its start, read again when their files change.

A new certificate is taken for the next connection; connections that stand keep theirs. What is
unusable (a key that does not fit yet, half of a file) is passed over until it is mended.
"""

from __future__ import annotations

import logging
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc

log = logging.getLogger(__name__)

_SOON = timedelta(days=14)
_UTC_TIME, _GENERALIZED_TIME, _VERSION = 0x17, 0x18, 0xA0


class TlsFault(OSError):
    """A certificate, key or authority cannot be used; the text names its key and file."""


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """PEM files of a process; all empty: plain text.

    `certificate` (its chain after it) and `key` are what the process shows, as a server and, where
    it is asked, as a client. `ca` are the authorities of servers that it dials: with it they are
    dialled by TLS, and their certificate must hold `server_name`, or the host that is dialled.
    `client_ca` are the authorities of callers, `ca` when empty; with
    `require_client_certificate` nobody connects without a certificate of theirs.
    """

    certificate: str = ""
    key: str = ""
    ca: str = ""
    client_ca: str = ""
    require_client_certificate: bool = False
    server_name: str = ""

    def __post_init__(self) -> None:
        if bool(self.certificate) != bool(self.key):
            missing = "key" if self.certificate else "certificate"
            raise ValueError(f"tls.{missing} is missing: certificate and key go together")
        if self.client_ca and not self.certificate:
            raise ValueError("tls.client_ca is for callers, who need a tls.certificate to trust")
        if self.require_client_certificate and not (self.certificate and self.callers_ca):
            raise ValueError(
                "tls.require_client_certificate needs tls.certificate, tls.key and tls.client_ca "
                "(or tls.ca)"
            )
        if self.server_name and not self.ca:
            raise ValueError("tls.server_name is for servers that are dialled by tls.ca")

    @property
    def serves(self) -> bool:
        """Whether listeners are encrypted."""
        return bool(self.certificate)

    @property
    def dials(self) -> bool:
        """Whether others are dialled by TLS."""
        return bool(self.ca)

    @property
    def callers_ca(self) -> str:
        """The file of the authorities of callers."""
        return self.client_ca or self.ca

    @property
    def identities(self) -> bool:
        """Whether the certificate of a caller says who it is."""
        return self.require_client_certificate


@dataclass(frozen=True, slots=True)
class Loaded:
    """Contents of the files, None for those that are not configured."""

    certificate: bytes | None
    key: bytes | None
    ca: bytes | None
    callers_ca: bytes | None


Stamp = tuple[tuple[int, int, int], ...]


class Certificates:
    """The files of one configuration. Thread-safe.

    `wall_s` is the time of day, in seconds since 1970. `on_change` hears of each new content.
    """

    def __init__(
        self,
        config: TlsConfig,
        *,
        wall_s: Callable[[], float],
        on_change: Callable[[str], None] = lambda what: None,
    ) -> None:
        """Reads and checks everything; raises TlsFault."""
        self.config = config
        self._wall_s = wall_s
        self._on_change = on_change
        self._lock = threading.Lock()
        self._seen = self._stamp()
        self._loaded = self._read()
        self._context: ssl.SSLContext | None = None
        if config.serves:
            self._context = self._made_context()
        self._warn()

    @property
    def loaded(self) -> Loaded:
        """What the files hold now, or held when they could last be used."""
        self._look()
        return self._loaded

    def server_credentials(self) -> grpc.ServerCredentials:
        """For a gRPC port; each connection gets the newest certificate."""
        taken = [self._loaded]

        def newest() -> grpc.ServerCertificateConfiguration | None:
            loaded = self.loaded
            if loaded is taken[0]:
                return None
            taken[0] = loaded
            return _configuration(loaded)

        return grpc.dynamic_ssl_server_credentials(
            _configuration(self._loaded), newest, self.config.require_client_certificate
        )

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """For a channel that is made now."""
        loaded = self.loaded
        return grpc.ssl_channel_credentials(loaded.ca, loaded.key, loaded.certificate)

    def server_context(self) -> ssl.SSLContext:
        """For a server of Python's own sockets; each connection gets the newest certificate."""
        first = self._made_context()

        def newest(connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
            self._look()
            if self._context is not None:
                connection.context = self._context

        # Called in every handshake, also of callers that name no server.
        first.sni_callback = newest  # type: ignore[assignment]
        return first

    def _look(self) -> None:
        """Take new contents where the files have changed and can be used."""
        with self._lock:
            try:
                stamp = self._stamp()
            except TlsFault as fault:
                log.debug("certificates are kept: %s", fault)
                return
            if stamp == self._seen:
                return
            self._seen = stamp
            try:
                loaded = self._read()
                context = self._made_context() if self.config.serves else None
            except TlsFault as fault:
                log.warning("changed certificates are not taken: %s", fault)
                return
            self._loaded, self._context = loaded, context
        self._warn()
        self._on_change(self.config.certificate or self.config.ca)
        log.info("certificates were read again: %s", self.config.certificate or self.config.ca)

    def _files(self) -> Iterator[tuple[str, Path]]:
        """Key and file of all that is configured."""
        for key in ("certificate", "key", "ca", "client_ca"):
            if name := getattr(self.config, key):
                yield f"tls.{key}", Path(name)

    def _stamp(self) -> Stamp:
        found = []
        for key, path in self._files():
            try:
                status = path.stat()
            except OSError as error:
                raise TlsFault(f"{key}: cannot read {path}: {error.strerror}") from None
            found.append((status.st_ino, status.st_size, status.st_mtime_ns))
        return tuple(found)

    def _read(self) -> Loaded:
        contents: dict[str, bytes] = {}
        for key, path in self._files():
            try:
                contents[key] = path.read_bytes()
            except OSError as error:
                raise TlsFault(f"{key}: cannot read {path}: {error.strerror}") from None
        ca = contents.get("tls.ca")
        if ca is not None:
            _check_authorities("tls.ca", self.config.ca, ca)
        return Loaded(
            certificate=contents.get("tls.certificate"),
            key=contents.get("tls.key"),
            ca=ca,
            callers_ca=contents.get("tls.client_ca", ca),
        )

    def _made_context(self) -> ssl.SSLContext:
        """A server's context of the files as they are now; also what checks them."""
        config = self.config
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(config.certificate, config.key, password=_no_password)
        except TlsFault:
            raise
        except ssl.SSLError as error:
            raise TlsFault(_reason(error, config)) from None
        except OSError as error:
            raise TlsFault(f"tls.key: cannot use {config.key}: {error}") from None
        if config.callers_ca:
            key = "tls.client_ca" if config.client_ca else "tls.ca"
            try:
                context.load_verify_locations(config.callers_ca)
            except OSError:
                raise TlsFault(f"{key}: {config.callers_ca} holds no certificate") from None
        if config.require_client_certificate:
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _warn(self) -> None:
        """Say of certificates that have expired, or soon will."""
        now = datetime.fromtimestamp(self._wall_s(), UTC)
        for key, content in (("certificate", self._loaded.certificate), ("ca", self._loaded.ca)):
            if content is None:
                continue
            begin, end = lifetime(content)
            path = getattr(self.config, key)
            if end <= now:
                log.warning("tls.%s: %s has expired on %s", key, path, end.isoformat())
            elif begin > now:
                log.warning("tls.%s: %s is valid only from %s", key, path, begin.isoformat())
            elif end - now < _SOON:
                log.warning("tls.%s: %s expires on %s", key, path, end.isoformat())


def listener_context(certificates: Certificates | None) -> ssl.SSLContext | None:
    """For a listener of Python's own sockets, None where it is plain text."""
    if certificates is None or not certificates.config.serves:
        return None
    return certificates.server_context()


def listener_credentials(certificates: Certificates | None) -> grpc.ServerCredentials | None:
    """The same for a gRPC port."""
    if certificates is None or not certificates.config.serves:
        return None
    return certificates.server_credentials()


def lifetime(pem: bytes) -> tuple[datetime, datetime]:
    """From when until when the first certificate of a PEM text is valid; raises TlsFault.

    Source: RFC 5280, section 4.1.
    """
    begin, end = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"
    first = begin + pem.partition(begin)[2].partition(end)[0] + end
    try:
        der = ssl.PEM_cert_to_DER_cert(first.decode("ascii"))
        certificate = next(_elements(der))[1]
        fields = [*_elements(next(_elements(certificate))[1])]
        if fields[0][0] == _VERSION:
            del fields[0]
        # Serial number, signature and issuer stand before the validity.
        times = [*_elements(fields[3][1])]
        return _time(*times[0]), _time(*times[1])
    except (ValueError, IndexError, StopIteration, RuntimeError):
        raise TlsFault("the certificate cannot be read") from None


def _elements(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Tag and content of each element of a DER encoding."""
    at = 0
    while at < len(der):
        tag, length = der[at], der[at + 1]
        at += 2
        if length & 0x80:
            count = length & 0x7F
            length = int.from_bytes(der[at : at + count], "big")
            at += count
        yield tag, der[at : at + length]
        at += length


def _time(tag: int, content: bytes) -> datetime:
    if tag not in (_UTC_TIME, _GENERALIZED_TIME):
        raise ValueError(f"tag {tag} is no time")
    text = content.decode("ascii")
    if tag == _UTC_TIME:
        text = ("20" if text < "5" else "19") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _configuration(loaded: Loaded) -> grpc.ServerCertificateConfiguration:
    assert loaded.key is not None
    assert loaded.certificate is not None
    return grpc.ssl_server_certificate_configuration(
        [(loaded.key, loaded.certificate)], loaded.callers_ca
    )


def _check_authorities(key: str, path: str, content: bytes) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(
            cadata=content.decode("ascii")
        )
    except (ssl.SSLError, ValueError):
        raise TlsFault(f"{key}: {path} holds no certificate") from None


def _no_password() -> str:
    raise TlsFault("tls.key: the key is encrypted; give one without a passphrase")


def _reason(error: ssl.SSLError, config: TlsConfig) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"tls.key: {config.key} is not the key of {config.certificate}"
    return (
        f"tls.certificate: {config.certificate} and {config.key} are no certificate and key in "
        f"PEM form ({error.reason or error})"
    )
