"""A decode loop over an engine whose steps tests hold back and end."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from worker.decode import SequenceStep, StepLogits
from worker.errors import RunTerminated
from worker.generation.generation import Generation
from worker.generation.lane import Lane, Speech
from worker.generation.loop import DecodeLoop
from worker.generation.records import (
    Delta,
    Failed,
    GenerationCall,
    GenerationEvent,
    Limits,
    Usage,
)
from worker.generation.text import TokenText
from worker.kv_arena import KvArena
from worker.loop import Clocks
from worker.models.synthetic_generator import tiny_generator_tokenizer
from worker.scheduling.cost import StepCost
from worker.scheduling.records import SchedulingSettings
from worker.scheduling.scheduler import DecodeScheduler

PATIENCE_S = 60.0
TOKENIZER = tiny_generator_tokenizer()
SIZE = TOKENIZER.get_vocab_size()
CONTEXT = 4096
LETTER = TOKENIZER.encode("a").ids[0]


class HeldToken:
    """Ends a step that is held."""

    def __init__(self) -> None:
        self.terminated = threading.Event()

    def terminate(self) -> None:
        self.terminated.set()


@dataclass
class Step:
    """A step that runs until `go`; `logits` of None is the letter for everybody."""

    plan: Sequence[SequenceStep]
    token: HeldToken
    logits: np.ndarray | Exception | None = None
    go: threading.Event = field(default_factory=threading.Event)

    def end(self, logits: np.ndarray | Exception | None = None) -> None:
        self.logits = logits
        self.go.set()


class HeldEngine:
    """An arena, and steps that tests end."""

    def __init__(self, blocks: int) -> None:
        self.arena = KvArena(layers=1, kv_heads=1, head_dim=8, blocks=blocks)
        self.steps: queue.SimpleQueue[Step] = queue.SimpleQueue()
        self.free_running = False

    def step(self, plan: Sequence[SequenceStep], *, token: Any = None) -> StepLogits:
        step = Step(plan, token)
        self.steps.put(step)
        while not self.free_running and not step.go.wait(0.001):
            if token.terminated.is_set():
                raise RunTerminated("terminated")
        if isinstance(step.logits, Exception):
            raise step.logits
        rows = sum(part.wants_logits for part in plan)
        letters = np.zeros((rows, SIZE), np.float32)
        letters[:, LETTER] = 9
        return StepLogits(letters if step.logits is None else step.logits, 0)


class Bench:
    """A loop with one lane; events are kept by generation, delivered on the loop's own wake-up."""

    def __init__(
        self,
        blocks: int = 64,
        chunk: int = 32,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.engine = HeldEngine(blocks)
        self.events: dict[int, list[GenerationEvent]] = {}
        self.lost: list[tuple[Lane, str]] = []
        self._heard = threading.Condition()
        self.loop = DecodeLoop(
            clocks=Clocks(now_ns, time.thread_time_ns),
            make_token=HeldToken,
            wake=self._wake,
            when_lost=lambda lane, reason: self.lost.append((lane, reason)),
        )
        settings = SchedulingSettings(blocks=blocks, context=CONTEXT, chunk_tokens=chunk)
        self.lane = Lane(
            "m",
            "v",
            engine=self.engine,
            scheduler=DecodeScheduler(settings, StepCost(100.0, 10.0, 10.0, 0.01)),
            speech=Speech(TokenText(TOKENIZER), (0, 2), SIZE, CONTEXT),
            draw_seed=lambda: 1,
        )
        self.loop.attach(self.lane)
        self.loop.start()

    def _wake(self, deliver: Callable[[], None]) -> None:
        # The loop's lock is held here, as when an event loop is told to call back.
        threading.Thread(target=self._deliver, args=(deliver,), daemon=True).start()

    def _deliver(self, deliver: Callable[[], None]) -> None:
        with self._heard:
            deliver()
            self._heard.notify_all()

    def open(
        self,
        number: int,
        prompt: int = 8,
        most: int = 1000,
        due_ns: int | None = None,
        token_target_ns: int = 0,
    ) -> Generation:
        call = GenerationCall(
            number,
            "m",
            "v",
            (LETTER,) * prompt,
            time.monotonic_ns(),
            limits=Limits(max_tokens=most),
            tenant=str(number),
            deadline_ns=due_ns,
            token_target_ns=token_target_ns,
        )
        self.events[number] = []
        return self.loop.open(call, self.events[number].extend)

    def waiting(self) -> int:
        """Events that the event loop has not been woken for; to be asked while a step is held."""
        with self.loop._lock:
            waiting = self.loop._open
            return 0 if waiting._signalled else sum(len(each) for _, each in waiting._outbox)

    def step(self) -> Step:
        """The next step that runs."""
        return self.engine.steps.get(timeout=PATIENCE_S)

    def until(self, holds: Callable[[], bool]) -> None:
        """Waits for what events or the engine thread bring about."""
        end = time.monotonic() + PATIENCE_S
        with self._heard:
            while not holds():
                assert time.monotonic() < end
                self._heard.wait(0.005)

    def last(self, number: int) -> GenerationEvent:
        """How a generation ended."""
        self.until(lambda: any(isinstance(e, Usage | Failed) for e in self.events[number]))
        return self.events[number][-1]

    def settled(self) -> None:
        """Nothing is left of any generation."""
        self.engine.free_running = True

        def idle() -> bool:
            state = self.loop.state()
            return not state.queued_items + state.running_items and not self.lane.owners

        self.until(idle)
        assert self.loop.call(self.lane.faults).result(PATIENCE_S) == []
        state = self.loop.call(self.lane.scheduler.load).result(PATIENCE_S)
        assert (state.waiting, state.prefilling, state.decoding) == (0, 0, 0)
        assert state.free_blocks + state.evictable_blocks == state.total_blocks
        assert self.loop.state().expired_items_executed == 0

    def stop(self) -> None:
        """Ends the loop, and whatever is held."""
        self.engine.free_running = True
        self.loop.stop()


def tokens(events: Sequence[GenerationEvent]) -> int:
    """How many were told."""
    return sum(len(event.tokens) for event in events if isinstance(event, Delta))
