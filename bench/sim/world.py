"""The simulated world around the live scheduler: a virtual clock, workers, messages, faults.

Nothing here decides anything: every choice is `controlplane.policy.scheduler.Scheduler`'s,
which is driven as `controlplane.dispatcher` drives it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from bench.sim.agenda import Agenda
from bench.sim.answers import Answers
from bench.sim.result import Effort, Ending, Endings, SimResult
from bench.sim.second_looks import Kept, SecondLooks
from bench.sim.service import Services, WorkerLoss
from bench.sim.settings import SimSettings, scheduler_of
from bench.sim.tally import Tally
from bench.sim.workers import Job, SimWorker, SimWorkers
from bench.sim.workload import Workload
from controlplane.errors import ControlPlaneError
from controlplane.policy.cascade import first_by_ns
from controlplane.policy.hands import Flight
from controlplane.policy.pool import Pool
from controlplane.policy.profiles import VariantTable
from controlplane.policy.records import Request, Shape
from controlplane.policy.scheduler import Shed
from controlplane.policy.tenancy.tenancy import Tenancy

__all__ = ["SimSettings", "World", "simulate"]

_MODEL = "m"
_REPORT_NS = 250_000_000
_MOST_DISPATCHES = 3


def simulate(
    workload: Workload, table: VariantTable, settings: SimSettings, answers: Answers | None = None
) -> SimResult:
    """Play a workload; the same arguments give the same result.

    With `answers` the items of the workload are answered as was recorded.
    """
    return World(workload, table, settings, answers).run()


class World:
    """One run; see `Agenda` for the order in which things happen."""

    def __init__(
        self,
        workload: Workload,
        table: VariantTable,
        settings: SimSettings,
        answers: Answers | None = None,
    ) -> None:
        self._workload = workload
        if answers is None or workload.item is None:
            # Nobody knows how sure an answer would be, so there are no cascades.
            table = replace(table, evidence={}, cascades=None)
        self._table = table
        self._settings = settings
        self._services = Services(workload, settings.noise)
        self._scheduler = scheduler_of(settings)
        self._second_look = self._scheduler.policy.second_look
        self._scheduler.set_pool(_MODEL, table)
        self._agenda = Agenda()
        self._workers = SimWorkers()
        for index in range(settings.workers):
            self._join(index, 0)
        self._requests: dict[int, Request] = {}
        # Request -> the flight that has it now; only waiting and running requests are here.
        self._flight: dict[int, Flight | None] = {}
        lost = workload.reply_ns
        self._reply_ns: list[int] = [0] * len(workload) if lost is None else lost.tolist()
        self._tally = Tally(workload, table, answers)
        self.looks: SecondLooks | None = None
        if answers is not None and workload.item is not None:
            self.looks = SecondLooks(self._scheduler, answers, workload.item.tolist())
        self._crossed_idle = 0
        self._expired_executed = 0
        self._reported_busy = 0

    def run(self) -> SimResult:
        """Play to the end: until every request has ended and every worker is done."""
        for fault in self._settings.faults.losses:
            self._agenda.at(int(fault.at_s * 1e9), self._losing(fault))
        if len(self._workload):
            self._agenda.at(_REPORT_NS, self._report)
        arrived: list[int] = self._workload.arrived_ns.tolist()
        count, agenda, following, now = len(arrived), self._agenda, 0, 0
        while following < count or self._flight or agenda:
            if following < count and (not agenda or arrived[following] <= agenda.next_ns):
                now = arrived[following]
                self._arrive(following, now)
                self._pump(now)
                following += 1
            elif agenda:
                now = agenda.step()
            else:
                break
            if following == count and not self._flight and not self._busy():
                break
        for request in list(self._flight):
            # Nobody is left to answer it, and the policy does not look at deadlines.
            self._end(request, Ending.LOST, now)
        return self._reduce(now)

    def endings(self) -> Endings:
        """How every request of the workload ended; for looking only, after `run`."""
        return self._tally.endings()

    @property
    def tenancy(self) -> Tenancy | None:
        """What tenants were charged; None without tenants."""
        return self._scheduler.tenancy

    def rungs(self) -> NDArray[np.int8]:
        """On which rung of the ladder each request found the pool; for looking only."""
        return self._tally.rungs

    @property
    def workload(self) -> Workload:
        """What was played."""
        return self._workload

    @property
    def pool(self) -> Pool:
        """The one pool: its ladder, its door, its cohorts' prices."""
        return self._scheduler.pools[_MODEL]

    def violations(self) -> list[str]:
        """Every broken invariant of the scheduler at the end; empty when all adds up."""
        return self._scheduler.violations(self._tally.last_ns)

    # --- requests -------------------------------------------------------------------

    def _arrive(self, number: int, now: int) -> None:
        shape = Shape.of_lengths([int(self._workload.tokens[number])])
        request = Request(
            id=number,
            model=_MODEL,
            klass=self._workload.klass(number),
            shapes={c.tokenizer: shape for c in self._table.candidates},
            payload=None,
            arrived_ns=now,
            deadline_ns=int(self._workload.deadline_ns[number]),
        )
        try:
            request.eligible = self._table.eligible(request.klass, request.shapes)
        except ControlPlaneError:
            self._flight[number] = None
            self._end(number, Ending.REFUSED, now)
            return
        self._flight[number] = None
        admission = self._scheduler.offer(request, now)
        self._tally.rungs[number] = self.pool.ladder.rung
        if not admission.admitted:
            self._end(number, Ending.REFUSED, now)
            return
        self._requests[number] = request
        if self._second_look:
            self._agenda.at(request.deadline_ns, lambda at: self._expire(number, at))

    def _expire(self, number: int, now: int) -> None:
        """The caller hears that its time is up; a run that goes on ends at its worker."""
        if number in self._flight:
            if self._flight[number] is None:
                self._scheduler.withdraw(self._requests[number], now)
            self._end(number, Ending.LATE, now)

    def _end(self, number: int, ending: Ending, now: int) -> None:
        del self._flight[number]
        self._requests.pop(number, None)
        self._tally.end(number, ending, now)

    def _answer(self, request: Request, flight: Flight, now: int) -> None:
        number, looks, worth = request.id, self.looks, flight.candidate.quality
        if self._flight.get(number) is not flight:
            return
        second = looks is not None and number in looks.kept
        if looks is not None and request.cascade is not None:
            if second:
                worth = looks.second(request, flight, now)
            elif (kept := looks.first(request, flight, now)) is not None:
                if not kept.first.reason and self._go_on(looks, request, kept, now):
                    return
                worth = kept.first.right
                shadow = looks.shadow(request, kept, flight, now)
                if shadow is not None:
                    self._requests[shadow.id], self._flight[shadow.id] = shadow, None
                    self._agenda.at(shadow.deadline_ns, partial(self._expire, shadow.id))
        self._give(request, flight.table.numbers[flight.candidate.name], worth, second, now)

    def _give(
        self, request: Request, variant: int, worth: float, escalated: bool, now: int
    ) -> None:
        number = request.id
        if number >= len(self._tally):
            self._end(number, Ending.SHED, now)
            return
        self._tally.answer(number, variant, worth, escalated)
        late = now + self._reply_ns[number] > request.deadline_ns
        self._end(number, Ending.LATE if late else Ending.ON_TIME, now)

    def _go_on(self, looks: SecondLooks, request: Request, kept: Kept, now: int) -> bool:
        """Queue a request again with its first answer kept; False when that is the last."""
        until = kept.first.until_ns
        if until <= now or not self._scheduler.follow(request, kept.first.stage):
            return False
        looks.kept[request.id] = kept
        self._flight[request.id] = None
        give_up = first_by_ns(request) - self._settings.response_ns
        self._agenda.at(
            until, lambda at: self._flight.get(request.id) or self._settle(request.id, at)
        )
        self._agenda.at(give_up, partial(self._settle, request.id))
        return True

    def _settle(self, number: int, now: int) -> bool:
        """Give a first answer that was kept, if it is still wanted."""
        if self.looks is None or number not in self.looks.kept or number not in self._flight:
            return False
        request, first = self._requests[number], self.looks.kept[number].first
        if self._flight[number] is None:
            self._scheduler.withdraw(request, now)
        self._give(request, first.number, first.right, True, now)
        return True

    # --- decisions ------------------------------------------------------------------

    def _pump(self, now: int) -> None:
        scheduler = self._scheduler
        while (step := scheduler.next_step(now)) is not None:
            if isinstance(step, Shed):
                expired = step.request.deadline_ns <= now
                if not self._settle(step.request.id, now):
                    self._end(step.request.id, Ending.LATE if expired else Ending.SHED, now)
            else:
                self._send(step, now)
        wake = scheduler.wake_ns()
        if wake is not None:
            self._agenda.wake(wake, max(wake, now + self._settings.timer_ns), self._pump)

    def _send(self, flight: Flight, now: int) -> None:
        for request in flight.requests:
            request.dispatches += 1
            self._flight[request.id] = flight
        pool = flight.pool
        self._crossed_idle += not flight.direct and pool.idle > 0
        worker = self._workers.of_number[flight.worker]
        self._agenda.at(
            now + self._settings.trip_ns // 2,
            lambda at: self._receive(worker, Job(flight, at), at),
        )

    # --- workers --------------------------------------------------------------------

    def _join(self, index: int, now: int) -> None:
        worker = self._workers.join(index)
        names = frozenset(self._table.numbers)
        self._scheduler.set_worker(worker.number, {_MODEL: names}, now)

    def _receive(self, worker: SimWorker, job: Job, now: int) -> None:
        if worker.alive:
            worker.waiting.append(job)
            if worker.running is None:
                self._start(worker, now)

    def _start(self, worker: SimWorker, now: int) -> None:
        """Start what waits at a worker; items whose time is up are not run."""
        while worker.waiting:
            job = worker.waiting.popleft()
            last = max(request.deadline_ns for request in job.flight.requests)
            if self._second_look and last <= now:
                self._reply(worker, job, now, 0)
                continue
            flight = job.flight
            candidate = flight.candidate
            shapes = [request.shapes[candidate.tokenizer] for request in flight.requests]
            numbers = [request.id for request in flight.requests]
            if self.looks is not None:
                numbers = [self.looks.row(number) for number in numbers]
            taken = self._services.run_ns(candidate, shapes, numbers)
            taken = int(taken * self._settings.faults.slowness(worker.index, now))
            job.full_ns = taken
            self._expired_executed += last <= now
            if self._second_look:
                # When the time of everybody in it is up, a run is terminated.
                taken = min(taken, last - now)
            job.started_ns = now
            worker.running = job
            self._agenda.at(now + taken, partial(self._ran, worker, job))
            return

    def _ran(self, worker: SimWorker, job: Job, now: int) -> None:
        if worker.running is not job:
            return
        worker.running = None
        worker.runs += 1
        worker.busy_ns += now - job.started_ns
        self._reply(worker, job, now, now - job.started_ns)
        self._start(worker, now)

    def _reply(self, worker: SimWorker, job: Job, now: int, run_ns: int) -> None:
        """Send the result; a run that was terminated says how long it lasted, as live ones do."""
        flight = job.flight
        queue_ns = (job.started_ns if run_ns else now) - job.received_ns

        def arrive(at: int) -> None:
            ended = self._scheduler.finished(
                worker.number,
                flight.id,
                at,
                queue_ns=queue_ns,
                run_ns=run_ns,
                whole=run_ns >= job.full_ns,
            )
            self._scheduler.refresh(at)
            if ended is not None and run_ns:
                for request in flight.requests:
                    self._answer(request, flight, at)
            self._pump(at)

        self._agenda.at(now + self._settings.trip_ns // 2, arrive)

    def _busy(self) -> bool:
        return self._scheduler.runs > 0

    # --- faults and reports ---------------------------------------------------------

    def _losing(self, fault: WorkerLoss) -> Callable[[int], object]:
        def lose(now: int) -> None:
            worker = self._workers.lose(fault.worker, now)
            if worker is None:
                return
            self._agenda.at(now + int(fault.detect_s * 1e9), lambda at: self._detected(worker, at))
            if fault.back_s:
                self._agenda.at(int(fault.back_s * 1e9), lambda at: self._rejoin(worker.index, at))

        return lose

    def _rejoin(self, index: int, now: int) -> None:
        self._join(index, now)
        self._pump(now)

    def _detected(self, worker: SimWorker, now: int) -> None:
        """What the lost worker had is queued again while its slack allows."""
        for flight in self._scheduler.remove_worker(worker.number):
            for request in flight.requests:
                if self._flight.get(request.id) is flight:
                    self._again(request, flight, now)
        self._pump(now)

    def _again(self, request: Request, flight: Flight, now: int) -> None:
        self._flight[request.id] = None
        if self._settle(request.id, now):
            return
        if request.deadline_ns <= now:
            self._end(request.id, Ending.LATE, now)
        elif request.dispatches >= _MOST_DISPATCHES or not self._scheduler.requeue(request, flight):
            self._end(request.id, Ending.LOST, now)

    def _report(self, now: int) -> None:
        """Workers report how busy their machines were since the last report."""
        busy = self._workers.worked_ns(now)
        own = (busy - self._reported_busy) / (_REPORT_NS * self._settings.workers)
        self._reported_busy = busy
        percent = 100.0 * min(1.0, own + self._settings.neighbours)
        self._scheduler.host_cpu(percent, now)
        if self._busy() or now < int(self._workload.arrived_ns[-1]):
            self._agenda.at(now + _REPORT_NS, self._report)

    # --- figures --------------------------------------------------------------------

    def _reduce(self, now: int) -> SimResult:
        workers = self._workers.all()
        effort = Effort(
            busy_ns=sum(worker.busy_ns for worker in workers),
            span_ns=now,
            workers=self._settings.workers,
            runs=[worker.runs for worker in workers],
            crossed_idle=self._crossed_idle,
            expired_executed=self._expired_executed,
        )
        warmup_ns = int(self._settings.warmup_s * 1e9)
        return self._tally.result(self._settings.policy, effort, from_ns=warmup_ns)
