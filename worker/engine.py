"""Models on ONNX Runtime, through the compiled engine.

The extension opens the `libonnxruntime` that lies inside the installed onnxruntime wheel, so one
version exists in the process by construction. It is opened and its version checked when this
module is imported (ImportError when it does not fit); nothing else imports the extension.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from worker import _engine
from worker.errors import ModelLoadError
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

KV_BLOCK_TOKENS = 16
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
            arena._arena,
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


@dataclass(frozen=True, slots=True)
class KvStats:
    """An arena's occupancy: counts of blocks, and token slots that hold a token.

    `zeroed` counts blocks wiped since the start because another owner got them; `bytes` is the
    size of the whole arena.
    """

    blocks: int
    used: int
    shared: int
    filled: int
    zeroed: int
    bytes: int
    huge_pages: bool

    @property
    def fragmentation(self) -> float:
        """Share of the used blocks' token slots that hold no token."""
        return 1 - self.filled / (self.used * KV_BLOCK_TOKENS) if self.used else 0.0


class KvArena:
    """Memory of keys and values in blocks of 16 tokens with reference counts.

    The caller decides which blocks are taken and keeps a ledger of his own; the arena checks each
    change whole before making any of it. Thread-safe; refuses changes while a step runs.
    Raises `InvalidInput` for sizes without sense, `EngineFault` when there is no memory.
    """

    def __init__(
        self, *, layers: int, kv_heads: int, head_dim: int, blocks: int, half: bool = True
    ) -> None:
        self._layers = layers
        self._arena = _engine.KvArena(
            layers=layers, kv_heads=kv_heads, head_dim=head_dim, blocks=blocks, half=half
        )

    def acquire(self, blocks: Sequence[int], owner: int) -> None:
        """Take free blocks for `owner`; those that were another owner's last are zeroed."""
        self._arena.acquire(list(blocks), owner)

    def retain(self, blocks: Sequence[int]) -> None:
        """Add one reference to each of these used blocks."""
        self._arena.retain(list(blocks))

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference of each; a block without references is free."""
        self._arena.release(list(blocks))

    def copy(self, source: int, target: int) -> None:
        """Copy a block's keys, values and fill into one of the same owner with one reference."""
        self._arena.copy(source, target)

    def references(self) -> tuple[int, ...]:
        """References to each block."""
        return tuple(self._arena.references().tolist())

    def filled(self) -> tuple[int, ...]:
        """Tokens that each block holds."""
        return tuple(self._arena.filled().tolist())

    def stats(self) -> KvStats:
        """Occupancy now."""
        return KvStats(*self._arena.stats())

    def touched_bytes(self, blocks: int, page: int) -> int:
        """Bytes of the pages that the first `blocks` blocks lie in: a span of each layer's part."""
        stats = self.stats()
        layer = stats.bytes // self._layers
        span = layer // stats.blocks * blocks
        pages, end = 0, 0
        for number in range(self._layers if span else 0):
            first = max(end, number * layer // page)
            end = (number * layer + span - 1) // page + 1
            pages += max(0, end - first)
        return pages * page


class DenseStep:
    """An open step on an arena whose keys and values are copied as dense tensors.

    A context manager: the step is checked and opened when it is made, as `Session.run_step` does,
    and ends with the block; its tokens count only when it was committed. Tensors are float32
    [sequences, kv_heads, tokens, head_dim], one of each for every layer.
    """

    def __init__(
        self,
        arena: KvArena,
        *,
        row_offsets: NDArray[np.int32],
        past_lengths: NDArray[np.int32],
        block_table: NDArray[np.int32],
    ) -> None:
        self._step = _engine.DenseStep(
            arena._arena,
            row_offsets=row_offsets,
            past_lengths=past_lengths,
            block_table=block_table,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._step.close()

    def gather(
        self,
        width: int,
        keys: Sequence[NDArray[np.float32]],
        values: Sequence[NDArray[np.float32]],
        *,
        threads: int,
    ) -> None:
        """Fill tensors of `width` tokens with the cached ones, each sequence's at the end."""
        self._step.gather(width, list(keys), list(values), threads=threads)

    def scatter(
        self,
        width: int,
        keys: Sequence[NDArray[np.float32]],
        values: Sequence[NDArray[np.float32]],
        *,
        threads: int,
    ) -> None:
        """Write the step's tokens, which lie behind the first `width` of the tensors."""
        self._step.scatter(width, list(keys), list(values), threads=threads)

    def commit(self) -> None:
        """Let the written tokens count."""
        self._step.commit()


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
