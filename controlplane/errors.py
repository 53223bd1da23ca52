"""Why a request got no answer, free of any transport.

`rpc/status.py` is the one place that turns these into gRPC codes.
"""

from __future__ import annotations


class ControlPlaneError(Exception):
    """Base of every error a caller may see."""


class InvalidRequest(ControlPlaneError):
    """The request itself is wrong and will never work; names what came and what is accepted."""


class ContextOverflow(InvalidRequest):
    """A prompt and its answer are longer than the model, or its workers, can hold."""


class NotFound(ControlPlaneError):
    """The named model, version, variant or tokenizer does not exist here."""


class Unsatisfiable(ControlPlaneError):
    """Well-formed, but no deployed variant may answer it (floor, prohibition, size)."""


class TooLate(ControlPlaneError):
    """The deadline passed before an answer was ready; nothing runs for it any more."""


class Refused(ControlPlaneError):
    """Not now: admitting this request would break a bound.

    `retry_after_ms` comes from the time the queue needs to drain.
    """

    def __init__(self, message: str, retry_after_ms: int) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms


class Overloaded(Refused):
    """Not now: a level of the overload ladder keeps it out; `reason` is the stable word."""

    def __init__(self, message: str, retry_after_ms: int, reason: str) -> None:
        super().__init__(message, retry_after_ms)
        self.reason = reason


class Unavailable(ControlPlaneError):
    """Nothing can serve the model at this moment (no live or ready worker)."""

    def __init__(self, message: str, retry_after_ms: int = 0) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms


class WorkerFault(ControlPlaneError):
    """A worker failed while executing and the request could not run elsewhere in time."""


class Cancelled(ControlPlaneError):
    """The caller went away."""


class Unauthenticated(ControlPlaneError):
    """The caller does not say who it is, or says it with a token that is not known here."""


class Forbidden(ControlPlaneError):
    """The caller is known and may not do this."""
