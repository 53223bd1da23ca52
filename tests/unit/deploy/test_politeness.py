"""Processes that start beside others give way, as the kernel has it, and stand up again."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.members import Members
from deploy.politeness import give_way, stand_up
from deploy.process import ChildSpec
from deploy.restart import RestartPolicy


def nice_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/autogroup").read_text().rsplit(" ", 1)[1])


def has_groups() -> bool:
    return Path("/proc/self/autogroup").exists()


@pytest.fixture
def process() -> Iterator[int]:
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=-1, start_new_session=True
    ) as it:
        yield it.pid
        it.kill()


def retried(pid: int) -> bool:
    """The kernel takes one change in a tenth of a second."""
    end = time.monotonic() + 10
    while not (done := stand_up(pid)) and time.monotonic() < end:
        time.sleep(0.02)
    return done


def test_a_process_gives_way_and_stands_up(process: int) -> None:
    assert give_way(process) == has_groups()
    if has_groups():
        assert nice_of(process) == 10
        assert retried(process)
        assert nice_of(process) == 0


def test_a_process_that_is_gone_neither_gives_way_nor_stands_up() -> None:
    with subprocess.Popen([sys.executable, "-c", ""], start_new_session=True) as gone:
        gone.wait()
        assert not give_way(gone.pid)
        assert not stand_up(gone.pid)


def test_a_polite_member_stands_up_once_it_serves(tmp_path: Path) -> None:
    members = Members(RestartPolicy())
    (tmp_path / "run").mkdir()
    (tmp_path / "logs").mkdir()
    spec = ChildSpec("worker-0", "worker", tmp_path, None, {"repository": str(tmp_path)}, {})
    child = members.start(spec, polite=True)
    try:
        assert members["worker-0"].polite == has_groups()
        asked: list[str] = []

        def serves(address: str) -> bool:
            asked.append(address)
            return len(asked) > 1

        end = time.monotonic() + 60
        while members["worker-0"].polite and time.monotonic() < end:
            members.stand_up(serves)
            time.sleep(0.02)
        assert not members["worker-0"].polite
        assert nice_of(child.pid) == 0 if has_groups() else not asked
    finally:
        child.kill()


@pytest.mark.parametrize("polite", [False, True])
def test_who_replaces_a_dead_worker_gives_way_only_if_that_one_did_not_serve_yet(
    tmp_path: Path, polite: bool
) -> None:
    members = Members(RestartPolicy(initial_s=0.0))
    spec = ChildSpec("worker-0", "worker", tmp_path, None, {"repository": str(tmp_path)}, {})
    first = members.start(spec, polite=polite)
    try:
        first.kill()
        end = time.monotonic() + 60
        while members["worker-0"].child is first and time.monotonic() < end:
            members.revive(time.monotonic(), dict, pytest.fail)
            time.sleep(0.02)
        second = members["worker-0"].child
        assert second is not first and second.alive
        assert members["worker-0"].polite == (polite and has_groups())
        if has_groups():
            assert nice_of(second.pid) == (10 if polite else 0)
    finally:
        members["worker-0"].child.kill()
