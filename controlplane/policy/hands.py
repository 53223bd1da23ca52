"""What every worker holds, and which of them would take more. Pure; times in ns."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from controlplane.policy.entries import Taker
from controlplane.policy.ledgers import remaining_ns
from controlplane.policy.margins import USUAL_TRIP_NS
from controlplane.policy.parts import shares
from controlplane.policy.pool import Pool
from controlplane.policy.prefetch import lead_ns, wants_more
from controlplane.policy.profiles import Candidate, VariantTable
from controlplane.policy.records import Decision, Request
from controlplane.policy.tenancy.tenancy import Charge

_TRIP_GAIN = 0.05
_LONGEST_TRIP_NS = 50_000_000

# Outdated wake-ups beyond this many per worker are swept out.
_TOLERATED_WAKES = 4


@dataclass(slots=True, eq=False)
class Flight:
    """A run handed to a worker and not ended. `started_ns` is -1 while it waits there.

    `charges` are what its requests were charged, when there are tenants; `rung` is that of the
    pool's overload ladder when it was sent.
    `ahead_ns` is the way there and back and the wait at the worker, as expected when it
    was sent; `chance` is what its head was given to be on time, `direct` says that the
    worker was idle then.
    """

    id: int
    worker: int
    pool: Pool
    table: VariantTable
    candidate: Candidate
    decision: Decision
    requests: tuple[Request, ...]
    approximations: tuple[bool, ...]
    nominal_ns: int
    predicted_ns: int
    sigma: float
    sent_ns: int
    ahead_ns: int
    chance: float
    started_ns: int = -1
    direct: bool = False
    charges: tuple[Charge, ...] = ()
    rung: int = 0


@dataclass(slots=True, eq=False)
class Slot:
    """One worker: the pools it serves, with its ready variants as bit masks, and its flights.

    The first flight runs, the others wait at the worker; `waiting_ns` is what they take.
    `free_ns` is when all should be done, as its pools have been told, -1 for nothing.
    """

    number: int
    masks: dict[Pool, int] = field(default_factory=dict)
    flights: deque[Flight] = field(default_factory=deque)
    waiting_ns: int = 0
    free_ns: int = -1
    trusted: bool = True
    version: int = 0

    def in_hand_ns(self, now_ns: int) -> int:
        """Residual of everything the worker holds."""
        if not self.flights:
            return 0
        first = self.flights[0]
        return self.waiting_ns + remaining_ns(first.predicted_ns, first.started_ns, now_ns)

    def spread_ns(self) -> float:
        """Standard deviation of `in_hand_ns`."""
        return math.sqrt(sum((f.sigma * f.predicted_ns) ** 2 for f in self.flights))

    def find(self, flight_id: int) -> Flight | None:
        """The flight with this id, if the worker holds it."""
        for flight in self.flights:
            if flight.id == flight_id:
                return flight
        return None


class Hands:
    """Keeps each pool's `live`, `idle` and `busy` true to what its workers hold."""

    def __init__(self, prefetch: int) -> None:
        self.trip_ns = USUAL_TRIP_NS
        self.in_flight = 0
        self._prefetch = prefetch
        self._slots: dict[int, Slot] = {}
        # Per pool: workers with nothing to do, and busy ones that would take more.
        self._idle: dict[Pool, dict[int, Slot]] = {}
        self._open: dict[Pool, dict[int, Slot]] = {}
        self._wakes: list[tuple[int, int, int]] = []

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._slots.values())

    def slot(self, number: int) -> Slot | None:
        """The worker with this number, if it is a member."""
        return self._slots.get(number)

    def add_pool(self, pool: Pool) -> None:
        """A pool that workers may serve."""
        self._idle[pool] = {}
        self._open[pool] = {}

    def assign(self, number: int, masks: Mapping[Pool, int], now_ns: int) -> None:
        """Say what a worker can run; a new number is a new worker."""
        slot = self._slots.get(number)
        if slot is None:
            slot = self._slots[number] = Slot(number)
        self._exit(slot)
        slot.masks = {pool: mask for pool, mask in masks.items() if mask}
        self._enter(slot, now_ns)

    def trust(self, number: int, trusted: bool, now_ns: int) -> None:
        """A worker that is not trusted keeps what it holds, gets no more and counts for nothing."""
        slot = self._slots.get(number)
        if slot is not None and slot.trusted != trusted:
            self._exit(slot)
            slot.trusted = trusted
            self._enter(slot, now_ns)

    def last(self, number: int) -> bool:
        """Whether some pool has no other trusted worker than this one."""
        slot = self._slots.get(number)
        return slot is not None and any(pool.live == int(slot.trusted) for pool in slot.masks)

    def remove(self, number: int) -> tuple[Flight, ...]:
        """A worker is gone; returns the flights it held, the running one first."""
        slot = self._slots.pop(number, None)
        if slot is None:
            return ()
        self._exit(slot)
        self.in_flight -= sum(len(flight.requests) for flight in slot.flights)
        return tuple(slot.flights)

    def wants_work(self, pool: Pool) -> bool:
        """Whether any worker of the pool would take work now."""
        return bool(self._idle[pool] or self._open[pool])

    def has_open(self, pool: Pool) -> bool:
        """Whether a busy worker of the pool would take more."""
        return bool(self._open[pool])

    def takers(self, pool: Pool, now_ns: int) -> Iterator[tuple[Slot, Taker]]:
        """Workers that would take work, idle ones first. Stop iterating after a `hand_over`."""
        idle, opened = self._idle[pool], self._open[pool]
        count = len(idle) or len(opened)
        for slot in idle.values():
            yield slot, Taker(slot.masks[pool], 0.0, 0.0, count)
        for slot in opened.values():
            start, spread = slot.in_hand_ns(now_ns), slot.spread_ns()
            yield slot, Taker(slot.masks[pool], start, spread, count)

    def hand_over(self, slot: Slot, flight: Flight, now_ns: int) -> None:
        """Give a worker a flight: it starts at once on an idle worker, else waits there."""
        flight.direct = not slot.flights
        slot.flights.append(flight)
        self.in_flight += len(flight.requests)
        if flight.direct:
            flight.started_ns = now_ns
            for pool in slot.masks:
                pool.busy.start(flight.id, flight.predicted_ns, now_ns)
        else:
            slot.waiting_ns += flight.predicted_ns
            for pool in slot.masks:
                pool.busy.wait(flight.predicted_ns)
        self._place(slot, now_ns)

    def take_off(self, slot: Slot, flight: Flight, now_ns: int) -> None:
        """A flight ended; the one behind it starts."""
        running = flight is slot.flights[0]
        counts = slot.trusted
        slot.flights.remove(flight)
        self.in_flight -= len(flight.requests)
        if not running:
            slot.waiting_ns -= flight.predicted_ns
        if counts:
            _uncount(slot, flight)
        if running and slot.flights:
            behind = slot.flights[0]
            if counts:
                _uncount(slot, behind)
            slot.waiting_ns -= behind.predicted_ns
            behind.started_ns = max(0, now_ns - int(self.trip_ns / 2))
            if counts:
                _count(slot, behind)
        self._place(slot, now_ns)

    def learn_trip(self, measured_ns: int) -> None:
        """Take one measured way there and back, work excluded."""
        bounded = min(max(measured_ns, 0), _LONGEST_TRIP_NS)
        self.trip_ns += _TRIP_GAIN * (bounded - self.trip_ns)

    def wake(self, now_ns: int) -> None:
        """Let workers whose time has come take more."""
        wakes = self._wakes
        while wakes and wakes[0][0] <= now_ns:
            _, number, version = heapq.heappop(wakes)
            slot = self._slots.get(number)
            if slot is not None and slot.version == version:
                for pool in slot.masks:
                    self._open[pool][number] = slot

    def wake_ns(self) -> int | None:
        """When the next worker will want more; None when none of the busy ones will."""
        wakes = self._wakes
        while wakes:
            at, number, version = wakes[0]
            slot = self._slots.get(number)
            if slot is not None and slot.version == version:
                return at
            heapq.heappop(wakes)
        return None

    def violations(self, pool: Pool, now_ns: int) -> list[str]:
        """Every way in which a pool's counts disagree with what its workers hold."""
        members = [s for s in self._slots.values() if s.trusted and pool in s.masks]
        busy = [slot for slot in members if slot.flights]
        residual = sum(slot.in_hand_ns(now_ns) for slot in busy)
        listed = len(self._idle[pool]) + len(self._open[pool])
        pairs = {
            "live workers": (pool.live, len(members)),
            "idle workers": (pool.idle, len(members) - len(busy)),
            "started runs": (len(pool.busy), len(busy)),
            "residual work": (pool.busy.residual_ns(now_ns), residual),
            "busy workers": (len(pool.free_times), len(busy)),
        }
        found = [
            f"{pool.model}: counts {kept} {what}, there are {real}"
            for what, (kept, real) in pairs.items()
            if kept != real
        ]
        if listed > len(members):
            found.append(f"{pool.model}: lists {listed} takers of {len(members)} workers")
        held = sum(len(f.requests) for slot in self._slots.values() for f in slot.flights)
        if self.in_flight != held:
            found.append(f"counts {self.in_flight} requests in flight, workers hold {held}")
        return found

    def _enter(self, slot: Slot, now_ns: int) -> None:
        if slot.trusted:
            for pool in slot.masks:
                pool.live += 1
            for flight in slot.flights:
                _count(slot, flight)
        self._place(slot, now_ns)

    def _exit(self, slot: Slot) -> None:
        slot.version += 1
        self._unlist(slot)
        if slot.trusted:
            for pool in slot.masks:
                pool.live -= 1
            for flight in slot.flights:
                _uncount(slot, flight)

    def _place(self, slot: Slot, now_ns: int) -> None:
        """List the worker under what it is now: idle, open, to be woken, or full."""
        slot.version += 1
        self._unlist(slot)
        if not slot.trusted:
            return
        if slot.flights:
            first = slot.flights[0]
            slot.free_ns = first.started_ns + first.predicted_ns + slot.waiting_ns
            for pool in slot.masks:
                pool.free_times.add(slot.free_ns)
        else:
            for pool in slot.masks:
                self._idle[pool][slot.number] = slot
                pool.idle = len(self._idle[pool])
            return
        held = len(slot.flights)
        if held > self._prefetch:
            return
        last = slot.flights[-1]
        lead = lead_ns(self.trip_ns, last.predicted_ns, last.sigma)
        in_hand = slot.in_hand_ns(now_ns)
        if wants_more(held=held, prefetch=self._prefetch, in_hand_ns=in_hand, lead=lead):
            for pool in slot.masks:
                self._open[pool][slot.number] = slot
        else:
            wake = (now_ns + int(in_hand - lead), slot.number, slot.version)
            heapq.heappush(self._wakes, wake)
            if len(self._wakes) > _TOLERATED_WAKES * (len(self._slots) + 16):
                self._sweep()

    def _unlist(self, slot: Slot) -> None:
        for pool in slot.masks:
            self._open[pool].pop(slot.number, None)
            if self._idle[pool].pop(slot.number, None) is not None:
                pool.idle = len(self._idle[pool])
            if slot.free_ns >= 0:
                pool.free_times.remove(slot.free_ns)
        slot.free_ns = -1

    def _sweep(self) -> None:
        slots = self._slots
        self._wakes = [
            wake for wake in self._wakes if (s := slots.get(wake[1])) and s.version == wake[2]
        ]
        heapq.heapify(self._wakes)


def _count(slot: Slot, flight: Flight) -> None:
    for pool in slot.masks:
        if flight.started_ns >= 0:
            pool.busy.start(flight.id, flight.predicted_ns, flight.started_ns)
        else:
            pool.busy.wait(flight.predicted_ns)


def _uncount(slot: Slot, flight: Flight) -> None:
    for pool in slot.masks:
        if flight.started_ns >= 0:
            pool.busy.stop(flight.id)
        else:
            pool.busy.unwait(flight.predicted_ns)


def sizes_of(flight: Flight) -> list[int]:
    """What the requests of a run count for in it: their tokens, at their cohorts' prices."""
    tokenizer = flight.candidate.tokenizer
    return [int(each.shapes[tokenizer].tokens * each.price) for each in flight.requests]


def parts_of(flight: Flight, total_ns: int) -> list[int]:
    """A time of a run divided among its requests."""
    return [total_ns] if len(flight.requests) == 1 else shares(total_ns, sizes_of(flight))


def all_flights(slots: Iterable[Slot]) -> int:
    """How many runs the workers hold."""
    return sum(len(slot.flights) for slot in slots)
