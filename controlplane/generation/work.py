"""What crosses between an open generation and a decode worker, in domain values."""

from __future__ import annotations

from typing import NamedTuple, Protocol, TypeAlias

from controlplane.generation.records import (
    Delta,
    Finished,
    GenerationLimits,
    GenerationUsage,
    Sampling,
)


class GenerationOrder(NamedTuple):
    """One generation as a worker is asked for it; times in ns of the control plane's clock.

    `ends_ns` is when the answer must be on its way back, `gone_ns` when nobody waits any
    more. `first_token_by_ns` is when the first token's target passes, which grows with
    the prompt on the worker when nobody named it. The port turns them into what is left when the
    message leaves.
    """

    id: int
    model: str
    variant: str
    prompt: tuple[int, ...]
    sampling: Sampling
    limits: GenerationLimits
    tenant: str
    ends_ns: int
    gone_ns: int
    first_token_by_ns: int
    token_target_ns: int
    traceparent: str
    account: str = ""
    account_weight: float = 1.0
    work_price: float = 1.0
    account_room: float = 1.0
    first_token_target_grows: bool = False


class Placed(NamedTuple):
    """The worker admitted the generation."""

    prompt_tokens: int
    cached_tokens: int
    queue_ns: int


WorkerEvent: TypeAlias = Placed | Delta | Finished | GenerationUsage


class DecodeCall(Protocol):
    """One generation running on one worker."""

    async def next(self) -> WorkerEvent:
        """The worker's next event; nothing is read ahead of it.

        Raises Refused, InvalidRequest, NotFound or TooLate as the worker says, WorkerFault
        when it is lost, breaks, was abandoned, or ends without its usage.
        """

    def cancel(self) -> None:
        """End it; the worker frees what it holds before its next step. May be repeated."""


class DecodePort(Protocol):
    """The way to one decode worker."""

    def generate(self, order: GenerationOrder) -> DecodeCall:
        """Start a generation; does not block."""
