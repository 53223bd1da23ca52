"""The steps of lanes: planned, run, and committed. Lives on the engine thread.

What a step is running for may end at any moment, from the event loop; then it is terminated.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final, NamedTuple

from worker.decode import StepLogits
from worker.errors import EngineFault, RunTerminated, WorkerError, where_raised
from worker.generation.generation import Generation
from worker.generation.lane import Lane
from worker.generation.openings import OpenGenerations
from worker.generation.records import Admitted
from worker.generation.sampling import Row
from worker.generation.trace import Chunk
from worker.jobs import Token
from worker.loop import Clocks
from worker.scheduling.records import Ended, Reason, Step

log = logging.getLogger(__name__)

# A piece of an answer waits for the next while that takes no more than this part of the token
# target, and no longer than a reader sees: every message costs CPU on each hop.
_HELD_SHARE: Final = 0.5
_LONGEST_HELD_NS: Final = 25_000_000


class Steps:
    """Carries out plans, one step at a time. `lock` guards the generations and what is below."""

    def __init__(
        self,
        lock: threading.Lock,
        opened: OpenGenerations,
        clocks: Clocks,
        make_token: Callable[[], Token],
    ) -> None:
        self._lock = lock
        self._open = opened
        self._clocks = clocks
        self._make_token = make_token
        # The engine thread's: since when pieces wait to be told together, 0 for none, and how long.
        self._held_ns = 0
        self._patience_ns = 0
        # Guarded by the lock: the step that runs and what it runs for, and totals of all.
        self._running: tuple[Token, list[Generation]] | None = None
        self.run_cpu_ns = 0
        self.expired_executed = 0

    def terminate_unwanted(self) -> None:
        """Ends the running step if nobody in it is wanted any more. Under the lock."""
        if self._running is not None:
            token, members = self._running
            if not any(member.wanted for member in members):
                token.terminate()

    def tell_held(self) -> None:
        """Tells what waits for more of its answer; on the engine thread, without the lock."""
        if self._held_ns:
            self._held_ns = 0
            with self._lock:
                self._open.flush()

    def forget(self) -> None:
        """Nothing runs, whatever became of the last step. Under the lock."""
        self._running = None

    def turn(self, lane: Lane) -> bool:
        """One step of a lane; whether there was anything to do."""
        now_ns = self._clocks.now_ns()
        step = lane.plan(now_ns)
        if step is None:
            self.tell_held()
            return False
        if step.ended:
            self._held_ns = 0
            with self._lock:
                for ended in step.ended:
                    self._ended(lane, ended)
                self._open.flush()
        for sequence_id in step.preempted:
            loser = lane.owners.get(sequence_id)
            if loser is not None and loser.trace is not None:
                loser.trace.preempted(now_ns)
        if not step.parts:
            return True
        members = lane.members(step)
        recorded = any(member.trace is not None for member in members)
        shares = _shares(lane, step) if recorded else {}
        token = self._make_token()
        if now_ns + step.predicted_ns - self._held_ns > self._patience_ns:
            self.tell_held()
        with self._lock:
            admitted = self._admit(lane, members, now_ns)
            self.expired_executed += sum(_late(member, now_ns) for member in members)
            self._running = (token, members)
            self.terminate_unwanted()
            if admitted:
                self._open.flush()
        cpu_before, began_ns = self._clocks.cpu_ns(), self._clocks.now_ns()
        logits = self._run(lane, step, members, token)
        ended_ns, cpu_ns = self._clocks.now_ns(), self._clocks.cpu_ns() - cpu_before
        with self._lock:
            self._running = None
            self.run_cpu_ns += cpu_ns
        if logits is None:
            lane.scheduler.failed(step, cpu_ns)
        else:
            account = _Account(now_ns, ended_ns - began_ns, cpu_ns, shares)
            self._commit(lane, step, logits, account)
        return True

    def _note(self, account: _Account, ended_ns: int, sequences: int) -> None:
        """Records a step of those who are recorded, before they hear of its end.

        Planning it and choosing its tokens are part of it.
        """
        for member, share in account.shares.items():
            trace = member.trace
            if trace is None:
                continue
            if share.read:
                begun_ns, run_ns = account.begun_ns, account.run_ns
                trace.read(Chunk(begun_ns, ended_ns, run_ns, share.read, share.past, sequences))
            if share.wrote:
                trace.wrote(ended_ns, account.run_ns, sequences)
            if member.started and not trace.first_token_ns:
                trace.first_token_ns = ended_ns

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
            # The thread outlives a fault of ours.
            log.error("step failed with %s at\n%s", type(fault).__name__, where_raised(fault))
            error = EngineFault(f"the worker failed with {type(fault).__name__}")
        with self._lock:
            for member in members:
                self._open.fail(member, error)
            self._open.flush()
        return None

    def _admit(self, lane: Lane, members: list[Generation], now_ns: int) -> bool:
        """Tells members of their admission; whether there were any to be told."""
        admitted = False
        for member in members:
            if not member.admitted and not member.closed:
                member.admitted = admitted = True
                if member.trace is not None:
                    member.trace.admitted_ns = now_ns
                cached = lane.scheduler.cached_tokens(next(iter(member.answers)))
                queue_ns = now_ns - member.call.arrived_ns
                self._open.tell(member, Admitted(len(member.call.prompt), cached, queue_ns))
        return admitted

    def _commit(self, lane: Lane, step: Step, logits: StepLogits, account: _Account) -> None:
        """Chooses tokens, tells them, and lets the scheduler know of both."""
        tokens: dict[int, int] = {}
        told = _Told()
        rows = iter(logits.logits)
        for part in step.parts:
            if not part.wants_logits:
                continue
            row = next(rows)
            tokens[part.sequence_id] = 0
            generation = lane.owners.get(part.sequence_id)
            if generation is not None:
                tokens[part.sequence_id] = self._choose(generation, part.sequence_id, row, told)
        now_ns, took_ns = self._clocks.now_ns(), account.run_ns
        ended_now = lane.scheduler.completed(step, tokens, now_ns, took_ns, account.cpu_ns)
        for ended in ended_now:
            lane.end(ended.sequence_id, ended.record)
        if account.shares:
            self._note(account, now_ns, len(step.parts))
        with self._lock:
            for sequence_id, generation in told.over:
                lane.finish(sequence_id)
                self._open.settle(generation)
            if told.patience_ns <= 0:
                # One wake-up for all tokens of the step, and of those before that waited.
                self._held_ns = 0
                self._open.flush()
                return
        if self._held_ns:
            self._patience_ns = min(self._patience_ns, told.patience_ns)
        else:
            self._held_ns, self._patience_ns = now_ns, told.patience_ns

    def _choose(
        self,
        generation: Generation,
        sequence_id: int,
        row: Row,
        told: _Told,
    ) -> int:
        """The next token of an answer, which is told; 0 when nobody wants one any more."""
        # Held for one choice: a caller who ends meanwhile waits no longer.
        with self._lock:
            answer = generation.answers[sequence_id]
            if generation.closed or answer.ended:
                return 0
            try:
                token, piece = answer.choose(row)
            except EngineFault as fault:
                self._open.fail(generation, fault)
                told.patience_ns = 0
                return 0
            target_ns = generation.call.token_target_ns if generation.started else 0
            told.patience_ns = min(told.patience_ns, int(_HELD_SHARE * target_ns))
            generation.started = True
            self._open.tell_piece(generation, answer, piece)
            if answer.ended:
                told.over.append((sequence_id, generation))
                told.patience_ns = 0
            return token

    def _ended(self, lane: Lane, ended: Ended) -> None:
        """The scheduler gave a sequence up; under the lock."""
        generation = lane.owners.get(ended.sequence_id)
        lane.end(ended.sequence_id, ended.record)
        if generation is None or generation.closed:
            return
        if ended.reason == Reason.EXPIRED:
            self._open.expire(generation)
            self._open.settle(generation)
        else:
            self._open.fail(generation, lane.refusal_of(ended))


class _Told:
    """What a step says: the answers that are over, and how long the pieces may wait for more."""

    def __init__(self) -> None:
        self.over: list[tuple[int, Generation]] = []
        self.patience_ns = _LONGEST_HELD_NS


class _Share(NamedTuple):
    """A part in a step: prompt tokens read, those before them, sequences that wrote."""

    read: int
    past: int
    wrote: int


class _Account(NamedTuple):
    """When a step was planned, what its run took of time and CPU time, and who is recorded."""

    begun_ns: int
    run_ns: int
    cpu_ns: int
    shares: dict[Generation, _Share]


def _shares(lane: Lane, step: Step) -> dict[Generation, _Share]:
    """What a step does for each generation that is recorded; to be asked before its end."""
    shares: dict[Generation, _Share] = {}
    for part in step.parts:
        owner = lane.owners.get(part.sequence_id)
        if owner is None or owner.trace is None:
            continue
        read, past, wrote = shares.get(owner, _Share(0, part.past, 0))
        if part.past < len(owner.call.prompt) or len(part.tokens) > 1:
            shares[owner] = _Share(read + len(part.tokens), min(past, part.past), wrote)
        else:
            shares[owner] = _Share(read, past, wrote + 1)
    return shares


def _late(generation: Generation, now_ns: int) -> bool:
    due = generation.call.deadline_ns
    return due is not None and due <= now_ns and generation.wanted
