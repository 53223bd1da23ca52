"""What is measured of a runtime, and how a runtime in another process is asked for it.

One JSON object a line: ``{"call": name, "arguments": {...}}`` in, ``{"result": ...}`` or
``{"error": text}`` out, after a first ``{"result": version}``.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

# Ids below are special tokens in the vocabularies of interest.
FIRST_PLAIN_TOKEN = 100


class Subject(Protocol):
    """A loaded model. Every step ends with greedily chosen tokens."""

    @property
    def version(self) -> str:
        """Name and version of the runtime."""
        ...

    def prefill(self, tokens: int) -> float:
        """Seconds from a prompt of so many tokens to its first token, nothing cached before."""
        ...

    def first_token(self, number: int, tokens: int) -> int:
        """The most likely token after prompt `number` of so many tokens."""
        ...

    def open(self, batch: int, cached: int) -> None:
        """Have `batch` sequences of `cached` tokens, each in memory of its own; ends what was open.

        Whether they are prefilled one by one or copied changes no timing of their steps.
        """
        ...

    def steps(self, count: int) -> list[float]:
        """Seconds of each of the next `count` steps; every open sequence grows by one a step."""
        ...

    def close(self) -> None:
        """End all sequences."""
        ...


def prompt(number: int, tokens: int, vocabulary: int) -> list[int]:
    """The same token ids for everybody: prompt `number`, of `tokens` tokens."""
    generator = np.random.default_rng(number)
    found: list[int] = generator.integers(FIRST_PLAIN_TOKEN, vocabulary, tokens).tolist()
    return found


def serve(load: Callable[[dict[str, Any]], Subject]) -> None:
    """Answer calls on standard input until it ends; `load` gets the JSON of the first argument.

    Whatever the runtime itself prints goes to standard error.
    """
    with os.fdopen(os.dup(1), "w", buffering=1) as answers:
        os.dup2(2, 1)

        def answer(message: dict[str, Any]) -> None:
            answers.write(json.dumps(message) + "\n")

        try:
            subject = load(json.loads(sys.argv[1]))
        except Exception as error:
            answer({"error": f"{type(error).__name__}: {error}"})
            return
        answer({"result": subject.version})
        for line in sys.stdin:
            asked = json.loads(line)
            try:
                result = getattr(subject, asked["call"])(**asked["arguments"])
            except Exception as error:
                answer({"error": f"{type(error).__name__}: {error}"})
            else:
                answer({"result": result})
