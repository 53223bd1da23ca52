"""How far a generation is, and what it has cost."""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.generation.records import GenerationUsage
from controlplane.policy.decode import Choice, Route
from controlplane.policy.decode_cost import Cost, Setting
from controlplane.policy.records import Provenance


@dataclass(slots=True)
class Progress:
    """What a generation's spans and counters say of it; times in ns, 0 before they are known.

    `sent_ns` and `placed_ns` are on the clock, the first token counts from the arrival. `route` is
    where it was sent last, to a worker with so many `threads`, where it came to be one of `width`
    that write. `usage` is what its worker says it took, `unfinished` what one must have taken that
    ended without such an account.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    tokens: int = 0
    sends: int = 0
    lost: int = 0
    width: int = 0
    threads: int = 1
    sent_ns: int = 0
    placed_ns: int = 0
    first_token_ns: int = 0
    first_in_target: bool = False
    finish: str = ""
    choice: Choice | None = None
    route: Route | None = None
    usage: GenerationUsage | None = None
    unfinished: Cost | None = None
    provenance: Provenance | None = None

    def begin_again(self) -> None:
        """What was made of the answer is lost; another worker makes it anew."""
        self.tokens, self.first_token_ns, self.first_in_target = 0, 0, False
        self.finish = ""

    def setting(self, route: Route) -> Setting:
        """Where it ran, by what was known when it was sent there."""
        return Setting(route.profile, self.threads, self.width, route.load.cached_tokens)

    def charged(self) -> tuple[int, int]:
        """CPU time in ns, and tokens times ms held: as measured, else as foretold for its part."""
        if self.usage is not None:
            cpu_ns = self.usage.prefill_cpu_ns + self.usage.decode_cpu_ns
            return cpu_ns, self.usage.live_token_ms
        if self.unfinished is None:
            return 0, 0
        cost = self.unfinished
        return int(cost.prefill_ns + cost.decode_ns), int(cost.live_token_ms)
