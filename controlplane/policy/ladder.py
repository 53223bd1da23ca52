"""The overload ladder: what is given up, in which order, when more comes than can be done.

One for each pool of the encoder lane, one for each model that generates. Pure; times in ns.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import Final

from controlplane.policy.admission import Admission, Load, Refusal, refused_for_load

# A signal must last so long to go a rung up, and all must be gone so long to go one down.
RISE_NS = 25_000_000
FALL_NS = 2_000_000_000
# Whoever is deferred comes again no earlier than the pool could have come down.
_DEFER_MS = FALL_NS // 1_000_000
# Whoever is kept out to protect the admitted may come again as soon as that can have helped.
_PROTECT_MS = 500
# A newcomer counts half after this; and so many that were let in count always.
_HALF_NS = 700_000_000.0
_PRIOR = 20.0
_MEAN_GAIN = 1.0 / 64.0
# The event loop's lag that leaves the admitted too little, as a part of the mean deadline: calls
# wait at the door and for their answer; less than the least is a machine's noise.
_LAG_SHARE = 0.25
_LEAST_LAG_NS = 25_000_000.0
# After a look that was so late the next one is late for what waits before it, and that is known
# before it comes; after one in time it may be a machine that stalled once.
_LATE_NS = 5_000_000.0
# An arena is strained from the first on; at the second its sequences have no room to grow.
_FILLING, _FULL = 0.85, 0.97
# On the highest rung newcomers are let in again below the first strain; whatever the rung, nobody
# is from the second on.
_RELIEVED, _ALARM = 0.6, 1.5


class Rung(IntEnum):
    """How far up one is; each rung also does what those below it do.

    PLAIN: optional work stops. SHORTER: answers of classes that declare it are cut. SMALLER:
    variants are chosen for their price, as always; the rung says that it shows. DEFER: requests
    of deferrable classes are kept out. REFUSE: the door refuses others, too. PROTECT: nobody is
    let in while the control plane lags or the arena is full.
    """

    NORMAL = 0
    PLAIN = 1
    SHORTER = 2
    SMALLER = 3
    DEFER = 4
    REFUSE = 5
    PROTECT = 6


class Trigger:
    """Stable words for the signal that put one on its rung."""

    NONE: Final = ""
    CROWDED: Final = "crowded"
    REFUSING: Final = "refusing"
    STRAINED: Final = "strained"


# From rung to rung: the signal, where it lifts one there and below what it lets go again.
Step = tuple[Rung, str, float, float]
_GENERATION: Final[tuple[Step, ...]] = (
    (Rung.PLAIN, Trigger.CROWDED, 0.2, 0.1),
    (Rung.SHORTER, Trigger.CROWDED, 0.28, 0.15),
    (Rung.SMALLER, Trigger.CROWDED, 0.35, 0.2),
    (Rung.DEFER, Trigger.CROWDED, 0.6, 0.35),
    (Rung.REFUSE, Trigger.REFUSING, 0.05, 0.02),
    (Rung.PROTECT, Trigger.STRAINED, 1.0, _RELIEVED),
)
# A request of the encoder lane has one answer of one size: there is nothing to cut.
_ENCODER: Final[tuple[Step, ...]] = (_GENERATION[0], *_GENERATION[2:])


class Ladder:
    """The rung of one pool or generating model, and the signals that move it.

    `crowding` is the work that waits, over the workers and the mean deadline of newcomers (for
    generations: what a newcomer waits, over its first token's target). Its shell tells it how
    late the control plane's event loop is (`looked`), and sets `arena`, how full the emptiest
    arena is. `changes` counts moves; `stopped` optional work that was not done, `cut` answers
    that were shortened, `kept_out` requests that were deferred, `protected` those refused for the
    admitted's sake.
    """

    __slots__ = (
        "_above_ns", "_below_ns", "_came", "_deadline_ns", "_look_ns", "_overdue_ns", "_protects",
        "_refused", "_seen_ns", "_steps", "arena", "changes", "crowding", "cut", "kept_out",
        "lag_ns", "protected", "rung", "stopped", "trigger",
    )  # fmt: skip

    def __init__(self, *, generates: bool = False) -> None:
        self._steps = _GENERATION if generates else _ENCODER
        self.rung = Rung.NORMAL
        self.trigger = Trigger.NONE
        self.crowding = 0.0
        self.lag_ns = 0.0
        self.arena = 0.0
        self.changes = 0
        self.stopped = 0
        self.cut = 0
        self.kept_out = 0
        self.protected = 0
        self._came = self._refused = 0.0
        self._seen_ns = 0
        self._deadline_ns = 0.0
        # When the shell looks at the loop again (0: it does not), and how overdue that is.
        self._look_ns = 0
        self._overdue_ns = 0
        self._protects = False
        # Since when a signal asks for more, or none asks for as much; -1: not now.
        self._above_ns = self._below_ns = -1

    @property
    def refusing(self) -> float:
        """Share of the newcomers that were refused lately for want of workers, 0 to 1."""
        return self._refused / (self._came + _PRIOR)

    @property
    def strain(self) -> float:
        """How near it is to where the admitted suffer from newcomers; 1 is there."""
        late = self.lag_ns + self._overdue_ns
        lag = late / max(_LEAST_LAG_NS, _LAG_SHARE * self._deadline_ns)
        return max(lag, (self.arena - _FILLING) / (_FULL - _FILLING))

    @property
    def text(self) -> str:
        """Level and trigger for people; empty on level 0."""
        return f"overload level {int(self.rung)}: {self.trigger}" if self.rung else ""

    @property
    def rungs(self) -> tuple[Rung, ...]:
        """The rungs that it has, NORMAL first."""
        return (Rung.NORMAL, *[step[0] for step in self._steps])

    def looked(self, lag_ns: float, next_ns: int) -> None:
        """The event loop is so late, smoothed; it is looked at again at `next_ns`, 0 for never."""
        self.lag_ns = lag_ns
        self._look_ns = next_ns
        self._overdue_ns = 0

    def optional_work_allowed(self) -> bool:
        """Whether work that no answer needs may be done now; counts what may not."""
        if self.rung < Rung.PLAIN:
            return True
        self.stopped += 1
        return False

    def shortened(self, asked: int, most: int) -> int:
        """The longest answer of a class that may be cut to `most` tokens; `asked` 0 is open.

        `most` 0 is never cut.
        """
        if self.rung < Rung.SHORTER or not most or 0 < asked <= most:
            return asked
        self.cut += 1
        return most

    def newcomer(
        self, deferrable: bool, load: Load, slack_ns: int, now_ns: int
    ) -> Admission | None:
        """A request comes that has so long; its refusal when it shall come again later."""
        if slack_ns > 0:
            gain = _MEAN_GAIN if self._deadline_ns else 1.0
            self._deadline_ns += gain * (slack_ns - self._deadline_ns)
        if self._look_ns and self.lag_ns >= _LATE_NS:
            self._overdue_ns = max(0, now_ns - self._look_ns)
        self.observe(load.total_ns, load.workers, now_ns)
        strain = self.strain
        self._protects = strain >= _RELIEVED and (
            self._protects or self.rung >= Rung.PROTECT or strain >= _ALARM
        )
        if self.rung < Rung.DEFER and not self._protects:
            return None
        drain_ms = math.ceil(load.total_ns / max(1, load.workers) / 1e6)
        if self._protects:
            self.protected += 1
            return Admission(False, Refusal.PROTECTING, (), 0.0, max(drain_ms, _PROTECT_MS))
        if not deferrable:
            return None
        self.kept_out += 1
        return Admission(False, Refusal.DEFERRED, (), 0.0, max(drain_ms, _DEFER_MS))

    def answered(self, admission: Admission) -> None:
        """What the door said to the newcomer."""
        self.told(refused_for_load(admission))

    def told(self, refused: bool) -> None:
        """A newcomer was let in, or refused for want of workers."""
        self._came += 1.0
        self._refused += refused

    def observe(self, waiting_ns: float, workers: int, now_ns: int) -> None:
        """Look at the signals; call it often, with the work that waits for so many workers."""
        self._fade(now_ns)
        room = self._deadline_ns * workers
        self.crowding = waiting_ns / room if room else 0.0
        wanted, trigger = self._wanted()
        if wanted > self.rung:
            self._below_ns = -1
            if self._above_ns < 0:
                self._above_ns = now_ns
            if now_ns - self._above_ns >= RISE_NS:
                self._move(self._above(), trigger)
        elif self.rung and self._calm():
            self._above_ns = -1
            if self._below_ns < 0:
                self._below_ns = now_ns
            if now_ns - self._below_ns >= FALL_NS:
                self._move(self._below(), self.trigger)
        else:
            self._above_ns = self._below_ns = -1

    def _signal(self, trigger: str) -> float:
        if trigger == Trigger.CROWDED:
            return self.crowding
        return self.refusing if trigger == Trigger.REFUSING else self.strain

    def _wanted(self) -> tuple[Rung, str]:
        """The highest rung that a signal asks for."""
        for rung, trigger, up, _ in reversed(self._steps):
            if self._signal(trigger) >= up:
                return rung, trigger
        return Rung.NORMAL, Trigger.NONE

    def _calm(self) -> bool:
        """Whether no signal of this rung or a higher one is above where it lets go."""
        return not any(
            rung >= self.rung and self._signal(trigger) >= down
            for rung, trigger, _, down in self._steps
        )

    def _move(self, rung: Rung, trigger: str) -> None:
        self.rung = rung
        self.trigger = trigger if rung else Trigger.NONE
        self.changes += 1
        self._above_ns = self._below_ns = -1

    def _fade(self, now_ns: int) -> None:
        since = now_ns - self._seen_ns
        if since > 0:
            left = math.exp2(-since / _HALF_NS)
            self._came *= left
            self._refused *= left
            self._seen_ns = now_ns

    def _above(self) -> Rung:
        return next(step[0] for step in self._steps if step[0] > self.rung)

    def _below(self) -> Rung:
        lower = [step[0] for step in self._steps if step[0] < self.rung]
        return lower[-1] if lower else Rung.NORMAL
