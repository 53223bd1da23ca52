"""The decode engine of stock graphs: keys and values copied out of the arena and back.

The same steps as `worker.decode.DecodeEngine` over the same arena, for graphs that take
`past_key_values.*` and return `present.*`. Every step copies all that is cached; what that costs is
in the step's `moved_ns`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worker.decode import SequenceStep, StepLogits, check_plan
from worker.engine import DenseStep, KvArena, RunToken, Session
from worker.errors import InvalidInput, ModelLoadError

_PAST, _PRESENT = "past_key_values", "present"
_PARTS = ("key", "value")

Floats = NDArray[np.float32]


class StockDecodeEngine:
    """Runs steps of one stock decoder on one arena, one at a time.

    `vocabulary` bounds token ids, `context` the tokens of a sequence; `threads` share the copying.
    Sequences with as many new tokens run together, shorter pasts filled up in front; so unlike
    those of the paged engine, logits may depend on the company in their last bits.
    Raises ModelLoadError for a graph without `past_key_values.*` and `present.*` in pairs.
    """

    def __init__(
        self,
        session: Session,
        arena: KvArena,
        *,
        vocabulary: int,
        context: int,
        threads: int = 1,
    ) -> None:
        self._session = session
        self._arena = arena
        self._vocabulary = vocabulary
        self._context = context
        self._threads = threads
        inputs = {spec.name: spec for spec in session.inputs}
        outputs = {spec.name for spec in session.outputs}
        self._layers = sum(name.startswith(f"{_PAST}.") for name in inputs) // len(_PARTS)
        wanted = [f"{index}.{part}" for index in range(self._layers) for part in _PARTS]
        missing = [name for name in wanted if f"{_PAST}.{name}" not in inputs]
        missing += [name for name in wanted if f"{_PRESENT}.{name}" not in outputs]
        if not wanted or missing:
            raise ModelLoadError(
                f"expected inputs {_PAST}.N.key and .value and outputs {_PRESENT}.N.*; "
                f"got {', '.join(sorted(inputs))} and {', '.join(sorted(outputs))}"
            )
        _, self._kv_heads, _, self._head_dim = inputs[f"{_PAST}.0.key"].shape
        self._past = _TensorMemory()
        self._present = _TensorMemory()

    @property
    def arena(self) -> KvArena:
        """The arena whose blocks plans name."""
        return self._arena

    def step(self, plan: Sequence[SequenceStep], *, token: RunToken | None = None) -> StepLogits:
        """Run one step; see `DecodeEngine.step`.

        After an error some sequences may hold the tokens of this step; it may be run again.
        """
        check_plan(plan, self._vocabulary, self._context)
        rows: dict[int, NDArray[np.float32]] = {}
        moved = 0
        for length in sorted({len(part.tokens) for part in plan}):
            group = [index for index, part in enumerate(plan) if len(part.tokens) == length]
            logits, took = self._run([plan[index] for index in group], length, token)
            moved += took
            rows |= {
                index: row
                for index, row in zip(group, logits, strict=True)
                if plan[index].wants_logits
            }
        found = [rows[index] for index in sorted(rows)]
        shape = (len(found), self._vocabulary)
        return StepLogits(np.array(found, np.float32).reshape(shape), 0, moved)

    def _run(
        self, group: Sequence[SequenceStep], length: int, token: RunToken | None
    ) -> tuple[NDArray[np.float32], int]:
        """Return the logits after the last token of each sequence, and the time of copying."""
        past = np.array([part.past for part in group], np.int32)
        width = int(past.max())
        table = np.full((len(group), max(len(part.blocks) for part in group)), -1, np.int32)
        for row, part in zip(table, group, strict=True):
            row[: len(part.blocks)] = part.blocks
        offsets = np.arange(len(group) + 1, dtype=np.int32) * np.int32(length)
        with DenseStep(
            self._arena, row_offsets=offsets, past_lengths=past, block_table=table
        ) as step:
            began = time.perf_counter_ns()
            keys, values = self._past.tensors(self._shape(len(group), width))
            step.gather(width, keys, values, threads=self._threads)
            gathered = time.perf_counter_ns()
            new_keys, new_values = self._present.tensors(self._shape(len(group), width + length))
            outputs = self._session.run(
                self._named(_PAST, keys, values) | self._texts(group, past),
                self._named(_PRESENT, new_keys, new_values),
                token=token,
            )
            ran = time.perf_counter_ns()
            step.scatter(width, new_keys, new_values, threads=self._threads)
            scattered = time.perf_counter_ns()
            logits: NDArray[np.float32] = outputs["logits"][:, -1]
            if logits.shape != (len(group), self._vocabulary):
                raise InvalidInput(
                    f"the graph's logits are {logits.shape}; "
                    f"expected {(len(group), self._vocabulary)}"
                )
            step.commit()
        return logits, gathered - began + scattered - ran

    def _texts(
        self, group: Sequence[SequenceStep], past: NDArray[np.int32]
    ) -> dict[str, NDArray[Any]]:
        ids = np.array([part.tokens for part in group], np.int64)
        width = int(past.max())
        mask = np.ones((len(group), width + ids.shape[1]), np.int64)
        mask[:, :width] = np.arange(width) >= width - past[:, None]
        return {
            "input_ids": ids,
            "attention_mask": mask,
            "position_ids": past[:, None].astype(np.int64) + np.arange(ids.shape[1]),
        }

    def _named(
        self, prefix: str, keys: Sequence[NDArray[Any]], values: Sequence[NDArray[Any]]
    ) -> dict[str, NDArray[Any]]:
        return {
            f"{prefix}.{index}.{part}": tensors[index]
            for part, tensors in zip(_PARTS, (keys, values), strict=True)
            for index in range(self._layers)
        }

    def _shape(self, batch: int, width: int) -> tuple[int, ...]:
        return (self._layers, batch, self._kv_heads, width, self._head_dim)


class _TensorMemory:
    """Room for keys and values that steps have in common: fresh memory costs page faults."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.float32)

    def tensors(self, shape: tuple[int, ...]) -> tuple[list[Floats], list[Floats]]:
        """Return keys and values of `shape` [layers, ...], one tensor of each a layer."""
        size = 2 * int(np.prod(shape))
        if size > self._memory.size:
            # Texts grow by a token a step, so there is room for more.
            self._memory = np.empty(size + size // 4, np.float32)
        both = self._memory[:size].reshape(2, *shape)
        return list(both[0]), list(both[1])
