"""What GetStatus says of tenants, of overload, and of configurations that were read again."""

from __future__ import annotations

from controlplane.policy.ladder import Ladder
from controlplane.policy.tenancy.tenancy import Tenancy
from controlplane.reload import Reloads
from protos.orchid.v1 import fleet_pb2


def tenant_statuses(tenancy: Tenancy | None) -> list[fleet_pb2.TenantStatus]:
    """One for each configured tenant, then that of all others; none without tenants."""
    if tenancy is None:
        return []
    waiting = [a.clock.time for a in tenancy.accounts.values() if a.clock.waiting]
    least = min(waiting, default=0.0)
    return [
        fleet_pb2.TenantStatus(
            name=account.name,
            reserved_cpu_ms_per_s=account.config.cpu_ms_per_s,
            queued=account.clock.waiting,
            queued_work_ms=account.waiting_ns / 1e6,
            admitted=account.admitted,
            refused=account.refused,
            charged_cpu_ms=account.charged_ns / 1e6,
            in_flight_cpu_ms=account.in_flight_ns / 1e6,
            ahead_ms=(account.clock.time - least) / 1e6 if account.clock.waiting else 0.0,
            apart_cpu_ms=account.apart_ns / 1e6,
            reserved_kv_block_s_per_s=account.config.kv_block_s_per_s,
            generations=account.open,
            held_kv_blocks=account.held_blocks,
            live_token_ms=account.held_token_ms,
        )
        for account in tenancy.accounts.values()
    ]


def reload_status(reloads: Reloads) -> fleet_pb2.ReloadStatus:
    """How often another configuration was taken, and why the last one was not."""
    return fleet_pb2.ReloadStatus(taken=reloads.taken, refused=reloads.refused, fault=reloads.fault)


def overload_status(ladder: Ladder) -> fleet_pb2.OverloadStatus:
    """Where a ladder stands, why, and what it has done."""
    return fleet_pb2.OverloadStatus(
        level=ladder.rung,
        trigger=ladder.trigger,
        crowding=ladder.crowding,
        refusing=ladder.refusing,
        strain=max(0.0, ladder.strain),
        changes=ladder.changes,
        kept_out=ladder.kept_out,
        stopped=ladder.stopped,
        cut=ladder.cut,
        protected=ladder.protected,
    )
