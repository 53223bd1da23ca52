"""Recorded answers of all variants: round trip, and files that hold something else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from worker.models.errors import CheckpointError
from worker.models.recorded import Recorded, read_recorded, recorded_path, write_recorded

RECORDED = Recorded(
    tokens=np.array([4, 9, 30], np.int32),
    labels=np.array([0, 1, 1], np.int32),
    logits={
        "small": np.array([[1, 0], [0, 1], [2, 1]], np.float32),
        "big": np.array([[3, 0], [0, 3], [1, 2]], np.float32),
    },
)


def test_what_is_written_reads_back_and_is_the_same_bytes_again(tmp_path: Path) -> None:
    path = recorded_path(tmp_path, "words")
    write_recorded(path, RECORDED)
    content = path.read_bytes()
    found = read_recorded(path)
    assert found.tokens.tolist() == [4, 9, 30]
    assert found.labels.tolist() == [0, 1, 1]
    assert found.logits.keys() == RECORDED.logits.keys()
    for name, logits in RECORDED.logits.items():
        assert found.logits[name].dtype == np.float32
        assert (found.logits[name] == logits).all()
    write_recorded(path, found)
    assert path.read_bytes() == content
    assert [file.name for file in path.parent.iterdir()] == ["confidences-words.npz"]


def test_half_precision_is_read_as_single(tmp_path: Path) -> None:
    path = tmp_path / "half.npz"
    halves: dict[str, Any] = {name: a.astype(np.float16) for name, a in RECORDED.logits.items()}
    np.savez_compressed(path, tokens=RECORDED.tokens, labels=RECORDED.labels, **halves)
    found = read_recorded(path)
    assert found.logits["big"].dtype == np.float32
    assert (found.logits["big"] == RECORDED.logits["big"]).all()


def test_other_files_are_refused_with_a_remedy(tmp_path: Path) -> None:
    path = tmp_path / "other.npz"
    with pytest.raises(CheckpointError, match="orchid models evaluate"):
        read_recorded(path)
    path.write_bytes(b"no archive")
    with pytest.raises(CheckpointError, match="recorded answers"):
        read_recorded(path)
    np.savez_compressed(path, labels=np.zeros(3))
    with pytest.raises(CheckpointError, match="tokens"):
        read_recorded(path)
    np.savez_compressed(path, labels=np.zeros(3), tokens=np.zeros(3), small=np.zeros((2, 2)))
    with pytest.raises(CheckpointError, match="as many"):
        read_recorded(path)
    with path.open("wb") as stream:
        np.save(stream, np.zeros(3))
    with pytest.raises(CheckpointError, match="recorded answers"):
        read_recorded(path)
