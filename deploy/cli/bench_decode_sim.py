"""`orchid bench decode-sim`: scheduling policies of generations on a virtual clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from deploy.cli.output import JsonOption, fail
from deploy.cli.results import finish, names, numbers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.sim.decode_sweep import DecodePoint, DecodeScale

_EVERY_POLICY = "slo,serial,never-evict,preempt,limit-8,limit-8+shed,limit-16,limit-16+shed"
_MEASURED = "3400,535,600,1.2"


def decode_sim(
    policies: Annotated[
        str, typer.Option(help="Policies, by comma; limit-N and limit-N+shed for any N.")
    ] = _EVERY_POLICY,
    loads: Annotated[
        str, typer.Option(help="Multiples of what a standing backlog completes at width 8.")
    ] = "0.8,1,1.3,1.8",
    seconds: Annotated[float, typer.Option(min=1.0, help="Span of the arrivals.")] = 300.0,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each point, seeds 1 to N.")] = 3,
    cost: Annotated[
        str,
        typer.Option(
            help="What a step takes in us: the step, a prompt's token, a sequence that decodes, "
            "a cached token."
        ),
    ] = _MEASURED,
    prompts: Annotated[str, typer.Option(help="LEAST:MOST tokens of a prompt.")] = "64:448",
    answers: Annotated[str, typer.Option(help="LEAST:MOST tokens of an answer.")] = "64:192",
    first_token_ms: Annotated[
        float, typer.Option(min=0.0, help="Target; 0: 500, or more where the machine cannot.")
    ] = 0.0,
    token_ms: Annotated[
        float, typer.Option(min=0.0, help="Target; 0: 50, or more where the machine cannot.")
    ] = 0.0,
    blocks: Annotated[int, typer.Option(min=1, help="Blocks of 16 tokens in the arena.")] = 2048,
    sigma: Annotated[float, typer.Option(min=0.0, help="Relative spread of steps.")] = 0.05,
    believed: Annotated[
        str, typer.Option(help="Profile that the scheduler begins with; default: the cost.")
    ] = "",
    answer_share: Annotated[
        float, typer.Option(min=0.01, max=1.0, help="Part of its limit that an answer takes.")
    ] = 1.0,
    json: JsonOption = None,
) -> None:
    """Compare scheduling policies of the decode lane on a virtual clock.

    The live scheduler, with steps that take what the cost model says. Every policy meets the
    same Poisson arrivals; one seed gives one result. Attainment is the share of all offered
    generations whose first token and mean gap between tokens both met their targets.
    """
    from rich.console import Console

    from bench.report import host_facts, make_report
    from bench.sim.decode_sweep import DecodeSweep, run_sweep, scale_of, summary_of
    from bench.sim.decode_workload import GenerationSizes
    from worker.scheduling.cost import StepCost

    try:
        least_prompt, most_prompt = (int(n) for n in numbers(prompts, 2, ":"))
        least_answer, most_answer = (int(n) for n in numbers(answers, 2, ":"))
        sweep = DecodeSweep(
            policies=names(policies),
            loads=numbers(loads),
            seconds=seconds,
            seeds=range(1, seeds + 1),
            cost=StepCost(*numbers(cost, 4)),
            sizes=GenerationSizes((least_prompt, most_prompt), (least_answer, most_answer)),
            first_token_ms=first_token_ms,
            token_ms=token_ms,
            blocks=blocks,
            sigma=sigma,
            believed=StepCost(*numbers(believed, 4)) if believed else None,
            answer_share=answer_share,
        )
        host = host_facts()
        with Console(stderr=True).status("simulating") as status:

            def notify(what: str, done: int, runs: int) -> None:
                status.update(f"{done + 1} of {runs}: {what}")

            scale = scale_of(sweep)
            points = list(run_sweep(sweep, scale, notify))
    except ValueError as error:
        fail(str(error), "orchid bench decode-sim --help says what each option takes")
    _print(points, scale)
    settings = {
        "policies": list(sweep.policies),
        "loads": list(sweep.loads),
        "seconds": seconds,
        "seeds": list(sweep.seeds),
        "cost_us": numbers(cost, 4),
        "prompts": prompts,
        "answers": answers,
        "blocks": blocks,
        "sigma": sigma,
        "believed_us": numbers(believed, 4) if believed else None,
        "answer_share": answer_share,
        "capacity_per_s": scale.capacity_per_s,
        "first_token_ms": scale.first_token_ms,
        "token_ms": scale.token_ms,
    }
    report = make_report(
        "decode-sim",
        host=host,
        settings=settings,
        points=[point.as_point() for point in points],
        summary=summary_of(points),
    )
    finish(report, json)


def _print(points: Sequence[DecodePoint], scale: DecodeScale) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.print(
        f"capacity {scale.capacity_per_s:.2f}/s, first token within {scale.first_token_ms:.0f} ms, "
        f"{scale.token_ms:.0f} ms a token",
        highlight=False,
    )
    table = Table(box=None, pad_edge=False, header_style="bold dim", padding=(0, 1, 0, 0))
    for heading in ("load", "policy"):
        table.add_column(heading, no_wrap=True)
    figures = ("attain-\nment", "±", "not\ntaken", "ttft\np50 ms", "ttft\np95 ms")
    for heading in (*figures, "gap\np50 ms", "gap\np95 ms", "good/s"):
        table.add_column(heading, justify="right", no_wrap=True)
    last = None
    for point in points:
        mean = point.mean()
        table.add_row(
            f"{point.load:g}" if point.load != last else "",
            point.policy,
            f"{mean['slo_attainment']:.3f}",
            f"{point.spread():.3f}",
            f"{(mean['refused'] + mean['shed']) / max(1.0, mean['offered']):.3f}",
            *(
                f"{mean[name]:.0f}" if name in mean else "-"
                for name in ("ttft_p50_ms", "ttft_p95_ms", "gap_p50_ms", "gap_p95_ms")
            ),
            f"{mean['goodput_per_s']:.2f}",
        )
        last = point.load
    console.print(table, highlight=False)
