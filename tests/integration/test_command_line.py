"""The `orchid` command, as a person uses it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import psutil
import pytest

from deploy.state import StateDirectory
from tests.integration.support import wait_for


def orchid(
    *arguments: str, cwd: Path, timeout_s: float = 150.0
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "deploy.cli", *arguments],
        cwd=cwd,
        env={**os.environ, "COLUMNS": "200", "PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


def test_up_status_infer_down(tmp_path: Path, repository: Path) -> None:
    up = orchid(
        "up", "--workers", "1", "--detach", "--listen", "127.0.0.1:0",
        "--repository", str(repository), cwd=tmp_path,
    )  # fmt: skip
    assert up.returncode == 0, up.stdout + up.stderr
    try:
        record = StateDirectory(tmp_path / ".orchid").read()
        assert record is not None and record.phase == "ready"
        assert f"status page: {record.page}/" in up.stdout
        with urllib.request.urlopen(f"{record.page}/healthz", timeout=30) as alive:
            assert alive.read() == b"ok\n"

        status = orchid("status", "--json", cwd=tmp_path)
        document = json.loads(status.stdout)
        assert document["page"] == record.page
        assert [worker["state"] for worker in document["workers"]] == ["ready"]
        assert {pool["model"] for pool in document["pools"]} == {"tiny", "paced", "heavy"}
        shown = orchid("status", cwd=tmp_path).stdout
        assert "worker-0" in shown and f"{record.page}/" in shown

        asked = orchid("infer", "tiny", "a superb film", "an awful mess", cwd=tmp_path)
        assert asked.returncode == 0, asked.stderr
        assert "positive" in asked.stdout and "negative" in asked.stdout
        assert "tiny-" in asked.stdout

        floor = orchid("infer", "tiny", "x", "--variant", "tiny-z", cwd=tmp_path)
        assert floor.returncode == 1 and "tiny-a" in floor.stdout

        second = orchid("up", "--workers", "1", "--repository", str(repository), cwd=tmp_path)
        assert second.returncode == 1 and "orchid down" in second.stderr

        assert orchid("ready", record.address, "--service", "tiny", cwd=tmp_path).returncode == 0
        assert record.policy == "orchid-cascade"
        soon = orchid("roll", "--timeout", "0.01", cwd=tmp_path)
        assert soon.returncode == 1 and "not ready after 0 s" in soon.stderr
        rolled = orchid("roll", cwd=tmp_path)
        assert rolled.returncode == 0 and "every worker is replaced" in rolled.stdout
        record = StateDirectory(tmp_path / ".orchid").read()
        assert record is not None and (record.roll.number, record.roll.phase) == (2, "done")
        assert [worker.name for worker in record.workers] == ["worker-2"]
    finally:
        down = orchid("down", cwd=tmp_path)
    assert down.returncode == 0 and "1 worker" in down.stdout
    assert not psutil.pid_exists(record.controlplane_pid)
    assert not any(psutil.pid_exists(worker.pid) for worker in record.workers)
    assert "nothing runs" in orchid("down", cwd=tmp_path).stdout
    assert "no cluster runs" in orchid("roll", cwd=tmp_path).stderr
    gone = orchid("ready", record.address, cwd=tmp_path)
    assert gone.returncode == 1 and "is not ready: UNAVAILABLE" in gone.stderr


def test_up_returns_though_a_model_is_broken_and_says_so(tmp_path: Path, repository: Path) -> None:
    models = tmp_path / "models"
    shutil.copytree(repository / "tiny", models / "tiny")
    (models / "broken").mkdir()
    (models / "broken" / "manifest.json").write_text('{"schema": 1')
    up = orchid("up", "--workers", "1", "--detach", "--listen", "127.0.0.1:0", cwd=tmp_path)
    try:
        assert up.returncode == 1
        assert "serving on" in up.stdout
        assert "model broken cannot be loaded" in up.stderr
        assert orchid("infer", "tiny", "superb", cwd=tmp_path).returncode == 0
        broken = orchid("infer", "broken", "superb", cwd=tmp_path)
        assert broken.returncode == 1 and "failed" in broken.stdout + broken.stderr
    finally:
        assert orchid("down", cwd=tmp_path).returncode == 0


def test_a_model_imported_later_is_loaded_into_the_running_cluster(
    tmp_path: Path, repository: Path
) -> None:
    shutil.copytree(repository / "tiny", tmp_path / "models" / "tiny")
    up = orchid("up", "--workers", "1", "--detach", "--listen", "127.0.0.1:0", cwd=tmp_path)
    assert up.returncode == 0, up.stderr
    try:
        source = str(repository / "tiny")
        imported = orchid("models", "import", source, "--name", "late", cwd=tmp_path)
        assert imported.returncode == 0 and "orchid models load late" in imported.stdout
        again = orchid("models", "import", source, "--name", "late", cwd=tmp_path)
        assert again.returncode == 1 and "--replace" in again.stderr
        loaded = orchid("models", "load", "late", cwd=tmp_path)
        assert loaded.returncode == 0 and "late is ready" in loaded.stdout, loaded.stderr
        assert orchid("infer", "late", "superb", cwd=tmp_path).returncode == 0
        assert orchid("models", "unload", "late", cwd=tmp_path).returncode == 0
        gone = orchid("infer", "late", "superb", cwd=tmp_path)
        assert gone.returncode == 1
        unknown = orchid("models", "load", "nothing", cwd=tmp_path)
        assert unknown.returncode == 1 and "NOT_FOUND" in unknown.stderr
    finally:
        assert orchid("down", cwd=tmp_path).returncode == 0


def test_a_killed_launcher_leaves_no_process(tmp_path: Path, repository: Path) -> None:
    launcher = subprocess.Popen(
        [
            sys.executable, "-m", "deploy.cli", "up", "--workers", "1",
            "--listen", "127.0.0.1:0", "--repository", str(repository), "--state", str(tmp_path),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    with launcher:
        state = StateDirectory(tmp_path)

        def ready() -> bool:
            record = state.read()
            return record is not None and record.phase == "ready"

        wait_for(ready, "the cluster is ready", 60)
        record = state.read()
        assert record is not None
        pids = [record.controlplane_pid, *(worker.pid for worker in record.workers)]
        assert all(psutil.pid_exists(pid) for pid in pids)
        launcher.kill()
    wait_for(lambda: not any(psutil.pid_exists(p) for p in pids), "its processes are gone")


def test_a_fault_in_the_configuration_is_told_with_its_place(
    tmp_path: Path, repository: Path
) -> None:
    config = tmp_path / "orchid.yaml"
    config.write_text("worker:\n  max_queued_item: 5\n")
    up = orchid(
        "up", "--workers", "1", "--listen", "127.0.0.1:0", "--config", str(config),
        "--repository", str(repository), cwd=tmp_path,
    )  # fmt: skip
    assert up.returncode == 1
    assert "orchid.yaml:2" in up.stderr and "max_queued_items" in up.stderr


@pytest.mark.parametrize(
    "arguments",
    [(), ("--help",), ("up", "--help"), ("bench",), ("models", "--help"), ("bench", "load", "-h")],
)
def test_help_is_help(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    shown = orchid(*arguments, cwd=tmp_path)
    assert "Usage:" in shown.stdout + shown.stderr


def test_without_models_up_says_how_to_get_them(tmp_path: Path) -> None:
    up = orchid("up", cwd=tmp_path)
    assert up.returncode == 1 and "orchid models build" in up.stderr


def test_without_a_cluster_status_says_how_to_start_one(tmp_path: Path) -> None:
    status = orchid("status", "--address", "127.0.0.1:1", cwd=tmp_path)
    assert status.returncode == 1 and "orchid up" in status.stderr
