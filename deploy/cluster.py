"""A control plane and its workers as processes of this machine, started and kept alive.

Used by `orchid up`, by the integration tests and by the benches. Every process dies
with its launcher (see `lifeline`), so nothing is ever left behind.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any

from deploy.access import Access, AccessError
from deploy.cluster_spec import ClusterError, ClusterSpec, decode_overrides, worker_overrides
from deploy.doors import Doors
from deploy.fleet import fetch_status
from deploy.fleet_views import FleetStatus
from deploy.leftovers import prune
from deploy.members import CONTROLPLANE, WORKER, Members
from deploy.metrics_ports import TARGETS, MetricsPorts, write_targets
from deploy.process import Child, ChildSpec
from deploy.readiness import Readiness, failures
from deploy.ready_wait import ReadyWait
from deploy.services import (
    LauncherAccess,
    ServedModels,
    controlplane_config,
    launcher_access,
    served_models,
    worker_config,
)
from deploy.state import ClusterRecord, RollRecord, StateDirectory, WorkerRecord, own_start
from deploy.supervisor import Supervisor

_POLL_S = 0.05
# After its drain a worker ends its streams and threads.
_FAREWELL_S = 3.0


__all__ = ["ClusterError", "ClusterSpec", "LocalCluster"]


class LocalCluster:
    """A running cluster; a context manager. Methods may be called from any thread."""

    def __init__(self, spec: ClusterSpec) -> None:
        self.spec = spec
        self._state = StateDirectory(spec.directory)
        self._members = Members(spec.restart)
        self._lock = self._members.lock
        self._next_worker = 0
        self._next_decode = 0
        self._doors = Doors()
        self._ports = MetricsPorts(spec.metrics or "", exact=spec.metrics_exact)
        self._policy = spec.policy
        self._configured_policy = ""
        # Services whose metrics are served by TLS.
        self._secure: frozenset[str] = frozenset()
        self._phase = ("starting", "")
        self._roll = RollRecord()
        self._models = ServedModels(frozenset(), frozenset())
        # Those that configuration names, of both classes; empty: all of the repository.
        self._named: tuple[str, ...] = ()
        self.failed: Mapping[str, str] = {}
        self._access: LauncherAccess | None = None
        self._supervisor: Supervisor | None = None

    def __enter__(self) -> LocalCluster:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    # Starting and stopping the whole

    def start(self, timeout_s: float = 60.0) -> None:
        """Starts every process; `wait_ready` waits for the models.

        Raises AlreadyRunningError, ConfigError, or ClusterError when the control plane
        does not come up.
        """
        env = {**os.environ, **self.spec.env}
        overrides = worker_overrides(self.spec, self.spec.models)
        settings = worker_config(self.spec.config, env, overrides)
        try:
            self._access = launcher_access(self.spec.config, env, self.spec.controlplane)
        except AccessError as error:
            raise ClusterError(str(error)) from None
        plane = controlplane_config(self.spec.config, env, self.spec.controlplane)
        self._configured_policy = plane.policy
        secure = {CONTROLPLANE: plane.tls.serves, WORKER: settings.tls.serves}
        self._secure = frozenset(service for service, serves in secure.items() if serves)
        self._named = settings.models
        self._models = served_models(settings)
        if not self.spec.decode_threads:
            # Nobody is there to load them.
            self._models = replace(self._models, generators=frozenset())
        self._state.acquire()
        try:
            prune(self._state.path, ())
            self.start_controlplane(timeout_s=timeout_s)
            for _ in range(self.spec.workers):
                self.add_worker()
            if self.spec.decode_threads:
                self.add_decode_worker()
        except BaseException:
            self.stop()
            raise
        if self.spec.supervise:
            self._supervisor = Supervisor(
                self._members,
                overrides=lambda: self._doors.overrides(),
                changed=self._record,
                failed=self._not_started,
                access=self._worker_access,
            )
            self._supervisor.start()

    def stop(self) -> None:
        """Stops workers, then the control plane; safe to call twice."""
        if self._supervisor is not None:
            self._supervisor.stop()
            self._supervisor = None
        members = self._members.pop_all()
        for member in members:
            member.child.signal(signal.SIGTERM)
        deadline = time.monotonic() + self.spec.stop_timeout_s
        for member in members:
            member.child.wait(max(0.1, deadline - time.monotonic()))
        (self._state.path / TARGETS).unlink(missing_ok=True)
        self._state.release()

    def wait_ready(
        self,
        *,
        workers: int | None = None,
        timeout_s: float = 120.0,
        on_progress: Callable[[Readiness], None] | None = None,
        partial: bool = False,
    ) -> FleetStatus:
        """Waits until the workers (all by default) serve every model of the repository.

        Raises ClusterError on timeout, as soon as an unsupervised process has died, and when a
        model cannot be loaded. With `partial` the others are enough, when there are any; `failed`
        then names those that cannot.
        """
        wait = ReadyWait(
            self._members,
            self._models,
            self.status,
            self._worker_access,
            supervised=self._supervisor is not None,
        )
        status, self.failed = wait.until_ready(workers, timeout_s, on_progress, partial=partial)
        self._enter("ready", failures(self.failed))
        return status

    def wait_serving(self, timeout_s: float, look: Callable[[], None]) -> None:
        """Waits until every worker serves every model that can be loaded; `failed` has the others.

        `look` is called meanwhile and may raise. Raises ClusterError as `wait_ready`.
        """
        self.wait_ready(timeout_s=timeout_s, on_progress=lambda _: look(), partial=True)

    # The control plane

    @property
    def address(self) -> str:
        """Where the control plane listens."""
        return self._doors.grpc

    @property
    def http_address(self) -> str:
        """Where the control plane serves HTTP; empty when it does not."""
        return self._doors.http

    @property
    def metrics_address(self) -> str:
        """Where the control plane serves metrics; empty when it does not."""
        return self._doors.metrics

    def metrics_addresses(self) -> dict[str, str]:
        """Where each process serves metrics, by its name; those that do not are left out."""
        return {m.spec.name: m.metrics for m in self._members.all() if m.metrics}

    def secure_metrics(self) -> tuple[str, ...]:
        """Names of the processes whose metrics are served by TLS."""
        return tuple(
            m.spec.name for m in self._members.all() if m.metrics and m.spec.service in self._secure
        )

    @property
    def page_url(self) -> str:
        """Of the status page, without a path; empty when there is none."""
        return self._doors.page_url

    def start_controlplane(self, *, policy: str | None = None, timeout_s: float = 60.0) -> None:
        """Starts the control plane at the address it had before, with another policy if given."""
        with self._lock:
            self._policy = policy or self._policy
            overrides = dict(self.spec.controlplane)
            if self._policy is not None:
                overrides["policy"] = self._policy
            asked = {
                "listen": self.spec.listen,
                "http_listen": self.spec.http,
                "status_listen": self.spec.page,
            }
            overrides |= {key: address for key, address in asked.items() if address is not None}
            if self.spec.metrics is not None and not self._doors.metrics:
                overrides["metrics_listen"] = self._metrics_listen(CONTROLPLANE)
            overrides |= self._doors.overrides()
            spec = self._child_spec(CONTROLPLANE, CONTROLPLANE, overrides)
            child = self._members.start(spec)
        deadline = time.monotonic() + timeout_s
        while (address := child.address) is None:
            if not child.alive or time.monotonic() >= deadline:
                child.kill()
                raise ClusterError(f"the control plane did not start\n{child.log_tail()}")
            time.sleep(_POLL_S)
        self._doors = Doors.of(child, address)
        self._record()

    def stop_controlplane(self) -> None:
        """Stops the control plane and leaves the workers alone."""
        self._members.pop(CONTROLPLANE).child.stop(self.spec.stop_timeout_s)

    def restart_controlplane(self, *, policy: str | None = None) -> None:
        """Another control plane at the same address; the workers come back by themselves."""
        self.stop_controlplane()
        self.start_controlplane(policy=policy)

    # Workers

    def worker_names(self) -> tuple[str, ...]:
        """Names of the encoder workers that should run."""
        return self._members.names(decode=False)

    def decode_names(self) -> tuple[str, ...]:
        """Names of the decode workers that should run."""
        return self._members.names(decode=True)

    def add_worker(self) -> str:
        """Starts one more encoder worker; returns its name."""
        named = tuple(name for name in self._named if name not in self._models.generators)
        with self._lock:
            name = f"worker-{self._next_worker}"
            self._next_worker += 1
            self._start_worker(name, worker_overrides(self.spec, named))
        return name

    def add_decode_worker(self) -> str:
        """Starts one more decode worker; returns its name."""
        named = tuple(name for name in self._named if name in self._models.generators)
        with self._lock:
            name = f"decode-{self._next_decode}"
            self._next_decode += 1
            self._start_worker(name, decode_overrides(self.spec, named))
        return name

    def _start_worker(self, name: str, overrides: Mapping[str, Any]) -> None:
        told = {**overrides, "worker_id": name, "controlplane": self._doors.grpc}
        # Workers of one machine cannot share a port, and the launcher asks each at its own.
        told["health_listen"] = ""
        if self.spec.metrics is not None:
            told["metrics_listen"] = self._metrics_listen(name.partition("-")[0])
        # Nobody would let it stand up again where nobody supervises.
        beside = self._supervisor is not None and self._phase[0] == "ready"
        self._members.start(self._child_spec(name, WORKER, told), polite=beside)
        self._record()

    def remove_worker(self, name: str) -> None:
        """Drains one worker, for as long as its settings allow, and ends it for good."""
        env = {**os.environ, **self.spec.env}
        with self._lock:
            member = self._members[name]
            settings = worker_config(self.spec.config, env, member.spec.overrides)
            self._members.pop(name)
        drain_s = settings.drain_timeout_ms / 1e3 + _FAREWELL_S
        member.child.stop(max(self.spec.stop_timeout_s, drain_s))
        self._record()
        prune(self._state.path, {member.spec.name for member in self._members.all()})

    def kill_worker(self, name: str) -> None:
        """SIGKILL; a supervised cluster starts another in its place."""
        self.kill(name)

    def kill(self, name: str) -> None:
        """SIGKILL to any process of the cluster."""
        self._members[name].child.kill()

    def signal(self, name: str, number: int) -> None:
        """Any signal to any process of the cluster, such as SIGSTOP."""
        self._members[name].child.signal(number)

    def restart_worker(self, name: str) -> None:
        """Starts a worker again after it died, or stops it first."""
        with self._lock:
            member = self._members[name]
            member.child.stop(self.spec.stop_timeout_s)
            member.child = Child(member.spec)
        self._record()

    def worker_address(self, name: str) -> str:
        """Where a worker listens; raises ClusterError while it does not."""
        address = self._members[name].child.address
        if address is None:
            raise ClusterError(f"{name} does not listen yet")
        return address

    def pid(self, name: str) -> int:
        """Process id of "controlplane" or a worker."""
        return self._members[name].child.pid

    def pids(self) -> dict[str, int]:
        """Process ids of everything that lives."""
        return self._members.pids()

    def log(self, name: str) -> str:
        """The end of what a process wrote."""
        return self._members[name].child.log_tail()

    def status(self) -> FleetStatus:
        """The control plane's account; raises FleetError."""
        access = self._access.controlplane if self._access is not None else None
        return fetch_status(self._doors.grpc, access=access)

    # Inside

    @property
    def _worker_access(self) -> Access | None:
        return self._access.workers if self._access is not None else None

    def _child_spec(self, name: str, service: str, overrides: Mapping[str, Any]) -> ChildSpec:
        config = self.spec.config.absolute() if self.spec.config is not None else None
        return ChildSpec(name, service, self._state.path, config, overrides, self.spec.env)

    def _metrics_listen(self, kind: str) -> str:
        return self._ports.take({member.metrics for member in self._members.all()}, kind)

    def _enter(self, phase: str, message: str) -> None:
        if self._phase != (phase, message):
            self._phase = (phase, message)
            self._record()

    def fail(self, message: str) -> None:
        """Leaves word in the state directory why the cluster will not become ready."""
        self._enter("failed", message)

    def note_roll(self, roll: RollRecord) -> None:
        """Leaves word in the state directory how far a roll of the workers is."""
        if self._roll != roll:
            self._roll = roll
            self._record()

    def _record(self) -> None:
        with self._lock:
            workers = tuple(
                WorkerRecord(m.spec.name, m.child.pid, m.child.address or "", m.metrics)
                for m in self._members.workers()
            )
            phase, message = self._phase
            record = ClusterRecord(
                launcher_pid=os.getpid(),
                launcher_started=own_start(),
                controlplane_pid=self.pids().get(CONTROLPLANE, 0),
                phase=phase,
                message=message,
                address=self._doors.grpc,
                policy=self._policy or self._configured_policy,
                workers=workers,
                http=self._doors.http,
                roll=self._roll,
                metrics=self._doors.metrics,
                page=self._doors.page_url,
                secure=self.secure_metrics(),
            )
            self._state.write(record)
            write_targets(self._state.path, record)

    def _not_started(self, message: str) -> None:
        self._enter("ready", message)
