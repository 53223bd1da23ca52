"""What the decode scheduler measures of its sequences and steps: plain integers, times in ns."""

from __future__ import annotations

from collections.abc import Iterable

from worker.histogram import SIZES, TIMES_NS, Histogram
from worker.scheduling.records import State, Step
from worker.scheduling.sequences import DecodeSequence


class SequenceMeasures:
    """Belongs to one scheduler; `copy` is for others to read.

    `queue` is arrival to admission, `first_token` arrival to first token, `gap` between two
    tokens of an answer; `step` is how long steps took, `width` how many sequences were in one.
    `prompt_tokens` counts tokens that were computed before a first token, or again. The tokens
    of residents lie in `held_blocks`, each counted as often as it is held.
    """

    __slots__ = ("first_token", "gap", "held_blocks", "held_tokens", "prompt_tokens", "queue",
                 "step", "width")  # fmt: skip

    def __init__(self) -> None:
        self.queue = Histogram(TIMES_NS)
        self.first_token = Histogram(TIMES_NS)
        self.gap = Histogram(TIMES_NS)
        self.step = Histogram(TIMES_NS)
        self.width = Histogram(SIZES)
        self.prompt_tokens = 0
        self.held_blocks = 0
        self.held_tokens = 0

    def admitted(self, sequence: DecodeSequence, now_ns: int) -> None:
        """A sequence is about to get a place; only the first one ends its wait."""
        if sequence.admitted_ns < 0:
            self.queue.observe(now_ns - sequence.arrival.arrived_ns)

    def ran(self, step: Step, took_ns: int) -> None:
        """A step ran."""
        self.step.observe(took_ns)
        self.width.observe(len(step.parts))

    def computed(self, sequence: DecodeSequence, tokens: int) -> None:
        """So many tokens of a sequence were in it."""
        if sequence.state != State.DECODING:
            self.prompt_tokens += tokens

    def token(self, sequence: DecodeSequence, now_ns: int) -> None:
        """A sequence is about to get its next token."""
        if sequence.first_token_ns < 0:
            self.first_token.observe(now_ns - sequence.arrival.arrived_ns)
        else:
            self.gap.observe(now_ns - sequence.last_token_ns)

    def copy(self, residents: Iterable[DecodeSequence]) -> SequenceMeasures:
        """The same as they are now, with what these hold."""
        fresh = SequenceMeasures()
        fresh.queue = self.queue.copy()
        fresh.first_token = self.first_token.copy()
        fresh.gap = self.gap.copy()
        fresh.step = self.step.copy()
        fresh.width = self.width.copy()
        fresh.prompt_tokens = self.prompt_tokens
        for sequence in residents:
            fresh.held_blocks += len(sequence.blocks)
            fresh.held_tokens += sequence.computed
        return fresh
