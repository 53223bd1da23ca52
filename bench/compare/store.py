"""The points of a comparison in its JSON file: kept between sessions, written after each run."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.compare.settings import CompareSettings, Job
from bench.report import (
    HostFacts,
    Report,
    commit,
    host_facts,
    make_report,
    read_report,
    write_report,
)
from bench.sim.model import SimModel, document_of, model_of
from bench.sweep import Baseline

Point = dict[str, Any]


class StoreMismatchError(Exception):
    """The file holds points of other settings or another commit; the text says which."""


class Store:
    """What has been measured so far. `served` is None until it is known.

    `baselines` are by seed: what a machine can do changes within the hours of a comparison, so
    loads are multiples of what it could just before the runs of their seed.
    """

    def __init__(self, path: Path, bench: str, settings: CompareSettings) -> None:
        self.path = path
        self.points: list[Point] = []
        self.baselines: dict[int, Baseline] = {}
        self.served: SimModel | None = None
        self.extra: dict[str, float] = {}
        self._bench = bench
        self._settings = settings
        self._host: HostFacts = host_facts()

    def resume(self) -> int:
        """Takes over the file's points; returns how many. Raises StoreMismatchError.

        Baselines and profiles are taken over too, so that loads stay the same requests.
        """
        if not self.path.exists():
            return 0
        report = read_report(self.path)
        wanted = json.loads(json.dumps(self._settings.identity()))
        found = {key: report.settings.get(key) for key in wanted}
        differing = sorted(key for key in wanted if wanted[key] != found[key])
        if report.bench != self._bench or differing:
            what = ", ".join(f"{key} {found[key]!r}" for key in differing) or report.bench
            raise StoreMismatchError(f"{self.path} was measured with {what}")
        if report.commit != commit():
            raise StoreMismatchError(f"{self.path} was measured at commit {report.commit}")
        self.points = [dict(point) for point in report.points]
        self.baselines = {
            int(seed): Baseline.read(kept) for seed, kept in report.settings["baselines"].items()
        }
        self.served = model_of(report.settings["served"], str(self.path))
        self.extra = dict(report.settings["extra"])
        self._host = report.host
        return len(self.points)

    @property
    def baseline(self) -> Baseline:
        """The mean of the baselines; there is at least one."""
        found = list(self.baselines.values())
        return replace(
            found[0],
            solo_p50_ms=fmean(each.solo_p50_ms for each in found),
            deadline_ms=fmean(each.deadline_ms for each in found),
            capacity_per_s=fmean(each.capacity_per_s for each in found),
        )

    def has(self, job: Job) -> bool:
        """Whether this run is there already."""
        return any(job_of(point) == job for point in self.points)

    def keep(self, points: list[Point]) -> None:
        """Puts points in, in place of those of the same runs."""
        fresh = {job_of(point) for point in points}
        self.points = [p for p in self.points if job_of(p) not in fresh] + points

    def save(self, summary: dict[str, float]) -> None:
        """Writes the file, whole or not at all."""
        write_report(self.path, self.report(summary))

    def report(self, summary: dict[str, float]) -> Report:
        """Everything so far in the common result format."""
        assert self.served is not None
        return make_report(
            self._bench,
            host=self._host,
            settings={
                **asdict(self._settings),
                "baseline": asdict(self.baseline),
                "baselines": {str(seed): asdict(each) for seed, each in self.baselines.items()},
                "served": document_of(self.served),
                "extra": self.extra,
            },
            points=self.points,
            summary=summary,
        )


def job_of(point: Point) -> Job:
    """Which run a point is of."""
    return Job(point["policy"], point["load_factor"], point["seed"])
