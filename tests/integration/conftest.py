"""Real processes on tiny models: one repository for all tests, clusters on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from deploy.cluster import ClusterSpec, LocalCluster
from worker.models.synthetic import build_synthetic

StartCluster = Callable[..., LocalCluster]


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`tiny` answers at once, `paced` in about 15 ms (worse variant 3), `heavy` in 60 (30)."""
    root = tmp_path_factory.mktemp("models")
    build_synthetic(root, "tiny")
    build_synthetic(root, "paced", busy={"tiny-a": 5000, "tiny-b": 1000})
    build_synthetic(root, "heavy", busy={"tiny-a": 20_000, "tiny-b": 10_000})
    return root


@pytest.fixture
def start_cluster(tmp_path: Path, repository: Path) -> Iterator[StartCluster]:
    """Starts clusters that end with the test: `start_cluster(workers=2, models=("tiny",))`."""
    with ExitStack() as stack:

        def start(workers: int = 1, *, models: tuple[str, ...], **changes: Any) -> LocalCluster:
            settings = {"repository": repository, **changes}
            spec = ClusterSpec(
                workers=workers,
                directory=tmp_path / "cluster",
                listen="127.0.0.1:0",
                models=models,
                **settings,
            )
            cluster = stack.enter_context(LocalCluster(spec))
            cluster.wait_ready(timeout_s=60)
            return cluster

        yield start
