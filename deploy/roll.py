"""Replaces the workers of a running cluster one after the other, without losing a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from deploy.cluster_spec import ClusterError
from deploy.readiness import failures


@dataclass(frozen=True, slots=True)
class RollStep:
    """How far a roll is: `done` of `of` workers are replaced, `name` is the one that goes next."""

    done: int
    of: int
    name: str = ""

    def __str__(self) -> str:
        now = f", {self.name} is next" if self.name else ""
        return f"{self.done} of {self.of} workers replaced{now}"


class Rolled(Protocol):
    """What a roll needs of a cluster; `LocalCluster` is one."""

    failed: Mapping[str, str]

    def worker_names(self) -> tuple[str, ...]:
        """Names of the encoder workers."""

    def decode_names(self) -> tuple[str, ...]:
        """Names of the decode workers."""

    def add_worker(self) -> str:
        """Starts one more encoder worker; returns its name."""

    def add_decode_worker(self) -> str:
        """Starts one more decode worker; returns its name."""

    def wait_serving(self, timeout_s: float, look: Callable[[], None]) -> None:
        """Waits until every worker serves every model that can be loaded, looking meanwhile."""

    def remove_worker(self, name: str) -> None:
        """Drains one worker and ends it."""


def roll_workers(
    cluster: Rolled,
    *,
    timeout_s: float = 300.0,
    on_step: Callable[[RollStep], None] = lambda step: None,
) -> tuple[str, ...]:
    """Puts a new worker in the place of each; returns the new ones' names.

    A worker leaves only once its replacement serves every model that could be loaded before,
    so there are never fewer than at the beginning. `on_step` is called at every look and may
    raise to end the roll; the replacement that was on its way is then taken back.

    Raises ClusterError when a replacement is not ready within `timeout_s`, or cannot load what
    the others could; the worker it was for goes on, those replaced before stay replaced.
    """
    encoders, decoders = cluster.worker_names(), cluster.decode_names()
    known = dict(cluster.failed)
    old = (*encoders, *decoders)
    new = []
    for done, name in enumerate(old):
        step = RollStep(done, len(old), name)
        on_step(step)
        added = cluster.add_decode_worker() if name in decoders else cluster.add_worker()
        try:
            cluster.wait_serving(timeout_s, partial(on_step, step))
            lost = {model: why for model, why in cluster.failed.items() if model not in known}
            if lost:
                raise ClusterError(f"the roll ends at {name}, which goes on: {failures(lost)}")
        except BaseException:
            cluster.remove_worker(added)
            # Whom it was for still has what only it could not load: the next roll must see that.
            cluster.failed = known
            raise
        new.append(added)
        cluster.remove_worker(name)
    on_step(RollStep(len(old), len(old)))
    return tuple(new)
