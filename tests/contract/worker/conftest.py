from __future__ import annotations

from pathlib import Path

import pytest

from worker.models.synthetic import (
    build_identity,
    build_padded,
    build_slow,
    build_synthetic,
    build_tensor_model,
)

SLOW_MS = 1000


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every synthetic model; tests load those they need."""
    path = tmp_path_factory.mktemp("worker-repository")
    build_synthetic(path)
    build_padded(path)
    build_tensor_model(path)
    build_identity(path)
    build_slow(path, ms=SLOW_MS)
    return path
