"""The one place where a domain error becomes an HTTP status and a body that says why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from pydantic_core import to_json

from controlplane.errors import (
    Cancelled,
    ContextOverflow,
    ControlPlaneError,
    Forbidden,
    InvalidRequest,
    NotFound,
    Overloaded,
    Refused,
    TooLate,
    Unauthenticated,
    Unavailable,
    Unsatisfiable,
    WorkerFault,
)
from controlplane.rpc.status import bounded

_INVALID = "invalid_request_error"


class InvalidField(InvalidRequest):
    """One field of a body, or one header, is wrong; `field` names it."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field


class ModelNotFound(NotFound):
    """No model of that name is here."""


class TooLarge(InvalidRequest):
    """The body is over the message limit."""


class NotReceived(InvalidRequest):
    """The body did not come in time."""


class UnsupportedCoding(InvalidRequest):
    """The body is encoded in a way that is not read here."""


class NoRoute(NotFound):
    """There is nothing at this path."""


class WrongMethod(InvalidRequest):
    """The path is there, but not for this method; `allowed` lists those it has."""

    def __init__(self, message: str, allowed: str) -> None:
        super().__init__(message)
        self.allowed = allowed


@dataclass(frozen=True, slots=True)
class Problem:
    """What a caller is told when there is no answer.

    `kind` and `code` are the body's `type` and `code`. `retry_after_ms` says when trying
    again may succeed (0: not known); `again` false tells clients that it will not help.
    """

    status: int
    kind: str
    code: str
    message: str = ""
    param: str | None = None
    retry_after_ms: int = 0
    again: bool = True
    allowed: str = ""

    def document(self) -> dict[str, object]:
        """The body, before it is written as JSON."""
        error = {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.code,
        }
        return {"error": error}

    def body(self) -> bytes:
        """The body as JSON, in OpenAI's form."""
        return to_json(self.document())

    def brief(self) -> bytes:
        """The body in the Open Inference Protocol's form: the message, and nothing else."""
        return to_json({"error": self.message})

    def headers(self) -> dict[str, str]:
        """Retry guidance as clients read it: seconds, whole and rounded up, and milliseconds."""
        headers = {}
        if self.retry_after_ms > 0:
            headers["retry-after"] = str(-(-self.retry_after_ms // 1000))
            headers["retry-after-ms"] = str(self.retry_after_ms)
        if not self.again:
            headers["x-should-retry"] = "false"
        if self.allowed:
            headers["allow"] = self.allowed
        if self.status == 408:
            # What comes later would be the rest of this body, not a request.
            headers["connection"] = "close"
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        return headers


ErrorForm = Callable[[Problem], bytes]

_PROBLEMS: Mapping[type[ControlPlaneError], Problem] = {
    InvalidRequest: Problem(400, _INVALID, "invalid_request"),
    ContextOverflow: Problem(400, _INVALID, "context_length_exceeded"),
    TooLarge: Problem(413, _INVALID, "request_too_large"),
    NotReceived: Problem(408, _INVALID, "request_timeout", again=False),
    UnsupportedCoding: Problem(415, _INVALID, "unsupported_encoding"),
    WrongMethod: Problem(405, _INVALID, "method_not_allowed"),
    NotFound: Problem(404, _INVALID, "not_found"),
    ModelNotFound: Problem(404, _INVALID, "model_not_found", param="model"),
    NoRoute: Problem(404, _INVALID, "unknown_url"),
    Unsatisfiable: Problem(422, _INVALID, "unsatisfiable"),
    # The same request with the same time would be as late again.
    TooLate: Problem(504, "timeout_error", "deadline_exceeded", again=False),
    Refused: Problem(429, "rate_limit_error", "rate_limit_exceeded"),
    Overloaded: Problem(429, "rate_limit_error", "overloaded"),
    Unavailable: Problem(503, "server_error", "unavailable"),
    WorkerFault: Problem(503, "server_error", "worker_fault"),
    Cancelled: Problem(499, "server_error", "cancelled"),
    Unauthenticated: Problem(401, _INVALID, "invalid_api_key", again=False),
    Forbidden: Problem(403, "permission_error", "permission_denied", again=False),
}
INTERNAL = Problem(
    500, "server_error", "internal_error", "internal error; the control plane's log has the cause"
)


def problem_of(error: BaseException) -> Problem:
    """The problem of any error that a handler can meet.

    What is not a domain error is a fault of ours and stays without its text, which could
    hold content.
    """
    for kind in type(error).__mro__:
        problem = _PROBLEMS.get(kind)
        if problem is not None:
            break
    else:
        return INTERNAL
    return replace(
        problem,
        message=bounded(str(error)),
        param=error.field if isinstance(error, InvalidField) else problem.param,
        retry_after_ms=error.retry_after_ms if isinstance(error, Refused | Unavailable) else 0,
        allowed=error.allowed if isinstance(error, WrongMethod) else "",
    )
