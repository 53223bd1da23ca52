"""Makes the misfortunes of scenarios happen to a live cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from bench.compare.hog import Hog
from bench.compare.scenario import disturbance
from bench.compare.settings import CompareSettings, Job
from bench.load.processes import Event
from deploy.cluster import ClusterError, LocalCluster
from deploy.fleet import FleetError

_PROBE_S = 0.5
# A load of all variants takes ten seconds by itself, and others may use the cores as well.
REPLACED_S = 180.0


class Misfortune:
    """A scenario's events, and when all is well again after each.

    `now_s` is monotonic, `wait` passes some seconds.
    """

    def __init__(
        self,
        cluster: LocalCluster,
        settings: CompareSettings,
        hog: Hog,
        *,
        now_s: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._hog = hog
        self._now_s = now_s
        self._wait = wait
        self._begin_s = 0.0
        self._killed: tuple[str, int] | None = None
        self._killed_s = 0.0
        self._back_s: float | None = None

    def events(self, job: Job) -> Sequence[Event]:
        """The events of one run."""
        span = disturbance(self._settings)
        self._killed, self._back_s = None, None
        if span is None:
            return ()
        self._begin_s, end_s = span
        if self._settings.scenario == "hog":
            return ((self._begin_s, self._hog.start), (end_s, self._hog.stop))
        if self._settings.scenario == "kill":
            whole_s = self._settings.seconds + self._settings.warmup_s
            probes = np.arange(self._begin_s + _PROBE_S, whole_s, _PROBE_S).tolist()
            return ((self._begin_s, self._kill), *((at, self._look) for at in probes))
        return ()

    def settle(self) -> float | None:
        """Waits until a killed worker is replaced; None when the scenario kills nobody.

        Returns when the replacement was seen to serve, in seconds from the start of the run, which
        may be after its end. Raises ClusterError when it does not serve within `REPLACED_S`.
        """
        if self._settings.scenario != "kill":
            return None
        if self._killed is None:
            raise ClusterError("the run ended before its worker was killed")
        name, _ = self._killed
        deadline_s = self._now_s() + REPLACED_S
        self._look()
        while self._back_s is None:
            if self._now_s() >= deadline_s:
                raise ClusterError(
                    f"{name} was killed {self._now_s() - self._killed_s:.0f} s ago, and none that "
                    f"serves {self._settings.model} has taken its place; its log ends with\n"
                    f"{self._cluster.log(name)}"
                )
            self._wait(_PROBE_S)
            self._look()
        return self._back_s

    def _kill(self) -> None:
        name = self._cluster.worker_names()[0]
        self._killed = name, self._cluster.pid(name)
        self._killed_s = self._now_s()
        self._cluster.kill_worker(name)

    def _look(self) -> None:
        if self._back_s is None and self._replaced():
            self._back_s = self._begin_s + self._now_s() - self._killed_s

    def _replaced(self) -> bool:
        """Whether another process has registered under the name and all workers serve."""
        if self._killed is None:
            return False
        name, pid = self._killed
        try:
            status = self._cluster.status()
            workers = status.pool(self._settings.model).workers
        except (FleetError, KeyError):
            return False
        registered = any(worker.id == name and worker.pid != pid for worker in status.workers)
        return registered and workers >= self._settings.workers
