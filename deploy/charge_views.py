"""What a control plane says of charges and of cohorts' prices, as plain values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from protos.orchid.v1 import fleet_pb2


@dataclass(frozen=True, slots=True)
class ChargeView:
    """What a worker has spent since it registered, and what of that callers were charged.

    `run_cpu_ms` is CPU time of its runs, `process_cpu_ms` that of its whole process,
    `live_token_ms` the integral of the tokens in its arenas over time.
    """

    run_cpu_ms: float
    process_cpu_ms: float
    live_token_ms: int
    charged_cpu_ms: float
    charged_live_token_ms: int

    @property
    def overhead_ms(self) -> float:
        """CPU time of its process outside runs: loading, warming up, messages."""
        return max(0.0, self.process_cpu_ms - self.run_cpu_ms)


NO_CHARGES = ChargeView(0.0, 0.0, 0, 0.0, 0)


@dataclass(frozen=True, slots=True)
class CohortView:
    """Requests of one tenant, class and size that take `price` times what their size says.

    Their tokens are from `tokens` to below twice that; the price rests on so many `runs`.
    """

    tenant: str
    request_class: str
    tokens: int
    price: float
    runs: int


def charge_view(message: fleet_pb2.WorkerStatus) -> ChargeView:
    """The charges of a worker."""
    return ChargeView(
        run_cpu_ms=message.run_cpu_us / 1e3,
        process_cpu_ms=message.process_cpu_us / 1e3,
        live_token_ms=message.live_token_ms,
        charged_cpu_ms=message.charged_cpu_us / 1e3,
        charged_live_token_ms=message.charged_live_token_ms,
    )


def cohort_views(messages: Iterable[fleet_pb2.CohortStatus]) -> tuple[CohortView, ...]:
    """The cohorts of a pool whose price is above 1, the dearest first."""
    return tuple(
        CohortView(
            tenant=message.tenant,
            request_class=message.request_class,
            tokens=message.tokens,
            price=message.price,
            runs=message.runs,
        )
        for message in messages
    )
