"""Models on ONNX Runtime, through the compiled engine.

The extension opens the `libonnxruntime` that lies inside the installed onnxruntime wheel, so one
version exists in the process by construction. It is opened and its version checked when this
module is imported (ImportError when it does not fit). Beside it only `worker.kv_arena` uses the
extension.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worker import _engine
from worker.errors import ModelLoadError
from worker.kv_arena import KvArena
from worker.models.external_data import confined
from worker.prepared import (
    GRAPH_NAME,
    WEIGHTS_NAME,
    Prepared,
    default_cache,
    discard,
    prepared_graph,
)

RunToken = _engine.RunToken

SMALL_PAGE = 4096
HUGE_PAGE = 2 << 20

# The library looks whether a domain of custom operators is known and then adds it, without a lock:
# of two sessions that open at once, one may find the other's and fail.
_opening = threading.Lock()


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One declared input or output: `dtype` is object for strings, `shape` has -1 where free."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RuntimeInfo:
    """The ONNX Runtime in this process and the CPU it runs on."""

    library_path: str
    library_version: str
    header_api_version: int
    simd: str
    cpu_model: str


class Session:
    """One loaded model. Safe to run from several threads at once.

    `intra_op_threads` counts the calling thread. `spinning` lets idle pool threads busy-wait.
    `config` holds ONNX Runtime session settings. With `share_weights`, external weights come from
    a graph prepared once for this host (below `cache`, see `worker.prepared`), so that all
    processes map one copy; `sharing_note` says why not where that was wanted and failed.
    Raises `ModelLoadError` when the file or graph cannot be served, or its weights lie
    elsewhere than in its folder.
    """

    def __init__(
        self,
        path: Path,
        *,
        intra_op_threads: int = 1,
        spinning: bool = False,
        config: Mapping[str, str] | None = None,
        share_weights: bool = True,
        cache: Path | None = None,
    ) -> None:
        if not path.is_file():
            raise ModelLoadError(f"cannot load {path}: there is no such file")
        confined(path, path.read_bytes())
        found = Prepared(path, False, "")
        if share_weights:
            host = f"{machine_class()} {runtime_info().library_version}"
            where = cache or default_cache()
            try:
                found = prepared_graph(path, cache=where, host=host, build=_prepare)
            except ModelLoadError as error:
                found = Prepared(path, False, f"the graph cannot be prepared: {error}")

        def load(graph: Path, optimize: bool) -> _engine.Session:
            with _opening:
                return _engine.Session(
                    str(graph),
                    intra_op_threads=intra_op_threads,
                    spinning=spinning,
                    optimize=optimize,
                    config=dict(config or {}),
                    save_optimized_to="",
                )

        try:
            self._session = load(found.graph, not found.prepared)
        except ModelLoadError as error:
            if not found.prepared:
                raise
            # A damaged cache must not cost a model: its source still loads.
            discard(found)
            found = Prepared(path, False, f"the prepared graph does not load: {error}")
            self._session = load(path, True)
        self.shares_weights = found.prepared
        self.sharing_note = found.note
        self.inputs = tuple(_spec(*item) for item in self._session.inputs)
        self.outputs = tuple(_spec(*item) for item in self._session.outputs)

    def run(
        self,
        feeds: Mapping[str, NDArray[Any]],
        outputs: Mapping[str, NDArray[Any]] | None = None,
        *,
        token: RunToken | None = None,
    ) -> dict[str, NDArray[Any]]:
        """Run the graph once, with the GIL released, and return every output by name.

        `feeds` may hold more than the model takes; the rest is ignored. Contiguous arrays are read
        in place and must not change meanwhile; string tensors are object arrays of str or bytes and
        come back as str. Arrays in `outputs` are written in place and returned.

        Raises:
            InvalidInput: a tensor is missing, or its dtype, rank, shape or values do not fit.
            RunTerminated: `token` fired before the end.
            EngineFault: ONNX Runtime failed.
        """
        given = None if outputs is None else dict(outputs)
        return self._session.run(dict(feeds), given, token)

    def metadata(self, key: str) -> str:
        """What the graph's metadata has under `key`; empty when it has nothing."""
        return str(self._session.metadata(key))

    def run_step(
        self,
        arena: KvArena,
        feeds: Mapping[str, NDArray[Any]],
        *,
        row_offsets: NDArray[np.int32],
        past_lengths: NDArray[np.int32],
        block_table: NDArray[np.int32],
        token: RunToken | None = None,
    ) -> StepOutputs:
        """Run a decoder graph once on `arena`, with the GIL released.

        Sequence s owns rows `row_offsets[s]` to `row_offsets[s + 1]` of the run, its tokens from
        position `past_lengths[s]` on; its token p lies in block `block_table[s, p // 16]`. Unused
        columns of the table hold anything. All of it is checked against the arena first: nothing
        is read that no token was written to, nothing is written that is shared. `feeds` are the
        graph's other inputs. A run that does not end well leaves its positions empty.

        Raises:
            InvalidInput: the step or a tensor does not fit.
            RunTerminated: `token` fired before the end.
            EngineFault: ONNX Runtime failed.
        """
        outputs, attention_ns = _engine.run_step(
            self._session,
            arena.handle,
            row_offsets=row_offsets,
            past_lengths=past_lengths,
            block_table=block_table,
            feeds=dict(feeds),
            token=token,
        )
        return StepOutputs(outputs, attention_ns)


@dataclass(frozen=True, slots=True)
class StepOutputs:
    """A decoder run's outputs by name, and the nanoseconds of it that attention took."""

    tensors: dict[str, NDArray[Any]]
    attention_ns: int


@lru_cache(maxsize=1)
def runtime_info() -> RuntimeInfo:
    """What was opened when this module was imported."""
    path, version, api = _engine.init_runtime(str(_library_path()))
    return RuntimeInfo(path, version, api, _engine.simd(), _engine.cpu_model())


@dataclass(frozen=True, slots=True)
class MemoryStats:
    """Bytes of all sessions of the process: handed to running graphs, kept warm, weights."""

    in_use: int
    cached: int
    reserved: int


def memory_stats() -> MemoryStats:
    """What the sessions of this process hold now, beside mapped weight files."""
    return MemoryStats(*_engine.memory_stats())


def take_run_peak() -> int:
    """The most bytes that a run of the calling thread held at once since this was last called."""
    return _engine.take_run_peak()


def trim_memory() -> None:
    """Give back what no running graph holds; worth calling when the process falls idle."""
    _engine.trim_memory()


def measure_fma_rate(seconds: float) -> float:
    """One thread's peak fp32 multiply-add rate in GFLOP/s, measured for about `seconds`."""
    return _engine.measure_fma_rate(seconds)


def measure_read_rate(threads: int, seconds: float) -> float:
    """GB/s at which `threads` threads read memory beyond all caches, over about `seconds`."""
    return _engine.measure_read_rate(threads, seconds)


def machine_class() -> str:
    """A short name for CPUs on which timings and prepared weights are interchangeable."""
    return _engine.machine_class()


def _prepare(source: Path, folder: Path) -> None:
    with _opening:
        _engine.Session(
            str(source),
            intra_op_threads=1,
            spinning=False,
            optimize=True,
            config={
                "session.optimized_model_external_initializers_file_name": WEIGHTS_NAME,
                "session.optimized_model_external_initializers_min_size_in_bytes": "1024",
                "session.save_external_prepacked_constant_initializers": "1",
            },
            save_optimized_to=str(folder / GRAPH_NAME),
        )


def _spec(name: str, dtype: str, shape: tuple[int, ...]) -> TensorSpec:
    return TensorSpec(name, np.dtype(object if dtype == "string" else dtype), shape)


def _library_path() -> Path:
    # Found without importing onnxruntime, whose own extension would load a second copy.
    spec = importlib.util.find_spec("onnxruntime")
    if spec is None or spec.origin is None:
        raise ModelLoadError("the onnxruntime package is not installed; pip install onnxruntime")
    capi = Path(spec.origin).parent / "capi"
    libraries = sorted(capi.glob("libonnxruntime.so*"))
    if not libraries:
        raise ModelLoadError(f"{capi} holds no libonnxruntime.so; reinstall onnxruntime")
    return libraries[-1]


try:
    runtime_info()
except ModelLoadError as error:
    raise ImportError(str(error)) from error
