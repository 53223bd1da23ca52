"""onnxruntime-genai on a folder with its genai_config.json."""

from __future__ import annotations

import time
from importlib import metadata
from typing import Any

import numpy as np
import onnxruntime_genai

from bench.decode.peers.protocol import prompt, serve


class OnnxRuntimeGenai:
    """`arguments`: model (folder; it names the threads), vocabulary, context."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self._vocabulary = int(arguments["vocabulary"])
        self._context = int(arguments["context"])
        self._model = onnxruntime_genai.Model(str(arguments["model"]))
        self._generator: Any = None

    @property
    def version(self) -> str:
        """The package's version."""
        return f"onnxruntime-genai {metadata.version('onnxruntime-genai')}"

    def prefill(self, tokens: int) -> float:
        """See Subject."""
        self.close()
        generator = self._make(1)
        ids = np.array([prompt(0, tokens, self._vocabulary)], np.int32)
        began = time.perf_counter()
        generator.append_tokens(ids)
        generator.generate_next_token()
        return time.perf_counter() - began

    def first_token(self, number: int, tokens: int) -> int:
        """See Subject."""
        self.close()
        generator = self._make(1)
        generator.append_tokens(np.array([prompt(number, tokens, self._vocabulary)], np.int32))
        generator.generate_next_token()
        return int(generator.get_sequence(0)[tokens])

    def open(self, batch: int, cached: int) -> None:
        """See Subject."""
        self.close()
        self._generator = self._make(batch)
        ids = [prompt(number, cached, self._vocabulary) for number in range(batch)]
        self._generator.append_tokens(np.array(ids, np.int32))
        # The first token comes from the prompt's own run.
        self._generator.generate_next_token()

    def steps(self, count: int) -> list[float]:
        """See Subject."""
        times = []
        for _ in range(count):
            began = time.perf_counter()
            self._generator.generate_next_token()
            times.append(time.perf_counter() - began)
        return times

    def close(self) -> None:
        """See Subject."""
        self._generator = None

    def _make(self, batch: int) -> Any:
        settings = onnxruntime_genai.GeneratorParams(self._model)
        # An end token cannot end a sequence before this many tokens.
        settings.set_search_options(
            batch_size=batch, max_length=self._context, min_length=self._context, do_sample=False
        )
        return onnxruntime_genai.Generator(self._model, settings)


if __name__ == "__main__":
    serve(OnnxRuntimeGenai)
