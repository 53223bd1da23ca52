"""One generation inside the worker, and what its caller is told in the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from worker.generation.answer import Answer
from worker.generation.records import GenerationCall, GenerationEvent, Usage
from worker.generation.trace import GenerationTrace
from worker.scheduling.records import SequenceRecord

Sink = Callable[[Sequence[GenerationEvent]], None]


class Generation:
    """A generation on its way through the loop; guarded by the loop's lock.

    `answers` are by sequence id, `records` those of sequences that are over. `closed` is set with
    the last event that `sink` gets. `trace` is where its steps are recorded, None for most.
    """

    __slots__ = (
        "admitted",
        "answers",
        "call",
        "closed",
        "records",
        "sink",
        "started",
        "trace",
    )

    def __init__(
        self, call: GenerationCall, sink: Sink, trace: GenerationTrace | None = None
    ) -> None:
        self.call = call
        self.sink = sink
        self.trace = trace
        self.answers: dict[int, Answer] = {}
        self.records: dict[int, SequenceRecord] = {}
        self.admitted = False
        # Whether a token was made.
        self.started = False
        self.closed = False

    @property
    def wanted(self) -> bool:
        """Whether any more tokens are of use to anybody."""
        if self.closed:
            return False
        return not self.answers or any(a.finished is None for a in self.answers.values())

    @property
    def complete(self) -> bool:
        """Whether every answer is finished and accounted for."""
        return bool(self.answers) and len(self.records) == len(self.answers) and not self.wanted


def usage_of(records: Iterable[SequenceRecord], generated: int) -> Usage:
    """The account of a generation from those of its answers; `generated` counts its tokens."""
    all_of = tuple(records)
    gaps = sum(max(r.generated_tokens - 1, 0) for r in all_of)
    spans = sum(r.mean_gap_ns * max(r.generated_tokens - 1, 0) for r in all_of)
    firsts = [r.first_token_ns for r in all_of if r.first_token_ns]
    return Usage(
        prompt_tokens=all_of[0].prompt_tokens,
        cached_tokens=all_of[0].cached_tokens,
        generated_tokens=generated,
        queue_ns=min(r.queue_ns for r in all_of),
        first_token_ns=min(firsts, default=0),
        total_ns=max(r.total_ns for r in all_of),
        mean_gap_ns=spans // gaps if gaps else 0,
        max_gap_ns=max(r.max_gap_ns for r in all_of),
        prefill_cpu_ns=sum(r.prefill_ns for r in all_of),
        decode_cpu_ns=sum(r.decode_ns for r in all_of),
        live_token_ns=sum(r.live_token_ns for r in all_of),
        preemptions=sum(r.preemptions for r in all_of),
    )
