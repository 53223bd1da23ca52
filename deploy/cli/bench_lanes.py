"""`orchid bench lanes`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from deploy.cli.bench_options import RepositoryOption
from deploy.cli.output import JsonOption, fail
from deploy.cli.results import finish, print_summary, vocabulary_of


def lanes(
    encoder: Annotated[str, typer.Option(help="Model that classifies.")] = "sentiment",
    decoder: Annotated[str, typer.Option(help="Language model.")] = "smollm2-135m",
    variant: Annotated[
        str, typer.Option(help="Variant that classifies; default: the most accurate.")
    ] = "",
    rounds: Annotated[int, typer.Option(min=1, help="Medians are over this many.")] = 2,
    seconds: Annotated[float, typer.Option(min=0.5, help="Length of each run.")] = 4.0,
    streams: Annotated[int, typer.Option(min=1, help="Generations in flight.")] = 4,
    decode_threads: Annotated[
        int | None, typer.Option(min=1, help="Default: half of the granted cores.")
    ] = None,
    repository: RepositoryOption = Path("models"),
    json: JsonOption = None,
) -> None:
    """Play classification and generation alone and together, on the cores `orchid up` gives each.

    A ratio of 1 means that a lane has beside the other what it has alone.
    """
    from rich.console import Console

    from bench.lanes import LanesSettings, lanes_seconds, run_lanes
    from bench.load.processes import DriverError
    from bench.workloads import WorkloadError, workload_for
    from deploy.budget import core_budget, decode_share
    from deploy.cli.progress import bench_progress
    from deploy.cluster import ClusterError
    from worker.cpu_plan import read_cpu_plan

    plan = read_cpu_plan()
    vocabulary = vocabulary_of(repository, decoder, "--decoder")
    try:
        settings = LanesSettings(
            encoder=encoder,
            decoder=decoder,
            vocabulary=vocabulary,
            variant=variant,
            rounds=rounds,
            seconds=seconds,
            streams=streams,
        )
        budget = core_budget(
            plan,
            encoders=None,
            encoder_threads=1,
            decode_threads=decode_threads or decode_share(plan, encoders=True),
            # On one core both lanes share it: that is then what is measured.
            oversubscribe=True,
        )
        workload = workload_for(repository, encoder)
        with (
            tempfile.TemporaryDirectory(prefix="orchid-lanes-") as directory,
            bench_progress(Console(), lanes_seconds(settings)) as (notify, _),
        ):
            report = run_lanes(settings, budget, repository, workload, Path(directory), notify)
    except WorkloadError as error:
        fail(str(error), error.remedy)
    except (ClusterError, DriverError, ValueError) as error:
        fail(str(error))
    print_summary(report)
    finish(report, json)
