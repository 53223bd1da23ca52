"""`orchid bench generation`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from deploy.cli.bench_options import FirstTokenOption, RepositoryOption, TokenOption
from deploy.cli.output import JsonOption, fail
from deploy.cli.results import finish, names, numbers, print_summary, vocabulary_of

POLICIES = "slo,serial,never-evict,preempt,limit-16,limit-16+shed"


def generation(
    model: Annotated[str, typer.Option(help="Language model to ask.")] = "smollm2-135m",
    policies: Annotated[
        str, typer.Option(help="Scheduling policies of the decode worker; see docs/decoding.md.")
    ] = POLICIES,
    loads: Annotated[str, typer.Option(help="Multiples of the measured capacity.")] = (
        "0.8,1.0,1.3,1.8"
    ),
    seconds: Annotated[float, typer.Option(min=1.0, help="Length of each run.")] = 40.0,
    capacity_seconds: Annotated[
        float, typer.Option(min=1.0, help="Time it is measured for, before each load and seed.")
    ] = 20.0,
    threads: Annotated[int, typer.Option(min=1, help="Threads of the decode worker.")] = 2,
    first_token_ms: FirstTokenOption = 500.0,
    token_ms: TokenOption = 50.0,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each point, seeds 1 to N.")] = 1,
    prefixes: Annotated[bool, typer.Option(help="Also measure what a shared prefix saves.")] = True,
    repository: RepositoryOption = Path("models"),
    json: JsonOption = None,
) -> None:
    """Play generations at several loads under each scheduling policy, and shared prefixes.

    Starts a cluster with one decode worker for each run. Prompts of 64 to 448 tokens, answers of
    64 to 192, arriving at random whatever the answers do. With several seeds, figures are means
    and every policy meets the same generations.
    """
    from rich.console import Console

    from bench.generation.prefix import PrefixSettings
    from bench.generation.sweep import (
        GenerationSweepSettings,
        generation_sweep_seconds,
        run_generation_sweep,
    )
    from bench.load.processes import DriverError
    from deploy.cli.progress import bench_progress
    from deploy.cluster import ClusterError

    vocabulary = vocabulary_of(repository, model, "--model")
    try:
        settings = GenerationSweepSettings(
            model=model,
            vocabulary=vocabulary,
            policies=names(policies),
            load_factors=numbers(loads),
            seconds=seconds,
            capacity_s=capacity_seconds,
            threads=threads,
            first_token_ms=first_token_ms,
            token_ms=token_ms,
            seeds=seeds,
            prefix=PrefixSettings() if prefixes else None,
        )
        total_s = generation_sweep_seconds(settings)
        with (
            tempfile.TemporaryDirectory(prefix="orchid-generation-") as directory,
            bench_progress(Console(), total_s) as (notify, _),
        ):
            report = run_generation_sweep(settings, repository, Path(directory), notify)
    except (ClusterError, DriverError, ValueError) as error:
        fail(str(error))
    print_summary(report)
    finish(report, json)
