"""The overload ladders of the models that generate: their signals, and what newcomers are told."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from controlplane.config import ControlPlaneConfig
from controlplane.errors import Overloaded
from controlplane.generation.lanes import Lanes
from controlplane.generation.records import GenerationLimits
from controlplane.policy.admission import Load, Refusal
from controlplane.policy.decode import Route, alone_ns, first_token_ns
from controlplane.policy.ladder import Ladder
from controlplane.policy.records import RequestClass
from controlplane.registry import Registry

_MS = 1_000_000
# A full arena hurts those who are in it while they preempt each other, and so long after.
_THRASH_NS = 2_000_000_000
_TOLD = {
    Refusal.DEFERRED: "under overload generations of deferrable classes wait outside",
    Refusal.PROTECTING: "nobody is let in until those who were are safe",
}


class Overload:
    """Keeps a ladder for each model that generates. Lives on the event loop."""

    def __init__(self, config: ControlPlaneConfig, registry: Registry, lanes: Lanes) -> None:
        self._classes = config.classes
        self._token_ns = config.default_token_target_ms * _MS
        self._registry = registry
        self._lanes = lanes
        self.ladders: dict[str, Ladder] = {}
        # By model: preemptions as last reported, and when there were last more of them.
        self._preempted: dict[str, tuple[int, int]] = {}

    def ladder(self, model: str) -> Ladder:
        """The ladder of a model, on its lowest rung when nobody has asked for it yet."""
        found = self.ladders.get(model)
        if found is None:
            found = self.ladders[model] = Ladder(generates=True)
        return found

    def newcomer(
        self,
        model: str,
        klass: RequestClass,
        routes: Iterable[Route],
        target_ns: int,
        token_ns: int,
        now_ns: int,
    ) -> Ladder:
        """A generation comes that could take these routes; Overloaded when it may not now."""
        ladder = self.ladder(model)
        load = _load(routes, token_ns)
        refused = ladder.newcomer(klass.deferrable, load, target_ns, now_ns)
        if refused is not None:
            raise Overloaded(_TOLD[refused.reason], refused.retry_after_ms, refused.reason)
        return ladder

    def limited(
        self, ladder: Ladder, klass: RequestClass, limits: GenerationLimits
    ) -> GenerationLimits:
        """The limits, cut where the class declares that shorter answers are still good enough.

        The same object when nothing was cut.
        """
        named = self._classes.get(klass.name)
        if named is None or not klass.approximation:
            return limits
        if named.overload_output_quality < klass.minimum_quality:
            return limits
        most = ladder.shortened(limits.max_tokens, named.overload_output_tokens)
        return limits if most == limits.max_tokens else replace(limits, max_tokens=most)

    def told(self, model: str, *, refused: bool) -> None:
        """Workers took a newcomer in, or had no place for it."""
        self.ladder(model).told(refused)

    def lags(self, lag_ns: float, next_ns: int) -> None:
        """The event loop is so late, and is looked at again then."""
        for ladder in self.ladders.values():
            ladder.looked(lag_ns, next_ns)

    def refresh(self, now_ns: int) -> None:
        """Look at every ladder's signals; call it often."""
        for model, ladder in self.ladders.items():
            routes = self._routes(model)
            ladder.arena = self._arena(model, routes, now_ns)
            load = _load(routes, self._token_ns)
            ladder.observe(load.total_ns, load.workers, now_ns)

    def _routes(self, model: str) -> list[Route]:
        membership = self._registry.membership(model)
        if membership is None or membership.model.generation is None:
            return []
        found = []
        for lane in self._lanes.serving(model):
            for name in membership.workers.get(lane.session.number, ()):
                variant = lane.session.models[model].variant(name)
                if variant.decode is not None:
                    found.append(lane.route(model, membership.model.generation.context, variant))
        return found

    def _arena(self, model: str, routes: Iterable[Route], now_ns: int) -> float:
        """How full the emptiest arena is, 0 to 1; 0 unless sequences preempt each other."""
        fills, preemptions = [], 0
        for route in routes:
            total = route.load.total_blocks
            left = route.load.free_blocks + route.load.evictable_blocks
            fills.append(1.0 - left / total if total else 0.0)
            preemptions += route.load.preemptions
        before, at_ns = self._preempted.get(model, (preemptions, -_THRASH_NS))
        if preemptions > before:
            at_ns = now_ns
        self._preempted[model] = preemptions, at_ns
        return min(fills, default=0.0) if now_ns - at_ns < _THRASH_NS else 0.0


def _load(routes: Iterable[Route], token_ns: int) -> Load:
    """What a newcomer waits on the best of the routes, beyond what a token takes there alone."""
    waits = [first_token_ns(route, 1, token_ns) - alone_ns(route, 1) for route in routes]
    wait = max(0.0, min(waits, default=0.0))
    return Load(wait_ns=wait, total_ns=wait, queued=0, workers=1, idle=0)
