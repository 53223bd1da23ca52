from __future__ import annotations

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.unit.worker import graphs
from worker.engine import Session
from worker.errors import ModelLoadError
from worker.prepared import GRAPH_NAME, prepared_graph

WIDTH = 1024
LAYERS = 12
WEIGHT_BYTES = LAYERS * WIDTH * WIDTH * 4


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A chain of matrix products whose weights lie in a file beside the graph."""
    return graphs.heavy_chain(tmp_path_factory.mktemp("heavy"), LAYERS, WIDTH)


@pytest.fixture
def heavy(made: Path, tmp_path: Path) -> Path:
    """That chain in files that a test may change."""
    shutil.copytree(made.parent, tmp_path, dirs_exist_ok=True)
    return tmp_path / made.name


HOLDER = """
import sys
from pathlib import Path
import numpy as np
from worker.engine import Session, runtime_info

def pause():
    print("here", flush=True)
    sys.stdin.readline()

runtime_info()
pause()
session = Session(Path(sys.argv[1]), cache=Path(sys.argv[2]))
assert session.shares_weights, session.sharing_note
session.run({"x": np.ones((4, int(sys.argv[3])), np.float32)})
pause()
"""


class Holder:
    """A process that stops before and after it loads the session."""

    def __init__(self, graph: Path, cache: Path) -> None:
        command = [sys.executable, "-c", HOLDER, str(graph), str(cache), str(WIDTH)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            cwd=Path(__file__).parents[3],
        )  # fmt: skip

    def read(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "here\n"

    def pss(self) -> int:
        rollup = Path(f"/proc/{self._process.pid}/smaps_rollup").read_text()
        line = next(line for line in rollup.splitlines() if line.startswith("Pss:"))
        return int(line.split()[1]) * 1024

    def go_on(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate()


def test_a_second_process_maps_the_same_weights(heavy: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    Session(heavy, cache=cache)
    holders = [Holder(heavy, cache) for _ in range(2)]
    try:
        for holder in holders:
            holder.read()
        # PSS splits a shared page among its holders, so the sum counts every page once.
        totals = [sum(holder.pss() for holder in holders)]
        for holder in holders:
            holder.go_on()
            holder.read()
            totals.append(sum(holder.pss() for holder in holders))
    finally:
        for holder in holders:
            holder.stop()
    assert totals[1] - totals[0] > 0.9 * WEIGHT_BYTES
    assert totals[2] - totals[1] < 0.2 * WEIGHT_BYTES


def test_prepared_and_plain_give_the_same_answer(heavy: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(1).normal(size=(5, WIDTH)).astype(np.float32)
    shared = Session(heavy, cache=tmp_path / "cache")
    plain = Session(heavy, share_weights=False)
    assert shared.shares_weights
    assert not plain.shares_weights
    np.testing.assert_array_equal(shared.run({"x": x})["y"], plain.run({"x": x})["y"])


def test_sessions_that_start_together_prepare_once(heavy: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with ThreadPoolExecutor(4) as pool:
        sessions = list(pool.map(lambda _: Session(heavy, cache=cache), range(4)))
    assert all(session.shares_weights for session in sessions)
    assert len(list(cache.glob(f"*/{GRAPH_NAME}"))) == 1


def test_new_weights_are_prepared_anew_and_replace_the_old(heavy: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    x = np.ones((1, WIDTH), np.float32)
    before = Session(heavy, cache=cache).run({"x": x})["y"]
    weights = heavy.with_name("weights.bin")
    weights.write_bytes((np.fromfile(weights, np.float32) * 2).tobytes())
    after = Session(heavy, cache=cache).run({"x": x})["y"]
    np.testing.assert_allclose(after, before * 2**LAYERS, rtol=1e-4)
    assert len(list(cache.glob(f"*/{GRAPH_NAME}"))) == 1


def test_what_was_prepared_from_files_now_gone_is_removed(heavy: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    other = tmp_path / "gone"
    other.mkdir()
    (other / "heavy.onnx").write_bytes(heavy.read_bytes())
    (other / "weights.bin").write_bytes(heavy.with_name("weights.bin").read_bytes())

    def build(source: Path, folder: Path) -> None:
        (folder / GRAPH_NAME).write_bytes(b"graph")

    first = prepared_graph(other / "heavy.onnx", cache=cache, host="h", build=build)
    (other / "heavy.onnx").unlink()
    second = prepared_graph(heavy, cache=cache, host="h", build=build)
    assert not first.graph.exists()
    assert second.graph.read_bytes() == b"graph"


def test_an_entry_that_another_process_removes_is_no_fault(heavy: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    # Its marker is listed and cannot be read.
    (cache / "vanishing" / "source").mkdir(parents=True)

    def build(source: Path, folder: Path) -> None:
        (folder / GRAPH_NAME).write_bytes(b"graph")

    found = prepared_graph(heavy, cache=cache, host="h", build=build)
    assert found.prepared, found.note


def test_a_damaged_cache_falls_back_to_the_source(heavy: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    Session(heavy, cache=cache)
    (graph,) = cache.glob(f"*/{GRAPH_NAME}")
    graph.write_bytes(b"damaged")
    session = Session(heavy, cache=cache)
    assert not session.shares_weights
    assert "does not load" in session.sharing_note
    assert Session(heavy, cache=cache).shares_weights


def test_a_cache_that_cannot_be_made_is_a_note(heavy: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    session = Session(heavy, cache=tmp_path / "file" / "cache")
    assert not session.shares_weights
    assert "cannot prepare" in session.sharing_note


def test_a_graph_with_its_weights_inside_is_loaded_as_it_is(tmp_path: Path) -> None:
    session = Session(graphs.adder(tmp_path / "m.onnx"), cache=tmp_path / "cache")
    assert not session.shares_weights
    assert not (tmp_path / "cache").exists()


def test_a_graph_that_does_not_load_is_a_load_error(heavy: Path, tmp_path: Path) -> None:
    heavy.with_name("weights.bin").unlink()
    with pytest.raises(ModelLoadError):
        Session(heavy, cache=tmp_path / "cache")


def test_a_failed_build_leaves_nothing(heavy: Path, tmp_path: Path) -> None:
    def build(source: Path, folder: Path) -> None:
        (folder / "half").write_bytes(b"written")
        raise ModelLoadError("no")

    cache = tmp_path / "cache"
    with pytest.raises(ModelLoadError):
        prepared_graph(heavy, cache=cache, host="h", build=build)
    assert [path.suffix for path in cache.iterdir()] == [".lock"]


def test_what_others_could_have_written_is_not_taken(heavy: Path, tmp_path: Path) -> None:
    def build(source: Path, folder: Path) -> None:
        (folder / GRAPH_NAME).write_bytes(b"made")

    cache = tmp_path / "cache"
    first = prepared_graph(heavy, cache=cache, host="h", build=build)
    assert first.prepared and first.graph.parent.stat().st_mode & 0o077 == 0
    first.graph.parent.chmod(0o777)
    second = prepared_graph(heavy, cache=cache, host="h", build=build)
    assert not second.prepared and "others may write there" in second.note
