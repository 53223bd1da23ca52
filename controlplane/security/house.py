"""What guards the doors of one control plane, made from its configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from controlplane.config import ControlPlaneConfig
from controlplane.security.guard import Guard
from controlplane.security.identities import IdentityFile
from protos.audit import Audit
from protos.tls import Certificates


@dataclass(frozen=True, slots=True)
class Security:
    """Without `certificates` doors are plain text, without `guard` nobody is asked who calls."""

    certificates: Certificates | None = None
    guard: Guard | None = None
    audit: Audit | None = None


OPEN = Security()


def make_security(
    config: ControlPlaneConfig, *, now_ns: Callable[[], int], wall_s: Callable[[], float]
) -> Security:
    """Reads certificates and identities; raises OSError that says what cannot be used."""
    audit = Audit(config.audit, process="controlplane", wall_s=wall_s, now_ns=now_ns)

    def certificates_changed(what: str) -> None:
        audit.record("certificates.reload", who="", outcome="ok", file=what)

    def identities_changed(fault: str) -> None:
        audit.record("identities.reload", who="", outcome="failed" if fault else "ok", reason=fault)

    certificates = None
    if config.tls.serves or config.tls.dials:
        certificates = Certificates(config.tls, wall_s=wall_s, on_change=certificates_changed)
    guard = None
    if config.identities:
        file = IdentityFile(Path(config.identities), now_ns=now_ns, on_change=identities_changed)
        guard = Guard(file, audit, now_ns)
    return Security(certificates, guard, audit)
