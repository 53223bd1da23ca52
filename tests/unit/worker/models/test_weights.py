"""Weight files: aligned, stable, and small tensors stay in the graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper

from worker.models.weights import ALIGNMENT, INLINE_BYTES, place_weights, write_weights


@given(sizes=st.lists(st.integers(1, 30_000), min_size=1, max_size=6))
def test_segments_are_aligned_and_do_not_overlap(sizes: list[int]) -> None:
    placed = place_weights(
        {f"w{i}": np.zeros(size, np.float32) for i, size in enumerate(sizes)}, "weights"
    )
    end = 0
    for offset, array in placed.segments:
        assert offset % ALIGNMENT == 0
        assert offset >= end
        end = offset + array.nbytes
    assert placed.size >= end
    inline = [t for t in placed.tensors.values() if t.data_location != onnx.TensorProto.EXTERNAL]
    assert len(inline) == sum(size * 4 < INLINE_BYTES for size in sizes)


def test_a_written_file_reads_back_through_the_references(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    arrays: dict[str, Any] = {
        "large": random.normal(size=(100, 120)).astype(np.float32),
        "small": random.normal(size=7).astype(np.float32),
        "bytes": random.integers(0, 255, (90, 500)).astype(np.uint8),
    }
    placed = place_weights(arrays, "model.weights")
    write_weights(placed, tmp_path / "model.weights")
    assert (tmp_path / "model.weights").stat().st_size == placed.size
    for name, array in arrays.items():
        read = numpy_helper.to_array(placed.tensors[name], base_dir=str(tmp_path))
        np.testing.assert_array_equal(read, array)


def test_the_layout_depends_on_shapes_only() -> None:
    one = place_weights({"a": np.zeros((99, 99), np.float32)}, "w").tensors["a"]
    two = place_weights({"a": np.ones((99, 99), np.float32)}, "w").tensors["a"]
    assert one == two
