"""The state directory belongs to one living launcher at a time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from deploy.state import (
    AlreadyRunningError,
    ClusterRecord,
    StateDirectory,
    WorkerRecord,
    own_start,
    running_address,
)


def record(**changes: object) -> ClusterRecord:
    values: dict[str, object] = {
        "launcher_pid": os.getpid(),
        "launcher_started": own_start(),
        "controlplane_pid": 4,
        "phase": "ready",
        "message": "",
        "address": "127.0.0.1:1",
        "policy": "orchid",
        "workers": (WorkerRecord("worker-0", 5, "127.0.0.1:2"),),
        **changes,
    }
    return ClusterRecord(**values)  # type: ignore[arg-type]


def test_a_record_reads_back_while_its_launcher_lives(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path)
    state.acquire()
    state.write(record())
    assert StateDirectory(tmp_path).read() == record()
    assert running_address(tmp_path) == "127.0.0.1:1"
    state.release()
    assert StateDirectory(tmp_path).read() is None
    assert running_address(tmp_path) == ""


def test_a_record_of_a_process_number_used_again_is_void(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path)
    state.acquire()
    state.write(record(launcher_started=own_start() - 100.0))
    assert state.read() is None
    state.release()


def test_a_second_launcher_is_refused_until_the_first_lets_go(tmp_path: Path) -> None:
    first, second = StateDirectory(tmp_path), StateDirectory(tmp_path)
    first.acquire()
    with pytest.raises(AlreadyRunningError, match="orchid down"):
        second.acquire()
    first.release()
    second.acquire()
    second.release()


def test_what_is_asked_of_a_roll_is_told_once(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path)
    assert state.asked_roll() is None
    state.ask_roll(7.5)
    state.ask_roll(12.0)
    assert (StateDirectory(tmp_path).asked_roll(), state.asked_roll()) == (12.0, None)
    (tmp_path / "roll.asked").write_text("[")
    assert state.asked_roll() is None


def test_which_metrics_are_encrypted_reads_back(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path)
    state.acquire()
    state.write(record(secure=("controlplane", "worker-0")))
    found = state.read()
    assert found is not None and found.secure == ("controlplane", "worker-0")
    state.release()
