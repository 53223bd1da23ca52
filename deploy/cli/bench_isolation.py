"""`orchid bench isolation`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from deploy.cli.bench_options import FirstTokenOption, RepositoryOption, TokenOption
from deploy.cli.output import JsonOption, fail
from deploy.cli.results import finish, print_summary, vocabulary_of

_LANES = ("encoder", "decode")


def isolation(
    lane: Annotated[str, typer.Argument(help="encoder or decode.")],
    rounds: Annotated[int, typer.Option(min=1, help="Times that each phase is played.")] = 20,
    seconds: Annotated[float, typer.Option(min=1.0, help="Length of each phase.")] = 10.0,
    reserved: Annotated[
        float, typer.Option(min=0.05, max=0.95, help="Share of the lane of the steady tenant.")
    ] = 0.5,
    used: Annotated[
        float, typer.Option(min=0.01, max=1.0, help="Part of it that it asks for.")
    ] = 0.6,
    times: Annotated[float, typer.Option(min=1.0, help="The flood, in shares of its own.")] = 10.0,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Workers, or threads of the decode worker. Default: cores - 1."),
    ] = None,
    deadline_ms: Annotated[
        float, typer.Option(min=10.0, help="Deadline of encoder requests.")
    ] = 250.0,
    first_token_ms: FirstTokenOption = 500.0,
    token_ms: TokenOption = 50.0,
    decoder: Annotated[str, typer.Option(help="Language model.")] = "smollm2-135m",
    repository: RepositoryOption = Path("models"),
    simulated: Annotated[
        bool,
        typer.Option(
            "--simulated", help="The decode lane's scheduler on a virtual clock; no cluster."
        ),
    ] = False,
    step_ms: Annotated[
        float,
        typer.Option(min=1.0, help="Simulated: what rows and prompts take of a step at most."),
    ] = 40.0,
    json: JsonOption = None,
) -> None:
    """Play a tenant inside its reservation alone, beside another, and beside the other's flood.

    On a cluster of its own. The three are played in turns, with the same requests of the steady
    tenant each time; the flood begins before it, so that all that it may borrow is lent.
    """
    import numpy as np
    from rich.console import Console

    from bench.isolation.lane import IsolationSettings
    from bench.isolation.run import run_isolation
    from bench.load.processes import DriverError
    from deploy.cluster import ClusterError
    from deploy.fleet import FleetError
    from worker.cpu_plan import read_cpu_plan

    if lane not in _LANES:
        fail(f"no lane {lane!r}", f"lanes: {', '.join(_LANES)}")
    decodes = lane == "decode"
    if simulated:
        if not decodes:
            fail("only the decode lane is simulated here", "orchid bench tenants")
        _simulated(rounds, seconds, reserved, used, times, step_ms, json)
        return
    vocabulary = vocabulary_of(repository, decoder, "--decoder") if decodes else 0
    try:
        settings = IsolationSettings(
            lane=lane,
            rounds=rounds,
            seconds=seconds,
            reserved=reserved,
            used=used,
            times=times,
            workers=workers or max(1, read_cpu_plan().cores - 1),
            deadline_ms=deadline_ms,
            decoder=decoder,
            vocabulary=vocabulary,
            first_token_ms=first_token_ms,
            token_ms=token_ms,
        )
        with (
            tempfile.TemporaryDirectory(prefix="orchid-isolation-") as directory,
            Console(stderr=True).status("starting the cluster") as spinner,
        ):
            report = run_isolation(
                settings,
                repository,
                Path(directory),
                np.random.default_rng(0),
                spinner.update,
            )
    except (ClusterError, DriverError, FleetError, ValueError) as error:
        fail(str(error))
    print_summary(report)
    finish(report, json)


def _simulated(
    rounds: int,
    seconds: float,
    reserved: float,
    used: float,
    times: float,
    step_ms: float,
    json: Path | None,
) -> None:
    from bench.isolation.simulated import SimulatedIsolation, simulate_isolation

    report = simulate_isolation(
        SimulatedIsolation(rounds, seconds, reserved, used, times, step_ms=step_ms)
    )
    print_summary(report)
    finish(report, json)
