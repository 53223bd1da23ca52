"""Variant choice when a worker frees: late binding with a reserve, as pure arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from controlplane.policy.cascade import Cascade
from controlplane.policy.margins import failure_ns, lucky_ns, slack_ns
from controlplane.policy.punctuality import FORETOLD, Punctuality
from controlplane.policy.records import Decision, DecisionKind

# Chosen by simulation; see docs/decisions/0012-reserve-follows-load.md.
_RESERVE_ROOM = 0.25
_RESERVE_CUT = 0.2
_RESERVE_SLOPE = 0.45


class Reason:
    """Stable words for why a decision was taken; they go to provenance and traces."""

    MOST_ACCURATE: Final = "most-accurate-in-reserve"
    LIMITED_BY_SLACK: Final = "limited-by-slack"
    LIMITED_BY_RESERVE: Final = "limited-by-reserve"
    LIMITED_BY_PRICE: Final = "limited-by-price"
    FASTEST_UNDER_LOAD: Final = "fastest-under-load"
    FASTEST_FOR_SLACK: Final = "fastest-for-slack"
    LAST_CHANCE: Final = "last-chance"
    ONLY_ELIGIBLE: Final = "only-eligible"
    FIXED_ACCURATE: Final = "fixed-most-accurate"
    FIXED_CHEAP: Final = "fixed-cheapest"
    FIXED_AT_ARRIVAL: Final = "fixed-at-arrival"
    SHED_UNLIKELY: Final = "shed-unlikely-on-time"
    EXPIRED: Final = "expired"
    # The runs of a cascade, and why a first answer was the last word.
    CASCADE: Final = "cascade"
    ESCALATED: Final = "escalated"
    CONFIDENT: Final = "confident-first-answer"
    BY_PRICE: Final = "first-answer-by-price"
    BY_SLACK: Final = "first-answer-by-slack"
    UNFINISHED: Final = "first-answer-unfinished"
    SHADOW: Final = "shadow"


class Stage(NamedTuple):
    """Why a request runs though it has an answer: what each variant would gain on that.

    `gains` is by variant number. A `shadow` runs only to be compared, when nobody waits.
    """

    gains: Mapping[int, float]
    shadow: bool = False


class Estimate(NamedTuple):
    """What one run of one variant takes: its variant number, corrected ns, relative spread.

    `quality` is what its answer is worth; `punctuality` knows how such predictions hold.
    """

    variant: int
    predicted_ns: float
    sigma: float
    quality: float = 0.0
    punctuality: Punctuality = FORETOLD

    def chance(self, slack_ns: float, ahead_ns: float) -> float:
        """Chance that it ends within the slack, with `ahead_ns` of way and wait before it."""
        return self.punctuality.share_within(slack_ns / (ahead_ns + self.predicted_ns))


class Situation(NamedTuple):
    """Everything a choice for the head of a queue rests on; times in ns.

    `slack_ns` is the time until the deadline, `deadline_ns` the whole time the request was
    given; `trip_ns` is the way to the worker and back; `start_ns` how long until the
    worker can start it, with standard deviation `start_spread_ns`; `busy_ns` the residual
    of all runs; `queued_ns` the corrected work waiting, each on its fastest variant,
    without the head; `waiting` how many wait behind the head; `workers` the live ones.
    `utilisation` is the share of the live workers that arrivals take at least.
    `hopeful_ns` is the head's fastest service by profile or correction, whichever is
    less: without completions a correction cannot heal, so the last chance trusts both.
    `cascade` and `stage` are the request's own, see `records.Request`.
    """

    slack_ns: int
    deadline_ns: int
    busy_ns: float
    queued_ns: float
    waiting: int
    workers: int
    hopeful_ns: float
    start_ns: float = 0.0
    start_spread_ns: float = 0.0
    trip_ns: float = 0.0
    utilisation: float = 0.0
    cascade: Cascade | None = None
    stage: Stage | None = None


def work_ns(estimate: Estimate, situation: Situation) -> float:
    """`W_k = (Σ_busy max(p - elapsed, 0.05 p) + Σ_queued p_f + p_k) / workers`."""
    ahead = situation.busy_ns + situation.queued_ns + estimate.predicted_ns
    return ahead / max(1, situation.workers)


def reserve_share(base: float, utilisation: float) -> float:
    """Share of a deadline that work may take before upgrades stop.

    `clip(base + 0.25 - 0.45 u, base - 0.2, base + 0.25)` for the utilisation u that no
    choice can avoid: with most of the workers free an upgrade that turns out badly is
    soon made good, near capacity it never is. `base` is what holds at u = 0.56.
    """
    share = base + _RESERVE_ROOM - _RESERVE_SLOPE * utilisation
    return min(1.0, base + _RESERVE_ROOM, max(share, base - _RESERVE_CUT, 0.0))


def late_binding(
    estimates: Sequence[Estimate], situation: Situation, *, z: float, reserve: float
) -> Decision:
    """The design's rule for the head of the queue.

    `estimates` are the eligible variants on this worker, most accurate first. With f the
    fastest: shed when `p_f (1 + z sigma_f) > slack` and somebody waits behind; otherwise
    the most accurate k with `p_k (1 + z sigma_k) <= slack` and `W_k <= reserve * D`; if
    there is none, f. With nobody behind, a run is tried while any chance is left.
    """
    fastest = min(estimates, key=_predicted)
    if situation.slack_ns <= 0:
        return drop(Reason.EXPIRED, fastest, situation)
    if not _on_time(fastest, situation, z):
        if situation.waiting or not has_chance(situation, fastest.sigma):
            return drop(Reason.SHED_UNLIKELY, fastest, situation)
        return run(Reason.LAST_CHANCE, fastest, estimates, situation)
    limit = reserve * situation.deadline_ns
    crowded = False
    for estimate in estimates:
        if estimate is fastest:
            # What follows is less accurate and, as corrections stand, slower.
            break
        if not _on_time(estimate, situation, z):
            continue
        if work_ns(estimate, situation) <= limit:
            reason = _why(estimate, estimates, crowded)
            return run(reason, estimate, estimates, situation)
        crowded = True
    if fastest is estimates[0]:
        reason = _why(fastest, estimates, crowded)
    else:
        reason = Reason.FASTEST_UNDER_LOAD if crowded else Reason.FASTEST_FOR_SLACK
    return run(reason, fastest, estimates, situation)


def fixed(estimate: Estimate, situation: Situation, reason: str) -> Decision:
    """Run the one variant that was fixed at arrival; drop only what has expired."""
    if situation.slack_ns <= 0:
        return drop(Reason.EXPIRED, estimate, situation)
    return run(reason, estimate, (estimate,), situation)


def spare_ns(estimate: Estimate, situation: Situation, z: float) -> float:
    """The slack of a request on one variant, every reserve of it measured; see `slack_ns`.

    Upstream are the learnt way to the worker and back, the answer's way to its caller and the
    rest of what the worker does; execution is the corrected prediction.
    """
    elapsed = situation.deadline_ns - situation.slack_ns
    fail = failure_ns(estimate.predicted_ns, estimate.sigma, z, situation.start_spread_ns)
    upstream = situation.trip_ns + situation.start_ns
    return slack_ns(situation.deadline_ns, elapsed, upstream, estimate.predicted_ns, fail)


def _on_time(estimate: Estimate, situation: Situation, z: float) -> bool:
    """Whether the estimate, with its margin, fits the slack."""
    return spare_ns(estimate, situation, z) >= 0.0


def has_chance(situation: Situation, sigma: float) -> bool:
    """Whether three standard deviations of luck would do."""
    lucky = lucky_ns(situation.hopeful_ns, sigma, situation.trip_ns)
    return situation.start_ns + lucky <= situation.slack_ns


def _predicted(estimate: Estimate) -> float:
    return estimate.predicted_ns


def _why(estimate: Estimate, estimates: Sequence[Estimate], crowded: bool) -> str:
    if len(estimates) == 1:
        return Reason.ONLY_ELIGIBLE
    if estimate is estimates[0]:
        return Reason.MOST_ACCURATE
    return Reason.LIMITED_BY_RESERVE if crowded else Reason.LIMITED_BY_SLACK


def run(
    reason: str,
    estimate: Estimate,
    estimates: Sequence[Estimate],
    situation: Situation,
    chance: float = -1.0,
) -> Decision:
    """Run the head on this one of the estimates; `chance` is its own when that is known."""
    if chance < 0.0:
        ahead = situation.trip_ns + situation.start_ns
        chance = estimate.chance(situation.slack_ns, ahead)
    return Decision(
        kind=DecisionKind.RUN,
        variant=estimate.variant,
        reason=reason,
        slack_ns=situation.slack_ns,
        predicted_ns=estimate.predicted_ns,
        work_ahead_ns=work_ns(estimate, situation),
        approximation=estimate is not estimates[0],
        chance=chance,
    )


def drop(reason: str, fastest: Estimate, situation: Situation) -> Decision:
    """Drop the head, which its fastest variant cannot answer in time."""
    return Decision(
        kind=DecisionKind.DROP,
        variant=-1,
        reason=reason,
        slack_ns=situation.slack_ns,
        predicted_ns=fastest.predicted_ns,
        work_ahead_ns=work_ns(fastest, situation),
        approximation=False,
    )
