from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from tests.unit.worker import graphs
from worker import _engine
from worker.engine import RunToken, Session, machine_class, runtime_info
from worker.errors import EngineError, InvalidInput, ModelLoadError, RunTerminated

ROOT = Path(__file__).parents[3]
NUMERIC = [
    (TensorProto.FLOAT, np.float32),
    (TensorProto.DOUBLE, np.float64),
    (TensorProto.FLOAT16, np.float16),
    (TensorProto.INT8, np.int8),
    (TensorProto.INT16, np.int16),
    (TensorProto.INT32, np.int32),
    (TensorProto.INT64, np.int64),
    (TensorProto.UINT8, np.uint8),
    (TensorProto.BOOL, np.bool_),
]


def test_library_comes_from_the_wheel_and_is_new_enough() -> None:
    info = runtime_info()
    assert Path(info.library_path).parent.name == "capi"
    assert int(info.library_version.split(".")[1]) >= info.header_api_version
    assert info.simd in ("portable", "avx2")
    assert machine_class()


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"__init__.py": b""}, "holds no libonnxruntime.so"),
        ({"__init__.py": b"", "capi/libonnxruntime.so.1": b"no"}, "cannot open"),
    ],
)
def test_a_wheel_that_does_not_fit_is_an_import_error(
    tmp_path: Path, files: dict[str, bytes], words: str
) -> None:
    for name, content in files.items():
        file = tmp_path / "onnxruntime" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    paths = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", "import worker.engine"],
        capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip
    assert done.returncode == 1
    assert "ImportError" in done.stderr
    assert words in done.stderr


@pytest.mark.parametrize(("kind", "dtype"), NUMERIC)
def test_every_dtype_round_trips(tmp_path: Path, kind: int, dtype: type) -> None:
    session = Session(graphs.identity(tmp_path / "m.onnx", kind, "n", 2))
    assert session.inputs[0].dtype == np.dtype(dtype)
    assert session.inputs[0].shape == (-1, 2)
    x: NDArray[Any] = np.arange(6).reshape(3, 2).astype(dtype)
    y = session.run({"x": x})["y"]
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(y, x)


def test_strings_round_trip_whatever_their_bytes(tmp_path: Path) -> None:
    session = Session(graphs.identity(tmp_path / "m.onnx", TensorProto.STRING, "n"))
    assert session.inputs[0].dtype == np.dtype(object)
    x = np.array(["plain", "zwölf ✓", "", b"raw", b"\xff\x00z"], dtype=object)
    y = session.run({"x": x})["y"]
    assert [s.encode("utf-8", "surrogateescape") for s in y] == [
        s if isinstance(s, bytes) else s.encode() for s in x
    ]
    fixed = session.run({"x": np.array(["a", "bc"])})["y"]
    assert list(fixed) == ["a", "bc"]


def test_empty_tensors_pass(tmp_path: Path) -> None:
    session = Session(graphs.identity(tmp_path / "m.onnx", TensorProto.FLOAT, "n", 2))
    assert session.run({"x": np.zeros((0, 2), np.float32)})["y"].shape == (0, 2)


def test_feeds_are_a_union_and_a_missing_one_is_named(tmp_path: Path) -> None:
    session = Session(graphs.adder(tmp_path / "m.onnx"))
    ones = np.ones((2, 3), np.float32)
    result = session.run({"a": ones, "b": ones, "stranger": np.zeros(1, np.complex64)})
    assert set(result) == {"y"}
    np.testing.assert_array_equal(result["y"], ones * 2)
    with pytest.raises(InvalidInput, match=r"'b' is missing.*a float32 \[n, 3\]"):
        session.run({"a": ones})


@pytest.mark.parametrize(
    ("b", "words"),
    [
        (np.ones((2, 3), np.float64), ["'b'", "float64", "float32 [n, 3]"]),
        (np.ones((2, 3), np.complex64), ["'b'", "complex64"]),
        (np.ones(3, np.float32), ["'b'", "rank 1", "[3]", "[n, 3]"]),
        (np.ones((2, 4), np.float32), ["'b'", "[2, 4]", "[n, 3]"]),
        (np.ones((5, 3), np.float32), ["'b'", "[5, 3]", "n is 2", "'a'"]),
        (object(), ["'b'", "object"]),
    ],
)
def test_a_misfit_names_tensor_given_and_accepted(
    tmp_path: Path, b: np.ndarray, words: list[str]
) -> None:
    session = Session(graphs.adder(tmp_path / "m.onnx"))
    with pytest.raises(InvalidInput) as caught:
        session.run({"a": np.ones((2, 3), np.float32), "b": b})
    for word in words:
        assert word in str(caught.value)


def test_a_string_tensor_of_numbers_is_refused(tmp_path: Path) -> None:
    session = Session(graphs.identity(tmp_path / "m.onnx", TensorProto.STRING, "n"))
    with pytest.raises(InvalidInput, match="'x' holds a int; accepted are str and bytes"):
        session.run({"x": np.array([1], dtype=object)})


def test_strided_swapped_and_unaligned_inputs_are_copied(tmp_path: Path) -> None:
    session = Session(graphs.identity(tmp_path / "m.onnx", TensorProto.FLOAT, "n"))
    wide = np.arange(8, dtype=np.float32)
    np.testing.assert_array_equal(session.run({"x": wide[::2]})["y"], wide[::2])
    np.testing.assert_array_equal(session.run({"x": wide.astype(">f4")})["y"], wide)
    unaligned = np.frombuffer(b"\0" + wide.tobytes(), np.float32, offset=1)
    np.testing.assert_array_equal(session.run({"x": unaligned})["y"], wide)


def test_outputs_are_written_in_place(tmp_path: Path) -> None:
    session = Session(graphs.adder(tmp_path / "m.onnx"))
    ones = np.ones((2, 3), np.float32)
    out = np.empty((2, 3), np.float32)
    result = session.run({"a": ones, "b": ones}, {"y": out})
    assert result["y"] is out
    np.testing.assert_array_equal(out, ones * 2)


@pytest.mark.parametrize(
    "out",
    [
        np.empty((2, 3), np.float64),
        np.empty((2, 4), np.float32),
        np.empty((3, 2), np.float32).T,
        np.empty((4, 3), np.float32),
        np.broadcast_to(np.float32(0), (2, 3)),
        [0.0],
    ],
)
def test_a_destination_that_does_not_fit_is_refused(tmp_path: Path, out: np.ndarray) -> None:
    session = Session(graphs.adder(tmp_path / "m.onnx"))
    ones = np.ones((2, 3), np.float32)
    with pytest.raises(InvalidInput, match=r"'?y'?"):
        session.run({"a": ones, "b": ones}, {"y": out})


def test_results_outlive_the_session(tmp_path: Path) -> None:
    session = Session(graphs.identity(tmp_path / "m.onnx", TensorProto.FLOAT, "n"))
    y = session.run({"x": np.arange(1000, dtype=np.float32)})["y"]
    del session
    gc.collect()
    np.testing.assert_array_equal(y, np.arange(1000, dtype=np.float32))


def test_a_token_fired_before_the_run_ends_it(tmp_path: Path) -> None:
    session = Session(graphs.adder(tmp_path / "m.onnx"))
    ones = np.ones((2, 3), np.float32)
    token = RunToken()
    assert not token.terminated
    session.run({"a": ones, "b": ones}, token=token)
    token.terminate()
    assert token.terminated
    with pytest.raises(RunTerminated):
        session.run({"a": ones, "b": ones}, token=token)
    session.run({"a": ones, "b": ones})


def test_a_token_ends_a_running_loop_while_other_threads_work(tmp_path: Path) -> None:
    session = Session(graphs.long_loop(tmp_path / "m.onnx"))
    token = RunToken()
    caught: list[BaseException] = []

    def run() -> None:
        try:
            endless = np.array(2**40, np.int64)
            session.run({"x": np.zeros(4, np.float32), "count": endless}, token=token)
        except EngineError as error:
            caught.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    # This thread could not get here, nor run a second graph, if the run held the GIL.
    short = session.run({"x": np.zeros(4, np.float32), "count": np.array(3, np.int64)})
    np.testing.assert_array_equal(short["y"], np.full(4, 3, np.float32))
    token.terminate()
    thread.join(timeout=30)
    assert not thread.is_alive()
    assert isinstance(caught[0], RunTerminated)


def test_loading_a_bad_file_says_why(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="no such file"):
        Session(tmp_path / "absent.onnx")
    (tmp_path / "garbage.onnx").write_bytes(b"not a model")
    with pytest.raises(ModelLoadError, match="garbage"):
        Session(tmp_path / "garbage.onnx")
    with pytest.raises(ModelLoadError, match="intra_op_threads is 0"):
        Session(graphs.adder(tmp_path / "m.onnx"), intra_op_threads=0)


def test_sessions_open_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's registry of custom operators stands no two at once."""
    graph, real = graphs.adder(tmp_path / "m.onnx"), _engine.Session
    opening, together = threading.Lock(), []

    def opened(*args: Any, **kwargs: Any) -> Any:
        alone = opening.acquire(blocking=False)
        together.append(not alone)
        try:
            return real(*args, **kwargs)
        finally:
            if alone:
                opening.release()

    monkeypatch.setattr(_engine, "Session", opened)
    with ThreadPoolExecutor(4) as pool:
        sessions = [pool.submit(Session, graph, share_weights=False) for _ in range(24)]
    assert [session.result().inputs[0].name for session in sessions] == ["a"] * 24
    assert together == [False] * 24


def test_an_unserved_element_type_is_refused_at_load(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="input 'x' has ONNX element type"):
        Session(graphs.identity(tmp_path / "m.onnx", TensorProto.BFLOAT16, "n"))


def test_shapes_that_only_the_graph_can_refuse_are_the_callers_fault(tmp_path: Path) -> None:
    nodes = [helper.make_node("Add", ["a", "b"], ["y"], name="sum")]
    kind = TensorProto.FLOAT
    inputs = [graphs.value("a", kind, "n"), graphs.value("b", kind, "m")]
    path = graphs.write(
        tmp_path / "m.onnx", graphs.model(nodes, inputs, [graphs.value("y", kind, "k")])
    )
    session = Session(path)
    with pytest.raises(InvalidInput, match=r"refused its inputs at Add node.*'sum'.*2 by 3"):
        session.run({"a": np.ones(2, np.float32), "b": np.ones(3, np.float32)})
    session.run({"a": np.ones(3, np.float32), "b": np.ones(3, np.float32)})


def test_values_that_only_the_graph_can_refuse_are_the_callers_fault(tmp_path: Path) -> None:
    nodes = [helper.make_node("Gather", ["table", "index"], ["y"])]
    path = graphs.write(
        tmp_path / "m.onnx",
        graphs.model(
            nodes,
            [graphs.value("index", TensorProto.INT64, "n")],
            [graphs.value("y", TensorProto.FLOAT, "n")],
            [helper.make_tensor("table", TensorProto.FLOAT, [4], [1.0, 2.0, 3.0, 4.0])],
        ),
    )
    with pytest.raises(InvalidInput, match="out of data bounds"):
        Session(path).run({"index": np.array([1, 9])})


OUT_OF_MEMORY = """
import resource, sys
from pathlib import Path
import numpy as np
from worker.engine import Session
from worker.errors import EngineFault

session = Session(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
ones = np.ones(40_000, np.float32)
try:
    session.run({"a": ones[:, None], "b": ones[None, :]})
except EngineFault as error:
    print(error)
session.run({"a": ones[:2, None], "b": ones[None, :3]})
print("still here")
"""


def test_a_run_that_needs_too_much_memory_is_a_fault_and_not_the_end(tmp_path: Path) -> None:
    kind = TensorProto.FLOAT
    nodes = [helper.make_node("Add", ["a", "b"], ["y"])]
    inputs = [graphs.value("a", kind, "n", 1), graphs.value("b", kind, 1, "m")]
    outputs = [graphs.value("y", kind, "n", "m")]
    path = graphs.write(tmp_path / "m.onnx", graphs.model(nodes, inputs, outputs))
    done = subprocess.run(
        [sys.executable, "-c", OUT_OF_MEMORY, str(path)],
        capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    assert "out of memory" in done.stdout, done.stderr
    assert done.stdout.endswith("still here\n")


def test_a_run_leaves_the_threads_floating_point_mode_alone(tmp_path: Path) -> None:
    session = Session(graphs.adder(tmp_path / "m.onnx"))
    ones = np.ones((2, 3), np.float32)
    session.run({"a": ones, "b": ones})
    smallest = np.nextafter(0.0, 1.0)
    assert smallest * 1.0 > 0.0
