"""The engine loop: one thread that runs batches, and the bounded queue before it.

The state belongs to one lock. Batches are submitted, cancelled and expired from the event
loop; the engine thread takes, runs and finishes them; outcomes go back to the event loop,
all that are ready in one wake-up. Runs that take no longer than the way to the engine thread
and back are spared it: whoever submits them runs them, while the engine thread sleeps.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from worker.errors import EngineFault, InvalidInput, WorkerError, where_raised
from worker.jobs import Call, Job, Place, Token
from worker.outbox import Outbox, Wake, by_the_submitter
from worker.records import Batch, BatchOutcome, LoopState
from worker.refusals import (
    ABANDONED,
    CANCELLED,
    DRAINING,
    EXPIRED_RUNNING,
    EXPIRED_WAITING,
    Unavailable,
)
from worker.runs import Runner, outcome_of, run_guarded
from worker.waiting import Waiting

log = logging.getLogger(__name__)

T = TypeVar("T")
Begun: TypeAlias = tuple[Job, Token, list[int], int]

# A run on the event loop holds up cancels, deadlines and reports, so it must not work for longer
# than this; after one that did, all runs are the engine thread's for a while. Time in which the
# machine did something else does not count: it would have held up the event loop anyway.
LONGEST_IN_PLACE_NS = 1_000_000
_DISTRUST_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Clocks:
    """Monotonic time, and the CPU time that a run is charged, in nanoseconds."""

    now_ns: Callable[[], int]
    cpu_ns: Callable[[], int]


class EngineLoop:
    """Owns the engine thread. Every method but `stop` returns at once and is thread-safe.

    `bound` is the exact number of items that may wait. `wake` schedules a callback on the
    event loop from any thread (`call_soon_threadsafe`), `soon` from the event loop's own
    (`call_soon`, `wake` by default); sinks are called there. `when_idle` is called on the
    engine thread once nothing has come for `idle_after_s`. A fault outside of any run ends the
    loop: whoever waits for it is told, and `when_broken` is called once with the reason.
    """

    def __init__(
        self,
        runner: Runner,
        *,
        bound: int,
        clocks: Clocks,
        make_token: Callable[[], Token],
        wake: Wake,
        soon: Wake | None = None,
        when_idle: Callable[[], None] | None = None,
        when_broken: Callable[[str], None] | None = None,
        idle_after_s: float = 1.0,
    ) -> None:
        self._runner = runner
        self._bound = bound
        self._clocks = clocks
        self._make_token = make_token
        self._soon = soon or wake
        self._when_idle = when_idle
        self._when_broken = when_broken
        self._idle_after_s = idle_after_s
        self._wakeups: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._engine_thread = threading.Thread(target=self._serve, name="engine", daemon=True)
        self._lock = threading.Lock()
        # Everything below is guarded by the lock.
        self._waiting = Waiting(clocks.now_ns)
        self._running: Job | None = None
        self._outbox = Outbox(
            self._lock, wake=wake, busy=lambda: self._queued_items + self._running_items > 0
        )
        self._asleep = False
        self._draining = False
        self._stopping = False
        # Why the loop has ended, when that was not asked for.
        self._broken: EngineFault | None = None
        self._queued_items = 0
        self._running_items = 0
        self._completed_items = 0
        self._run_cpu_ns = 0
        self._expired_items_executed = 0
        self._in_place_from_ns = 0

    def start(self) -> None:
        """Starts the engine thread."""
        self._engine_thread.start()

    def stop(self) -> None:
        """Ends what is left with Unavailable and joins the engine thread."""
        self.abandon()
        with self._lock:
            self._stopping = True
            self._asleep = False
            calls = self._waiting.clear()
        for call in calls:
            call.future.cancel()
        self._wakeups.put(None)
        if self._engine_thread.is_alive():
            self._engine_thread.join()

    def submit(
        self, batch: Batch, sink: Callable[[BatchOutcome], None], *, in_place: bool = False
    ) -> Job:
        """Queues a batch; whatever happens, `sink` gets exactly one outcome for it.

        A batch that would exceed the bound, or that comes while draining, ends Unavailable.
        `in_place` asks to run it here and now, which is done while the engine thread sleeps
        and nothing else waits; call it on the event loop then, and only for short runs. The sink
        is called before this returns if it was, later if not.
        """
        job = Job(batch, sink)
        try:
            ran = self._accept(job, in_place)
        except Exception as fault:
            self._break(fault)
            ran = True
        if ran:
            self._outbox.deliver()
        return job

    def refuse(
        self, batch: Batch, sink: Callable[[BatchOutcome], None], reason: WorkerError
    ) -> Job:
        """Answers every item of a batch with `reason` without queueing it."""
        job = Job(batch, sink)
        job.end_all(reason)
        with self._lock:
            self._finish_unrun(job)
        return job

    def cancel(self, job: Job, item_ids: Collection[int] | None = None) -> None:
        """Drops the named items, or all; a run ends when none of its items is wanted."""
        with self._lock:
            self._end_items(job, item_ids, CANCELLED)

    def expire(self, now_ns: int) -> int | None:
        """Ends batches whose items are all past their deadline, waiting or running.

        Returns the time at which the next batch will be, or None when there is none.
        """
        following: int | None = None
        with self._lock:
            for job in self._jobs():
                if not job.live:
                    continue
                due = job.last_deadline_ns()
                if due <= now_ns:
                    waiting = job.place is Place.QUEUED
                    self._end_items(job, None, EXPIRED_WAITING if waiting else EXPIRED_RUNNING)
                elif following is None or due < following:
                    following = due
        return following

    def call(self, function: Callable[[], T], *, in_turn: bool = False) -> Future[T]:
        """Runs a function on the engine thread.

        With `in_turn` it waits for the batches queued before it and no others; otherwise
        it runs when no batch waits, or once it has let them pass for long enough.
        """
        future: Future[T] = Future()
        entry = Call(function, future, self._clocks.now_ns())
        with self._lock:
            if self._broken is not None:
                entry.fail(self._broken)
            elif self._stopping:
                future.cancel()
            elif in_turn:
                self._waiting.put(entry)
            else:
                self._waiting.put_aside(entry)
            self._rouse()
        return future

    def drain(self) -> int:
        """Refuses work from now on; returns the number of items still to be answered."""
        with self._lock:
            self._draining = True
            return self._queued_items + self._running_items

    def when_idle(self, callback: Callable[[], None]) -> None:
        """Calls back once, on the event loop, when every accepted item has its outcome."""
        with self._lock:
            self._outbox.when_idle(callback)

    def abandon(self) -> int:
        """Ends every item that waits or runs with Unavailable; returns how many those were."""
        with self._lock:
            return sum(self._end_items(job, None, ABANDONED) for job in self._jobs())

    def state(self) -> LoopState:
        """The counts at this moment."""
        with self._lock:
            return LoopState(
                queued_items=self._queued_items,
                running_items=self._running_items,
                draining=self._draining,
                completed_items=self._completed_items,
                run_cpu_ns=self._run_cpu_ns,
                expired_items_executed=self._expired_items_executed,
            )

    def held_bytes(self) -> int:
        """Bytes of the inputs that wait or run."""
        with self._lock:
            return sum([job.batch.input_bytes for job in self._jobs()])

    def _jobs(self) -> list[Job]:
        """The batches that wait or run."""
        jobs = self._waiting.jobs()
        if self._running is not None:
            jobs.append(self._running)
        return jobs

    def _accept(self, job: Job, in_place: bool) -> bool:
        """Queues a job, or runs it here; whether it ran, and its outcome is to be delivered."""
        with self._lock:
            refusal = self._refusal(job)
            if refusal is not None:
                job.end_all(refusal)
            if not job.live:
                self._finish_unrun(job)
                return False
            self._queued_items += job.live
            if not (in_place and self._free()):
                self._waiting.put(job)
                self._rouse()
                return False
            run = self._begin(job, self._soon)
        if run is not None:
            self._run(run, by_the_submitter)
        return run is not None

    def _refusal(self, job: Job) -> WorkerError | None:
        if self._broken is not None:
            return self._broken
        if self._draining:
            return DRAINING
        if job.live > self._bound:
            return InvalidInput(
                f"a batch of {job.live} items can never wait here; at most {self._bound} may"
            )
        if self._queued_items + job.live > self._bound:
            return Unavailable(
                f"the worker is full: {self._queued_items} of {self._bound} items wait"
            )
        return None

    def _end_items(self, job: Job, item_ids: Collection[int] | None, reason: WorkerError) -> int:
        """Ends items of a job; when none is left it is finished, or its run terminated."""
        if job.place is Place.DONE:
            return 0
        ended = job.end_all(reason) if item_ids is None else job.end(item_ids, reason)
        if job.place is Place.QUEUED:
            self._queued_items -= ended
            if job.live == 0:
                self._waiting.remove(job)
                self._finish_unrun(job)
        elif ended and job.live == 0 and job.token is not None:
            job.token.terminate()
        return ended

    def _free(self) -> bool:
        """Whether the engine thread has nothing to do, and its place may be taken."""
        idle = self._asleep and self._running is None and not self._waiting
        return idle and self._clocks.now_ns() >= self._in_place_from_ns

    def _finish_unrun(self, job: Job, wake: Wake | None = None) -> None:
        self._outbox.put(job, job.unrun(self._clocks.now_ns()), wake)

    def _rouse(self) -> None:
        if self._asleep:
            self._asleep = False
            self._wakeups.put(None)

    def _serve(self) -> None:
        try:
            self._take_turns()
        except Exception as fault:
            self._break(fault)

    def _break(self, fault: Exception) -> None:
        """A fault of ours outside of any run ends the loop: whoever waits for it is told."""
        kind, where = type(fault).__name__, where_raised(fault)
        log.error("the engine loop failed: %s at\n%s", kind, where)
        error = EngineFault(f"the engine loop failed with {kind}")
        with self._lock:
            if self._broken is not None:
                return
            self._broken, self._stopping = error, True
            for job in self._jobs():
                if job.token is not None:
                    job.token.terminate()
                job.end_all(error)
                # By no clock, which may be what failed.
                self._outbox.put(job, job.unrun(job.batch.arrived_ns))
            calls = self._waiting.clear()
            self._running = None
            self._queued_items = self._running_items = 0
            self._rouse()
        for call in calls:
            call.fail(error)
        if self._when_broken is not None:
            self._when_broken(str(error))

    def _take_turns(self) -> None:
        while True:
            with self._lock:
                if self._stopping:
                    return
                entry = self._take()
                self._asleep = entry is None
                run = self._begin(entry) if isinstance(entry, Job) else None
            if run is not None:
                self._run(run)
            elif isinstance(entry, Call):
                entry.run()
            elif entry is None:
                self._sleep()
            # A finished batch must not live on in this frame while the thread sleeps.
            entry = run = None

    def _sleep(self) -> None:
        if self._when_idle is not None:
            with suppress(queue.Empty):
                return self._wakeups.get(timeout=self._idle_after_s)
            self._when_idle()
        self._wakeups.get()

    def _take(self) -> Job | Call | None:
        if self._running is not None:
            # A run in place; its end rouses this thread.
            return None
        return self._waiting.take()

    def _begin(self, job: Job, wake: Wake | None = None) -> Begun | None:
        """Moves a job to the engine; its items that are too late end here, unexecuted.

        Returns what `_run` takes; None when nothing is left to run.
        """
        self._running = job
        started_ns = self._clocks.now_ns()
        self._queued_items -= job.live
        job.end_late(started_ns, EXPIRED_WAITING)
        if job.live == 0:
            self._running = None
            self._finish_unrun(job, wake)
            return None
        job.place = Place.RUNNING
        job.token = token = self._make_token()
        self._running_items = job.live
        return job, token, job.live_indices(), started_ns

    def _run(self, begun: Begun, wake: Wake | None = None) -> None:
        job, token, indices, started_ns = begun
        items = [job.batch.items[index] for index in indices]
        cpu_before = self._clocks.cpu_ns()
        execution = run_guarded(self._runner, job.batch, items, token)
        cpu_ns = self._clocks.cpu_ns() - cpu_before
        ended_ns = self._clocks.now_ns()
        with self._lock:
            if self._running is not job:
                # The loop broke meanwhile, and what was in it has been answered.
                return
            self._running = None
            self._running_items = 0
            self._run_cpu_ns += cpu_ns
            self._expired_items_executed += sum(i.deadline_ns <= started_ns for i in items)
            outcome = outcome_of(job, indices, execution, (started_ns, ended_ns), cpu_ns)
            self._completed_items += sum(not isinstance(o, WorkerError) for o in outcome.outcomes)
            self._outbox.put(job, outcome, wake)
            if self._waiting:
                self._rouse()
            if wake is not None and cpu_ns > LONGEST_IN_PLACE_NS:
                self._in_place_from_ns = ended_ns + _DISTRUST_NS
