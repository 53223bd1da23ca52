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
    def run(
        self,
        feeds: dict[str, NDArray[Any]],
        outputs: dict[str, NDArray[Any]] | None,
        token: RunToken | None,
    ) -> dict[str, NDArray[Any]]: ...

def init_runtime(library_path: str) -> tuple[str, str, int]: ...
def trim_memory() -> None: ...
def memory_stats() -> tuple[int, int, int]: ...
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
