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
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

from worker.errors import EngineFault, WorkerError, where_raised
from worker.generation.generation import Generation, Sink
from worker.generation.lane import Lane
from worker.generation.openings import OpenGenerations
from worker.generation.records import Failed, GenerationCall, LaneLoad
from worker.generation.steps import Steps
from worker.generation.trace import GenerationTrace
from worker.jobs import Call, Token
from worker.loop import Clocks
from worker.records import LoopState
from worker.refusals import ABANDONED, CANCELLED, DRAINING, EXPIRED_WAITING, Unavailable

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
    there. `when_idle` is called on the engine thread once nothing has come for `idle_after_s`,
    `when_lost` with a lane that serves no more and why.
    """

    def __init__(
        self,
        *,
        clocks: Clocks,
        make_token: Callable[[], Token],
        wake: Callable[[Callable[[], None]], object],
        when_idle: Callable[[], None] | None = None,
        when_lost: Callable[[Lane, str], None] | None = None,
        idle_after_s: float = 1.0,
    ) -> None:
        self._clocks = clocks
        self._when_idle = when_idle
        self._when_lost = when_lost
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
        self._open = OpenGenerations(self._lock, wake=wake, unwanted=self._unwanted)
        self._steps = Steps(self._lock, self._open, clocks, make_token)
        self._commands: list[Callable[[], None]] = []
        self._background: deque[Call] = deque()
        self._asleep = False
        self._draining = False
        self._stopping = False
        # Why the engine thread has ended, when that was not asked for.
        self._broken: EngineFault | None = None

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

    def open(
        self, call: GenerationCall, sink: Sink, trace: GenerationTrace | None = None
    ) -> Generation:
        """Takes a generation; `sink` gets its events, `Usage` or `Failed` the last of them.

        `trace` is where its steps are recorded, if they are.
        """
        generation = Generation(call, sink, trace)
        with self._lock:
            self._open.add(generation)
            if self._draining or self._broken is not None:
                self._open.close(generation, Failed(self._broken or DRAINING))
                self._open.flush()
            else:
                self._commands.append(lambda: self._submit(generation))
                self._rouse()
        return generation

    def cancel(self, generation: Generation) -> None:
        """Ends a generation whose caller went away; its blocks are free before the next step."""
        with self._lock:
            self._open.fail(generation, CANCELLED)
            self._open.flush()

    def expire(self, now_ns: int) -> int | None:
        """Ends generations whose deadline has passed: with what they have, if that is anything.

        Returns when the next one is due, or None when there is none.
        """
        following: int | None = None
        with self._lock:
            for generation in self._open:
                due = generation.call.deadline_ns
                if due is None or not generation.wanted:
                    continue
                if due <= now_ns:
                    self._open.expire(generation)
                elif following is None or due < following:
                    following = due
            self._open.flush()
        return following

    def drain(self) -> int:
        """Refuses new generations from now on; returns how many are open."""
        with self._lock:
            self._draining = True
            return len(self._open)

    def when_idle(self, callback: Callable[[], None]) -> None:
        """Calls back once, on the event loop, when every generation has had its last event."""
        with self._lock:
            self._open.when_idle(callback)

    def abandon(self) -> int:
        """Ends every open generation with Unavailable; returns how many those were."""
        with self._lock:
            ended = len(self._open)
            for generation in self._open:
                self._open.fail(generation, ABANDONED)
            self._open.flush()
            return ended

    def state(self) -> LoopState:
        """The counts at this moment: items are generations, queued ones have no place yet."""
        with self._lock:
            running = self._open.admitted
            return LoopState(
                queued_items=len(self._open) - running,
                running_items=running,
                draining=self._draining,
                completed_items=self._open.completed,
                run_cpu_ns=self._steps.run_cpu_ns,
                expired_items_executed=self._steps.expired_executed,
            )

    def held_tokens(self) -> int:
        """Prompt tokens of the generations that are open."""
        with self._lock:
            return sum([len(generation.call.prompt) for generation in self._open])

    # Lanes and other work

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Runs a function on the engine thread, between steps."""
        future: Future[T] = Future()
        with self._lock:
            if self._broken is not None:
                future.set_exception(self._broken)
            elif self._stopping:
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

        if not self._command(begin):
            future.cancel()
        return future

    def _command(self, command: Callable[[], None]) -> bool:
        """Has the engine thread do something between steps; False when it has ended."""
        with self._lock:
            if self._stopping:
                return False
            self._commands.append(command)
            self._rouse()
        return True

    # Under the lock

    def _unwanted(self, generation: Generation) -> None:
        """Frees its blocks before the next step, which is now if it was the only one."""
        self._commands.append(lambda: self._drop(generation))
        self._rouse()
        self._steps.terminate_unwanted()

    def _rouse(self) -> None:
        if self._asleep:
            self._asleep = False
            self._wakeups.put(None)

    # On the engine thread

    def _serve(self) -> None:
        try:
            self._take_turns()
        except Exception as fault:
            self._break(fault)
        for future in self._retiring.values():
            future.cancel()

    def _take_turns(self) -> None:
        while True:
            with self._lock:
                commands, self._commands = self._commands, []
                stopping = self._stopping
            for command in commands:
                command()
            if stopping:
                break
            worked = [self._guarded_turn(lane) for lane in list(self._lanes.values())]
            self._publish()
            if self._call_one(any(worked)) or any(worked):
                continue
            with self._lock:
                self._asleep = not self._commands and not self._background and not self._stopping
                idle = self._asleep and not self._open
            if self._asleep:
                self._sleep(idle)

    def _sleep(self, idle: bool) -> None:
        with suppress(queue.Empty):
            return self._wakeups.get(timeout=self._idle_after_s if idle else _RECHECK_S)
        if not idle:
            return
        for lane in self._lanes.values():
            for fault in lane.faults():
                log.error("model=%s variant=%s is not sound: %s", lane.model, lane.variant, fault)
        self._publish(fresh=True)
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
        self._steps.tell_held()
        call.run()
        return True

    def _publish(self, *, fresh: bool = False) -> None:
        """Shows what the lanes hold, those that retired no more; `fresh` makes maps anew."""
        gone = [key for key in self._retiring if not self._lanes[key].owners]
        for key in gone:
            del self._lanes[key]
        now_ns = self._clocks.now_ns()
        self.loads = tuple(
            LaneLoad(
                lane.model,
                lane.variant,
                lane.scheduler.load(),
                lane.scheduler.measured(),
                lane.block_map(now_ns, fresh=fresh),
            )
            for lane in self._lanes.values()
        )
        for key in gone:
            self._retiring.pop(key).set_result(None)

    def _submit(self, generation: Generation) -> None:
        call = generation.call
        now_ns = self._clocks.now_ns()
        lane = self._lanes.get((call.model, call.variant))
        broken: Exception | None = None
        with self._lock:
            if generation.closed:
                return
            if lane is None:
                self._open.close(generation, Failed(GONE))
            elif call.deadline_ns is not None and call.deadline_ns <= now_ns:
                self._open.close(generation, Failed(EXPIRED_WAITING))
            else:
                try:
                    lane.submit(generation, now_ns)
                except WorkerError as error:
                    self._open.close(generation, Failed(error))
                except Exception as fault:
                    broken = fault
            self._open.flush()
        if lane is not None and broken is not None:
            self._lose(lane, broken, generation)

    def _drop(self, generation: Generation) -> None:
        lane = self._lanes.get((generation.call.model, generation.call.variant))
        if lane is None:
            return
        try:
            lane.drop(generation)
        except Exception as fault:
            self._lose(lane, fault, generation)
            return
        with self._lock:
            self._open.settle(generation)
            self._open.flush()

    def _guarded_turn(self, lane: Lane) -> bool:
        try:
            return self._steps.turn(lane)
        except Exception as fault:
            self._lose(lane, fault)
            return True

    def _lose(self, lane: Lane, fault: Exception, *others: Generation) -> None:
        """A fault of ours ends the generations of its lane and the lane; other lanes go on.

        Ends `others`, too, which the lane may not know yet, or no more.
        """
        kind, where = type(fault).__name__, where_raised(fault)
        log.error("model=%s lane failed: %s at\n%s", lane.model, kind, where)
        error = EngineFault(f"the lane failed with {kind}")
        with self._lock:
            self._steps.forget()
            for generation in dict.fromkeys((*lane.owners.values(), *others)):
                self._open.fail(generation, error)
            self._open.flush()
        lane.owners.clear()
        if self._retiring.get((lane.model, lane.variant)) is None:
            del self._lanes[lane.model, lane.variant]
        self._tell_lost(lane, error)

    def _break(self, fault: Exception) -> None:
        """A fault of ours outside of any lane ends the thread: whoever waits for it is told."""
        kind, where = type(fault).__name__, where_raised(fault)
        log.error("the engine thread failed: %s at\n%s", kind, where)
        error = EngineFault(f"the engine thread failed with {kind}")
        with self._lock:
            self._broken, self._stopping = error, True
            self._steps.forget()
            for generation in list(self._open):
                self._open.fail(generation, error)
            self._open.flush()
            calls, self._background = list(self._background), deque()
        for call in calls:
            call.fail(error)
        lanes, self._lanes = list(self._lanes.values()), {}
        self.loads = ()
        for lane in lanes:
            self._tell_lost(lane, error)

    def _tell_lost(self, lane: Lane, error: EngineFault) -> None:
        if self._when_lost is not None:
            self._when_lost(lane, str(error))
