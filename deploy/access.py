"""How commands and benches reach a cluster: the authorities they trust and who they say they are.

All of it comes from the environment, which options of the commands set, so that the processes
that a command starts reach the cluster as it does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

CA, CERTIFICATE, KEY = "ORCHID_TLS_CA", "ORCHID_TLS_CERT", "ORCHID_TLS_KEY"
SERVER_NAME, SYSTEM = "ORCHID_TLS_SERVER_NAME", "ORCHID_TLS"
TOKEN, TOKEN_FILE = "ORCHID_TOKEN", "ORCHID_TOKEN_FILE"
INSECURE = "ORCHID_INSECURE"


class AccessError(Exception):
    """A certificate or token that was named cannot be read."""


@dataclass(frozen=True, slots=True)
class Access:
    """TLS by the authorities of the file `ca`, or the system's with `tls`; else plain text.

    `certificate` and `key` are files, shown to servers that ask. `server_name` is the name in the
    server's certificate where that is not the host that is dialled. A token goes to other
    machines in plain text only where `insecure` says so.
    """

    tls: bool = False
    ca: str = ""
    certificate: str = ""
    key: str = ""
    server_name: str = ""
    token: str = ""
    insecure: bool = False

    @property
    def encrypted(self) -> bool:
        """Whether TLS is spoken."""
        return self.tls or bool(self.ca)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What every call says of its caller."""
        return (("authorization", f"Bearer {self.token}"),) if self.token else ()

    def files(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """Contents of `ca`, `key` and `certificate`, None without a file; raises AccessError."""
        return _content(self.ca), _content(self.key), _content(self.certificate)


def access_from(environment: Mapping[str, str]) -> Access:
    """The access that variables describe; raises AccessError."""
    token = environment.get(TOKEN, "")
    if not token and (path := environment.get(TOKEN_FILE, "")):
        token = _read(path).decode("ascii", "replace").strip()
    return Access(
        tls=environment.get(SYSTEM, "") not in ("", "0"),
        ca=environment.get(CA, ""),
        certificate=environment.get(CERTIFICATE, ""),
        key=environment.get(KEY, ""),
        server_name=environment.get(SERVER_NAME, ""),
        token=token,
        insecure=environment.get(INSECURE, "") not in ("", "0"),
    )


def _content(path: str) -> bytes | None:
    return _read(path) if path else None


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise AccessError(f"cannot read {path}: {error.strerror}") from None
