"""A roll never has fewer workers than it began with, and stops where it would lose something."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from deploy.cluster_spec import ClusterError
from deploy.roll import RollStep, roll_workers


class FakeCluster:
    """Names of workers, and what was done to them in order."""

    def __init__(self, encoders: int, decoders: int = 0) -> None:
        self.failed: Mapping[str, str] = {}
        self.done: list[str] = []
        self.fewest = encoders + decoders
        self.fails_later: Mapping[str, str] = {}
        self.late_at = ""
        self._workers = [f"worker-{n}" for n in range(encoders)]
        self._decoders = [f"decode-{n}" for n in range(decoders)]
        self._next = {"worker": encoders, "decode": decoders}

    def worker_names(self) -> tuple[str, ...]:
        return tuple(self._workers)

    def decode_names(self) -> tuple[str, ...]:
        return tuple(self._decoders)

    def add_worker(self) -> str:
        return self._add("worker", self._workers)

    def add_decode_worker(self) -> str:
        return self._add("decode", self._decoders)

    def wait_serving(self, timeout_s: float, look: Callable[[], None]) -> None:
        look()
        newest = self.done[-1].removeprefix("+")
        if newest == self.late_at:
            raise ClusterError(f"not ready after {timeout_s:.0f} s")
        self.failed = {**self.failed, **self.fails_later}
        self.done.append(f"ready {newest}")

    def remove_worker(self, name: str) -> None:
        names = self._workers if name in self._workers else self._decoders
        names.remove(name)
        self.done.append(f"-{name}")
        self.fewest = min(self.fewest, len(self._workers) + len(self._decoders))

    def _add(self, kind: str, names: list[str]) -> str:
        name = f"{kind}-{self._next[kind]}"
        self._next[kind] += 1
        names.append(name)
        self.done.append(f"+{name}")
        return name


def test_each_leaves_once_its_replacement_serves() -> None:
    cluster = FakeCluster(2, 1)
    steps: list[RollStep] = []
    assert roll_workers(cluster, on_step=steps.append) == ("worker-2", "worker-3", "decode-1")
    assert cluster.done == [
        "+worker-2", "ready worker-2", "-worker-0",
        "+worker-3", "ready worker-3", "-worker-1",
        "+decode-1", "ready decode-1", "-decode-0",
    ]  # fmt: skip
    assert cluster.fewest == 3
    assert str(steps[0]) == "0 of 3 workers replaced, worker-0 is next"
    assert str(steps[-1]) == "3 of 3 workers replaced"


def test_a_replacement_that_does_not_come_up_is_taken_back() -> None:
    cluster = FakeCluster(2)
    cluster.late_at = "worker-3"
    with pytest.raises(ClusterError, match="not ready after 5 s"):
        roll_workers(cluster, timeout_s=5.0)
    assert cluster.worker_names() == ("worker-1", "worker-2")


def test_a_model_that_only_the_replacement_cannot_load_ends_the_roll() -> None:
    cluster = FakeCluster(2)
    cluster.fails_later = {"sentiment": "a file is not what the manifest records"}
    for _ in range(2):
        with pytest.raises(ClusterError, match="worker-0, which goes on: model sentiment cannot"):
            roll_workers(cluster)
    assert cluster.worker_names() == ("worker-0", "worker-1")


def test_a_model_that_failed_before_keeps_nobody() -> None:
    cluster = FakeCluster(1)
    cluster.failed = {"broken": "no manifest"}
    assert roll_workers(cluster) == ("worker-1",)


def test_a_roll_that_is_told_to_stop_takes_its_replacement_back() -> None:
    cluster = FakeCluster(2)

    def stop(step: RollStep) -> None:
        if cluster.done:
            raise ClusterError("told to stop")

    with pytest.raises(ClusterError, match="told to stop"):
        roll_workers(cluster, on_step=stop)
    assert cluster.worker_names() == ("worker-0", "worker-1")
