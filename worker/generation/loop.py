"""The decode loop: one thread that plans, runs and commits steps of every lane in turn.

The scheduler of a lane and its arena belong to the engine thread, which takes commands between
steps. Generations belong to one lock: a cancel or a passed deadline ends them at once, from the
event loop, and terminates the running step when nobody in it is wanted any more. Events go back
to the event loop, all that are ready in one wake-up.
"""

from __future__ import annotations

import logging
import queue
import threading
import traceback
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

from worker.decode import StepLogits
from worker.errors import EngineFault, RunTerminated, WorkerError
from worker.generation.answer import Answer
from worker.generation.generation import Generation, Sink, usage_of
from worker.generation.lane import Lane
from worker.generation.records import (
    Admitted,
    Delta,
    Failed,
    Finish,
    GenerationCall,
    GenerationEvent,
    LaneLoad,
)
from worker.jobs import Call, Token
from worker.loop import CANCELLED, DRAINING, EXPIRED_WAITING, Clocks
from worker.records import LoopState
from worker.refusals import Unavailable
from worker.runs import ABANDONED
from worker.scheduling.records import Ended, Reason, Step

log = logging.getLogger(__name__)

T = TypeVar("T")

# How long other calls let steps pass before one of them runs.
_PATIENCE_NS = 100_000_000
# How soon a lane whose sequences wait for a place is looked at again.
_RECHECK_S = 0.005

GONE = Unavailable("the model is being unloaded")


class DecodeLoop:
    """Owns the engine thread. Every method but `stop` returns at once and is thread-safe.

    `wake` schedules a callback on the event loop (`call_soon_threadsafe`); sinks are called
    there. `when_idle` is called on the engine thread once nothing has come for `idle_after_s`.
    """

    def __init__(
        self,
        *,
        clocks: Clocks,
        make_token: Callable[[], Token],
        wake: Callable[[Callable[[], None]], object],
        when_idle: Callable[[], None] | None = None,
        idle_after_s: float = 1.0,
    ) -> None:
        self._clocks = clocks
        self._make_token = make_token
        self._wake = wake
        self._when_idle = when_idle
        self._idle_after_s = idle_after_s
        self._wakeups: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._engine_thread = threading.Thread(target=self._serve, name="engine", daemon=True)
        # The engine thread's own.
        self._lanes: dict[Hashable, Lane] = {}
        self._retiring: dict[Hashable, Future[None]] = {}
        # What the lanes hold, replaced after each round and read by anybody.
        self.loads: tuple[LaneLoad, ...] = ()
        self._lock = threading.Lock()
        # Everything below is guarded by the lock.
        self._open: dict[Generation, None] = {}
        self._commands: list[Callable[[], None]] = []
        self._background: deque[Call] = deque()
        self._running: tuple[Token, list[Generation]] | None = None
        self._outbox: list[tuple[Generation, list[GenerationEvent]]] = []
        self._signalled = False
        self._asleep = False
        self._draining = False
        self._stopping = False
        self._completed = 0
        self._run_ns = 0
        self._run_cpu_ns = 0
        self._expired_executed = 0
        self._idle_callbacks: list[Callable[[], None]] = []

    def start(self) -> None:
        """Starts the engine thread."""
        self._engine_thread.start()

    def stop(self) -> None:
        """Ends what is left with Unavailable and joins the engine thread."""
        self.abandon()
        with self._lock:
            self._stopping = True
            calls, self._background = list(self._background), deque()
        for call in calls:
            call.future.cancel()
        self._wakeups.put(None)
        if self._engine_thread.is_alive():
            self._engine_thread.join()

    # Generations

    def open(self, call: GenerationCall, sink: Sink) -> Generation:
        """Takes a generation; `sink` gets its events, `Usage` or `Failed` the last of them."""
        generation = Generation(call, sink)
        with self._lock:
            self._open[generation] = None
            if self._draining:
                self._close(generation, Failed(DRAINING))
            else:
                self._commands.append(lambda: self._submit(generation))
                self._rouse()
        return generation

    def cancel(self, generation: Generation) -> None:
        """Ends a generation whose caller went away; its blocks are free before the next step."""
        with self._lock:
            self._fail(generation, CANCELLED)

    def expire(self, now_ns: int) -> int | None:
        """Ends generations whose deadline has passed: with what they have, if that is anything.

        Returns when the next one is due, or None when there is none.
        """
        following: int | None = None
        with self._lock:
            for generation in list(self._open):
                due = generation.call.deadline_ns
                if due is None or not generation.wanted:
                    continue
                if due <= now_ns:
                    self._expire(generation)
                elif following is None or due < following:
                    following = due
        return following

    def drain(self) -> int:
        """Refuses new generations from now on; returns how many are open."""
        with self._lock:
            self._draining = True
            return len(self._open)

    def when_idle(self, callback: Callable[[], None]) -> None:
        """Calls back once, on the event loop, when every generation has had its last event."""
        with self._lock:
            self._idle_callbacks.append(callback)
            self._signal()

    def abandon(self) -> int:
        """Ends every open generation with Unavailable; returns how many those were."""
        with self._lock:
            ended = len(self._open)
            for generation in list(self._open):
                self._fail(generation, ABANDONED)
            return ended

    def state(self) -> LoopState:
        """The counts at this moment: items are generations, queued ones have no place yet."""
        with self._lock:
            running = sum(generation.admitted for generation in self._open)
            return LoopState(
                queued_items=len(self._open) - running,
                running_items=running,
                draining=self._draining,
                completed_items=self._completed,
                run_cpu_ns=self._run_cpu_ns,
                expired_items_executed=self._expired_executed,
            )

    # Lanes and other work

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Runs a function on the engine thread, between steps."""
        future: Future[T] = Future()
        with self._lock:
            if self._stopping:
                future.cancel()
            else:
                self._background.append(Call(function, future, self._clocks.now_ns()))
                self._rouse()
        return future

    def attach(self, lane: Lane) -> None:
        """Serves a lane from now on."""
        self._command(lambda: self._lanes.__setitem__((lane.model, lane.variant), lane))

    def retire(self, model: str, variant: str) -> Future[None]:
        """Lets a lane go once its generations have ended; done when it is gone."""
        future: Future[None] = Future()

        def begin() -> None:
            if (model, variant) in self._lanes:
                self._retiring[model, variant] = future
            else:
                future.set_result(None)

        self._command(begin)
        return future

    def _command(self, command: Callable[[], None]) -> None:
        with self._lock:
            self._commands.append(command)
            self._rouse()

    # Under the lock

    def _fail(self, generation: Generation, error: WorkerError) -> None:
        if not generation.closed:
            self._close(generation, Failed(error))
            self._unwanted(generation)

    def _expire(self, generation: Generation) -> None:
        """What was made is told; without a token the deadline is all there is to say."""
        if not generation.started:
            self._fail(generation, EXPIRED_WAITING)
            return
        for answer in generation.answers.values():
            if answer.finished is None:
                self._tell(generation, *_end_of(answer, answer.cut(Finish.DEADLINE)))
        self._unwanted(generation)

    def _unwanted(self, generation: Generation) -> None:
        """Frees its blocks before the next step, which is now if it was the only one."""
        self._commands.append(lambda: self._drop(generation))
        self._rouse()
        if self._running is not None:
            token, members = self._running
            if not any(member.wanted for member in members):
                token.terminate()

    def _close(self, generation: Generation, last: GenerationEvent) -> None:
        self._tell(generation, last)
        generation.closed = True
        del self._open[generation]
        self._completed += not isinstance(last, Failed)

    def _tell(self, generation: Generation, *events: GenerationEvent) -> None:
        if generation.closed or not events:
            return
        self._outbox.append((generation, list(events)))
        self._signal()

    def _signal(self) -> None:
        if not self._signalled:
            self._signalled = True
            self._wake(self._deliver)

    def _rouse(self) -> None:
        if self._asleep:
            self._asleep = False
            self._wakeups.put(None)

    def _deliver(self) -> None:
        """Hands events to their sinks; runs on the event loop."""
        with self._lock:
            outbox, self._outbox = self._outbox, []
            self._signalled = False
        for generation, events in outbox:
            generation.sink(events)
        if self._idle_callbacks:
            with self._lock:
                if self._open or self._outbox:
                    return
                callbacks, self._idle_callbacks = self._idle_callbacks, []
            for callback in callbacks:
                callback()

    # On the engine thread

    def _serve(self) -> None:
        while True:
            with self._lock:
                if self._stopping:
                    break
                commands, self._commands = self._commands, []
            for command in commands:
                command()
            worked = [self._guarded_turn(lane) for lane in list(self._lanes.values())]
            self._publish()
            if self._call_one(any(worked)) or any(worked):
                continue
            with self._lock:
                self._asleep = not self._commands and not self._background and not self._stopping
                idle = self._asleep and not self._open
            if self._asleep:
                self._sleep(idle)
        for future in self._retiring.values():
            future.cancel()

    def _sleep(self, idle: bool) -> None:
        with suppress(queue.Empty):
            return self._wakeups.get(timeout=self._idle_after_s if idle else _RECHECK_S)
        if not idle:
            return
        for lane in self._lanes.values():
            for fault in lane.faults():
                log.error("model=%s variant=%s is not sound: %s", lane.model, lane.variant, fault)
        if self._when_idle is not None:
            self._when_idle()
        self._wakeups.get()

    def _call_one(self, busy: bool) -> bool:
        with self._lock:
            if not self._background:
                return False
            waited = self._clocks.now_ns() - self._background[0].since_ns
            if busy and waited <= _PATIENCE_NS:
                return False
            call = self._background.popleft()
        call.run()
        return True

    def _publish(self) -> None:
        """Shows what the lanes hold, those that retired no more."""
        gone = [key for key in self._retiring if not self._lanes[key].owners]
        for key in gone:
            del self._lanes[key]
        self.loads = tuple(
            LaneLoad(lane.model, lane.variant, lane.scheduler.load())
            for lane in self._lanes.values()
        )
        for key in gone:
            self._retiring.pop(key).set_result(None)

    def _submit(self, generation: Generation) -> None:
        call = generation.call
        now_ns = self._clocks.now_ns()
        lane = self._lanes.get((call.model, call.variant))
        with self._lock:
            if generation.closed:
                return
            if lane is None:
                self._close(generation, Failed(GONE))
            elif call.deadline_ns is not None and call.deadline_ns <= now_ns:
                self._close(generation, Failed(EXPIRED_WAITING))
            else:
                try:
                    lane.submit(generation, now_ns)
                except WorkerError as error:
                    self._close(generation, Failed(error))

    def _drop(self, generation: Generation) -> None:
        lane = self._lanes.get((generation.call.model, generation.call.variant))
        if lane is not None:
            lane.drop(generation)
            with self._lock:
                self._settle(generation)

    def _settle(self, generation: Generation) -> None:
        """The last event, when every answer is finished and accounted for; under the lock."""
        if generation.complete and not generation.closed:
            generated = sum(answer.generated for answer in generation.answers.values())
            share = self._run_cpu_ns / self._run_ns if self._run_ns else 1.0
            self._close(generation, usage_of(generation.records.values(), generated, share))

    def _guarded_turn(self, lane: Lane) -> bool:
        """A fault of ours ends the generations of its lane and the lane; others go on."""
        try:
            return self._turn(lane)
        except Exception as fault:
            frames = "".join(traceback.format_tb(fault.__traceback__))
            log.error("model=%s lane failed: %s at\n%s", lane.model, type(fault).__name__, frames)
            with self._lock:
                self._running = None
                for generation in dict.fromkeys(lane.owners.values()):
                    self._fail(generation, EngineFault(f"the lane failed: {type(fault).__name__}"))
            lane.owners.clear()
            if self._retiring.get((lane.model, lane.variant)) is None:
                del self._lanes[lane.model, lane.variant]
            return True

    def _turn(self, lane: Lane) -> bool:
        """One step of a lane; whether there was anything to do."""
        now_ns = self._clocks.now_ns()
        step = lane.plan(now_ns)
        if step is None:
            return False
        if step.ended:
            with self._lock:
                for ended in step.ended:
                    self._ended(lane, ended)
        if not step.parts:
            return True
        members = lane.members(step)
        token = self._make_token()
        with self._lock:
            self._admit(lane, members, now_ns)
            self._expired_executed += sum(_late(member, now_ns) for member in members)
            self._running = (token, members)
            if not any(member.wanted for member in members):
                token.terminate()
        cpu_before, began_ns = self._clocks.cpu_ns(), self._clocks.now_ns()
        logits = self._run(lane, step, members, token)
        ended_ns, cpu_ns = self._clocks.now_ns(), self._clocks.cpu_ns() - cpu_before
        with self._lock:
            self._running = None
            self._run_ns += ended_ns - began_ns
            self._run_cpu_ns += cpu_ns
        if logits is None:
            lane.scheduler.failed(step)
        else:
            self._commit(lane, step, logits, ended_ns, ended_ns - began_ns)
        return True

    def _run(
        self, lane: Lane, step: Step, members: list[Generation], token: Token
    ) -> StepLogits | None:
        """Runs a step; a failure is told to those it worked for, and the loop goes on."""
        error: WorkerError
        try:
            return lane.run(step, token)
        except RunTerminated:
            # Who terminated it has ended its generations already.
            return None
        except WorkerError as raised:
            error = raised
            log.error("model=%s step of %d failed: %s", lane.model, len(step.parts), raised)
        except Exception as fault:
            # The thread outlives a fault of ours; where it happened is logged, the text that
            # may quote content is not.
            frames = "".join(traceback.format_tb(fault.__traceback__))
            log.error("step failed with %s at\n%s", type(fault).__name__, frames)
            error = EngineFault(f"the worker failed with {type(fault).__name__}")
        with self._lock:
            for member in members:
                self._fail(member, error)
        return None

    def _admit(self, lane: Lane, members: list[Generation], now_ns: int) -> None:
        for member in members:
            if not member.admitted and not member.closed:
                member.admitted = True
                cached = lane.scheduler.cached_tokens(next(iter(member.answers)))
                queue_ns = now_ns - member.call.arrived_ns
                self._tell(member, Admitted(len(member.call.prompt), cached, queue_ns))

    def _commit(
        self, lane: Lane, step: Step, logits: StepLogits, now_ns: int, took_ns: int
    ) -> None:
        """Chooses tokens, tells them, and lets the scheduler know of both."""
        tokens: dict[int, int] = {}
        over: list[tuple[int, Generation]] = []
        rows = iter(logits.logits)
        for part in step.parts:
            if not part.wants_logits:
                continue
            row = next(rows)
            tokens[part.sequence_id] = 0
            generation = lane.owners.get(part.sequence_id)
            if generation is None:
                continue
            # Held for one choice: a caller who ends meanwhile waits no longer.
            with self._lock:
                answer = generation.answers[part.sequence_id]
                if generation.closed or answer.finished is not None:
                    continue
                try:
                    token, delta = answer.choose(row)
                except EngineFault as fault:
                    self._fail(generation, fault)
                    continue
                tokens[part.sequence_id] = token
                generation.started = True
                self._tell(generation, *_end_of(answer, delta))
                if answer.finished is not None:
                    over.append((part.sequence_id, generation))
        for ended in lane.scheduler.completed(step, tokens, now_ns, took_ns):
            lane.end(ended.sequence_id, ended.record)
        with self._lock:
            for sequence_id, generation in over:
                lane.finish(sequence_id)
                self._settle(generation)

    def _ended(self, lane: Lane, ended: Ended) -> None:
        """The scheduler gave a sequence up; under the lock."""
        generation = lane.owners.get(ended.sequence_id)
        lane.end(ended.sequence_id, ended.record)
        if generation is None or generation.closed:
            return
        if ended.reason == Reason.EXPIRED:
            self._expire(generation)
            self._settle(generation)
        else:
            self._fail(generation, lane.refusal_of(ended))


def _end_of(answer: Answer, delta: Delta) -> list[GenerationEvent]:
    """A piece of an answer, if it holds anything, and the answer's end, if it is over."""
    events: list[GenerationEvent] = [delta] if delta.text or delta.tokens else []
    return events if answer.finished is None else [*events, answer.finished]


def _late(generation: Generation, now_ns: int) -> bool:
    due = generation.call.deadline_ns
    return due is not None and due <= now_ns and generation.wanted
