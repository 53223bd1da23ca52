"""One model's queue with everything a decision about it needs; pure, time is passed in."""

from __future__ import annotations

from controlplane.errors import ControlPlaneError
from controlplane.policy.admission import Admission, Load, refused_for_load
from controlplane.policy.arrival import Arrival
from controlplane.policy.cascading import cascading_of, deployed_anew, second_run
from controlplane.policy.cohorts import Cohorts
from controlplane.policy.company import held_back, with_followers
from controlplane.policy.door import DoorMargin
from controlplane.policy.entries import Choice, Entry, Settings, Taker
from controlplane.policy.foresight import Foresight
from controlplane.policy.ladder import Ladder
from controlplane.policy.ledgers import BusyWork, FreeTimes
from controlplane.policy.line import Line
from controlplane.policy.policies import Policy
from controlplane.policy.pressure import Demand
from controlplane.policy.profiles import VariantTable
from controlplane.policy.records import DecisionKind, Request
from controlplane.policy.second_line import SecondLine
from controlplane.policy.selector import Reason, Situation
from controlplane.policy.tenancy.accounts import Account
from controlplane.policy.tenancy.line import FairLine
from controlplane.policy.tenancy.tenancy import Tenancy


class Pool:
    """Queue, corrections and load of one model.

    `cohorts` are the prices of its cohorts, None under a policy that is not to know of them.
    `line` holds the waiting requests; `held` says that the head, when a busy worker would
    have taken it, was left to wait for company. `hands.Hands` keeps `live`, `idle`, `busy`
    and `free_times`. `cascading` is None under policies without cascades.
    """

    def __init__(
        self,
        model: str,
        table: VariantTable,
        policy: Policy,
        settings: Settings,
        tenancy: Tenancy | None = None,
    ) -> None:
        self.model = model
        self.table = table
        self.policy = policy
        self.cascading = cascading_of(policy)
        self.foresight = Foresight(table)
        self.live = 0
        self.idle = 0
        self.busy = BusyWork()
        self.free_times = FreeTimes()
        self.demand = Demand()
        self.door = DoorMargin()
        # Policies that are compared with are kept as they were published.
        self.cohorts = Cohorts() if policy.second_look and settings.cohort_prices else None
        self.ladder = Ladder()
        # Pools that share a worker with this one: their queues stand before it too.
        self.siblings: tuple[Pool, ...] = ()
        self.settings = settings
        self.tenancy = tenancy
        self.line = self._new_line()
        self.seconds = SecondLine(settings.bounds.max_items)
        self.held = False

    @property
    def queued(self) -> int:
        """Waiting requests."""
        return self.line.count

    def head_deadline_ns(self) -> int | None:
        """Deadline of the head; None when nothing is queued."""
        head = self.line.head()
        return None if head is None else head.request.deadline_ns

    def head_time(self) -> float:
        """Virtual time of the tenant whose turn it is; 0 without tenants."""
        return self.line.head_time() if isinstance(self.line, FairLine) and self.queued else 0.0

    def own_work_ns(self) -> float:
        """Corrected work queued here, each request on its fastest eligible variant."""
        return self.line.work.corrected(self.foresight.corrections.factors)

    def queued_work_ns(self) -> float:
        """Corrected work queued here and in the pools that share workers."""
        total = self.own_work_ns()
        for sibling in self.siblings:
            total += sibling.own_work_ns()
        return total

    def offer(
        self,
        request: Request,
        now_ns: int,
        trip_ns: float,
        in_flight: int = 0,
        cpu_percent: float = 0.0,
    ) -> Admission:
        """Admit a request with `eligible` set, or refuse it; `trip_ns` is the way there and back.

        `in_flight` and `cpu_percent` are as in `Arrival`. An admission may narrow
        `request.eligible`.
        """
        cohorts = self.cohorts
        if cohorts is not None and cohorts.raised:
            request.price = cohorts.price(request, now_ns)
        nominal = self.line.nominal(request)
        estimates = self.foresight.estimates(request.eligible, nominal)
        slack_ns = request.deadline_ns - now_ns
        service_ns = min([estimate.predicted_ns for estimate in estimates])
        request.foretold_ns = int(service_ns)
        tenancy = self.tenancy
        if tenancy is not None:
            refused = tenancy.refusal(tenancy.section(request.klass), service_ns, now_ns)
            if refused is not None:
                return refused
        self.demand.arrive(service_ns, now_ns)
        load, margin = self._before(request, service_ns, now_ns)
        kept_out = self.ladder.newcomer(request.klass.deferrable, load, slack_ns, now_ns)
        if kept_out is not None:
            return kept_out
        admission = self.policy.admit(
            Arrival(
                now_ns=now_ns,
                slack_ns=slack_ns,
                trip_ns=trip_ns,
                eligible=request.eligible,
                estimates=estimates,
                nominal_ns=nominal,
                load=load,
                bounds=self.settings.bounds,
                table=self.table,
                margin=margin,
                in_flight=in_flight,
                cpu_percent=cpu_percent,
                cascade=request.cascade,
            )
        )
        self.ladder.answered(admission)
        if cohorts is not None and cohorts.raised:
            self._door(request).told(request.price, refused_for_load(admission))
        if admission.admitted:
            request.tightness = admission.completion_ns / slack_ns
            best = request.eligible[0]
            if admission.variants != request.eligible:
                request.eligible = admission.variants
                nominal = self.line.nominal(request)
            if self.line.push(request, nominal, best) and tenancy is not None:
                tenancy.account(request.klass.tenant).admitted += 1
        return admission

    def requeue(self, request: Request) -> bool:
        """Queue an admitted request again, in its old place; False when the queue is full."""
        best = self.table.eligible(request.klass, request.shapes)[0]
        return self.line.push(request, self.line.nominal(request), best)

    def stirs(self, request: Request, opened: bool) -> bool:
        """Whether a request that was queued just now can change what its pool does next.

        `opened` says that busy workers would take more. When it is neither the head nor
        fills a run that is being held back, what held before it came still holds.
        """
        head = self.line.head()
        if self.idle or head is None or head.request is request:
            return True
        return opened and not (self.held and self.queued < self.settings.max_batch)

    def withdraw(self, request_id: int, now_ns: int) -> bool:
        """Take a request out of the queue; False when it is not there."""
        self.held = False
        entry = self.line.remove(request_id)
        if entry is None:
            return self.seconds.remove(request_id)
        if entry.request.deadline_ns <= now_ns:
            self.settle(entry.request, on_time=False)
        return True

    def refresh(self, now_ns: int) -> None:
        """Prepare for decisions to come, between decisions."""
        self.policy.refresh(now_ns)
        self.ladder.observe(self.queued_work_ns(), self.live, now_ns)

    def settle(self, request: Request, on_time: bool) -> None:
        """An admitted request has ended: the door learns from it, once."""
        if request.stage is None:
            self._door(request).settle(request.tightness, on_time)

    def take(self, taker: Taker, now_ns: int, trip_ns: float) -> Choice | None:
        """The next decision for a worker; None when it can answer nothing that is queued."""
        self.held = bool(taker.start_ns) and held_back(self, trip_ns)
        if self.held:
            return None
        for entry in self.line.runnable(taker.mask):
            situation = self._situation(entry, taker, now_ns, trip_ns)
            estimates = self.foresight.estimates(
                entry.request.eligible, entry.nominal_ns, taker.mask
            )
            decision = self.policy.decide(estimates, situation)
            poor = decision.kind is DecisionKind.DROP or decision.reason == Reason.LAST_CHANCE
            if poor and entry.mask & ~taker.mask and situation.slack_ns > 0:
                # Another worker has variants that this one lacks; the request is theirs.
                continue
            self.line.remove(entry.request.id)
            if decision.kind is DecisionKind.RUN:
                return with_followers(self, entry, decision, situation, taker, now_ns, trip_ns)
            self.settle(entry.request, on_time=False)
            return Choice(decision, None, (entry.request,), 0, (False,))
        return second_run(self, taker, now_ns, trip_ns) if len(self.seconds) else None

    def set_tenancy(self, tenancy: Tenancy | None) -> None:
        """Queue everybody who waits again, in the order of these tenants (None: of no tenants)."""
        old = self.line
        old.close()
        self.tenancy = tenancy
        self.line = self._new_line()
        for entry in sorted(old.entries(), key=lambda entry: entry.request.id):
            self.line.adopt(entry)

    def retable(self, table: VariantTable) -> list[tuple[Request, ControlPlaneError]]:
        """Take a new variant table; returns the queued requests that it cannot answer."""
        self.foresight = self.foresight.carried(table)
        queued = sorted((entry.request for entry in self.line.entries()), key=lambda r: r.id)
        names = [c.name for c in self.table.candidates]
        self.table = table
        self.line.close()
        self.line = self._new_line()
        orphans = deployed_anew(self.seconds)
        for request in queued:
            before = {names[k] for k in request.eligible}
            try:
                request.eligible = table.kept(request.klass, request.shapes, before)
                request.cascade = None
            except ControlPlaneError as error:
                orphans.append((request, error))
            else:
                self.requeue(request)
        return orphans

    def violations(self) -> list[str]:
        """Every way in which the counts disagree with what is queued; empty when sound."""
        return [f"{self.model}: {found}" for found in self.line.violations()]

    def _new_line(self) -> Line:
        capacity, by_deadline = self.settings.bounds.max_items, self.policy.by_deadline
        if self.tenancy is None:
            return Line(self.table, capacity, by_deadline)
        return FairLine(self.table, capacity, by_deadline, self.tenancy)

    def _situation(self, entry: Entry, taker: Taker, now_ns: int, trip_ns: float) -> Situation:
        request = entry.request
        factors = self.foresight.corrections.factors
        fastest_ns = entry.fastest_ns * factors[entry.fastest]
        hopeful_ns = min(fastest_ns, entry.fastest_ns)
        if entry.mask & ~taker.mask:
            here = self.foresight.estimates(request.eligible, entry.nominal_ns, taker.mask)
            hopeful_ns = min(e.predicted_ns / max(1.0, factors[e.variant]) for e in here)
        return Situation(
            slack_ns=request.deadline_ns - now_ns,
            deadline_ns=request.budget_ns,
            busy_ns=self.busy.residual_ns(now_ns),
            queued_ns=max(0.0, self.queued_work_ns() - fastest_ns),
            waiting=self.queued - 1,
            workers=self.live,
            hopeful_ns=hopeful_ns,
            start_ns=taker.start_ns,
            start_spread_ns=taker.start_spread_ns,
            trip_ns=trip_ns,
            utilisation=self.demand.workers(now_ns) / max(1, self.live),
            cascade=request.cascade,
        )

    def _before(self, request: Request, service_ns: float, now_ns: int) -> tuple[Load, float]:
        """What stands before a newcomer, and what its door multiplies the wait for that by."""
        queued = self.queued_work_ns()
        ahead, own, count = queued, self.own_work_ns(), self.queued
        if self.policy.by_deadline and self.line.work.total:
            due = self.line.work.due_by(request.deadline_ns, now_ns)
            ahead -= own * (1.0 - due / self.line.work.total)
        if self.tenancy is not None:
            account = self.tenancy.account(request.klass.tenant)
            waiting: dict[Account, tuple[float, int]] = {}
            for pool in (self, *self.siblings):
                if isinstance(pool.line, FairLine):
                    pool.line.add_waiting(waiting, pool.foresight.corrections.factors)
            fair, near = self.tenancy.ahead_ns(account, service_ns, waiting)
            ahead = min(ahead, fair) if near else fair
            own, count = waiting.get(account, (0.0, 0))
        load = Load(
            wait_ns=self.free_times.wait_ns(ahead, self.live, now_ns),
            total_ns=queued,
            queued=self.queued,
            workers=self.live,
            idle=self.idle,
        )
        slack_ns = request.deadline_ns - now_ns
        return load, self._door(request).stretch(slack_ns, own, count, request.price)

    def _door(self, request: Request) -> DoorMargin:
        """The margin of the pool's door, or of its tenant's."""
        if self.tenancy is None:
            return self.door
        return self.tenancy.account(request.klass.tenant).door
