"""What a pool does for cascades: which a request may take, and whether an answer is the last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from controlplane.errors import ControlPlaneError, Unavailable
from controlplane.policy.cascade import Calibration, Cascade, chance_of, first_by_ns
from controlplane.policy.drift import Drift
from controlplane.policy.entries import Choice, Taker
from controlplane.policy.orchid_cascade import MEASURABLE, OrchidCascade
from controlplane.policy.policies import Policy
from controlplane.policy.records import DecisionKind, Request
from controlplane.policy.second_line import SecondLine
from controlplane.policy.selector import Estimate, Reason, Situation, Stage

if TYPE_CHECKING:
    from controlplane.policy.pool import Pool


class FirstAnswer(NamedTuple):
    """A first answer as the policy sees it.

    `number` is its variant, `confidence` calibrated, `right` the chance that it is right by the
    evidence, `reason` why it is the last, empty when one of the variants of `stage` is to be asked
    too, which can be begun in time until `until_ns`; `shadow` is the variant that one behind the
    caller's back would ask. `drifted` when this has turned the class's cascades off.
    """

    number: int
    confidence: float
    right: float
    reason: str
    stage: Stage
    shadow: int
    until_ns: int = 0
    drifted: bool = False


class Cascading:
    """The cascades of one pool under one policy."""

    __slots__ = ("drift", "policy")

    def __init__(self, policy: OrchidCascade) -> None:
        self.policy = policy
        self.drift = Drift()

    def cascade_of(self, pool: Pool, request: Request) -> Cascade | None:
        """What a request with `eligible` set may take; None for no cascade.

        Requests of several sequences are answered by one variant: their answers would not be
        equally sure.
        """
        cascades, klass = pool.table.cascades, request.klass
        if cascades is None or len(request.eligible) < 2:
            return None
        for shape in request.shapes.values():
            if shape.items != 1:
                return None
        cascade = cascades.of(klass.population, request.eligible)
        return cascade if cascade is not None and self.drift.of(klass.name).on else None

    def calibration(self, request: Request, number: int) -> Calibration | None:
        """That of a variant that has answered; None when its answer is the last in any case."""
        cascade: Cascade | None = request.cascade
        if cascade is None or number not in cascade.after:
            return None
        return cascade.calibrations[number]

    def consider(
        self,
        pool: Pool,
        request: Request,
        number: int,
        confidence: float,
        now_ns: int,
        trip_ns: float,
    ) -> FirstAnswer:
        """Whether the answer of this variant, which has a `calibration`, is the last."""
        cascade: Cascade = request.cascade
        pairs = cascade.after[number]
        right, shadow = pairs[0].right(confidence), pairs[0].to
        off = self.drift.of(request.klass.name).answered(right, pairs[0].accuracy)
        gains = {pair.to: pair.gain(confidence) for pair in pairs}
        stage = Stage({to: gain for to, gain in gains.items() if gain > MEASURABLE})
        if not stage.gains:
            return FirstAnswer(number, confidence, right, Reason.CONFIDENT, stage, shadow, 0, off)
        targets = tuple([pair.to for pair in pairs if pair.to in stage.gains])
        estimates = pool.foresight.estimates(targets, pool.table.nominal_ns(request, targets))
        # Its turn comes when nobody waits for a first answer.
        start_ns = pool.free_times.wait_ns(0.0, pool.live, now_ns)
        situation = _situation(pool, request, now_ns, trip_ns)._replace(start_ns=start_ns)
        reason = self.policy.reconsider(confidence, stage.gains, estimates, situation)
        quick = min(estimates, key=_predicted)
        needed = trip_ns + quick.predicted_ns * (1.0 + quick.sigma)
        until_ns = first_by_ns(request) - int(needed)
        return FirstAnswer(number, confidence, right, reason, stage, shadow, until_ns, off)

    def may_shadow(self, pool: Pool, request: Request) -> bool:
        """Whether an answer that was the last may be compared: nobody waits, a worker idles."""
        calm = pool.idle > 0 and not pool.queued and not len(pool.seconds)
        wanted = calm and self.drift.of(request.klass.name).may_shadow()
        return wanted and pool.ladder.optional_work_allowed()

    def compare(
        self, request: Request, first: FirstAnswer, place: int, number: int, logits: Sequence[float]
    ) -> bool:
        """A second variant answered too; True when this has turned the class's cascades off.

        `place` is the class of the first answer, `logits` are those of variant `number`.
        """
        cascade: Cascade = request.cascade
        calibration = cascade.calibrations.get(number)
        if calibration is None:
            return False
        agreement = chance_of(logits, calibration, place)
        stage: Stage = request.stage
        watch = self.drift.of(request.klass.name)
        return watch.compare(first.right, agreement, shadow=stage.shadow)


def second_run(pool: Pool, taker: Taker, now_ns: int, trip_ns: float) -> Choice | None:
    """The second run that gains most for its time, or that it is not worth its price.

    For a worker to which nobody comes who waits for a first answer.
    """
    again = pool.seconds.head()
    if again is None:
        return None
    request, nominal = again
    estimates = pool.foresight.estimates(request.eligible, nominal, taker.mask)
    if not estimates:
        return None
    situation = _situation(pool, request, now_ns, trip_ns)._replace(
        start_ns=taker.start_ns,
        start_spread_ns=taker.start_spread_ns,
        waiting=pool.queued,
        stage=request.stage,
    )
    decision = pool.policy.decide(estimates, situation)
    pool.seconds.remove(request.id)
    if decision.kind is DecisionKind.DROP:
        return Choice(decision, None, (request,), 0, (False,))
    number = decision.variant
    place = request.eligible.index(number)
    approximations = (number != request.eligible[0],)
    candidate = pool.table.candidates[number]
    return Choice(decision, candidate, (request,), nominal[place], approximations)


def deployed_anew(seconds: SecondLine) -> list[tuple[Request, ControlPlaneError]]:
    """Takes everybody out: variants have other numbers now, and first answers are there."""
    requests = sorted(seconds.requests(), key=lambda request: request.id)
    for request in requests:
        seconds.remove(request.id)
    return [(request, Unavailable("the model was deployed anew")) for request in requests]


def _predicted(estimate: Estimate) -> float:
    return estimate.predicted_ns


def _situation(pool: Pool, request: Request, now_ns: int, trip_ns: float) -> Situation:
    return Situation(
        slack_ns=first_by_ns(request) - now_ns,
        deadline_ns=request.budget_ns,
        busy_ns=pool.busy.residual_ns(now_ns),
        queued_ns=pool.queued_work_ns(),
        waiting=0,
        workers=pool.live,
        hopeful_ns=0.0,
        trip_ns=trip_ns,
    )


def cascading_of(policy: Policy) -> Cascading | None:
    """The cascades of a pool under this policy; None under one that knows none."""
    return Cascading(policy) if isinstance(policy, OrchidCascade) else None
