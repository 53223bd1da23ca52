"""Runs a cluster in the foreground, or in a launcher process of its own; and stops one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from deploy.cluster import ClusterError, LocalCluster
from deploy.config import ConfigError
from deploy.fleet_views import FleetStatus
from deploy.readiness import Readiness
from deploy.roll import RollStep, roll_workers
from deploy.state import (
    ClusterRecord,
    RollRecord,
    StateDirectory,
    already_running,
    launcher,
    unusable,
)

_POLL_S = 0.1
_STOP_S = 20.0
_LAUNCHER_S = 20.0
# Asks a launcher to replace its workers; a hang-up of the terminal must not.
ROLL_SIGNAL = signal.SIGUSR1


def run_until_signalled(
    cluster: LocalCluster,
    *,
    ready_timeout_s: float,
    on_progress: Callable[[Readiness], None],
    on_ready: Callable[[FleetStatus], None],
) -> None:
    """Starts the cluster and keeps it until SIGINT or SIGTERM; always stops what it started.

    ROLL_SIGNAL has it replace every worker.

    It is ready once every model is ready or has failed, and one serves; `cluster.failed` then
    names the others. Raises ClusterError when it does not become ready; the state directory
    then says so.
    """
    told, woken = threading.Event(), threading.Event()

    def end(*_: object) -> None:
        told.set()
        woken.set()

    handlers = {signal.SIGINT: end, signal.SIGTERM: end, ROLL_SIGNAL: lambda *_: woken.set()}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}

    def watched(progress: Readiness) -> None:
        if told.is_set():
            raise ClusterError("told to stop before it was ready")
        on_progress(progress)

    try:
        cluster.start()
        try:
            on_ready(
                cluster.wait_ready(timeout_s=ready_timeout_s, on_progress=watched, partial=True)
            )
            woken.clear()
            rolls = 0
            while not told.is_set():
                if woken.wait() and not told.is_set():
                    woken.clear()
                    rolls += 1
                    asked = StateDirectory(cluster.spec.directory).asked_roll()
                    _roll(cluster, rolls, asked or ready_timeout_s, told)
        except ClusterError as error:
            cluster.fail(str(error))
            raise
        finally:
            cluster.stop()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _roll(cluster: LocalCluster, number: int, timeout_s: float, told: threading.Event) -> None:
    """Replaces every worker; how it went is in the state directory, what serves goes on."""

    def on_step(step: RollStep) -> None:
        if told.is_set():
            raise ClusterError("told to stop while workers were replaced")
        cluster.note_roll(RollRecord(number, "rolling", str(step)))

    try:
        roll_workers(cluster, timeout_s=timeout_s, on_step=on_step)
    except (ClusterError, ConfigError, OSError) as error:
        cluster.note_roll(RollRecord(number, "failed", str(error)))
    else:
        cluster.note_roll(RollRecord(number, "done"))


def start_detached(
    arguments: Sequence[str],
    directory: Path,
    *,
    timeout_s: float,
    on_phase: Callable[[ClusterRecord], None],
) -> ClusterRecord:
    """Starts `orchid up ARGUMENTS` as a launcher of its own session and waits until it is ready.

    The record's message then names the models that failed.
    Raises AlreadyRunningError, StateError, or ClusterError with the end of its log when it
    ends first.
    """
    state = StateDirectory(directory)
    if state.read() is not None:
        raise already_running(state.path)
    log_path = state.path / "logs" / "launcher.log"
    try:
        log_path.parent.mkdir(parents=True, exist_ok=True)
        log_file = log_path.open("wb")
    except OSError as error:
        raise unusable(state.path, error) from None
    with log_file as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "deploy.cli", "up", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "COLUMNS": "120"},
            start_new_session=True,
        )
    try:
        return _await_ready(process, state, log_path, timeout_s, on_phase)
    except KeyboardInterrupt:
        process.terminate()
        process.wait()
        raise


def _await_ready(
    process: subprocess.Popen[bytes],
    state: StateDirectory,
    log_path: Path,
    timeout_s: float,
    on_phase: Callable[[ClusterRecord], None],
) -> ClusterRecord:
    # The launcher knows why it is late, so it has the first word.
    deadline = time.monotonic() + timeout_s + _LAUNCHER_S
    while True:
        record = state.read()
        if record is not None and record.launcher_pid == process.pid:
            if record.phase == "ready":
                return record
            on_phase(record)
        if process.poll() is not None:
            raise ClusterError(f"the cluster did not start\n{log_path.read_text()[-4000:].strip()}")
        if time.monotonic() >= deadline:
            process.terminate()
            process.wait()
            raise ClusterError(f"not ready after {timeout_s:.0f} s; see {log_path}")
        time.sleep(_POLL_S)


def stop_running(directory: Path, *, timeout_s: float = _STOP_S) -> ClusterRecord | None:
    """Stops the cluster of a state directory; returns what ran, None when nothing did.

    A launcher that does not end in time is killed, which ends its processes too.
    """
    state = StateDirectory(directory)
    record = state.read()
    process = launcher(record) if record is not None else None
    if process is None:
        return None
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout_s)
    except psutil.TimeoutExpired:
        process.kill()
        process.wait(timeout_s)
    return record


def roll_running(
    directory: Path, *, timeout_s: float, on_progress: Callable[[str], None] = lambda text: None
) -> RollRecord:
    """Has the launcher of a state directory replace its workers; returns how that went.

    Each replacement may take `timeout_s`. Raises ClusterError when no cluster is ready there, when
    a roll is under way already, and when the launcher ends or says nothing new for longer.
    """
    state = StateDirectory(directory)
    record = state.read()
    process = launcher(record) if record is not None else None
    if record is None or process is None:
        raise ClusterError(f"no cluster runs from {directory}")
    if record.phase != "ready":
        raise ClusterError(f"the cluster is not ready: {record.phase} {record.message}".strip())
    if record.roll.phase == "rolling":
        raise ClusterError(f"its workers are being replaced: {record.roll.message}")
    before, said = record.roll.number, ""
    state.ask_roll(timeout_s)
    process.send_signal(ROLL_SIGNAL)
    # The launcher knows why it is late, so it has the first word.
    patience_s = timeout_s + _LAUNCHER_S
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        record = state.read()
        if record is None:
            raise ClusterError("the cluster ended while its workers were replaced")
        roll = record.roll
        if roll.number > before and roll.phase in ("done", "failed"):
            return roll
        if roll.number > before and roll.message != said:
            said = roll.message
            on_progress(said)
            deadline = time.monotonic() + patience_s
        time.sleep(_POLL_S)
    raise ClusterError(f"no end after {patience_s:.0f} s: {said or 'the launcher does not answer'}")
