"""A killed worker is seen to be replaced, in a run or after it, or that it is not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bench.compare.hog import Hog
from bench.compare.misfortune import REPLACED_S, Misfortune
from bench.compare.settings import CompareSettings, Job
from deploy.cluster import ClusterError, LocalCluster
from deploy.fleet import FleetError

KILL = CompareSettings(model="m", policies=("price",), seconds=28.0, warmup_s=2.0, scenario="kill")
JOB = Job("price", 0.8, 1)


@dataclass
class FakeCluster:
    """Two workers; the killed one's successor registers and serves at given times."""

    registers_s: float
    serves_s: float
    now_s: float = 0.0
    killed: list[str] = field(default_factory=list)
    deaf: Iterator[bool] = field(default_factory=lambda: iter(()))

    def worker_names(self) -> tuple[str, ...]:
        return ("worker-0", "worker-1")

    def pid(self, name: str) -> int:
        return 7

    def kill_worker(self, name: str) -> None:
        self.killed.append(name)

    def log(self, name: str) -> str:
        return "its last words"

    def status(self) -> Any:
        if next(self.deaf, False):
            raise FleetError("nothing answers")
        there = self.now_s >= self.registers_s
        workers = [SimpleNamespace(id="worker-0", pid=8)] if there else []
        # Who was killed a moment ago may be counted still.
        serving = 2 if self.now_s >= self.serves_s or not there else 1
        pool = SimpleNamespace(workers=serving)
        return SimpleNamespace(workers=workers, pool=lambda name: pool)

    def wait(self, seconds: float) -> None:
        self.now_s += seconds


def misfortune(cluster: FakeCluster, settings: CompareSettings = KILL) -> Misfortune:
    return Misfortune(
        cast("LocalCluster", cluster),
        settings,
        Hog(0.1, 1.0),
        now_s=lambda: cluster.now_s,
        wait=cluster.wait,
    )


def play(cluster: FakeCluster, found: Misfortune) -> None:
    """Lets the events of a run happen when they are due."""
    start_s = cluster.now_s
    for at_s, happens in found.events(JOB):
        cluster.now_s = start_s + at_s
        happens()
    cluster.now_s = start_s + KILL.seconds + KILL.warmup_s


def test_a_replacement_is_seen_while_the_run_goes_on() -> None:
    cluster = FakeCluster(registers_s=11.0, serves_s=17.3, deaf=iter([True]))
    found = misfortune(cluster)
    play(cluster, found)
    assert cluster.killed == ["worker-0"]
    assert found.settle() == pytest.approx(17.5)


def test_a_replacement_that_comes_after_the_run_is_awaited() -> None:
    cluster = FakeCluster(registers_s=25.0, serves_s=39.8)
    found = misfortune(cluster)
    play(cluster, found)
    assert found.settle() == pytest.approx(40.0)


def test_who_is_never_replaced_is_named_with_its_last_words() -> None:
    cluster = FakeCluster(registers_s=11.0, serves_s=1e9)
    found = misfortune(cluster)
    play(cluster, found)
    with pytest.raises(ClusterError, match=r"worker-0 was killed 200 s ago.*m has.*\n.*words"):
        found.settle()
    assert cluster.now_s == pytest.approx(30.0 + REPLACED_S)


def test_a_run_that_ended_before_its_kill_is_an_error() -> None:
    cluster = FakeCluster(0.0, 0.0)
    found = misfortune(cluster)
    found.events(JOB)
    with pytest.raises(ClusterError, match="before its worker was killed"):
        found.settle()


def test_every_run_is_judged_by_its_own_kill() -> None:
    cluster = FakeCluster(registers_s=11.0, serves_s=12.0)
    found = misfortune(cluster)
    play(cluster, found)
    assert found.settle() == pytest.approx(12.0)
    found.events(JOB)
    with pytest.raises(ClusterError, match="before its worker was killed"):
        found.settle()


def test_nobody_is_killed_or_awaited_elsewhere() -> None:
    cluster = FakeCluster(0.0, 0.0)
    for name, events in (("mmpp", 0), ("flash", 0), ("mixed", 0), ("hog", 2)):
        found = misfortune(cluster, replace(KILL, scenario=name))
        assert len(found.events(JOB)) == events
        assert found.settle() is None
    assert not cluster.killed
