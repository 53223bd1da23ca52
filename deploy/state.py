"""The state directory of a local cluster: who runs it, where it listens, its logs."""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO

import psutil

DEFAULT_ADDRESS = "127.0.0.1:8900"


class AlreadyRunningError(Exception):
    """Another launcher holds the state directory."""


class StateError(Exception):
    """The state directory cannot be used; the text says why."""


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """A worker process; `address` is empty until it serves, `metrics` where it serves none."""

    name: str
    pid: int
    address: str
    metrics: str = ""


@dataclass(frozen=True, slots=True)
class RollRecord:
    """The last roll of the workers: `number` counts them from 1, 0 is none so far.

    `phase` is "rolling", "done" or "failed", `message` how far it is or why it failed.
    """

    number: int = 0
    phase: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """A running cluster; `phase` is "starting", "ready" or "failed".

    `http` and `metrics` are where the control plane serves these, `page` is the URL of its status
    page; all empty for nowhere. `secure` names the processes whose metrics are served by TLS.
    """

    launcher_pid: int
    launcher_started: float
    controlplane_pid: int
    phase: str
    message: str
    address: str
    policy: str
    workers: tuple[WorkerRecord, ...]
    http: str = ""
    roll: RollRecord = field(default_factory=RollRecord)
    metrics: str = ""
    page: str = ""
    secure: tuple[str, ...] = ()

    def metrics_addresses(self) -> dict[str, str]:
        """Where each process serves metrics, by its name; those that do not are left out."""
        found = {"controlplane": self.metrics}
        found |= {worker.name: worker.metrics for worker in self.workers}
        return {name: address for name, address in found.items() if address}


class StateDirectory:
    """Reads and writes one state directory; the lock is held by its launcher."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._lock: IO[str] | None = None

    @property
    def _record(self) -> Path:
        return self.path / "cluster.json"

    @property
    def _asked(self) -> Path:
        return self.path / "roll.asked"

    def acquire(self) -> None:
        """Claims the directory for this process; raises AlreadyRunningError or StateError."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / "lock").open("a")
        except OSError as error:
            raise unusable(self.path, error) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise already_running(self.path) from None
        self._lock = lock

    def release(self) -> None:
        """Gives the directory up and removes the record of the cluster."""
        if self._lock is not None:
            self._record.unlink(missing_ok=True)
            self._lock.close()
            self._lock = None

    def write(self, record: ClusterRecord) -> None:
        """Replaces the record, whole or not at all."""
        partial = self._record.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(record), indent=1) + "\n")
        partial.replace(self._record)

    def ask_roll(self, timeout_s: float) -> None:
        """Leaves word for the next roll: how long each of its replacements may take."""
        partial = self._asked.with_suffix(".partial")
        partial.write_text(json.dumps({"timeout_s": timeout_s}) + "\n")
        partial.replace(self._asked)

    def asked_roll(self) -> float | None:
        """What the last `ask_roll` has said, once; None where nobody has."""
        try:
            told = json.loads(self._asked.read_text())
            self._asked.unlink()
            return float(told["timeout_s"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def read(self) -> ClusterRecord | None:
        """The record of a launcher that still lives, or None."""
        try:
            data = json.loads(self._record.read_text())
        except (FileNotFoundError, NotADirectoryError):
            return None
        data["workers"] = tuple(WorkerRecord(**entry) for entry in data["workers"])
        data["secure"] = tuple(data.get("secure", ()))
        data["roll"] = RollRecord(**data.get("roll", {}))
        record = ClusterRecord(**data)
        return record if launcher(record) is not None else None


def unusable(path: Path, error: OSError) -> StateError:
    """The fault of a state directory that cannot be made or written."""
    return StateError(f"cannot keep state in {path}: {error.strerror}")


def already_running(path: Path) -> AlreadyRunningError:
    """The fault of starting a second cluster in one state directory."""
    return AlreadyRunningError(f"a cluster already runs from {path}; `orchid down` stops it")


def launcher(record: ClusterRecord) -> psutil.Process | None:
    """The launcher's process, None when it ended or its number was used again."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(record.launcher_pid)
        same = abs(process.create_time() - record.launcher_started) < 1.0
        if same and process.status() != psutil.STATUS_ZOMBIE:
            return process
    return None


def own_start() -> float:
    """When this process started, as `launcher_started` records it."""
    return psutil.Process(os.getpid()).create_time()


def running_address(directory: Path) -> str:
    """Where the local cluster listens; empty when none runs from the directory."""
    record = StateDirectory(directory).read()
    return record.address if record is not None else ""
