"""What a recorded generation's spans are made of: times and sizes, bounded whatever its length.

Pure; times in ns of the worker's monotonic clock. The engine thread adds while it works, the
event loop reads once the generation has ended.
"""

from __future__ import annotations

from typing import NamedTuple

# Chunks beyond these are added to the last one; a long context has some tens.
MOST_CHUNKS = 64
# Of the decode steps an even sample of at most so many is kept.
MOST_STEPS = 32
MOST_PREEMPTIONS = 16


class Chunk(NamedTuple):
    """One step that read a part of the prompt.

    `tokens` of it in this step, `past` already in the arena, `sequences` in the step, `run_ns`
    of engine time. `steps` above 1 stands for that many chunks.
    """

    begun_ns: int
    ended_ns: int
    run_ns: int
    tokens: int
    past: int
    sequences: int
    steps: int = 1


class DecodeStep(NamedTuple):
    """One sampled step that made tokens; `number` counts from 1."""

    number: int
    ended_ns: int
    run_ns: int
    sequences: int


class GenerationTrace:
    """The account of one generation, all of its answers together."""

    __slots__ = (
        "_stride",
        "admitted_ns",
        "chunks",
        "decode_ns",
        "first_token_ns",
        "last_step_ns",
        "preempted_ns",
        "preemptions",
        "steps",
        "steps_seen",
    )

    def __init__(self) -> None:
        self.admitted_ns = 0
        self.first_token_ns = 0
        self.last_step_ns = 0
        self.decode_ns = 0
        self.chunks: list[Chunk] = []
        self.steps: list[DecodeStep] = []
        self.steps_seen = 0
        self.preempted_ns: list[int] = []
        self.preemptions = 0
        self._stride = 1

    def read(self, chunk: Chunk) -> None:
        """A step read a part of the prompt."""
        self.last_step_ns = chunk.ended_ns
        if len(self.chunks) < MOST_CHUNKS:
            self.chunks.append(chunk)
            return
        last = self.chunks[-1]
        self.chunks[-1] = last._replace(
            ended_ns=chunk.ended_ns,
            run_ns=last.run_ns + chunk.run_ns,
            tokens=last.tokens + chunk.tokens,
            steps=last.steps + 1,
        )

    def wrote(self, ended_ns: int, run_ns: int, sequences: int) -> None:
        """A step made tokens; one in so many is kept, in twice as many whenever it is full."""
        self.last_step_ns = ended_ns
        self.steps_seen += 1
        self.decode_ns += run_ns
        if (self.steps_seen - 1) % self._stride:
            return
        if len(self.steps) == MOST_STEPS:
            self.steps = self.steps[::2]
            self._stride *= 2
            if (self.steps_seen - 1) % self._stride:
                return
        self.steps.append(DecodeStep(self.steps_seen, ended_ns, run_ns, sequences))

    def preempted(self, now_ns: int) -> None:
        """It gave up its place for a while."""
        self.preemptions += 1
        if len(self.preempted_ns) < MOST_PREEMPTIONS:
            self.preempted_ns.append(now_ns)

    def away(self, ended_ns: int) -> list[tuple[int, int]]:
        """When it had given up its place and was not yet read again, one after the other.

        `ended_ns` is when the generation ended. Where answers share a prompt, until one is read.
        """
        found: list[tuple[int, int]] = []
        for gone_ns in self.preempted_ns:
            again = (chunk.begun_ns for chunk in self.chunks if chunk.begun_ns > gone_ns)
            # Others of its answers may have gone on instead.
            until_ns = next(again, ended_ns if self.last_step_ns <= gone_ns else 0)
            if until_ns > gone_ns:
                found.append((gone_ns, until_ns))
        return found
