"""OpenVINO GenAI: its continuous-batching pipeline on a GGUF file, stepped by hand."""

from __future__ import annotations

import time
from importlib import metadata
from typing import Any

import numpy as np
import openvino
import openvino_genai

from bench.decode.peers.protocol import prompt, serve

# All prompts of a batch are prefilled in one step, so that they decode in step afterwards.
_BATCHED_TOKENS = 16384


class OpenVino:
    """`arguments`: model (path), threads, vocabulary, context."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self._vocabulary = int(arguments["vocabulary"])
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.max_num_batched_tokens = _BATCHED_TOKENS
        scheduler.dynamic_split_fuse = False
        scheduler.enable_prefix_caching = False
        scheduler.cache_size = 1
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            str(arguments["model"]),
            scheduler,
            "CPU",
            {"INFERENCE_NUM_THREADS": int(arguments["threads"])},
        )
        self._next = 0
        self._open: list[Any] = []

    @property
    def version(self) -> str:
        """The package's version."""
        return f"openvino-genai {metadata.version('openvino-genai')}"

    def prefill(self, tokens: int) -> float:
        """See Subject."""
        self.close()
        handle = self._add(0, tokens, 1)
        began = time.perf_counter()
        self._pipeline.step()
        took = time.perf_counter() - began
        if not handle.can_read():
            raise RuntimeError("a prompt was not prefilled in one step")
        self._drain()
        return took

    def first_token(self, number: int, tokens: int) -> int:
        """See Subject."""
        self.close()
        handle = self._add(number, tokens, 1)
        self._drain()
        return int(handle.read_all()[0].generated_ids[0])

    def open(self, batch: int, cached: int) -> None:
        """See Subject."""
        self.close()
        self._open = [self._add(number, cached, 1 << 16) for number in range(batch)]
        while not all(handle.can_read() for handle in self._open):
            self._pipeline.step()

    def steps(self, count: int) -> list[float]:
        """See Subject."""
        times = []
        for _ in range(count):
            for handle in self._open:
                handle.read()
            began = time.perf_counter()
            self._pipeline.step()
            times.append(time.perf_counter() - began)
            if not all(handle.can_read() for handle in self._open):
                raise RuntimeError("a step left a sequence without a token")
        return times

    def close(self) -> None:
        """See Subject."""
        for handle in self._open:
            handle.stop()
        self._open = []
        self._drain()

    def _add(self, number: int, tokens: int, new_tokens: int) -> Any:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = new_tokens
        config.ignore_eos = True
        config.do_sample = False
        ids = np.array([prompt(number, tokens, self._vocabulary)], np.int64)
        self._next += 1
        return self._pipeline.add_request(self._next, openvino.Tensor(ids), config)

    def _drain(self) -> None:
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()


if __name__ == "__main__":
    serve(OpenVino)
