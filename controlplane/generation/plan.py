"""A generation that was checked, tokenised and let in: what it is asked and held to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from controlplane.deployed import ModelInfo
from controlplane.generation.records import GenerationAsk
from controlplane.policy.decode import Route
from controlplane.policy.records import RequestClass
from controlplane.telemetry.trace import CallTrace


@dataclass(frozen=True, slots=True)
class Plan:
    """A checked generation, ready to be sent; times in ns of the control plane's clock.

    `trace` is what records it; without one `traceparent` is passed on as the caller sent it.
    Workers let it share cached prefixes with others of its `prefix_scope` only, and serve it in
    turn with other accounts than its own, by the accounts' `weights` and within `account_room` of
    their steps; its answers are foreseen to be `work_price` times as long as such are. It was
    planned on this level of the overload ladder; `cut` says that its answer was made shorter for
    that. A `whole` one may begin anew after a part of its answer.
    """

    id: int
    ask: GenerationAsk
    klass: RequestClass
    model: ModelInfo
    prompt: tuple[int, ...]
    arrived_ns: int
    deadline_ns: int
    target_ns: int
    token_ns: int
    traceparent: str
    response_ns: int
    planned_ns: int = 0
    trace: CallTrace | None = None
    prefix_scope: str = ""
    account: str = ""
    weights: Mapping[str, float] = field(default_factory=dict)
    work_price: float = 1.0
    account_room: float = 1.0
    overload_level: int = 0
    cut: bool = False
    whole: bool = False

    def output_limit(self, route: Route | None) -> int:
        """The most tokens of one answer: as asked, else what the route leaves; 0 without either."""
        if self.ask.limits.max_tokens or route is None:
            return self.ask.limits.max_tokens
        return max(1, route.most_tokens - len(self.prompt))
