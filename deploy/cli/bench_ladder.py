"""`orchid bench ladder`: the levels of overload on a virtual clock."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from deploy.cli.output import JsonOption
from deploy.cli.results import finish, numbers, print_summary


def ladder(
    seconds: Annotated[float, typer.Option(min=4.0, help="Span of the arrivals.")] = 20.0,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of the bursts, seeds 1 to N.")] = 3,
    factors: Annotated[
        str, typer.Option(help="Calls, as multiples of what the control plane can answer.")
    ] = "1.2,1.5,2,2.5",
    json: JsonOption = None,
) -> None:
    """Play bursts of a batch class beside interactive requests, and a control plane out of breath.

    The live scheduler and ladder. Shows how often levels change, and on each level the share of
    the interactive requests that were let in there and answered on time.
    """
    from rich.console import Console

    from bench.report import host_facts, make_report
    from bench.sim.ladder import LOOP_PER_S, most_moves, play_bursts, play_protected

    host, summary, points = host_facts(), dict[str, float](), list[dict[str, Any]]()
    lowest: dict[int, float] = {}
    moves: list[float] = []
    with Console(stderr=True).status("simulating") as status:
        for deferrable in (False, True):
            shares = []
            for seed in range(1, seeds + 1):
                status.update(f"bursts, seed {seed} of {seeds}")
                played = play_bursts(deferrable=deferrable, seconds=seconds, seed=seed)
                shares.append(played.on_time)
                moves.append(played.changes_per_min)
                rungs = {int(rung): share for rung, share in played.by_rung.items()}
                points.append(
                    {
                        "bursts": True,
                        "deferrable": deferrable,
                        "seed": seed,
                        "on_time": played.on_time,
                        "changes_per_min": played.changes_per_min,
                        "on_time_of_admitted": {str(rung): s for rung, s in rungs.items()},
                    }
                )
                if deferrable:
                    for rung, share in rungs.items():
                        lowest[rung] = min(share, lowest.get(rung, 1.0))
            name = "deferring" if deferrable else "not_deferring"
            summary[f"{name}.on_time"] = sum(shares) / len(shares)
        for rung, share in sorted(lowest.items()):
            summary[f"level_{rung}.on_time_of_admitted"] = share
        for factor in numbers(factors):
            status.update(f"a control plane offered {factor:g} times what it can answer")
            for protects in (False, True):
                found = play_protected(factor * LOOP_PER_S, protects=protects, seconds=seconds)
                of_admitted = found.on_time / max(1, found.admitted)
                per_min = found.ladder.changes * 60.0 / seconds
                point = {
                    "calls": factor,
                    "protects": protects,
                    "admitted": found.admitted,
                    "refused": found.refused,
                    "on_time_of_admitted": of_admitted,
                    "changes_per_min": per_min,
                }
                points.append(point)
                if protects:
                    moves.append(per_min)
                side = "level_6" if protects else "unprotected"
                summary[f"{side}@{factor:g}.on_time_of_admitted"] = of_admitted
    summary["most_changes_per_min"] = max(moves)
    summary["bound_changes_per_min"] = most_moves(seconds, 7) * 60.0 / seconds
    settings = {"seconds": seconds, "seeds": seeds, "factors": factors}
    report = make_report("ladder", host=host, settings=settings, points=points, summary=summary)
    print_summary(report)
    finish(report, json)
