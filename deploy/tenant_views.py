"""What a control plane says of its tenants and of overload, as plain values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from protos.orchid.v1 import fleet_pb2


@dataclass(frozen=True, slots=True)
class TenantView:
    """What one tenant has reserved, used and waits for; see `orchid.v1.TenantStatus`.

    The empty name is everybody who is not configured, together.
    """

    name: str
    reserved_cpu_ms_per_s: int
    queued: int
    queued_work_ms: float
    admitted: int
    refused: int
    charged_cpu_ms: float
    in_flight_cpu_ms: float
    ahead_ms: float
    apart_cpu_ms: float
    reserved_kv_block_s_per_s: int
    generations: int
    held_kv_blocks: int
    live_token_ms: int


@dataclass(frozen=True, slots=True)
class ReloadView:
    """Configurations read again by a running process; `fault` is why the last was not taken."""

    taken: int
    refused: int
    fault: str


NO_RELOADS = ReloadView(0, 0, "")


@dataclass(frozen=True, slots=True)
class OverloadView:
    """Where a pool is on the overload ladder; see `orchid.v1.OverloadStatus`."""

    level: int
    trigger: str
    crowding: float
    refusing: float
    changes: int
    kept_out: int
    strain: float = 0.0
    stopped: int = 0
    cut: int = 0
    protected: int = 0

    @property
    def text(self) -> str:
        """Level and trigger for a line; empty on level 0."""
        return f"overload level {self.level}: {self.trigger}" if self.level else ""


NO_OVERLOAD = OverloadView(0, "", 0.0, 0.0, 0, 0)


def overload_view(message: fleet_pb2.OverloadStatus) -> OverloadView:
    """The ladder of a pool."""
    return OverloadView(
        level=message.level,
        trigger=message.trigger,
        crowding=message.crowding,
        refusing=message.refusing,
        changes=message.changes,
        kept_out=message.kept_out,
        strain=message.strain,
        stopped=message.stopped,
        cut=message.cut,
        protected=message.protected,
    )


def tenant_views(messages: Iterable[fleet_pb2.TenantStatus]) -> tuple[TenantView, ...]:
    """The tenants of a status."""
    return tuple(
        TenantView(
            name=message.name,
            reserved_cpu_ms_per_s=message.reserved_cpu_ms_per_s,
            queued=message.queued,
            queued_work_ms=message.queued_work_ms,
            admitted=message.admitted,
            refused=message.refused,
            charged_cpu_ms=message.charged_cpu_ms,
            in_flight_cpu_ms=message.in_flight_cpu_ms,
            ahead_ms=message.ahead_ms,
            apart_cpu_ms=message.apart_cpu_ms,
            reserved_kv_block_s_per_s=message.reserved_kv_block_s_per_s,
            generations=message.generations,
            held_kv_blocks=message.held_kv_blocks,
            live_token_ms=message.live_token_ms,
        )
        for message in messages
    )


def reload_view(message: fleet_pb2.ReloadStatus) -> ReloadView:
    """What came of configurations that were read again."""
    return ReloadView(message.taken, message.refused, message.fault)
