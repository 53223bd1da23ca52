"""Runs graphs in the onnxruntime package's own session: the independent side of a cross-check.

`python -m worker.crosscheck` is a process of its own, because the package links a second copy
of ONNX Runtime and the engine's operators can serve only one. It reads one JSON request a
line from stdin and answers each with a line on stdout. Nothing of the engine is used
but its operators: the session, its memory, its graph optimisation and the clock are others.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

Feeds = Mapping[str, NDArray[Any]]


def encode_arrays(arrays: Feeds) -> dict[str, Any]:
    """Named tensors as JSON values."""
    return {
        name: {
            "dtype": "object" if array.dtype == object else array.dtype.name,
            "shape": list(array.shape),
            "data": [_text(item) for item in array.ravel().tolist()],
        }
        for name, array in arrays.items()
    }


def decode_arrays(document: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """The tensors that `encode_arrays` encoded."""
    return {
        name: np.array(value["data"], dtype=value["dtype"]).reshape(value["shape"])
        for name, value in document.items()
    }


def _text(item: Any) -> Any:
    return item.decode() if isinstance(item, bytes) else item


def operators_library() -> str:
    """The file that holds the engine's operators, found without importing the engine."""
    spec = importlib.util.find_spec("worker._engine")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("the compiled engine is not installed")
    return spec.origin


class PackageSessions:
    """Answers requests with sessions of the onnxruntime package; keeps the last one open."""

    def __init__(self, threads: int) -> None:
        import onnxruntime

        self._package = onnxruntime
        self._options = onnxruntime.SessionOptions()
        self._options.intra_op_num_threads = threads
        self._options.inter_op_num_threads = 1
        self._options.log_severity_level = 3
        self._options.register_custom_ops_library(operators_library())
        self._clock = time.process_time_ns if threads == 1 else time.perf_counter_ns
        self._graph = ""
        self._session: Any = None

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The time of one run of `graph` on `feeds`, in ns, and its outputs."""
        feeds = decode_arrays(request["feeds"])
        if request["graph"] != self._graph:
            self._session = self._package.InferenceSession(
                request["graph"], self._options, providers=["CPUExecutionProvider"]
            )
            self._graph = request["graph"]
        names = [output.name for output in self._session.get_outputs()]
        begin = self._clock()
        outputs = self._session.run(names, feeds)
        elapsed = self._clock() - begin
        return {
            "time_ns": elapsed,
            "outputs": encode_arrays(dict(zip(names, outputs, strict=True))),
        }


def serve(threads: int, requests: TextIO, answers: TextIO) -> None:
    """Answer every line until the requests end; a fault is an answer too."""
    sessions = PackageSessions(threads)
    for line in requests:
        try:
            answer = sessions.answer(json.loads(line))
        except Exception as error:
            answer = {"fault": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve(int(sys.argv[1]), sys.stdin, sys.stdout)
