"""The launcher says what went wrong, and keeps what should run running."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import psutil
import pytest

from deploy.cluster import ClusterError, ClusterSpec, LocalCluster
from deploy.config import ConfigError
from deploy.restart import RestartPolicy
from tests.integration.conftest import StartCluster
from tests.integration.support import wait_for


def spec(directory: Path, repository: Path, **changes: object) -> ClusterSpec:
    values = {
        "workers": 1,
        "directory": directory,
        "listen": "127.0.0.1:0",
        "repository": repository,
        "models": ("tiny",),
        **changes,
    }
    return ClusterSpec(**values)  # type: ignore[arg-type]


def test_a_worker_that_cannot_start_ends_the_wait_with_its_own_words(
    tmp_path: Path, repository: Path
) -> None:
    with (
        LocalCluster(spec(tmp_path, repository, models=("nothing",))) as cluster,
        pytest.raises(ClusterError, match=r"worker-0 ended with code 1(.|\n)*nothing"),
    ):
        cluster.wait_ready(timeout_s=60)


def test_a_wrong_setting_is_told_before_anything_starts(tmp_path: Path, repository: Path) -> None:
    cluster = LocalCluster(spec(tmp_path, repository, worker={"max_queued_item": 1}))
    with pytest.raises(ConfigError, match="did you mean 'max_queued_items'"):
        cluster.start()
    wrong = LocalCluster(spec(tmp_path, repository, controlplane={"polcy": "orchid"}))
    with pytest.raises(ConfigError, match="did you mean 'policy'"):
        wrong.start()


def test_more_threads_than_cores_are_refused(tmp_path: Path, repository: Path) -> None:
    with (
        LocalCluster(spec(tmp_path, repository, worker={"intra_op_threads": 512})) as cluster,
        pytest.raises(ClusterError, match=r"intra_op_threads(.|\n)*granted"),
    ):
        cluster.wait_ready(timeout_s=60)


def test_a_broken_model_ends_the_wait_with_the_reason(tmp_path: Path, repository: Path) -> None:
    broken = tmp_path / "models" / "tiny"
    broken.mkdir(parents=True)
    for path in (repository / "tiny").rglob("*"):
        if path.is_file():
            target = broken / path.relative_to(repository / "tiny")
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(path.read_bytes())
    (broken / "tiny-a.onnx").write_bytes(b"not a graph")
    (broken / "tiny-b.onnx").write_bytes(b"not a graph")
    with (
        LocalCluster(spec(tmp_path / "state", tmp_path / "models")) as cluster,
        pytest.raises(ClusterError, match="model tiny cannot be loaded"),
    ):
        cluster.wait_ready(timeout_s=60)


def test_a_broken_manifest_does_not_keep_other_models_from_serving(
    tmp_path: Path, repository: Path
) -> None:
    models = tmp_path / "models"
    shutil.copytree(repository / "tiny", models / "tiny")
    (models / "broken").mkdir()
    (models / "broken" / "manifest.json").write_text('{"schema": 1')
    with LocalCluster(spec(tmp_path / "state", models, models=())) as cluster:
        status = cluster.wait_ready(timeout_s=60, partial=True)
        assert [pool.model for pool in status.pools if pool.state == "ready"] == ["tiny"]
        assert list(cluster.failed) == ["broken"]
        with pytest.raises(ClusterError, match=r"model broken cannot be loaded: .*manifest"):
            cluster.wait_ready(timeout_s=60)
    (models / "tiny" / "manifest.json").write_text("{}")
    with (
        LocalCluster(spec(tmp_path / "state", models, models=())) as cluster,
        pytest.raises(ClusterError, match=r"model (tiny|broken) cannot be loaded"),
    ):
        cluster.wait_ready(timeout_s=60, partial=True)


def test_a_worker_that_dies_again_and_again_is_started_again_and_again(
    start_cluster: StartCluster,
) -> None:
    policy = RestartPolicy(initial_s=0.1, maximum_s=0.2)
    cluster = start_cluster(1, models=("tiny",), supervise=True, restart=policy)
    seen = [cluster.pid("worker-0")]
    for _ in range(3):
        os.kill(seen[-1], signal.SIGKILL)
        wait_for(lambda: cluster.pid("worker-0") != seen[-1], "another worker process")
        seen.append(cluster.pid("worker-0"))
    assert len(set(seen)) == 4
    assert cluster.wait_ready(timeout_s=60).ready_workers() == 1


def test_stopping_leaves_no_process_and_a_directory_that_can_be_used_again(
    tmp_path: Path, repository: Path
) -> None:
    for _ in range(2):
        with LocalCluster(spec(tmp_path, repository)) as cluster:
            cluster.wait_ready(timeout_s=60)
            pids = cluster.pids()
            assert set(pids) == {"controlplane", "worker-0"}
        assert not any(psutil.pid_exists(pid) for pid in pids.values())
