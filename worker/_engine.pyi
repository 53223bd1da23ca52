"""Signatures of the compiled extension; `worker.engine` is its only importer."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

header_api_version: int

class RunToken:
    def __init__(self) -> None: ...
    def terminate(self) -> None: ...
    @property
    def terminated(self) -> bool: ...

class Session:
    def __init__(
        self,
        path: str,
        *,
        intra_op_threads: int,
        spinning: bool,
        optimize: bool,
        config: Mapping[str, str],
        save_optimized_to: str,
    ) -> None: ...
    @property
    def inputs(self) -> tuple[tuple[str, str, tuple[int, ...]], ...]: ...
    @property
    def outputs(self) -> tuple[tuple[str, str, tuple[int, ...]], ...]: ...
    def metadata(self, key: str) -> str: ...
    def run(
        self,
        feeds: dict[str, NDArray[Any]],
        outputs: dict[str, NDArray[Any]] | None,
        token: RunToken | None,
    ) -> dict[str, NDArray[Any]]: ...

class KvArena:
    def __init__(
        self, *, layers: int, kv_heads: int, head_dim: int, blocks: int, half: bool
    ) -> None: ...
    def acquire(self, blocks: list[int], owner: int) -> None: ...
    def retain(self, blocks: list[int]) -> None: ...
    def release(self, blocks: list[int]) -> None: ...
    def copy(self, source: int, target: int) -> None: ...
    def references(self) -> NDArray[np.int32]: ...
    def filled(self) -> NDArray[np.int32]: ...
    def stats(self) -> tuple[int, int, int, int, int, int, bool]: ...

class DenseStep:
    def __init__(
        self,
        arena: KvArena,
        *,
        row_offsets: NDArray[np.int32],
        past_lengths: NDArray[np.int32],
        block_table: NDArray[np.int32],
    ) -> None: ...
    def gather(
        self,
        width: int,
        keys: list[NDArray[np.float32]],
        values: list[NDArray[np.float32]],
        *,
        threads: int,
    ) -> None: ...
    def scatter(
        self,
        width: int,
        keys: list[NDArray[np.float32]],
        values: list[NDArray[np.float32]],
        *,
        threads: int,
    ) -> None: ...
    def commit(self) -> None: ...
    def close(self) -> None: ...

def run_step(
    session: Session,
    arena: KvArena,
    *,
    row_offsets: NDArray[np.int32],
    past_lengths: NDArray[np.int32],
    block_table: NDArray[np.int32],
    feeds: dict[str, NDArray[Any]],
    token: RunToken | None,
) -> tuple[dict[str, NDArray[Any]], int]: ...
def init_runtime(library_path: str) -> tuple[str, str, int]: ...
def trim_memory() -> None: ...
def memory_stats() -> tuple[int, int, int]: ...
def take_run_peak() -> int: ...
def ragged_attention(
    qkv: NDArray[np.float32],
    row_offsets: NDArray[np.int32],
    *,
    num_heads: int,
    scale: float = 0.0,
    bias: NDArray[np.float32] | None = None,
    simd: str,
) -> NDArray[np.float32]: ...
def simd() -> str: ...
def cpu_model() -> str: ...
def machine_class() -> str: ...
def measure_fma_rate(seconds: float) -> float: ...
def measure_read_rate(threads: int, seconds: float) -> float: ...
