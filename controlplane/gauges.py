"""What goes up and comes down again, and what must always add up."""

from __future__ import annotations

from collections.abc import Mapping

from controlplane.policy.scheduler import Scheduler


def gauges(scheduler: Scheduler, *, pending: int, deadlines: int) -> dict[str, int]:
    """Paired counts: all 0 when nothing is in the house."""
    pools = scheduler.pools.values()
    return {
        "pending": pending,
        "queued": scheduler.queued,
        "kept": scheduler.kept,
        "in_flight": scheduler.in_flight,
        "runs": scheduler.runs,
        "deadlines": deadlines,
        "queued_work_ns": sum(pool.line.work.total for pool in pools),
        "busy_runs": sum(len(pool.busy) for pool in pools),
    }


def violations(scheduler: Scheduler, counts: Mapping[str, int], now_ns: int) -> list[str]:
    """Every broken invariant of the scheduler, and any count left over at rest."""
    found = scheduler.violations(now_ns)
    # Workers may still end runs that nobody waits for.
    if not counts["pending"] and not counts["in_flight"]:
        found += [f"nothing is in the house, but {n} is {v}" for n, v in counts.items() if v]
    return found
