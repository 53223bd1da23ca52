"""`orchid plan`: how many workers a traffic needs, from the profile."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deploy.cli.models import RepositoryOption
from deploy.cli.output import JsonOption, fail

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def plan(
    rate: Annotated[float, typer.Option(help="Requests a second.")],
    deadline: Annotated[float, typer.Option(help="Milliseconds that an answer is worth.")],
    percentile: Annotated[
        float, typer.Option(help="Share of requests to answer in time: 99, or 0.99.")
    ] = 99.0,
    burst: Annotated[
        float,
        typer.Option(help="How bursty: 1 is Poisson, more has so many times its dispersion."),
    ] = 1.0,
    quality: Annotated[
        float, typer.Option(help="Mean quality that answers must have as well.")
    ] = 0.0,
    minimum_quality: Annotated[
        float, typer.Option(help="Floor: only variants of at least this quality may answer.")
    ] = 0.0,
    model: Annotated[str, typer.Option(help="Model whose profile to take.")] = "sentiment",
    repository: RepositoryOption = None,
    read: Annotated[
        Path | None,
        typer.Option(
            "--from", help="Take this result of orchid profile --json.", exists=True, dir_okay=False
        ),
    ] = None,
    tokens: Annotated[
        str, typer.Option(help="Lengths of requests, each as likely: 20 or 8,16,40.")
    ] = "",
    threads: Annotated[int, typer.Option(min=1, help="Threads of a run, as workers have.")] = 1,
    check: Annotated[
        bool, typer.Option("--check", help="Also play it in the simulator, and show both.")
    ] = False,
    json: JsonOption = None,
) -> None:
    """Say how many workers are needed, how busy they are, and which variants will answer.

    Counts every offered request: refused is not in time. By default requests are as long as
    movie reviews.
    """
    from bench.planning import plan_point, simulated
    from bench.profile import reported_candidates
    from bench.report import make_report, read_report, write_report
    from bench.sim.workload import REVIEW_LENGTHS, SampledLengths
    from controlplane.errors import ControlPlaneError
    from controlplane.policy.profiles import VariantTable
    from controlplane.policy.provision import Traffic
    from controlplane.policy.provision import plan as make_plan
    from controlplane.policy.records import RequestClass, Shape
    from deploy.cli.profile import stored_report

    wanted = percentile / 100.0 if percentile > 1.0 else percentile
    try:
        profile = read_report(read) if read else stored_report(model, repository, threads)
        lengths = _lengths(tokens) if tokens else REVIEW_LENGTHS.tokens
        table = VariantTable.build(
            reported_candidates(profile), resolution=profile.settings["quality_resolution"]
        )
        shapes = {c.tokenizer: Shape.of_lengths([max(lengths)]) for c in table.candidates}
        eligible = table.eligible(RequestClass(minimum_quality=minimum_quality), shapes)
        traffic = Traffic(rate, int(deadline * 1e6), lengths, arrival_scv=burst)
        outlooks = make_plan(table, eligible, traffic, wanted, quality)
        needed = next(o for o in outlooks if o.on_time >= wanted and o.quality >= quality).workers
        points = []
        for outlook in outlooks:
            results = []
            if check:
                sampled = SampledLengths(lengths)
                routed = VariantTable.build([table.candidates[k] for k in eligible])
                results = simulated(routed, traffic, sampled, outlook.workers)
            points.append(plan_point(outlook, results))
    except (ValueError, ControlPlaneError) as error:
        fail(str(error), "orchid plan --help says what each option takes")
    _print(points, needed, wanted, traffic.rate_per_s, deadline)
    if json is not None:
        chosen = next(point for point in points if point["workers"] == needed)
        report = make_report(
            "plan",
            settings={
                "model": profile.settings["model"],
                "machine": profile.settings["machine"],
                "rate_per_s": rate,
                "deadline_ms": deadline,
                "percentile": wanted,
                "burst": burst,
                "quality": quality,
                "minimum_quality": minimum_quality,
                "lengths": list(lengths),
            },
            points=points,
            summary={
                "workers": needed,
                "utilisation": chosen["utilisation"],
                "on_time": chosen["on_time"],
                "quality": chosen["quality"],
            },
        )
        write_report(json, report)
        typer.echo(f"written: {json}")


def _lengths(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"expected lengths separated by commas, got {text!r}") from None


def _print(
    points: Sequence[Mapping[str, Any]], needed: int, wanted: float, rate: float, deadline: float
) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    word = "worker" if needed == 1 else "workers"
    console.print(
        f"[bold]{needed} {word}[/] for {rate:g}/s, {wanted:.4g} of them within {deadline:g} ms",
        highlight=False,
    )
    table = Table(box=None, pad_edge=False, header_style="bold dim", padding=(0, 1, 0, 0))
    played = any("simulated" in point for point in points)
    headings = ["workers", "on time", "quality", "busy"]
    headings += ["sim. on time", "quality"] if played else []
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("who answers")
    for point in points:
        cells = [
            ("> " if point["workers"] == needed else "") + str(point["workers"]),
            f"{point['on_time']:.4f}",
            f"{point['quality']:.4f}",
            f"{point['utilisation']:.0%}",
        ]
        if "simulated" in point:
            cells += [
                f"{point['simulated']['on_time']:.4f}",
                f"{point['simulated']['quality']:.4f}",
            ]
        mix = ", ".join(
            f"{name} {share:.0%}" for name, share in point["mix"].items() if share > 0.005
        )
        table.add_row(*cells, mix)
    console.print(table, highlight=False)
    note = "> the fewest that do. Time that is left over goes into accuracy: more are busy, too."
    console.print(note, style="dim", highlight=False)
