"""`orchid sim`: policies against each other on a virtual clock."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deploy.cli.output import JsonOption, fail, fail_for_model
from deploy.cli.results import names, numbers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.sim.service import SlowDown, WorkerLoss
    from bench.sim.sweep import SimPoint, SimScale, SimSweep

_EVERY_POLICY = "orchid,price,accurate,cheap,published-accurate,published-adaptive,early,bound"
_EVERY_LOAD = "0.4,0.6,0.8,0.95,1.1,1.3,2,3"
_BUILT_IN = (
    "services as profiled on a server CPU without AVX-512; those of this machine: --model FOLDER"
)


def sim(
    policies: Annotated[
        str, typer.Option(help="Policies, and `bound` for the clairvoyant.")
    ] = _EVERY_POLICY,
    loads: Annotated[
        str,
        typer.Option(
            help="Multiples of the most accurate routed variant's capacity; of a trace's own "
            "speed. Default: 0.4 to 3; 1 for a trace."
        ),
    ] = "",
    workers: Annotated[int, typer.Option(min=1, max=10_000)] = 2,
    deadline_ms: Annotated[
        float, typer.Option(min=0.0, help="0: three services of that variant.")
    ] = 0.0,
    mix: Annotated[
        str, typer.Option(help="Factors on the deadline, each as likely: 0.5,1,2.")
    ] = "1",
    arrivals: Annotated[str, typer.Option(help="poisson, mmpp or flash.")] = "poisson",
    seconds: Annotated[float, typer.Option(min=0.1, help="Simulated time of a run.")] = 20.0,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each point, seeds 1 to N.")] = 2,
    profile: Annotated[
        Path | None,
        typer.Option(
            help="Variants from this JSON file; default: the built-in sentiment model.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            help="Variants, evidence of cascades and recorded answers from this model's folder, "
            "with this machine's profile.",
            exists=True,
            file_okay=False,
        ),
    ] = None,
    population: Annotated[
        str, typer.Option(help="Answers recorded on this population, of the --model.")
    ] = "",
    variants: Annotated[str, typer.Option(help="Only these variants, by comma.")] = "",
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Play this recorded trace of shapes instead; loads are then its speed.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    trip_ms: Annotated[float, typer.Option(min=0.0, help="Way to a worker and back.")] = 1.2,
    sigma: Annotated[
        float, typer.Option(min=-1.0, help="Relative spread of services; -1: the profile's.")
    ] = -1.0,
    tail: Annotated[
        str, typer.Option(help="SHARE:FACTOR, so many services take so many times as long.")
    ] = "",
    slow: Annotated[
        str, typer.Option(help="FROM:TO:FACTOR, runs take longer for that time, in s.")
    ] = "",
    lose: Annotated[
        str, typer.Option(help="AT:DETECT[:BACK], worker 0 dies, is missed, is replaced, in s.")
    ] = "",
    neighbours: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of the CPUs that others take.")
    ] = 0.0,
    json: JsonOption = None,
) -> None:
    """Compare policies on a virtual clock, with the live server's own policy code.

    Every policy meets the same arrivals and the same service times. One seed gives one
    result. `bound` is a clairvoyant's near-exact upper estimate, not a theorem.
    """
    from rich.console import Console

    from bench.report import host_facts, make_report, write_report
    from bench.sim.folder import read_folder
    from bench.sim.model import built_in, read_profile
    from bench.sim.service import Faults, Noise
    from bench.sim.sweep import SimSweep, run_sweep, scale_of, summary_of
    from bench.sim.world import SimSettings
    from worker.models.errors import ModelError
    from worker.profile_file import ProfileFileError

    try:
        answers = None
        if model is not None:
            served, answers = read_folder(model, population)
        else:
            served = built_in() if profile is None else read_profile(profile)
        share, factor = numbers(tail, 2, ":") if tail else (0.0, 1.0)
        deployment = SimSettings(
            workers=workers,
            trip_ns=int(trip_ms * 1e6),
            neighbours=neighbours,
            warmup_s=min(1.0, seconds / 10),
            noise=Noise(sigma if sigma >= 0 else None, share, factor),
            faults=Faults(_slow_downs(slow), _losses(lose)),
        )
        chosen = names(policies)
        if deployment.faults and policies == _EVERY_POLICY:
            chosen.remove("bound")
        sweep = SimSweep(
            model=served,
            policies=chosen,
            loads=numbers(loads or ("1" if trace else _EVERY_LOAD)),
            arrivals=arrivals,
            seconds=seconds,
            seeds=range(1, seeds + 1),
            deadline_ms=deadline_ms,
            deadline_factors=tuple(numbers(mix)),
            only=tuple(names(variants)),
            trace=trace,
            answers=None if trace else answers,
            deployment=deployment,
        )
        scale = scale_of(sweep)
        host = host_facts()
        with Console(stderr=True).status("simulating") as status:

            def notify(what: str, done: int, runs: int) -> None:
                status.update(f"{done + 1} of {runs}: {what}")

            points = list(run_sweep(sweep, notify))
    except ModelError as error:
        fail_for_model(error)
    except (ValueError, OSError, ProfileFileError) as error:
        fail(str(error), "orchid sim --help says what each option takes")
    if model is None and profile is None:
        typer.echo(_BUILT_IN)
    print_points(points, scale, sweep)
    if json is not None:
        report = make_report(
            "sim",
            host=host,
            settings=_settings(sweep, scale),
            points=[point.as_point() for point in points],
            summary=summary_of(points),
        )
        write_report(json, report)
        typer.echo(f"written: {json}")


def _slow_downs(text: str) -> tuple[SlowDown, ...]:
    from bench.sim.service import SlowDown

    if not text:
        return ()
    begin, end, factor = numbers(text, 3, ":")
    return (SlowDown(begin, end, factor),)


def _losses(text: str) -> tuple[WorkerLoss, ...]:
    from bench.sim.service import WorkerLoss

    if not text:
        return ()
    found = numbers(text, 0, ":")
    if len(found) not in (2, 3):
        raise ValueError(f"expected AT:DETECT or AT:DETECT:BACK, got {text!r}")
    at, detect, *back = found
    return (WorkerLoss(at, 0, detect, *back),)


def _settings(sweep: SimSweep, scale: SimScale) -> dict[str, object]:
    from dataclasses import asdict

    return {
        "model": sweep.model.name,
        "policies": list(sweep.policies),
        "loads": list(sweep.loads),
        "arrivals": sweep.arrivals,
        "seconds": sweep.seconds,
        "seeds": list(sweep.seeds),
        "deadline_factors": list(sweep.deadline_factors),
        "trace": "" if sweep.trace is None else sweep.trace.name,
        "deployment": asdict(sweep.deployment),
        **asdict(scale),
    }


def print_points(points: Sequence[SimPoint], scale: SimScale, sweep: SimSweep) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    kind = "a recorded trace" if sweep.trace else sweep.arrivals
    console.print(
        f"{sweep.model.name}: {sweep.deployment.workers} workers, {kind}, "
        f"{scale.variant} takes {scale.service_ms:.1f} ms, deadline {scale.deadline_ms:.1f} ms, "
        f"capacity {scale.capacity_per_s:.1f}/s",
        highlight=False,
    )
    table = Table(box=None, pad_edge=False, header_style="bold dim", padding=(0, 1, 0, 0))
    for heading in ("load", "policy"):
        table.add_column(heading, no_wrap=True)
    known = sweep.answers is not None
    figures = ["good-\nput", "±", "on\ntime", "of ad-\nmitted", "qual-\nity", "best\nshare"]
    figures += ["p95\nms", "cpu\nms", *(("right", "esca-\nlated") if known else ())]
    if known:
        # With what was really right beside it there is no room for this one in 80 columns.
        figures.remove("of ad-\nmitted")
    for heading in figures:
        table.add_column(heading, justify="right", no_wrap=True)
    last = None
    for point in points:
        mean = point.mean()
        played = (_figure(mean.get("right_share"), 3), f"{mean['escalated']:.2f}")
        admitted = (f"{mean['on_time_of_admitted']:.4f}",)
        table.add_row(
            f"{point.load:g}" if point.load != last else "",
            point.policy,
            f"{mean['accurate_goodput']:.4f}",
            f"{point.spread():.4f}",
            f"{mean['on_time']:.4f}",
            *(() if known else admitted),
            _figure(mean.get("accuracy"), 3 if known else 4),
            f"{mean['share_most_accurate']:.3f}",
            _figure(mean.get("p95_ms"), 1),
            f"{mean['cpu_cost']:.2f}",
            *(played if known else ()),
        )
        last = point.load
    console.print(table, highlight=False)


def _figure(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
