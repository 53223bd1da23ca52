"""`orchid bench scenario`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deploy.cli.bench_options import (
    BaselineSecondsOption,
    DeadlineFactorOption,
    FreshOption,
    LoadsOption,
    ModelOption,
    PoliciesOption,
    RepositoryOption,
    SeedsOption,
    WarmupOption,
    WorkersOption,
)
from deploy.cli.bench_sweep import cluster_spec, measuring, open_store, open_workload, show
from deploy.cli.output import fail
from deploy.cli.results import names, numbers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from bench.compare.settings import CompareSettings
    from bench.load.record import Records


def scenario(
    name: Annotated[str, typer.Argument(help="mmpp, flash, mixed, hog or kill.")],
    policies: PoliciesOption = "",
    loads: LoadsOption = "0.8",
    seeds: SeedsOption = 3,
    seconds: Annotated[
        float, typer.Option(min=0.0, help="Measured time of a run; 0: the scenario's own.")
    ] = 0.0,
    warmup: WarmupOption = 2.0,
    deadline_factor: DeadlineFactorOption = 3.0,
    workers: WorkersOption = None,
    model: ModelOption = "sentiment",
    repository: RepositoryOption = Path("models"),
    baseline_seconds: BaselineSecondsOption = 12.0,
    fresh: FreshOption = False,
    json: Annotated[
        Path | None,
        typer.Option(
            "--json", help="Result, CSV and PNG beside it. Default: scenario-results/NAME.json."
        ),
    ] = None,
) -> None:
    """Try every policy, live and simulated, with bursts or misfortune.

    mmpp: quiet and busy phases. flash: three times the rate for 5 s. mixed: deadlines of 0.5,
    1 and 2 times. hog: another process takes half a core for 10 s. kill: one of the workers is
    killed (SIGKILL) and replaced. Goes on where it was interrupted, as `orchid bench sweep`.
    """
    from bench.compare.scenario import SCENARIOS
    from bench.compare.settings import CompareSettings, check_policies, known_policies
    from worker.cpu_plan import read_cpu_plan

    known = SCENARIOS.get(name)
    if known is None:
        fail(f"there is no scenario {name!r}", f"scenarios: {', '.join(SCENARIOS)}")
    try:
        chosen = tuple(names(policies)) or known_policies()
        check_policies(chosen)
        settings = CompareSettings(
            model=model,
            policies=chosen,
            loads=tuple(numbers(loads)),
            seeds=tuple(range(1, seeds + 1)),
            seconds=seconds or known.seconds,
            warmup_s=warmup,
            workers=workers or read_cpu_plan().cores,
            arrivals=known.arrivals,
            deadline_factor=deadline_factor,
            solo_s=baseline_seconds / 3,
            capacity_s=baseline_seconds * 2 / 3,
            deadline_mix=known.deadline_mix,
            scenario=name,
        )
    except ValueError as error:
        fail(str(error))
    if name == "kill" and settings.workers < 2:
        fail("one of one worker cannot be killed and the others go on", "--workers 2")
    path = json or Path("scenario-results") / f"{name}.json"
    _run(settings, repository, path, fresh=fresh)


def _run(settings: CompareSettings, repository: Path, path: Path, *, fresh: bool) -> None:
    from dataclasses import replace

    from rich.console import Console

    from bench.compare.hog import Hog
    from bench.compare.misfortune import Misfortune
    from bench.compare.run import run_live, seconds_left, summarise
    from bench.compare.scenario import (
        HOG_SHARE,
        additions,
        disturbance,
        scenario_summary,
        simulate_scenario,
    )
    from bench.compare.settings import Job
    from bench.workloads import answers_for
    from deploy.cli.progress import bench_progress
    from deploy.cluster import LocalCluster
    from deploy.restart import RestartPolicy
    from worker.cpu_plan import read_cpu_plan

    console = Console()
    with measuring():
        workload = open_workload(repository, settings.model)
        store = open_store(console, settings, "scenario", path, fresh=fresh)
        left_s = seconds_left(settings, store)
        if left_s > 0:
            spec = replace(
                cluster_spec(settings, path.parent / "cluster", repository),
                supervise=True,
                # A kill in each of many runs is no worker that keeps dying by itself.
                restart=RestartPolicy(factor=1.0),
            )
            span = disturbance(settings)
            with (
                bench_progress(console, left_s) as (notify, on_start),
                LocalCluster(spec) as cluster,
                Hog(HOG_SHARE, settings.seconds) as hog,
            ):
                misfortune = Misfortune(cluster, settings, hog)

                def adds(job: Job, records: Records) -> dict[str, object]:
                    baseline = store.baselines[job.seed]
                    found = additions(settings, baseline, workload, records)
                    return {**found, "back_s": misfortune.settle()}

                cluster.wait_ready(timeout_s=600.0, on_progress=on_start)
                run_live(
                    cluster,
                    settings,
                    workload,
                    store,
                    notify,
                    happens=misfortune.events,
                    adds=adds,
                    calm_until_s=span[0] if span else 0.0,
                )
        with console.status("simulating"):
            answers = answers_for(repository, settings.model, workload)
            cores = read_cpu_plan().cores
            store.keep(simulate_scenario(settings, workload, store, cores, answers))
        summary = {**summarise(store), **scenario_summary(store, settings)}
        store.save(summary)
        show(console, store.report(summary), path)
        _print_recoveries(console, settings, store.points)


def _print_recoveries(
    console: Console, settings: CompareSettings, points: Sequence[dict[str, object]]
) -> None:
    from rich.table import Table

    from bench.compare.scenario import disturbance, recoveries, replacements

    span = disturbance(settings)
    if span is None:
        return
    replaced = replacements(points, settings)
    console.print(
        f"\nFrom {span[0]:.1f} s to {span[1]:.1f} s of each run; shares on time in %, of all "
        "seeds together, lowest of any second.",
        highlight=False,
    )
    table = Table(box=None, pad_edge=False, header_style="bold dim", padding=(0, 1, 0, 0))
    table.add_column("load", no_wrap=True)
    table.add_column("policy", no_wrap=True)
    headings = ("before", "during", "after", "lowest", "back after s")
    for heading in (*headings, "replaced after s") if replaced else headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for (policy, load), found in recoveries(points, settings).items():
        phases = (found.before, found.during, found.after)
        shares = [*(phase.on_time for phase in phases), found.lowest]
        back = "not seen" if found.recovery_s is None else f"{found.recovery_s:.1f}"
        took = [f"{replaced[policy, load]:.1f}"] if (policy, load) in replaced else []
        table.add_row(f"{load:g}", policy, *(f"{100 * share:.1f}" for share in shares), back, *took)
    console.print(table, highlight=False)
