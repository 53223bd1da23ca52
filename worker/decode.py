"""The decode engine: one step of many sequences over a KV arena.

Who runs what and where its tokens lie is decided by the scheduler; this turns such a plan into one
run of a decoder graph (layout `paged`) and returns rows of logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worker.engine import RunToken, Session
from worker.errors import InvalidInput
from worker.kv_arena import KvArena

# Metadata of graphs whose products sum a single row as they do several.
LONE_ROWS = "orchid.lone_rows"
# Kernels of float matrices may order the sums of a single row in another way than those of several,
# so their runs never have a single row: a sequence has the same bits alone and in company.
_MIN_ROWS = 2


@dataclass(frozen=True, slots=True)
class SequenceStep:
    """One sequence's part in a step: `tokens` that follow the `past` tokens held in `blocks`.

    `blocks` lists the sequence's blocks from its first token on and must have room for all;
    `wants_logits` asks for the logits after the last of `tokens`.
    """

    tokens: Sequence[int]
    past: int
    blocks: Sequence[int]
    wants_logits: bool = True


@dataclass(frozen=True, slots=True)
class StepLogits:
    """Logits float32 [sequences that wanted them, vocabulary], in plan order.

    `attention_ns` is the part of the step's time that attention took, `moved_ns` the part that
    copying keys and values between the arena and tensors took.
    """

    logits: NDArray[np.float32]
    attention_ns: int
    moved_ns: int = 0


class DecodeEngine:
    """Runs steps of one decoder on one arena, one at a time.

    `vocabulary` bounds token ids, `context` the tokens of a sequence.
    """

    def __init__(self, session: Session, arena: KvArena, *, vocabulary: int, context: int) -> None:
        self._session = session
        self._arena = arena
        self._vocabulary = vocabulary
        self._context = context
        self._min_rows = 1 if session.metadata(LONE_ROWS) else _MIN_ROWS

    @property
    def arena(self) -> KvArena:
        """The arena whose blocks plans name."""
        return self._arena

    def step(self, plan: Sequence[SequenceStep], *, token: RunToken | None = None) -> StepLogits:
        """Run one step: prefill chunks and single tokens of any sequences, mixed.

        After an error the positions of this step hold nothing and it may be run again.

        Raises:
            InvalidInput: a token id, a length, or a block is not what it must be.
            RunTerminated: `token` fired before the end.
            EngineFault: ONNX Runtime failed.
        """
        lengths = [len(part.tokens) for part in plan]
        check_plan(plan, self._vocabulary, self._context)
        offsets = np.zeros(len(plan) + 1, np.int32)
        np.cumsum(lengths, out=offsets[1:])
        past = np.array([part.past for part in plan], np.int32)
        table = np.full((len(plan), max(len(part.blocks) for part in plan)), -1, np.int32)
        for row, part in zip(table, plan, strict=True):
            row[: len(part.blocks)] = part.blocks
        wanted = [end - 1 for end, part in zip(offsets[1:], plan, strict=True) if part.wants_logits]
        outputs = self._session.run_step(
            self._arena,
            self._feeds(plan, int(offsets[-1]), wanted),
            row_offsets=offsets,
            past_lengths=past,
            block_table=table,
            token=token,
        )
        logits = outputs.tensors["logits"][: len(wanted)]
        return StepLogits(logits, outputs.attention_ns)

    def _feeds(
        self, plan: Sequence[SequenceStep], rows: int, wanted: Sequence[int]
    ) -> dict[str, NDArray[Any]]:
        ids = np.zeros(max(rows, self._min_rows), np.int64)
        positions = np.zeros_like(ids)
        at = 0
        for part in plan:
            end = at + len(part.tokens)
            ids[at:end] = part.tokens
            positions[at:end] = np.arange(part.past, part.past + end - at)
            at = end
        last = np.zeros(max(len(wanted), self._min_rows) if wanted else 0, np.int64)
        last[: len(wanted)] = wanted
        return {"input_ids": ids, "positions": positions, "last_rows": last}


def check_plan(plan: Sequence[SequenceStep], vocabulary: int, context: int) -> None:
    """Raise InvalidInput for an empty plan, a token id or a length that is out of bounds."""
    if not plan:
        raise InvalidInput("a step of no sequence; accepted is at least one")
    for index, part in enumerate(plan):
        length = len(part.tokens)
        if length < 1:
            raise InvalidInput(f"sequence {index} has no token in this step")
        if min(part.tokens) < 0 or max(part.tokens) >= vocabulary:
            raise InvalidInput(
                f"sequence {index} has a token id outside the vocabulary of {vocabulary}"
            )
        if part.past + length > context:
            raise InvalidInput(
                f"sequence {index} would have {part.past + length} tokens; the context is {context}"
            )
