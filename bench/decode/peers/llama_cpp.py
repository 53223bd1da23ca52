"""llama.cpp through the C interface that the package llama-cpp-python bundles."""

from __future__ import annotations

import ctypes
import time
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

from bench.decode.peers.protocol import prompt, serve

_PHYSICAL_BATCH = 512
# `enum llama_ftype`, which the package does not name.
_MOSTLY_Q4_0 = 2


class LlamaCpp:
    """`arguments`: model (path), threads, vocabulary, context, batch; quantized_from (or empty).

    With `quantized_from` the file `model` is made of that one as Q4_0, when it is missing.
    """

    def __init__(self, arguments: dict[str, Any]) -> None:
        self._vocabulary = int(arguments["vocabulary"])
        llama_cpp.llama_backend_init()
        model = Path(arguments["model"])
        if arguments.get("quantized_from") and not model.exists():
            _quantize(Path(arguments["quantized_from"]), model)
        self._model = llama_cpp.llama_model_load_from_file(
            str(model).encode(), llama_cpp.llama_model_default_params()
        )
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {model.name}")
        self._sequences = int(arguments["batch"])
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx = self._sequences * int(arguments["context"])
        settings.n_seq_max = self._sequences
        settings.n_batch = settings.n_ctx
        settings.n_ubatch = _PHYSICAL_BATCH
        settings.n_threads = settings.n_threads_batch = int(arguments["threads"])
        settings.kv_unified = False
        self._context = llama_cpp.llama_init_from_model(self._model, settings)
        if not self._context:
            raise RuntimeError("llama.cpp cannot make a context")
        self._batch = llama_cpp.llama_batch_init(settings.n_ctx, 0, 1)
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._past: list[int] = []
        self._tokens: list[int] = []

    @property
    def version(self) -> str:
        """The package's version."""
        return f"llama-cpp-python {llama_cpp.__version__}"

    def prefill(self, tokens: int) -> float:
        """See Subject."""
        self.close()
        ids = prompt(0, tokens, self._vocabulary)
        began = time.perf_counter()
        self._run([(0, 0, ids)])
        took = time.perf_counter() - began
        self.close()
        return took

    def first_token(self, number: int, tokens: int) -> int:
        """See Subject."""
        self.close()
        (token,) = self._run([(0, 0, prompt(number, tokens, self._vocabulary))])
        self.close()
        return token

    def open(self, batch: int, cached: int) -> None:
        """See Subject."""
        self.close()
        first = self._run([(0, 0, prompt(0, cached, self._vocabulary))])
        # Each sequence has a stream of its own, into which all of it is copied.
        for number in range(1, batch):
            llama_cpp.llama_memory_seq_cp(self._memory, 0, number, -1, -1)
        self._tokens, self._past = first * batch, [cached] * batch

    def steps(self, count: int) -> list[float]:
        """See Subject."""
        times = []
        for _ in range(count):
            began = time.perf_counter()
            self._tokens = self._run(
                [
                    (number, past, [token])
                    for number, (past, token) in enumerate(
                        zip(self._past, self._tokens, strict=True)
                    )
                ]
            )
            times.append(time.perf_counter() - began)
            self._past = [past + 1 for past in self._past]
        return times

    def close(self) -> None:
        """See Subject."""
        self._past, self._tokens = [], []
        llama_cpp.llama_memory_clear(self._memory, True)

    def _run(self, parts: list[tuple[int, int, list[int]]]) -> list[int]:
        """Decode (sequence, past, tokens); the greedy token after each part."""
        batch, at, last = self._batch, 0, []
        for sequence, past, tokens in parts:
            for offset, token in enumerate(tokens):
                batch.token[at] = token
                batch.pos[at] = past + offset
                batch.n_seq_id[at] = 1
                batch.seq_id[at][0] = sequence
                batch.logits[at] = offset == len(tokens) - 1
                at += 1
            last.append(at - 1)
        batch.n_tokens = at
        code = llama_cpp.llama_decode(self._context, batch)
        if code != 0:
            raise RuntimeError(f"llama_decode ended with {code}")
        chosen = []
        for row in last:
            logits = llama_cpp.llama_get_logits_ith(self._context, row)
            chosen.append(int(np.argmax(np.ctypeslib.as_array(logits, (self._vocabulary,)))))
        return chosen


def _quantize(source: Path, target: Path) -> None:
    settings = llama_cpp.llama_model_quantize_default_params()
    settings.ftype = _MOSTLY_Q4_0
    settings.allow_requantize = True
    partial = target.with_suffix(".partial")
    code = llama_cpp.llama_model_quantize(
        str(source).encode(), str(partial).encode(), ctypes.byref(settings)
    )
    if code != 0:
        raise RuntimeError(f"llama_model_quantize ended with {code}")
    partial.replace(target)


if __name__ == "__main__":
    serve(LlamaCpp)
