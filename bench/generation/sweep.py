"""Scheduling policies of the decode worker against each other, at multiples of its capacity."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from bench.generation.plan import GenerationPlan
from bench.generation.prefix import PrefixSettings, measure_prefix
from bench.generation.record import GenerationResult
from bench.generation.run import run_generations
from bench.report import Report, host_facts, make_report
from bench.sweep import Notify
from deploy.cluster import ClusterSpec, LocalCluster

# The policy whose completions with a standing backlog are the capacity, and its width.
REFERENCE = "never-evict"
OURS = "slo"
_WIDTH = 8
_READY_S = 120

_Results = Mapping[tuple[str, float], Sequence[GenerationResult]]


@dataclass(frozen=True, slots=True)
class GenerationSweepSettings:
    """What to run; `load_factors` multiply the measured capacity, each run lasts `seconds`.

    Every policy meets the same generations at a load and seed, seeds 1 to `seeds`, right after
    the capacity was measured for `capacity_s`.
    """

    model: str
    vocabulary: int
    policies: Sequence[str]
    load_factors: Sequence[float]
    seconds: float = 40.0
    warmup_s: float = 5.0
    capacity_s: float = 20.0
    threads: int = 2
    first_token_ms: float = 500.0
    token_ms: float = 50.0
    seeds: int = 1
    prefix: PrefixSettings | None = field(default_factory=PrefixSettings)


def generation_sweep_seconds(settings: GenerationSweepSettings) -> float:
    """About how long a sweep takes, for progress bars."""
    rounds = len(settings.load_factors) * settings.seeds
    each = settings.seconds + settings.warmup_s
    return rounds * (len(settings.policies) * each + settings.capacity_s + settings.warmup_s)


def run_generation_sweep(
    settings: GenerationSweepSettings, repository: Path, directory: Path, notify: Notify
) -> Report:
    """Measures capacity, every policy at every load, and what a shared prefix saves.

    A machine's speed drifts: each load and seed has a capacity of its own, measured right before.
    Summary: `capacity_per_s` and `capacity_tokens_per_s` (means), `capacity_low_per_s`,
    `capacity_high_per_s`, `<policy>@<load>.slo_attainment|first_token_p95_ms|token_p95_ms`
    as means over the seeds, `..._stderr` with several seeds, `<policy>@<load>.offered_load` (what
    arrived, over the capacity), `<policy>@<load>.slo_ahead` (the attainment of slo less this
    policy's, in pairs), `first_token_serial_ratio` at the lowest load, and those of
    `measure_prefix`. Policies are the decode worker's, so it is asked directly.
    Raises ClusterError, DriverError, or ValueError when nothing is answered.
    """
    host = host_facts()
    base = GenerationPlan(
        target="",
        model=settings.model,
        vocabulary=settings.vocabulary,
        in_flight=2 * _WIDTH,
        seconds=settings.seconds,
        warmup_s=settings.warmup_s,
        first_token_ms=settings.first_token_ms,
        token_ms=settings.token_ms,
    )
    points: list[dict[str, Any]] = []
    capacities: list[GenerationResult] = []
    results: dict[tuple[str, float], list[GenerationResult]] = {}
    for load, seed, policies in _rounds(settings):
        place = {"load_factor": load, "seed": seed}
        full = _capacity(
            settings, base, repository, directory / f"capacity-{load:g}-{seed}", notify
        )
        capacities.append(full)
        points.append({"policy": REFERENCE, "capacity": True} | place | full.as_point())
        rate = load * full.completed_per_s
        for policy in policies:
            # A worker of its own for each run: a backlog is no other run's business.
            own = directory / f"{policy}-{load:g}-{seed}"
            with _worker(settings, policy, repository, own) as (target, _):
                plan = replace(base, target=target, in_flight=0, rate_per_s=rate, seed=seed)
                result = _run(plan, f"{policy} at {load:g} x capacity", notify)
            results.setdefault((policy, load), []).append(result)
            offered = result.offered / (full.completed_per_s * settings.seconds)
            point = {"policy": policy, **place, "rate_per_s": rate, "offered_load": offered}
            points.append(point | result.as_point())
    summary = _capacity_figures(capacities)
    for (policy, load), found in results.items():
        key = f"{policy}@{load:g}"
        summary |= _figures(key, found, results.get((OURS, load), ()))
        summary[f"{key}.offered_load"] = fmean(
            point["offered_load"]
            for point in points
            if point["policy"] == policy and point["load_factor"] == load and "rate_per_s" in point
        )
    summary |= _serial_ratio(settings, results)
    if settings.prefix is not None:
        with _worker(settings, OURS, repository, directory / "prefix") as (_, front):
            notify("shared prefixes", 0.0, 1.0)
            found_prefixes, more = measure_prefix(
                front, settings.model, settings.vocabulary, settings.prefix
            )
            notify("shared prefixes", 1.0, 1.0)
        points += found_prefixes
        summary |= more
    return make_report(
        "generation-sweep",
        host=host,
        settings=asdict(settings),
        points=points,
        summary=summary,
    )


def _rounds(settings: GenerationSweepSettings) -> Iterator[tuple[float, int, list[str]]]:
    """Load, seed and policies of every round: those that are compared one right after the other.

    Who comes first changes, so that what drifts with time is on nobody's side.
    """
    policies = list(settings.policies)
    for load in settings.load_factors:
        for seed in range(1, settings.seeds + 1):
            yield load, seed, list(policies)
            policies.reverse()


def _capacity(
    settings: GenerationSweepSettings,
    base: GenerationPlan,
    repository: Path,
    directory: Path,
    notify: Notify,
) -> GenerationResult:
    """What a standing backlog completes; ValueError when that is nothing."""
    with _worker(settings, REFERENCE, repository, directory) as (target, _):
        plan = replace(base, target=target, seconds=settings.capacity_s)
        full = _run(plan, f"capacity under {REFERENCE}", notify)
    if not full.completed_per_s:
        raise ValueError(f"no generation ended in {settings.capacity_s} s: {dict(full.codes)}")
    return full


def _capacity_figures(found: Sequence[GenerationResult]) -> dict[str, float]:
    rates = [result.completed_per_s for result in found]
    return {
        "capacity_per_s": fmean(rates),
        "capacity_low_per_s": min(rates),
        "capacity_high_per_s": max(rates),
        "capacity_tokens_per_s": fmean(result.tokens_per_s for result in found),
    }


@contextmanager
def _worker(
    settings: GenerationSweepSettings, policy: str, repository: Path, directory: Path
) -> Iterator[tuple[str, str]]:
    """A decode worker under a policy: its address, and that of its control plane."""
    spec = ClusterSpec(
        workers=0,
        directory=directory,
        listen="127.0.0.1:0",
        repository=repository,
        models=(settings.model,),
        decode_threads=settings.threads,
        decode={"scheduling": policy},
    )
    with LocalCluster(spec) as cluster:
        status = cluster.wait_ready(timeout_s=_READY_S)
        yield status.workers[0].address, cluster.address


def _run(plan: GenerationPlan, what: str, notify: Notify) -> GenerationResult:
    total = plan.warmup_s + plan.seconds
    notify(what, 0.0, total)

    def tick(elapsed: float) -> None:
        notify(what, min(max(elapsed, 0.0), total), total)

    result = run_generations(plan, on_tick=tick)
    notify(what, total, total)
    return result


def _figures(
    key: str, results: Sequence[GenerationResult], ours: Sequence[GenerationResult]
) -> dict[str, float]:
    attained = [result.slo_attainment for result in results]
    figures = {f"{key}.slo_attainment": fmean(attained)}
    if len(attained) > 1:
        figures[f"{key}.slo_attainment_stderr"] = stdev(attained) / len(attained) ** 0.5
    if ours and ours is not results:
        pairs = zip(ours, results, strict=True)
        figures[f"{key}.slo_ahead"] = fmean(a.slo_attainment - b.slo_attainment for a, b in pairs)
    for name in ("first_token_ms", "token_ms"):
        found = [each[1] for each in (getattr(result, name) for result in results) if each]
        if found:
            figures[f"{key}.{name.removesuffix('_ms')}_p95_ms"] = fmean(found)
    return figures


def _serial_ratio(settings: GenerationSweepSettings, results: _Results) -> dict[str, float]:
    """How much longer the p95 first token takes one after the other than in company."""
    load = min(settings.load_factors)
    firsts = [
        [r.first_token_ms[1] for r in results.get((policy, load), ()) if r.first_token_ms]
        for policy in ("serial", OURS)
    ]
    if not all(firsts):
        return {}
    return {"first_token_serial_ratio": fmean(firsts[0]) / fmean(firsts[1])}
