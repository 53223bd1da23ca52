"""The overload ladder on the virtual clock: bursts of a batch class, and a busy control plane."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from bench.sim.arrivals import MarkovModulated, Poisson
from bench.sim.model import two_variants
from bench.sim.result import Ending
from bench.sim.settings import SimSettings
from bench.sim.workload import REVIEW_LENGTHS, Deadlines, Workload, draw_workload, together
from bench.sim.world import World
from controlplane.lag import EVERY_NS, smoothed
from controlplane.policy.admission import Admission, Load
from controlplane.policy.ladder import FALL_NS, Ladder, Rung
from controlplane.policy.records import RequestClass

_MS = 1_000_000
_DEADLINE_MS = 100.0
# What the event loop takes for a call at the door and for an answer, and how long workers take.
_DOOR_NS, _ANSWER_NS, _WORK_NS = _MS // 5, _MS // 2, 10 * _MS
# Calls a second that it can read and answer.
LOOP_PER_S = 1e9 / (_DOOR_NS + _ANSWER_NS)
_NOTHING_WAITS = Load(0.0, 0.0, 0, 2, 2)
_LET_IN = Admission(True, "", (0,), 0.0, 0)
# Fewer requests on a level say nothing of it.
_FEWEST = 30


def most_moves(seconds: float, rungs: int) -> int:
    """Moves that a ladder of so many rungs makes at most: it goes down one only every 2 s."""
    return int(2 * (seconds * 1e9 // FALL_NS)) + rungs - 1


def bursts(*, deferrable: bool, seconds: float, seed: int = 3) -> Workload:
    """Interactive requests that two workers can answer, and bursts of a batch class too many."""
    generator = np.random.default_rng(seed)
    deadlines = Deadlines(_DEADLINE_MS)
    interactive = draw_workload(generator, Poisson(120.0), REVIEW_LENGTHS, deadlines, seconds)
    batch = draw_workload(generator, MarkovModulated(500.0), REVIEW_LENGTHS, deadlines, seconds)
    classes = [RequestClass(name="interactive"), RequestClass(name="batch", deferrable=deferrable)]
    return together([interactive, batch], classes)


@dataclass(frozen=True, slots=True)
class Bursts:
    """What became of interactive requests beside bursts; shares are 0 to 1.

    `on_time` is of all of them, `by_rung` of those that were let in, by the level they came at.
    """

    world: World
    on_time: float
    by_rung: dict[Rung, float]
    changes_per_min: float


def play_bursts(*, deferrable: bool, seconds: float = 8.0, seed: int = 3) -> Bursts:
    """Plays them with the live scheduler; AssertionError when its books are wrong."""
    workload = bursts(deferrable=deferrable, seconds=seconds, seed=seed)
    assert workload.who is not None
    world = World(workload, two_variants().table(), SimSettings(policy="price"))
    world.run()
    faults = world.violations()
    if faults:
        raise AssertionError("; ".join(faults))
    ending, mine = world.endings().ending, workload.who == 0
    by_rung = {}
    for rung in world.pool.ladder.rungs:
        there = (world.rungs() == rung) & mine & (ending != Ending.REFUSED)
        if there.sum() >= _FEWEST:
            by_rung[rung] = float((ending[there] == Ending.ON_TIME).mean())
    return Bursts(
        world=world,
        on_time=float((ending[mine] == Ending.ON_TIME).mean()),
        by_rung=by_rung,
        changes_per_min=world.pool.ladder.changes * 60.0 / seconds,
    )


@dataclass(slots=True)
class Protected:
    """What became of calls at a control plane that had more to do than it can."""

    ladder: Ladder
    on_time: int = 0
    admitted: int = 0
    refused: int = 0


def play_protected(
    per_s: float, *, protects: bool, seconds: float = 10.0, seed: int = 1
) -> Protected:
    """Poisson calls at so many a second, with or without the ladder at the door.

    The event loop is one server: it reads every call, and writes an answer for each that was let
    in once its worker is done. Both wait for whatever is before them.
    """
    played = Protected(Ladder())
    generator = np.random.default_rng(seed)
    deadline_ns = int(_DEADLINE_MS * _MS)
    arrivals = np.cumsum(generator.exponential(1e9 / per_s, int(per_s * seconds))).astype(int)
    # (when it is ready, order, kind, when the call arrived): jobs in the order they became ready.
    waiting = [(int(at), number, "door", int(at)) for number, at in enumerate(arrivals)]
    waiting.append((EVERY_NS, -1, "look", EVERY_NS))
    heapq.heapify(waiting)
    order, now, looked, lag = len(waiting), 0, 0, 0.0
    while waiting:
        ready, _, kind, arrived = heapq.heappop(waiting)
        now = max(now, ready)
        order += 1
        if kind == "look":
            lag = smoothed(lag, now - ready, now - looked)
            looked = now
            if protects:
                played.ladder.looked(lag, now + EVERY_NS)
            if len(waiting) > 1:
                heapq.heappush(waiting, (now + EVERY_NS, order, "look", 0))
        elif kind == "door":
            now += _DOOR_NS
            refused = played.ladder.newcomer(False, _NOTHING_WAITS, deadline_ns, now)
            played.ladder.answered(_LET_IN)
            if refused is not None:
                played.refused += 1
                continue
            played.admitted += 1
            heapq.heappush(waiting, (now + _WORK_NS, order, "answer", arrived))
        else:
            now += _ANSWER_NS
            played.on_time += now - arrived <= deadline_ns
    return played
