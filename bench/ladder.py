"""Levels of overload on the virtual clock: how often they change, and who is on time on each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from bench.report import Report, host_facts, make_report
from bench.sim.ladder import LOOP_PER_S, most_moves, play_bursts, play_protected
from controlplane.policy.ladder import Rung

Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class LadderSettings:
    """`seeds` runs of bursts and of calls of `factors` times what the control plane can answer.

    Each lasts `seconds`.
    """

    seconds: float
    seeds: int
    factors: Sequence[float]

    def __post_init__(self) -> None:
        if min(self.factors) <= 0:
            raise ValueError(f"expected factors above 0, got {self.factors}")


@dataclass(slots=True)
class _Found:
    """What was played so far; `moves` are those of each run in a minute."""

    points: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, float] = field(default_factory=dict)
    moves: list[float] = field(default_factory=list)


def run_ladder(settings: LadderSettings, notify: Notify) -> Report:
    """Plays bursts of a batch class beside interactive requests, then a busy control plane.

    Summary: `deferring.on_time` and `not_deferring.on_time` of interactive requests,
    `level_<n>.on_time_of_admitted` the lowest of the seeds, and so of the calls let in
    `level_6@<factor>` and `unprotected@<factor>`, `most_changes_per_min` and what bounds it.
    """
    host, found = host_facts(), _Found()
    for deferrable in (False, True):
        _bursts(settings, deferrable, found, notify)
    for factor in settings.factors:
        notify(f"a control plane offered {factor:g} times what it can answer")
        for protects in (False, True):
            _protected(settings, factor, protects, found)
    bound = most_moves(settings.seconds, len(Rung))
    found.summary["most_changes_per_min"] = max(found.moves)
    found.summary["bound_changes_per_min"] = bound * 60.0 / settings.seconds
    return make_report(
        "ladder",
        host=host,
        settings=asdict(settings),
        points=found.points,
        summary=found.summary,
    )


def _bursts(settings: LadderSettings, deferrable: bool, found: _Found, notify: Notify) -> None:
    shares: list[float] = []
    lowest: dict[int, float] = {}
    for seed in range(1, settings.seeds + 1):
        notify(f"bursts, seed {seed} of {settings.seeds}")
        played = play_bursts(deferrable=deferrable, seconds=settings.seconds, seed=seed)
        shares.append(played.on_time)
        found.moves.append(played.changes_per_min)
        by_level = {int(rung): share for rung, share in played.by_rung.items()}
        for level, share in by_level.items():
            lowest[level] = min(share, lowest.get(level, 1.0))
        found.points.append(
            {
                "bursts": True,
                "deferrable": deferrable,
                "seed": seed,
                "on_time": played.on_time,
                "changes_per_min": played.changes_per_min,
                "on_time_of_admitted": {str(level): share for level, share in by_level.items()},
            }
        )
    name = "deferring" if deferrable else "not_deferring"
    found.summary[f"{name}.on_time"] = fmean(shares)
    if deferrable:
        for level, share in sorted(lowest.items()):
            found.summary[f"level_{level}.on_time_of_admitted"] = share


def _protected(settings: LadderSettings, factor: float, protects: bool, found: _Found) -> None:
    lowest = 1.0
    for seed in range(1, settings.seeds + 1):
        played = play_protected(
            factor * LOOP_PER_S, protects=protects, seconds=settings.seconds, seed=seed
        )
        of_admitted = played.on_time / max(1, played.admitted)
        lowest = min(lowest, of_admitted)
        per_min = played.ladder.changes * 60.0 / settings.seconds
        found.points.append(
            {
                "calls": factor,
                "protects": protects,
                "seed": seed,
                "on_time": played.on_time,
                "admitted": played.admitted,
                "refused": played.refused,
                "on_time_of_admitted": of_admitted,
                "changes_per_min": per_min,
            }
        )
        if protects:
            found.moves.append(per_min)
    side = "level_6" if protects else "unprotected"
    found.summary[f"{side}@{factor:g}.on_time_of_admitted"] = lowest
