"""Who owns which cores: encoder workers and a decode worker under one budget."""

from __future__ import annotations

from dataclasses import dataclass

from worker.cpu_plan import CpuPlan, OversubscribedError


@dataclass(frozen=True, slots=True)
class CoreBudget:
    """Workers, their threads, and the CPUs they keep to; empty CPUs are all that are granted.

    `decode_threads` 0 has no decode worker.
    """

    encoders: int
    encoder_threads: int
    decode_threads: int
    encoder_cpus: tuple[int, ...] = ()
    decode_cpus: tuple[int, ...] = ()


def decode_share(plan: CpuPlan, *, encoders: bool) -> int:
    """Threads of a decode worker that is not told how many: half of the cores, or all alone."""
    return max(1, plan.cores // 2) if encoders else plan.cores


def core_budget(
    plan: CpuPlan,
    *,
    encoders: int | None,
    encoder_threads: int,
    decode_threads: int,
    oversubscribe: bool = False,
) -> CoreBudget:
    """Shares the granted cores out: the decode worker's threads first, encoders get the rest.

    `encoders` None takes as many as the rest has room for, at least one. Where both classes run
    on CPUs that are theirs alone, each keeps to its own; a bandwidth quota grants time and no
    CPUs, so nothing is pinned under one.

    Raises:
        OversubscribedError: together they have more threads than there are granted cores.
    """
    rest = plan.cores - decode_threads
    count = max(1, rest // encoder_threads) if encoders is None else encoders
    wanted = count * encoder_threads + decode_threads
    if wanted > plan.cores:
        if not oversubscribe:
            beside = f" and a decode worker with {decode_threads}" if decode_threads else ""
            raise OversubscribedError(
                f"{count} workers with {encoder_threads} thread(s) each{beside} need {wanted} "
                f"cores, {plan.granted:g} are granted (limit: {plan.binding})"
            )
        return CoreBudget(count, encoder_threads, decode_threads)
    if not count or not decode_threads or plan.binding == "quota":
        return CoreBudget(count, encoder_threads, decode_threads)
    split = len(plan.cpus) - decode_threads
    return CoreBudget(count, encoder_threads, decode_threads, plan.cpus[:split], plan.cpus[split:])
