"""`orchid bench tenants`: a flood beside a steady tenant, on a virtual clock."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deploy.cli.output import JsonOption, fail
from deploy.cli.results import finish

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def tenants(
    steady: Annotated[
        float, typer.Option(min=0.01, help="Load of the steady tenant; 1: all that fits.")
    ] = 0.25,
    flood: Annotated[float, typer.Option(min=0.01, help="Mean load of the bursty one.")] = 5.0,
    reserved: Annotated[
        float, typer.Option(min=0.01, max=0.99, help="Share of the workers the steady one has.")
    ] = 0.5,
    workers: Annotated[int, typer.Option(min=1, help="Workers.")] = 2,
    deadline_ms: Annotated[float, typer.Option(min=1.0, help="Deadline of every request.")] = 200.0,
    bound_ms: Annotated[float, typer.Option(min=0.0, help="tenants.bound_ms.")] = 5.0,
    policy: Annotated[str, typer.Option(help="Policy of the control plane.")] = "price",
    seconds: Annotated[float, typer.Option(min=3.0, help="Span of the arrivals.")] = 20.0,
    seeds: Annotated[int, typer.Option(min=1, help="Runs, seeds 1 to N.")] = 3,
    profile: Annotated[
        Path | None,
        typer.Option(help="Variants, as orchid sim takes them.", exists=True, dir_okay=False),
    ] = None,
    json: JsonOption = None,
) -> None:
    """Play a tenant inside its reservation alone, then beside a flood without and with tenants.

    The live scheduler; loads are of what the fastest variant carries. The steady tenant meets
    the same arrivals and services each time. Shares are of the offered, means over the seeds.
    """
    from rich.console import Console

    from bench.report import host_facts, make_report
    from bench.sim.model import built_in, read_profile
    from bench.sim.tenants import Scene, play
    from bench.sim.workload import REVIEW_LENGTHS

    scene = Scene(
        workers=workers,
        deadline_ms=deadline_ms,
        steady_load=steady,
        bursty_load=flood,
        reserved=reserved,
        seconds=seconds,
        warmup_s=min(2.0, seconds / 3),
        policy=policy,
        bound_ms=bound_ms,
    )
    host = host_facts()
    try:
        table = (built_in() if profile is None else read_profile(profile)).table()
        points: list[Mapping[str, Any]] = []
        with Console(stderr=True).status("simulating") as status:
            for seed in range(1, seeds + 1):
                status.update(f"seed {seed} of {seeds}")
                shares = play(scene, table, REVIEW_LENGTHS, seed)
                points += [{"seed": seed, **share.as_point()} for share in shares]
    except (ValueError, OSError) as error:
        fail(str(error), "orchid bench tenants --help says what each option takes")
    summary = _print(points)
    settings = {**asdict(scene), "seeds": seeds}
    finish(
        make_report("tenants", host=host, settings=settings, points=points, summary=summary), json
    )


def _print(points: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """One line a tenant and setting; returns the figures of the steady one."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold dim")
    for heading in ("tenant", "tenants"):
        table.add_column(heading)
    figures = ("on_time", "refused", "quality", "p50_ms", "p99_ms", "charged_cores")
    for heading in ("on time", "refused", "quality", "p50 ms", "p99 ms", "cores"):
        table.add_column(heading, justify="right")
    summary: dict[str, float] = {}
    lines = dict.fromkeys((str(p["tenant"]), str(p["setting"])) for p in points)
    for tenant, setting in lines:
        mine = [p for p in points if (p["tenant"], p["setting"]) == (tenant, setting)]
        means = {name: _mean([p[name] for p in mine]) for name in figures}
        if tenant == "steady":
            known = {name: value for name, value in means.items() if value is not None}
            summary |= {f"{setting}.{name}": value for name, value in known.items()}
        table.add_row(
            tenant,
            setting,
            *(_shown(means[name], 4) for name in figures[:3]),
            *(_shown(means[name], 1) for name in figures[3:5]),
            _shown(means["charged_cores"], 2),
        )
    Console().print(table)
    return summary


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


def _shown(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
