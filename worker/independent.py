"""The engine's side of a cross-check: sends the very feeds of a run to an independent session."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from worker.crosscheck import decode_arrays, encode_arrays
from worker.errors import EngineFault
from worker.execution import Session

_END_S = 10.0


class Recorder:
    """A session that keeps what the last run took and gave."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.feeds: Mapping[str, NDArray[Any]] = {}
        self.outputs: Mapping[str, NDArray[Any]] = {}

    def run(
        self,
        feeds: Mapping[str, NDArray[Any]],
        outputs: Mapping[str, NDArray[Any]] | None = None,
        *,
        token: Any = None,
    ) -> Mapping[str, NDArray[Any]]:
        """Runs the graph in the recorded session."""
        self.feeds = feeds
        self.outputs = self._session.run(feeds, outputs, token=token)
        return self.outputs


class Independent:
    """A process with the onnxruntime package's own session; see `worker.crosscheck`."""

    def __init__(self, threads: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "worker.crosscheck", str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(_END_S if kind is None else 0.1)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def run(self, graph: Path, recorded: Recorder) -> tuple[float, float]:
        """Time of one run of what was recorded, in us, and how far the answers differ.

        Raises EngineFault when the other side cannot run it.
        """
        request = {"graph": str(graph), "feeds": encode_arrays(recorded.feeds)}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise EngineFault(f"the independent session ended before {graph.name}") from None
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"fault": "its process ended"}
        if "fault" in answer:
            raise EngineFault(f"the independent session cannot run {graph.name}: {answer['fault']}")
        theirs = decode_arrays(answer["outputs"])
        differ = max((_differ(recorded.outputs[name], theirs[name]) for name in theirs), default=0)
        return answer["time_ns"] / 1e3, differ


def _differ(ours: NDArray[Any], theirs: NDArray[Any]) -> float:
    """Largest difference of two outputs, infinite when they are not comparable."""
    if ours.shape != theirs.shape:
        return float("inf")
    if ours.dtype == object or not ours.size:
        return 0.0 if np.array_equal(ours, theirs) else float("inf")
    return float(np.abs(ours.astype(np.float64) - theirs.astype(np.float64)).max())
