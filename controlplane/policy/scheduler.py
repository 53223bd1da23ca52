"""Workers and pools together: who gets what next. Pure: a live server or a simulator drives it.

The shell calls `offer` when a request arrives, `next_step` until it returns None,
`finished` when a run ends, and `next_step` again at `wake_ns`. The rest is membership.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from controlplane.errors import ControlPlaneError
from controlplane.policy.admission import Admission
from controlplane.policy.cascading import FirstAnswer
from controlplane.policy.entries import Settings
from controlplane.policy.hands import Flight, Hands, all_flights, parts_of, sizes_of
from controlplane.policy.host_load import HostLoad
from controlplane.policy.policies import Policy
from controlplane.policy.pool import Pool
from controlplane.policy.profiles import VariantTable, mask_of
from controlplane.policy.records import Decision, Request
from controlplane.policy.selector import Stage
from controlplane.policy.tenancy.tenancy import Tenancy

# Whoever waits for a second run alone comes after all heads.
_NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class Shed:
    """The head of a queue was dropped: it left the queue and must be answered."""

    request: Request
    decision: Decision
    retry_after_ms: int


class Scheduler:
    """Owner of the pools and of what every worker holds. Not thread-safe, never blocks."""

    def __init__(self, policy: Policy, settings: Settings, tenancy: Tenancy | None = None) -> None:
        self.policy = policy
        self.settings = settings
        self.tenancy = tenancy
        self.pools: dict[str, Pool] = {}
        self._hands = Hands(settings.prefetch)
        self._host = HostLoad()
        self._last_flight = 0

    @property
    def queued(self) -> int:
        """Requests queued in all pools."""
        return sum([pool.queued for pool in self.pools.values()])

    @property
    def in_flight(self) -> int:
        """Requests that workers hold, each counted as often as it is held."""
        return self._hands.in_flight

    @property
    def kept(self) -> int:
        """Requests of all pools that have a first answer and wait for a second run."""
        return sum([len(pool.seconds) for pool in self.pools.values()])

    @property
    def runs(self) -> int:
        """Runs that workers hold."""
        return all_flights(self._hands)

    @property
    def trip_ns(self) -> float:
        """Way to a worker and back, work excluded."""
        return self._hands.trip_ns

    @property
    def host_cpu_percent(self) -> float:
        """How busy the workers' whole machines are, smoothed, 0 to 100."""
        return self._host.percent

    def assume_trip(self, trip_ns: float) -> None:
        """Take this for a way there and back until it is measured."""
        self._hands.trip_ns = trip_ns

    def offer(self, request: Request, now_ns: int) -> Admission:
        """Put a request with `eligible` set before its pool's door."""
        hands, pool = self._hands, self.pools[request.model]
        if pool.cascading is not None:
            request.cascade = pool.cascading.cascade_of(pool, request)
        return pool.offer(request, now_ns, self._way_ns(), hands.in_flight, self._host.percent)

    def stirs(self, request: Request) -> bool:
        """Whether an admitted request calls for `next_step`, or can wait for the next event."""
        pool = self.pools[request.model]
        return pool.stirs(request, self._hands.has_open(pool))

    def host_cpu(self, percent: float, now_ns: int) -> None:
        """A worker reports how busy its whole machine is, 0 to 100."""
        self._host.report(percent, now_ns)

    def refresh(self, now_ns: int) -> None:
        """Let the policies prepare for decisions to come; call it often, between decisions."""
        for pool in self.pools.values():
            pool.refresh(now_ns)

    def withdraw(self, request: Request, now_ns: int) -> bool:
        """Take a request out of its queue; False when it is not queued."""
        pool = self.pools.get(request.model)
        return pool is not None and pool.withdraw(request.id, now_ns)

    def requeue(self, request: Request, flight: Flight) -> bool:
        """Queue a request of a failed flight again; False when its queue is full.

        Raises a ControlPlaneError when the pool's present table cannot answer it.
        """
        pool = flight.pool
        if pool.table is not flight.table:
            names = {flight.table.candidates[k].name for k in request.eligible}
            request.eligible = pool.table.kept(request.klass, request.shapes, names)
            request.cascade = None
        return pool.requeue(request)

    def consider(
        self, request: Request, flight: Flight, confidence: float, now_ns: int
    ) -> FirstAnswer:
        """Whether the first answer of a cascade, which a flight of its pool gave, is the last."""
        pool = flight.pool
        assert pool.cascading is not None
        number = flight.decision.variant
        return pool.cascading.consider(pool, request, number, confidence, now_ns, self._way_ns())

    def follow(self, request: Request, stage: Stage) -> bool:
        """Queue a request that has an answer for one of its stage's variants; False when full."""
        pool = self.pools[request.model]
        numbers = tuple(sorted(stage.gains))
        nominal = pool.table.nominal_ns(request, numbers)
        request.eligible, request.stage = numbers, stage
        return pool.seconds.push(request, nominal)

    def next_step(self, now_ns: int) -> Flight | Shed | None:
        """The next thing to do: send a flight, answer a shed request, or nothing now.

        Pools take turns by the deadlines of their heads, those last whose head is of a tenant
        too far ahead.
        """
        waiting = [pool for pool in self.pools.values() if pool.queued or len(pool.seconds)]
        if not waiting:
            return None
        self._hands.wake(now_ns)
        if len(waiting) > 1:
            bound = self._turn_bound(waiting)
            waiting.sort(
                key=lambda pool: (
                    pool.head_time() > bound,
                    pool.head_deadline_ns() or _NEVER,
                    pool.model,
                )
            )
        for pool in waiting:
            if self._hands.wants_work(pool):
                step = self._step(pool, now_ns)
                if step is not None:
                    return step
        return None

    def wake_ns(self) -> int | None:
        """When a busy worker will want what is queued; None when no timer is needed."""
        return self._hands.wake_ns() if self.queued or self.kept else None

    def finished(
        self,
        worker: int,
        flight_id: int,
        now_ns: int,
        *,
        queue_ns: int = 0,
        run_ns: int = 0,
        cpu_ns: int = 0,
        whole: bool = True,
    ) -> Flight | None:
        """A run ended on its worker; None when the worker does not hold it.

        `queue_ns`, `run_ns` and `cpu_ns` are the worker's own times, 0 when nothing ran (a worker
        that does not say what CPU time it took is charged the whole run),
        `whole` is False when the run was cut short.
        """
        slot = self._hands.slot(worker)
        flight = None if slot is None else slot.find(flight_id)
        if slot is None or flight is None:
            return None
        if run_ns:
            self._learn(flight, now_ns, run_ns, whole)
            if flight.direct:
                self._hands.learn_trip(now_ns - flight.sent_ns - queue_ns - run_ns)
        for request in flight.requests:
            if (whole and run_ns) or now_ns >= request.deadline_ns:
                flight.pool.settle(request, on_time=now_ns <= request.deadline_ns)
        self._hands.take_off(slot, flight, now_ns)
        self._settle(flight, cpu_ns or run_ns)
        return flight

    def set_pool(self, model: str, table: VariantTable) -> list[tuple[Request, ControlPlaneError]]:
        """Make a pool, or give it a new table; returns queued requests it cannot answer now.

        After a new table, `set_worker` has to be called for each worker of the pool.
        """
        pool = self.pools.get(model)
        if pool is None:
            policy = self.policy.of_pool()
            pool = self.pools[model] = Pool(model, table, policy, self.settings, self.tenancy)
            self._hands.add_pool(pool)
            return []
        if pool.cascading is not None and table.evidence != pool.table.evidence:
            pool.cascading.drift.renew()
        return pool.retable(table)

    def set_tenancy(self, tenancy: Tenancy | None) -> None:
        """Order what waits for these tenants (None: for nobody); what runs is charged to them."""
        self.tenancy = tenancy
        for pool in self.pools.values():
            pool.set_tenancy(tenancy)
        if tenancy is None:
            for slot in self._hands:
                for flight in slot.flights:
                    flight.charges = ()

    def set_worker(self, number: int, ready: Mapping[str, frozenset[str]], now_ns: int) -> None:
        """Say which variants of which pools a worker can run; a new number is a new worker."""
        pools = ((self.pools[model], names) for model, names in ready.items())
        masks = {pool: mask_of(pool.table, names) for pool, names in pools}
        self._hands.assign(number, masks, now_ns)
        self._find_siblings()

    def trust(self, number: int, trusted: bool, now_ns: int) -> None:
        """A worker that is not trusted keeps what it holds, gets no more and counts for nothing."""
        self._hands.trust(number, trusted, now_ns)

    def last_worker(self, number: int) -> bool:
        """Whether some pool has no other trusted worker than this one."""
        return self._hands.last(number)

    def remove_worker(self, number: int) -> tuple[Flight, ...]:
        """A worker is gone; returns the flights it held, the running one first."""
        flights = self._hands.remove(number)
        for flight in flights:
            self._settle(flight, 0)
        self._find_siblings()
        return flights

    def flights(self, number: int) -> tuple[Flight, ...]:
        """What a worker holds, the running one first."""
        slot = self._hands.slot(number)
        return () if slot is None else tuple(slot.flights)

    def violations(self, now_ns: int) -> list[str]:
        """Every broken invariant, in words; empty when everything adds up."""
        found: list[str] = []
        for pool in self.pools.values():
            found += pool.violations()
            found += self._hands.violations(pool, now_ns)
        if self.tenancy is not None:
            found += self.tenancy.violations(self.queued, self.in_flight)
        return found

    def _step(self, pool: Pool, now_ns: int) -> Flight | Shed | None:
        for slot, taker in self._hands.takers(pool, now_ns):
            choice = pool.take(taker, now_ns, self._way_ns())
            if choice is None:
                continue
            decision = choice.decision
            if choice.candidate is None:
                return Shed(choice.requests[0], decision, _drain_ms(decision.work_ahead_ns))
            self._last_flight += 1
            flight = Flight(
                id=self._last_flight,
                worker=slot.number,
                pool=pool,
                table=pool.table,
                candidate=choice.candidate,
                decision=decision,
                requests=choice.requests,
                approximations=choice.approximations,
                nominal_ns=choice.nominal_ns,
                predicted_ns=int(decision.predicted_ns),
                sigma=pool.foresight.corrections.sigmas[decision.variant],
                sent_ns=now_ns,
                ahead_ns=int(self._hands.trip_ns + taker.start_ns),
                chance=decision.chance,
                rung=int(pool.ladder.rung),
            )
            self._hands.hand_over(slot, flight, now_ns)
            if self.tenancy is not None:
                sizes = sizes_of(flight)
                flight.charges = self.tenancy.charge(flight.requests, sizes, flight.predicted_ns)
            return flight
        return None

    def _settle(self, flight: Flight, measured_ns: int) -> None:
        """Charge what a flight took instead of what it was expected to take."""
        if self.tenancy is not None and flight.charges:
            self.tenancy.settle(flight.charges, measured_ns)

    def _turn_bound(self, waiting: list[Pool]) -> float:
        """The latest time of a head that takes its turn by its deadline."""
        if self.tenancy is None:
            return 0.0
        return min([pool.head_time() for pool in waiting]) + self.tenancy.bound_ns

    def _learn(self, flight: Flight, now_ns: int, run_ns: int, whole: bool) -> None:
        pool, foresight = flight.pool, flight.pool.foresight
        nominal_ns = flight.nominal_ns
        if pool.cohorts is not None:
            parts = parts_of(flight, flight.predicted_ns)
            if whole or run_ns > flight.predicted_ns:
                pool.cohorts.learn(flight.requests, parts, run_ns, now_ns)
            scale = pool.cohorts.repriced(flight.requests, parts, now_ns)
            nominal_ns = int(nominal_ns * scale) or 1
        foresight.completed(flight.candidate, nominal_ns, run_ns, whole=whole)
        foresight.ended(
            flight.candidate,
            promised_ns=max(1, flight.ahead_ns + flight.predicted_ns),
            needed_ns=now_ns - flight.sent_ns,
            slack_ns=flight.requests[0].deadline_ns - flight.sent_ns,
            chance=flight.chance,
            whole=whole,
        )

    def _way_ns(self) -> float:
        """All ways of a request that is answered: to a worker and back, and to its caller."""
        return self._hands.trip_ns + self.settings.response_ns

    def _find_siblings(self) -> None:
        together: dict[Pool, set[Pool]] = {pool: set() for pool in self.pools.values()}
        for slot in self._hands:
            for pool in slot.masks:
                together[pool].update(slot.masks)
        for pool, others in together.items():
            named = sorted(others - {pool}, key=lambda other: other.model)
            pool.siblings = tuple(named)


def _drain_ms(work_ns: float) -> int:
    return max(1, round(work_ns / 1e6))
