"""The one place where a domain error becomes a gRPC status."""

from __future__ import annotations

from dataclasses import dataclass

import grpc

from controlplane.errors import (
    Cancelled,
    ContextOverflow,
    ControlPlaneError,
    Forbidden,
    InvalidRequest,
    NotFound,
    Refused,
    TooLate,
    Unauthenticated,
    Unavailable,
    Unsatisfiable,
    WorkerFault,
)
from controlplane.wording import listed, shown

__all__ = [
    "INTERNAL",
    "REASON",
    "RETRY_AFTER",
    "RETRY_PUSHBACK",
    "Status",
    "bounded",
    "listed",
    "shown",
    "status_of",
]

RETRY_AFTER = "retry-after-ms"
# gRPC clients with a retry policy wait this long before the next attempt.
RETRY_PUSHBACK = "grpc-retry-pushback-ms"
# What kind of mistake a request is, for programs that can repair it.
REASON = "orchid-reason"
_REASONS: dict[type[BaseException], str] = {ContextOverflow: "context-overflow"}

# A status travels in trailing metadata, of which clients accept 8 KiB by default and
# where a byte outside ASCII takes three.
_MESSAGE_BYTES = 2000

_CODES: dict[type[ControlPlaneError], grpc.StatusCode] = {
    InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    NotFound: grpc.StatusCode.NOT_FOUND,
    Unsatisfiable: grpc.StatusCode.FAILED_PRECONDITION,
    TooLate: grpc.StatusCode.DEADLINE_EXCEEDED,
    Refused: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Unavailable: grpc.StatusCode.UNAVAILABLE,
    WorkerFault: grpc.StatusCode.UNAVAILABLE,
    Cancelled: grpc.StatusCode.CANCELLED,
    Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    Forbidden: grpc.StatusCode.PERMISSION_DENIED,
}


@dataclass(frozen=True, slots=True)
class Status:
    """What a caller is told: code, reason, and when trying again may help (0: not known)."""

    code: grpc.StatusCode
    message: str
    retry_after_ms: int = 0
    reason: str = ""

    @property
    def number(self) -> int:
        """The code as the integer that google.rpc.Code gives it."""
        return int(self.code.value[0])

    @property
    def trailers(self) -> tuple[tuple[str, str], ...]:
        """Trailing metadata that carries the retry guidance, or the kind of mistake."""
        reason = ((REASON, self.reason),) if self.reason else ()
        if self.retry_after_ms <= 0:
            return reason
        after = str(self.retry_after_ms)
        return (*reason, (RETRY_AFTER, after), (RETRY_PUSHBACK, after))


INTERNAL = Status(grpc.StatusCode.INTERNAL, "internal error; the control plane's log has the cause")


def status_of(error: BaseException) -> Status:
    """Status of any error a servicer can meet.

    Domain errors map by type; what is not a domain error is a fault of ours and is
    INTERNAL without its text, which could hold content.
    """
    for kind in type(error).__mro__:
        code = _CODES.get(kind)
        if code is not None:
            retry = error.retry_after_ms if isinstance(error, Refused | Unavailable) else 0
            return Status(code, bounded(str(error)), retry, _REASONS.get(type(error), ""))
    return INTERNAL


def bounded(message: str) -> str:
    """`message`, cut so that it fits into trailing metadata."""
    raw = message.encode("utf-8", "replace")
    if len(raw) <= _MESSAGE_BYTES:
        return message
    return raw[:_MESSAGE_BYTES].decode("utf-8", "ignore") + " ..."
