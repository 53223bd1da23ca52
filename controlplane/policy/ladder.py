"""The overload ladder: what a pool stops doing, in which order, when more comes than it can do.

Pure; times in ns. Rungs 1, 2 and 6 of the ladder are not here: there is nothing yet that could be
stopped or cut, and what was tried to protect the admitted did not (docs/overload.md).
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import Final

from controlplane.policy.admission import Admission, Load, Refusal

# A signal must last so long to go a rung up, and all must be gone so long to go one down.
RISE_NS = 50_000_000
FALL_NS = 2_000_000_000
# Whoever is deferred comes again no earlier than the pool could have come down.
_DEFER_MS = FALL_NS // 1_000_000
# A newcomer counts half after this; and so many that were let in count always.
_HALF_NS = 700_000_000.0
_PRIOR = 20.0
_MEAN_GAIN = 1.0 / 64.0

# Refusals that more workers would have spared.
_FOR_LOAD = frozenset((Refusal.QUEUE_FULL, Refusal.WORK_BOUND, Refusal.BEHIND_WORK))


class Rung(IntEnum):
    """How far up a pool is; each rung also does what those below it do.

    SMALLER: variants are chosen for their price, as always; the rung says that it shows.
    DEFER: requests of deferrable classes are kept out. REFUSE: the door refuses others, too.
    """

    NORMAL = 0
    SMALLER = 3
    DEFER = 4
    REFUSE = 5


class Trigger:
    """Stable words for the signal that put a pool on its rung."""

    NONE: Final = ""
    CROWDED: Final = "crowded"
    REFUSING: Final = "refusing"


# From rung to rung: the signal, where it lifts a pool there and below what it lets go again.
_STEPS: Final = (
    (Rung.SMALLER, Trigger.CROWDED, 0.35, 0.2),
    (Rung.DEFER, Trigger.CROWDED, 0.6, 0.35),
    (Rung.REFUSE, Trigger.REFUSING, 0.05, 0.02),
)


class Ladder:
    """One pool's rung, and the two signals that move it.

    `crowding` is the work that waits, over the workers and the mean deadline of newcomers.
    `changes` counts moves, `kept_out` the requests that were deferred.
    """

    __slots__ = (
        "_above_ns", "_below_ns", "_came", "_deadline_ns", "_refused", "_seen_ns", "changes",
        "crowding", "kept_out", "rung", "trigger",
    )  # fmt: skip

    def __init__(self) -> None:
        self.rung = Rung.NORMAL
        self.trigger = Trigger.NONE
        self.crowding = 0.0
        self.changes = 0
        self.kept_out = 0
        self._came = self._refused = 0.0
        self._seen_ns = 0
        self._deadline_ns = 0.0
        # Since when a signal asks for more, or none asks for as much; -1: not now.
        self._above_ns = self._below_ns = -1

    @property
    def refusing(self) -> float:
        """Share of the newcomers that the door refused lately for want of workers, 0 to 1."""
        return self._refused / (self._came + _PRIOR)

    def newcomer(
        self, deferrable: bool, load: Load, slack_ns: int, now_ns: int
    ) -> Admission | None:
        """A request comes that has so long; its refusal when it shall come again later."""
        if slack_ns > 0:
            gain = _MEAN_GAIN if self._deadline_ns else 1.0
            self._deadline_ns += gain * (slack_ns - self._deadline_ns)
        self.observe(load.total_ns, load.workers, now_ns)
        if not deferrable or self.rung < Rung.DEFER:
            return None
        self.kept_out += 1
        drain_ms = math.ceil(load.total_ns / max(1, load.workers) / 1e6)
        return Admission(False, Refusal.DEFERRED, (), 0.0, max(drain_ms, _DEFER_MS))

    def answered(self, admission: Admission) -> None:
        """What the door said to the newcomer."""
        self._came += 1.0
        self._refused += admission.reason in _FOR_LOAD

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
                self._move(_above(self.rung), trigger)
        elif self.rung and self._calm():
            self._above_ns = -1
            if self._below_ns < 0:
                self._below_ns = now_ns
            if now_ns - self._below_ns >= FALL_NS:
                self._move(_below(self.rung), self.trigger)
        else:
            self._above_ns = self._below_ns = -1

    def _signal(self, trigger: str) -> float:
        return self.crowding if trigger == Trigger.CROWDED else self.refusing

    def _wanted(self) -> tuple[Rung, str]:
        """The highest rung that a signal asks for."""
        for rung, trigger, up, _ in reversed(_STEPS):
            if self._signal(trigger) >= up:
                return rung, trigger
        return Rung.NORMAL, Trigger.NONE

    def _calm(self) -> bool:
        """Whether no signal of this rung or a higher one is above where it lets go."""
        return not any(
            rung >= self.rung and self._signal(trigger) >= down for rung, trigger, _, down in _STEPS
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


def _above(rung: Rung) -> Rung:
    return next(step[0] for step in _STEPS if step[0] > rung)


def _below(rung: Rung) -> Rung:
    return next((step[0] for step in reversed(_STEPS) if step[0] < rung), Rung.NORMAL)
