from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

from tests.unit.worker import graphs
from worker.engine import Session, memory_stats, take_run_peak, trim_memory

# Runs in a process of its own: what other tests left behind would hide what a run leaves.
SCRIPT = """
import sys
from pathlib import Path
import numpy as np
from worker.engine import Session

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

session = Session(Path(sys.argv[1]))
small = np.ones((16, 64), np.float32)
large = np.ones((65536, 64), np.float32)
for _ in range(20):
    session.run({"x": small})
before = resident()
session.run({"x": large})
for _ in range(20):
    session.run({"x": small})
print(resident() - before)
"""


def test_one_large_input_does_not_lift_resident_memory_for_good(tmp_path: Path) -> None:
    """Six intermediate values of 64 MiB each pass through; next to nothing of it may stay."""
    nodes = [
        helper.make_node("MatMul", [f"x{i}" if i else "x", "w" if i else "widen"], [f"x{i + 1}"])
        for i in range(6)
    ]
    nodes.append(helper.make_node("ReduceMax", ["x6"], ["y"], axes=[1], keepdims=0))
    weights = [
        helper.make_tensor("widen", TensorProto.FLOAT, [64, 256], [0.01] * (64 * 256)),
        helper.make_tensor("w", TensorProto.FLOAT, [256, 256], [0.01] * (256 * 256)),
    ]
    graph = graphs.write(
        tmp_path / "m.onnx",
        graphs.model(
            nodes,
            [graphs.value("x", TensorProto.FLOAT, "n", 64)],
            [graphs.value("y", TensorProto.FLOAT, "n")],
            weights,
        ),
    )
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(graph)],
        check=True, capture_output=True, text=True, cwd=Path(__file__).parents[3],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )  # fmt: skip
    # The large input itself (16 MiB) is still alive in the script.
    assert int(done.stdout) < (16 + 24) << 20


def test_counters_return_to_zero_and_idle_memory_can_be_given_back(tmp_path: Path) -> None:
    gc.collect()
    before = memory_stats()
    session = Session(graphs.attention(tmp_path / "m.onnx", 2, 64))
    feeds = {"qkv": np.ones((512, 384), np.float32), "row_offsets": np.array([0, 512], np.int32)}
    result = session.run(feeds)
    assert memory_stats().in_use == before.in_use
    assert memory_stats().cached >= result["y"].nbytes
    trim_memory()
    assert memory_stats().cached == 0
    del session
    assert memory_stats().reserved == before.reserved


def test_the_peak_of_a_run_hangs_on_its_shape_and_not_on_what_is_warm(tmp_path: Path) -> None:
    session = Session(graphs.attention(tmp_path / "m.onnx", 2, 64))

    def run(rows: int) -> int:
        feeds = {
            "qkv": np.ones((rows, 384), np.float32),
            "row_offsets": np.array([0, rows], np.int32),
        }
        return int(session.run(feeds)["y"].nbytes)

    def peak(rows: int) -> tuple[int, int]:
        take_run_peak()
        size = run(rows)
        return take_run_peak(), size

    small, large = peak(64), peak(512)
    assert small[0] >= small[1] and large[0] >= large[1]
    assert small[0] < large[0]
    assert (peak(64), peak(512)) == (small, large)
    trim_memory()
    assert peak(64) == small

    # Of several runs it is that of the largest, and of none when they were elsewhere.
    take_run_peak()
    for rows in (64, 512, 64):
        run(rows)
    assert (take_run_peak(), take_run_peak()) == (large[0], 0)
    elsewhere = threading.Thread(target=run, args=(512,))
    elsewhere.start()
    elsewhere.join()
    assert take_run_peak() == 0
