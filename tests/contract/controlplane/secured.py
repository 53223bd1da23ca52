"""Security as a configuration makes it, for the servers of these tests."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

import grpc

from bench.certificates import Authority
from controlplane.config import ControlPlaneConfig
from controlplane.security.house import Security, make_security
from protos.audit import AuditConfig
from protos.tls import TlsConfig

SHOP, OPERATOR, NODE, SLOW = "shop-token", "operator-token", "node-token", "slow-token"
GATEWAY = "gateway-token"


def sha256(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def identities(folder: Path) -> Path:
    """A file of identities, one of each kind."""
    entries: list[dict[str, Any]] = [
        {"name": "shop", "tenant": "shop", "roles": ["infer"], "token_sha256": [sha256(SHOP)]},
        {
            "name": "slow",
            "tenant": "slow",
            "roles": ["infer"],
            "token_sha256": [sha256(SLOW)],
            "requests_per_s": 0.01,
            "burst": 2,
        },
        {"name": "gateway", "tenant": "*", "roles": ["infer"], "token_sha256": [sha256(GATEWAY)]},
        {
            "name": "operator",
            "roles": ["operate"],
            "token_sha256": [sha256(OPERATOR)],
            "certificates": ["operator.example"],
        },
        {
            "name": "node",
            "roles": ["worker"],
            "token_sha256": [sha256(NODE)],
            "certificates": ["worker.example"],
        },
        {
            "name": "client",
            "tenant": "client",
            "roles": ["infer"],
            "certificates": ["client.example"],
        },
    ]
    path = folder / "identities.yaml"
    path.write_text(json.dumps({"identities": entries}))
    return path


def secured(folder: Path, **settings: Any) -> tuple[ControlPlaneConfig, Security]:
    """A configuration with identities and an audit log, and the security it makes."""
    config = ControlPlaneConfig(
        listen="127.0.0.1:0",
        identities=str(identities(folder)),
        audit=AuditConfig(file=str(folder / "audit.log")),
        **settings,
    )
    return config, security_of(config)


def security_of(config: ControlPlaneConfig) -> Security:
    """What a configuration makes."""
    return make_security(config, now_ns=time.monotonic_ns, wall_s=lambda: time.time_ns() / 1e9)


def tls_of(authority: Authority, *, mutual: bool, stem: str = "server") -> TlsConfig:
    """A server's certificate for 127.0.0.1; `mutual` asks callers for theirs."""
    certificate, key = authority.issue(stem, "localhost", "127.0.0.1")
    return TlsConfig(
        certificate=str(certificate),
        key=str(key),
        ca=str(authority.path),
        require_client_certificate=mutual,
    )


def client_of(authority: Authority, *names: str) -> grpc.ChannelCredentials:
    """Credentials that trust an authority, with a certificate of these names when there are any."""
    if not names:
        return grpc.ssl_channel_credentials(authority.path.read_bytes())
    certificate, key = authority.issue(names[0].split("/")[-1], *names)
    return grpc.ssl_channel_credentials(
        authority.path.read_bytes(), key.read_bytes(), certificate.read_bytes()
    )


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    """Metadata of a call."""
    return (("authorization", f"Bearer {token}"),)


def audited(folder: Path) -> list[dict[str, Any]]:
    """The audit lines so far."""
    return [json.loads(line) for line in (folder / "audit.log").read_text().splitlines()]
