"""Why the worker did not answer an item, beyond what the engine itself can say."""

from __future__ import annotations

from worker.errors import ModelLoadError, WorkerError


class Expired(WorkerError):
    """The item's deadline passed; it was not run, or its run was terminated."""


class Cancelled(WorkerError):
    """The caller took the item back or went away."""


class NotFound(WorkerError):
    """No such model or variant; the text names what was sent and what there is."""


class Unavailable(WorkerError):
    """Not now: the worker is full, drains, or the model is not ready."""


class OtherControlPlane(WorkerError):
    """The caller is a control plane that the worker does not belong to; the text names both."""


class Exhausted(WorkerError):
    """Not now: no place is free, or the first token would be late.

    `retry_after_ns` is when to try again, 0 when that is not known.
    """

    def __init__(self, message: str, retry_after_ns: int = 0) -> None:
        super().__init__(message)
        self.retry_after_ns = retry_after_ns


class InsufficientMemory(ModelLoadError):
    """A load that cannot fit; the text has the bytes needed and the bytes there are."""


class Forbidden(WorkerError):
    """The caller is not one that this worker works for."""


# What ends items and generations that nobody wants, or that came at the wrong time.
ABANDONED = Unavailable("the worker ended before the item was answered")
CANCELLED = Cancelled("the caller took the item back")
EXPIRED_WAITING = Expired("the deadline passed before the run began")
EXPIRED_RUNNING = Expired("the deadline passed during the run, which was terminated")
DRAINING = Unavailable("the worker is draining and takes no new work")
