"""The decode engine of stock graphs: keys and values copied out of the arena and back.

The same steps as `worker.decode.DecodeEngine` over the same arena, for graphs (layout `dense`) that
take `past_key_values.*` and return `present.*`. Every step copies all that is cached; what that
costs is in the step's `moved_ns`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worker.decode import SequenceStep, StepLogits, check_plan
from worker.engine import RunToken, Session
from worker.errors import EngineFault, InvalidInput, ModelLoadError
from worker.kv_arena import KV_BLOCK_TOKENS, DenseStep, KvArena

_PAST, _PRESENT = "past_key_values", "present"
_PARTS = ("key", "value")
# What a graph needs so that a past can be filled up in front: which tokens are real, and where.
_FILLED = frozenset({"attention_mask", "position_ids"})

# Blocks that `bears_filling` needs, and how far logits may be from each other, relatively: graphs
# that quantise a whole tensor answer a little otherwise in any other company.
PROBE_BLOCKS = 2
_PROBE_PAST = 8
_ALIKE = 0.05

Floats = NDArray[np.float32]


class StockDecodeEngine:
    """Runs steps of one stock decoder on one arena, one at a time.

    `vocabulary` bounds token ids, `context` the tokens of a sequence; `threads` share the copying.
    Sequences with as many new tokens run together, shorter pasts filled up in front; so unlike
    those of the paged engine, logits may depend on the company in their last bits. Where `filled`
    is not set, or the graph has no inputs for it, only pasts of one length run together. The
    tensors of a run hold as many tokens as the arena at most.
    Raises ModelLoadError for a graph without `past_key_values.*` and `present.*` in pairs of
    float32 [batch, kv_heads, tokens, head_dim].
    """

    def __init__(
        self,
        session: Session,
        arena: KvArena,
        *,
        vocabulary: int,
        context: int,
        threads: int = 1,
        filled: bool = True,
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
        first = inputs[f"{_PAST}.0.key"]
        shape = first.shape
        if first.dtype != np.dtype(np.float32) or len(shape) != 4 or min(shape[1], shape[3]) < 1:
            raise ModelLoadError(
                f"expected {first.name} as float32 [batch, kv_heads, tokens, head_dim] with fixed "
                f"heads; got {first.dtype} {list(shape)}"
            )
        _, self._kv_heads, _, self._head_dim = shape
        self._filled = filled and inputs.keys() >= _FILLED
        self._most_tokens = arena.stats().blocks * KV_BLOCK_TOKENS
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
        for run in runs_of(plan, filled=self._filled, most_tokens=self._most_tokens):
            logits, took = self._run([plan[index] for index in run], token)
            moved += took
            rows |= {
                index: row
                for index, row in zip(run, logits, strict=True)
                if plan[index].wants_logits
            }
        found = [rows[index] for index in sorted(rows)]
        shape = (len(found), self._vocabulary)
        return StepLogits(np.array(found, np.float32).reshape(shape), 0, moved)

    def _run(
        self, group: Sequence[SequenceStep], token: RunToken | None
    ) -> tuple[NDArray[np.float32], int]:
        """Return the logits after the last token of each sequence, and the time of copying."""
        length = len(group[0].tokens)
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
            keys, values = self._past.tensors(self._shape(len(group), width), self._room)
            step.gather(width, keys, values, threads=self._threads)
            gathered = time.perf_counter_ns()
            new_keys, new_values = self._present.tensors(
                self._shape(len(group), width + length), self._room
            )
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

    @property
    def _room(self) -> int:
        """Most values that tensors of a run have, but for those of a single long sequence."""
        return 2 * self._layers * self._kv_heads * self._head_dim * self._most_tokens


def runs_of(
    plan: Sequence[SequenceStep], *, filled: bool, most_tokens: int
) -> list[tuple[int, ...]]:
    """Which sequences of a plan run together, by their places in it.

    Those with as many new tokens, the longest pasts first; unless `filled`, with as many tokens
    before them too. Filled up to the longest, a run has `most_tokens` tokens or a single sequence.
    """
    order = sorted(range(len(plan)), key=lambda i: (len(plan[i].tokens), -plan[i].past, i))
    runs: list[list[int]] = []
    for index in order:
        part = plan[index]
        if runs:
            run = runs[-1]
            first = plan[run[0]]
            width = first.past + len(first.tokens)
            alike = len(part.tokens) == len(first.tokens) and (filled or part.past == first.past)
            if alike and (len(run) + 1) * width <= most_tokens:
                run.append(index)
                continue
        runs.append([index])
    return [tuple(run) for run in runs]


def bears_filling(
    make_engine: Callable[[bool], StockDecodeEngine], *, vocabulary: int, context: int
) -> bool:
    """Whether a graph answers alike with a past filled up in front and without.

    Not all do: fused attention may take the mask for a length, whose tokens come first. It is
    tried with two sequences of unlike pasts. `make_engine` makes an engine with `filled` as
    given, on a free arena of `PROBE_BLOCKS` blocks. Raises WorkerError when a run fails.
    """
    long = min(_PROBE_PAST, context - 1)
    if long < 2:
        return False

    def answers(filled: bool) -> Floats:
        engine = make_engine(filled)
        engine.arena.acquire(range(PROBE_BLOCKS), 1)
        ids = [(7 + 13 * place) % vocabulary for place in range(long + 3)]
        engine.step([SequenceStep(ids[:long], 0, (0,), False)])
        engine.step([SequenceStep(ids[long:-2], 0, (1,), False)])
        both = [SequenceStep(ids[-2:-1], long, (0,)), SequenceStep(ids[-1:], 1, (1,))]
        return engine.step(both).logits

    alone = answers(False)
    try:
        together = answers(True)
    except (EngineFault, InvalidInput):
        return False
    return bool(np.abs(together - alone).max() <= _ALIKE * np.abs(alone).max())


class _TensorMemory:
    """Room for keys and values that steps have in common: fresh memory costs page faults."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.float32)

    def tensors(self, shape: tuple[int, ...], most: int) -> tuple[list[Floats], list[Floats]]:
        """Return keys and values of `shape` [layers, ...], one tensor of each a layer.

        `most` is how many values it will have to hold, usually.
        """
        size = 2 * int(np.prod(shape))
        if size > self._memory.size:
            # Texts grow by a token a step, so there is room for more.
            self._memory = np.empty(max(size, min(size + size // 4, most)), np.float32)
        both = self._memory[:size].reshape(2, *shape)
        return list(both[0]), list(both[1])
